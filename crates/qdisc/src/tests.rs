use fullsend_wire::Instant;

use crate::{Qdisc, QdiscConfig, QueuedPacket};

/// A packet that uses every default of [`QueuedPacket`].
#[derive(PartialEq, Debug)]
struct Packet(u32);

impl QueuedPacket for Packet {
    fn wire_len(&self) -> u32 {
        self.0
    }
}

#[test]
fn queued_packet_defaults() {
    let mut packet = Packet(100);
    assert_eq!((packet.segments(), packet.flow()), (1, 0));
    assert_eq!(packet.departure(), Instant::ZERO);
    assert!(!packet.mark_ce());
}

#[test]
fn every_qdisc_enqueues_and_dequeues() {
    assert!(Qdisc::<Packet>::new(QdiscConfig::NoQueue).is_none());
    // 8 kbit/s are 1,000 bytes per second.
    for text in [
        "pfifo limit 2",
        "fq limit 2",
        "tbf rate 8kbit burst 100 limit 200",
    ] {
        let config: QdiscConfig = text.parse().unwrap();
        let mut qdisc = Qdisc::new(config).unwrap();
        let now = Instant::from_nanos(50);
        assert!(qdisc.is_empty(), "{text}");
        assert_eq!(qdisc.next_departure(), None, "{text}");
        assert_eq!(qdisc.enqueue(now, Packet(100)), Ok(()), "{text}");
        assert_eq!(qdisc.next_departure(), Some(Instant::ZERO), "{text}");
        assert!(!qdisc.is_empty(), "{text}");
        assert_eq!(qdisc.enqueue(now, Packet(90)), Ok(()), "{text}");
        assert_eq!(qdisc.enqueue(now, Packet(80)), Err(Packet(80)), "{text}");
        assert_eq!(qdisc.dequeue(now), Some(Packet(100)), "{text}");
        let next = qdisc.next_departure().unwrap();
        let expected = if text.starts_with("tbf") {
            // The bucket of 100 bytes is empty: it has tokens for 90 bytes after 90 ms.
            Instant::from_nanos(90_000_050)
        } else {
            Instant::ZERO
        };
        assert_eq!(next, expected, "{text}");
        assert_eq!(qdisc.dequeue(next.max(now)), Some(Packet(90)), "{text}");
        assert!(qdisc.is_empty(), "{text}");
        let stats = qdisc.stats();
        assert_eq!(stats.config, config);
        assert_eq!(
            (stats.sent_packets, stats.sent_bytes, stats.dropped),
            (2, 190, 1)
        );
    }
}

/// A super-segment, whose packets leave far in the future.
#[derive(PartialEq, Debug)]
struct SuperSegment(u64);

impl QueuedPacket for SuperSegment {
    fn wire_len(&self) -> u32 {
        100
    }

    fn segments(&self) -> u32 {
        7
    }

    fn flow(&self) -> u64 {
        1
    }

    fn departure(&self) -> Instant {
        Instant::from_nanos(self.0)
    }
}

#[test]
fn dropped_super_segments_count_as_their_packets() {
    for (text, last, plimit, horizon) in [
        ("pfifo limit 1", 0, 0, 0),
        ("tbf rate 8kbit burst 100 limit 100", 0, 0, 0),
        ("fq limit 1", 0, 0, 0),
        ("fq flow_limit 1", 0, 7, 0),
        ("fq horizon 1s horizon_drop", 2_000_000_000, 0, 7),
    ] {
        let mut qdisc = Qdisc::new(text.parse().unwrap()).unwrap();
        let now = Instant::from_nanos(50);
        assert!(qdisc.enqueue(now, SuperSegment(0)).is_ok(), "{text}");
        assert!(qdisc.enqueue(now, SuperSegment(last)).is_err(), "{text}");
        assert!(qdisc.dequeue(now).is_some(), "{text}");
        let stats = qdisc.stats();
        assert_eq!((stats.sent_packets, stats.dropped), (7, 7), "{text}");
        if let Some(fq) = stats.fq {
            assert_eq!((fq.flows_plimit, fq.horizon_drops), (plimit, horizon));
        }
    }
}
