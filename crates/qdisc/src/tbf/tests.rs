use fullsend_wire::{Instant, Nanos, Rate};
use proptest::prelude::*;

use super::Tbf;
use crate::{QueuedPacket, TbfConfig};

struct Packet(u32);

impl QueuedPacket for Packet {
    fn wire_len(&self) -> u32 {
        self.0
    }
}

/// Keeps the queue full for `span`; returns the bytes that left, and the most that left at once.
fn drain(config: TbfConfig, sizes: &[u32], span: Nanos) -> (u64, u64) {
    let mut tbf = Tbf::new(config);
    let mut sizes = sizes.iter().cycle();
    let (mut now, end) = (Instant::ZERO, Instant::ZERO + span);
    let (mut all, mut most) = (0, 0);
    while now <= end {
        let mut at_once = 0;
        loop {
            while tbf.queue.len() < 2 {
                assert!(tbf.enqueue(Packet(*sizes.next().unwrap())).is_ok());
            }
            match tbf.dequeue(now) {
                Some(packet) => at_once += u64::from(packet.0),
                None => break,
            }
        }
        all += at_once;
        most = most.max(at_once);
        let next = tbf.next_departure().unwrap();
        assert!(next > now, "polled again at once, but nothing may leave");
        now = next;
    }
    (all, most)
}

#[test]
fn a_burst_leaves_at_once_and_then_at_the_rate() {
    let config = TbfConfig {
        limit: u64::MAX,
        ..TbfConfig::new(Rate(12_500_000), 15_000)
    };
    let (all, most) = drain(config, &[1500], Nanos::from_secs(1));
    assert_eq!(most, 15_000);
    assert_eq!(all, 12_500_000 / 1500 * 1500 + 15_000);
}

#[test]
fn a_super_segment_larger_than_the_bucket_is_charged_in_full() {
    let config = TbfConfig {
        limit: u64::MAX,
        ..TbfConfig::new(Rate(12_500_000), 3_000)
    };
    let (all, _) = drain(config, &[65_000], Nanos::from_secs(1));
    // The first packet leaves at once.
    assert_eq!(all, (12_500_000 / 65_000 + 1) * 65_000);
}

#[test]
fn the_limit_counts_bytes_and_an_empty_queue_accepts_any_packet() {
    let mut tbf = Tbf::new(TbfConfig {
        rate: Rate(1),
        burst: 1,
        limit: 3000,
    });
    assert!(tbf.enqueue(Packet(5000)).is_ok());
    assert!(tbf.enqueue(Packet(1)).is_err());
    assert!(tbf.dequeue(Instant::ZERO).is_some());
    assert!(tbf.enqueue(Packet(1500)).is_ok());
    assert!(tbf.enqueue(Packet(1500)).is_ok());
    assert!(tbf.enqueue(Packet(1)).is_err());
    let stats = tbf.stats();
    assert_eq!(
        (
            stats.sent_bytes,
            stats.backlog_bytes,
            stats.backlog_packets,
            stats.dropped
        ),
        (5000, 3000, 2, 2)
    );
}

#[test]
fn an_overlimit_wait_is_counted_once() {
    let config = TbfConfig::new(Rate(1000), 1000);
    let mut tbf = Tbf::new(TbfConfig {
        limit: 2000,
        ..config
    });
    assert!(tbf.enqueue(Packet(1000)).is_ok() && tbf.enqueue(Packet(500)).is_ok());
    assert!(tbf.dequeue(Instant::ZERO).is_some());
    for ms in [0, 100, 499] {
        assert!(
            tbf.dequeue(Instant::ZERO + Nanos::from_millis(ms))
                .is_none()
        );
    }
    assert_eq!(tbf.stats().overlimits, 1);
    assert!(
        tbf.dequeue(Instant::ZERO + Nanos::from_millis(500))
            .is_some()
    );
}

proptest! {
    #[test]
    fn never_more_than_rate_and_burst(
        rate in 1_000_u64..100_000_000_000,
        burst in 1_u32..200_000,
        sizes in proptest::collection::vec(40_u32..70_000, 1..8),
    ) {
        let config = TbfConfig { rate: Rate(rate), burst, limit: u64::MAX };
        let largest = u64::from(*sizes.iter().max().unwrap());
        // Long enough for some hundred packets.
        let span = Rate(rate).time_for(largest * 300);
        let (all, _) = drain(config, &sizes, span);
        let allowed = u64::from(burst).max(largest) + largest * 300;
        let least = largest * 299;
        prop_assert!((least..=allowed + largest).contains(&all), "{all} of {least}..={allowed}");
    }
}

#[test]
fn a_queue_is_empty_until_a_packet_waits() {
    let mut tbf = Tbf::new(TbfConfig::new(Rate(1000), 1000));
    assert!(tbf.is_empty());
    assert!(tbf.enqueue(Packet(100)).is_ok());
    assert!(!tbf.is_empty());
    assert!(tbf.dequeue(Instant::ZERO).is_some());
    assert!(tbf.is_empty());
}
