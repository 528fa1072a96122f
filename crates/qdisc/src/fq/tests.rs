use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use fullsend_wire::{Instant, Nanos, Rate};
use proptest::prelude::*;

use super::Fq;
use crate::{FqConfig, FqStats, QdiscStats, QueuedPacket};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Packet {
    flow: u64,
    len: u32,
    departure: Instant,
    number: u32,
    ect: bool,
    ce: bool,
}

impl QueuedPacket for Packet {
    fn wire_len(&self) -> u32 {
        self.len
    }
    fn flow(&self) -> u64 {
        self.flow
    }
    fn departure(&self) -> Instant {
        self.departure
    }
    fn mark_ce(&mut self) -> bool {
        self.ce |= self.ect;
        self.ect
    }
}

fn packet(flow: u64, len: u32) -> Packet {
    Packet {
        flow,
        len,
        departure: Instant::ZERO,
        number: 0,
        ect: false,
        ce: false,
    }
}

fn paced(flow: u64, us: u64) -> Packet {
    Packet {
        departure: at(us),
        ..packet(flow, 1000)
    }
}

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

fn fq(config: FqConfig) -> Fq<Packet> {
    Fq::new(config)
}

fn own_counters(stats: &QdiscStats) -> FqStats {
    stats.fq.unwrap()
}

/// Dequeues all packets; returns their flows, in order.
fn drain(fq: &mut Fq<Packet>, now: Instant) -> Vec<u64> {
    core::iter::from_fn(|| fq.dequeue(now).map(|packet| packet.flow)).collect()
}

/// Keeps packets of each size queued, one flow per size, and lets `rounds` packets leave; returns
/// the bytes by flow.
fn share(config: FqConfig, sizes: &[u32], rounds: usize) -> Vec<u64> {
    let mut fq = fq(config);
    for (i, &len) in sizes.iter().enumerate() {
        for _ in 0..3 {
            fq.enqueue(at(0), packet(i as u64 + 1, len)).unwrap();
        }
    }
    let mut bytes = vec![0; sizes.len()];
    for _ in 0..rounds {
        let packet = fq.dequeue(at(0)).unwrap();
        bytes[packet.flow as usize - 1] += u64::from(packet.len);
        fq.enqueue(at(0), packet).unwrap();
    }
    bytes
}

#[test]
fn flows_share_bytes_fairly() {
    let bytes = share(FqConfig::default(), &[64, 1514, 9000, 65_000], 20_000);
    let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
    // Deficit round robin: the difference is at most a quantum, a packet and the initial quantum.
    assert!(most - least <= 65_000 + 3028 + 15_140, "{bytes:?}");
    assert!(*least > 1_000_000, "{bytes:?}");
}

#[test]
fn a_new_flow_is_first_and_sparse_flows_do_not_starve_others() {
    let mut fq = fq(FqConfig::default());
    for _ in 0..60 {
        fq.enqueue(at(0), packet(1, 1514)).unwrap();
    }
    // Flow 1 uses up its initial quantum.
    for _ in 0..10 {
        assert_eq!(fq.dequeue(at(0)).unwrap().flow, 1);
    }
    fq.enqueue(at(0), packet(2, 100)).unwrap();
    fq.dequeue(at(0)).unwrap();
    let mut old = 0;
    for _ in 0..20 {
        fq.enqueue(at(0), packet(2, 100)).unwrap();
        old += drain_one(&mut fq, 1);
        old += drain_one(&mut fq, 1);
    }
    // Each time the sparse flow is served, the other is served before it may go first again.
    assert!(old >= 10, "{old}");
}

fn drain_one(fq: &mut Fq<Packet>, flow: u64) -> u32 {
    u32::from(fq.dequeue(at(0)).unwrap().flow == flow)
}

#[test]
fn internal_packets_are_first_up_to_a_quota() {
    let mut fq = fq(FqConfig::default());
    for _ in 0..50 {
        fq.enqueue(at(0), packet(1, 1500)).unwrap();
    }
    fq.enqueue(at(0), packet(0, 60)).unwrap();
    assert_eq!(fq.dequeue(at(0)).unwrap().flow, 0);
    for _ in 0..500 {
        fq.enqueue(at(0), packet(0, 1500)).unwrap();
    }
    let order = drain(&mut fq, at(0));
    let first_550 = &order[..220];
    let flows = first_550.iter().filter(|flow| **flow == 1).count();
    assert!((15..=25).contains(&flows), "{flows} of 220");
    assert_eq!(own_counters(&fq.stats()).highprio, 501);
}

#[test]
fn a_flow_is_served_after_the_internal_quota() {
    let mut fq = fq(FqConfig {
        initial_quantum: 3000,
        ..FqConfig::default()
    });
    fq.enqueue(at(0), packet(0, 1500)).unwrap();
    assert_eq!(fq.next_departure(), Some(Instant::ZERO));
    fq.enqueue(at(0), packet(1, 100)).unwrap();
    for _ in 0..2 {
        fq.enqueue(at(0), packet(0, 1500)).unwrap();
    }
    // Two packets use up the 3,000 bytes exactly.
    assert_eq!(drain(&mut fq, at(0)), [0, 0, 1, 0]);
}

/// Returns a queue whose flows may send `quantum` bytes per round, the first included.
fn fq_with_quantum(quantum: u32) -> Fq<Packet> {
    fq(FqConfig {
        quantum,
        initial_quantum: quantum,
        ..FqConfig::default()
    })
}

/// Dequeues until the next packet of flow 1; returns the bytes of flow 2 that left before.
fn bytes_of_2_before_1(fq: &mut Fq<Packet>) -> u32 {
    core::iter::from_fn(|| fq.dequeue(at(0)))
        .take_while(|packet| packet.flow == 2)
        .map(|packet| packet.len)
        .sum()
}

#[test]
fn the_quantum_is_exact() {
    let mut fq = fq_with_quantum(3000);
    for flow in [1, 2].repeat(4) {
        fq.enqueue(at(0), packet(flow, 3000)).unwrap();
    }
    assert_eq!(drain(&mut fq, at(0)), [1, 2, 1, 2, 1, 2, 1, 2]);
}

#[test]
fn a_flow_in_debt_waits_for_as_many_rounds() {
    let mut fq = fq_with_quantum(3000);
    for _ in 0..60 {
        fq.enqueue(at(0), packet(2, 1500)).unwrap();
    }
    // Flow 2 has used up its first quantum, flow 1 is new: one flow in each list.
    assert_eq!([0; 2].map(|_| fq.dequeue(at(0)).unwrap().flow), [2, 2]);
    for _ in 0..2 {
        fq.enqueue(at(0), packet(1, 65_000)).unwrap();
    }
    // That flow 2 has used up its quantum is only detected when the next flow is selected.
    let first = core::iter::from_fn(|| fq.dequeue(at(0))).find(|packet| packet.flow == 1);
    assert_eq!(first.unwrap().len, 65_000);
    let bytes = bytes_of_2_before_1(&mut fq);
    assert!((60_000..=66_000).contains(&bytes), "{bytes}");
}

#[test]
fn a_single_flow_repays_its_debt_at_once() {
    let mut fq = fq_with_quantum(3000);
    for _ in 0..3 {
        fq.enqueue(at(0), packet(1, 65_000)).unwrap();
    }
    assert_eq!([0; 2].map(|_| fq.dequeue(at(0)).unwrap().flow), [1, 1]);
    for _ in 0..60 {
        fq.enqueue(at(0), packet(2, 1500)).unwrap();
    }
    let bytes = bytes_of_2_before_1(&mut fq);
    assert!((60_000..=69_000).contains(&bytes), "{bytes}");
}

#[test]
fn a_flow_that_has_just_emptied_is_not_new_again() {
    let mut fq = fq_with_quantum(3000);
    for _ in 0..10 {
        fq.enqueue(at(0), packet(1, 1000)).unwrap();
    }
    // Flow 1 uses up its first quantum with three packets.
    assert_eq!([0; 4].map(|_| fq.dequeue(at(0)).unwrap().flow), [1; 4]);
    fq.enqueue(at(0), packet(2, 100)).unwrap();
    assert_eq!([0; 2].map(|_| fq.dequeue(at(0)).unwrap().flow), [2, 1]);
    // RFC 8290 4.2: flow 2 is now behind flow 1, which has 1,000 bytes left.
    fq.enqueue(at(0), packet(2, 100)).unwrap();
    assert_eq!(drain(&mut fq, at(0))[..2], [1, 2]);
}

#[test]
fn a_flow_idle_for_more_than_40_ms_has_a_full_quantum() {
    for (idle_us, order) in [(1, [1, 2]), (40_000, [1, 2]), (40_001, [2, 1])] {
        let mut fq = fq_with_quantum(3000);
        fq.enqueue(at(0), packet(2, 3001)).unwrap();
        // The flow has a debt of one byte when it becomes idle.
        assert_eq!(drain(&mut fq, at(0)), [2]);
        let later = at(idle_us);
        fq.enqueue(later, packet(2, 100)).unwrap();
        fq.enqueue(later, packet(1, 100)).unwrap();
        assert_eq!(drain(&mut fq, later), order, "idle for {idle_us} us");
    }
}

#[test]
fn departure_times_are_exact() {
    let mut fq = fq(FqConfig::default());
    for (flow, us) in [(1, 500), (2, 200), (3, 900), (2, 700), (1, 501), (4, 0)] {
        fq.enqueue(at(0), paced(flow, us)).unwrap();
    }
    let mut order = Vec::new();
    let mut now = at(0);
    loop {
        while let Some(packet) = fq.dequeue(now) {
            assert_eq!(packet.departure, now);
            order.push(packet.flow);
        }
        let Some(next) = fq.next_departure() else {
            break;
        };
        assert!(next > now);
        assert!(
            fq.dequeue(Instant::from_nanos(next.as_nanos() - 1))
                .is_none()
        );
        now = next;
    }
    assert_eq!(order, [4, 2, 1, 1, 2, 3]);
    assert!(fq.is_empty());
    let stats = fq.stats();
    assert_eq!(
        (
            own_counters(&stats).throttled,
            own_counters(&stats).throttled_flows
        ),
        (5, 0),
        "each wait counts once"
    );
    assert_eq!(stats.overlimits, 5);
}

#[test]
fn a_throttled_flow_does_not_delay_others() {
    let mut fq = fq(FqConfig::default());
    fq.enqueue(at(0), paced(1, 1000)).unwrap();
    fq.enqueue(at(0), packet(1, 10)).unwrap();
    fq.enqueue(at(0), packet(2, 10)).unwrap();
    assert_eq!(drain(&mut fq, at(0)), [2]);
    assert_eq!(fq.next_departure(), Some(at(1000)));
    fq.enqueue(at(5), packet(3, 10)).unwrap();
    assert_eq!(fq.next_departure(), Some(Instant::ZERO));
    assert_eq!(drain(&mut fq, at(5)), [3]);
    // The order within a flow is kept.
    assert_eq!(drain(&mut fq, at(999)), []);
    assert_eq!(drain(&mut fq, at(1000)), [1, 1]);
}

#[test]
fn limits_drop_new_packets() {
    let mut fq = fq(FqConfig {
        limit: 5,
        flow_limit: 3,
        ..FqConfig::default()
    });
    for _ in 0..3 {
        fq.enqueue(at(0), packet(1, 100)).unwrap();
    }
    assert_eq!(fq.enqueue(at(0), packet(1, 7)), Err(packet(1, 7)));
    fq.enqueue(at(0), packet(2, 100)).unwrap();
    fq.enqueue(at(0), packet(0, 100)).unwrap();
    assert_eq!(fq.enqueue(at(0), packet(0, 7)), Err(packet(0, 7)));
    let stats = fq.stats();
    assert_eq!((stats.dropped, own_counters(&stats).flows_plimit), (2, 1));
    assert_eq!((stats.backlog_packets, stats.backlog_bytes), (5, 500));
    assert_eq!(drain(&mut fq, at(0)).len(), 5);
    assert_eq!((fq.stats().sent_packets, fq.stats().backlog_bytes), (5, 0));
}

#[test]
fn packets_beyond_the_horizon_are_dropped_or_capped() {
    let config = FqConfig {
        horizon: Nanos::from_millis(1),
        ..FqConfig::default()
    };
    let mut drops = fq(config);
    drops.enqueue(at(10), paced(1, 1010)).unwrap();
    assert_eq!(drops.enqueue(at(10), paced(1, 1011)), Err(paced(1, 1011)));
    assert_eq!(own_counters(&drops.stats()).horizon_drops, 1);
    let mut caps = fq(FqConfig {
        horizon_drop: false,
        ..config
    });
    caps.enqueue(at(10), paced(1, 50_000)).unwrap();
    assert!(caps.dequeue(at(10)).is_none());
    assert_eq!(caps.next_departure(), Some(at(1010)));
    assert_eq!(own_counters(&caps.stats()).horizon_caps, 1);
}

#[test]
fn ecn_capable_packets_above_ce_threshold_are_marked() {
    let mut fq = fq(FqConfig {
        ce_threshold: Some(Nanos::from_millis(1)),
        ..FqConfig::default()
    });
    let ect = |us| Packet {
        ect: true,
        ..paced(1, us)
    };
    for packet in [ect(0), paced(1, 0), ect(500)] {
        fq.enqueue(at(0), packet).unwrap();
    }
    let marks = [at(1001), at(1001), at(1500)].map(|now| fq.dequeue(now).unwrap().ce);
    // The third packet waited for its departure time, which does not count.
    assert_eq!(marks, [true, false, false]);
    assert_eq!(own_counters(&fq.stats()).ce_mark, 1);
}

#[test]
fn maxrate_paces_a_flow_despite_late_timers() {
    let mut fq = fq(FqConfig {
        maxrate: Some(Rate(1_000_000)),
        ..FqConfig::default()
    });
    for _ in 0..50 {
        fq.enqueue(at(0), packet(1, 1000)).unwrap();
    }
    let mut now = at(0);
    let mut sent = 0;
    while fq.dequeue(now).is_some() || fq.next_departure().is_some() {
        sent += 1;
        assert!(fq.dequeue(now).is_none(), "one in a millisecond");
        if let Some(next) = fq.next_departure() {
            now = next + Nanos::from_micros(100);
        }
        if sent == 50 {
            break;
        }
    }
    let spent = now.as_micros();
    assert!((49_000..=49_500).contains(&spent), "{spent} us for 50 ms");
}

#[test]
fn a_late_departure_is_compensated_up_to_half_of_the_gap() {
    let mut fq = fq(FqConfig {
        maxrate: Some(Rate(1_000_000)),
        ..FqConfig::default()
    });
    for _ in 0..4 {
        fq.enqueue(at(0), packet(1, 1000)).unwrap();
    }
    // 1,000 bytes take 1 ms; the packets are late by 0, 0.3 and 5 ms.
    for (now, next) in [(0, 1000), (1300, 2000), (7000, 7500)] {
        assert!(fq.dequeue(at(now)).is_some());
        assert!(fq.dequeue(at(now)).is_none());
        assert_eq!(fq.next_departure(), Some(at(next)), "sent at {now} us");
    }
}

#[test]
fn idle_flows_are_evicted() {
    let mut fq = fq(FqConfig::default());
    for flow in 1..=1000 {
        fq.enqueue(at(0), packet(flow, 100)).unwrap();
    }
    assert_eq!(own_counters(&fq.stats()).flows, 1000);
    drain(&mut fq, at(0));
    assert_eq!(own_counters(&fq.stats()).inactive, 1000);
    // An idle flow that gets a packet is reused.
    fq.enqueue(at(1), packet(5, 100)).unwrap();
    drain(&mut fq, at(1));
    // No flow is evicted before 3 s.
    fq.enqueue(at(2_999_999), packet(1000, 100)).unwrap();
    fq.enqueue(at(2_999_999), packet(2000, 100)).unwrap();
    assert_eq!(
        (
            own_counters(&fq.stats()).gc,
            own_counters(&fq.stats()).flows
        ),
        (0, 1001)
    );
    drain(&mut fq, at(2_999_999));
    let later = at(6_000_000);
    for flow in 1001..=1500 {
        fq.enqueue(later, packet(flow, 100)).unwrap();
    }
    let stats = own_counters(&fq.stats());
    assert_eq!((stats.gc, stats.flows, stats.inactive), (1000, 501, 1));
    drain(&mut fq, later);
}

#[test]
fn short_flows_do_not_fill_memory() {
    let mut fq = fq(FqConfig::default());
    for flow in 1..=200_000 {
        fq.enqueue(at(0), packet(flow, 100)).unwrap();
        assert_eq!(drain(&mut fq, at(0)), [flow]);
    }
    let stats = own_counters(&fq.stats());
    assert_eq!((stats.flows, stats.gc), (65_536, 200_000 - 65_536));
}

/// One action of a random test.
#[derive(Clone, Debug)]
enum Operation {
    Enqueue { flow: u64, len: u32, delay_us: u64 },
    Dequeue(u8),
    Wait(u64),
    UntilDue,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0_u64..6, 40_u32..70_000, prop_oneof![Just(0), 0_u64..5000])
            .prop_map(|(flow, len, delay_us)| Operation::Enqueue { flow, len, delay_us }),
        2 => (1_u8..9).prop_map(Operation::Dequeue),
        1 => (0_u64..3_000).prop_map(Operation::Wait),
        1 => Just(Operation::UntilDue),
    ]
}

fn small_config() -> impl Strategy<Value = FqConfig> {
    (
        5_u32..40,
        1_u32..12,
        256_u32..10_000,
        any::<bool>(),
        proptest::option::of((100_000_u64..1 << 30).prop_map(Rate)),
    )
        .prop_map(
            |(limit, flow_limit, quantum, horizon_drop, maxrate)| FqConfig {
                limit,
                flow_limit,
                quantum,
                initial_quantum: quantum * 2,
                horizon: Nanos::from_millis(3),
                horizon_drop,
                ce_threshold: None,
                maxrate,
            },
        )
}

/// A model of a queue's observable state.
#[derive(Default)]
struct Model {
    /// The packets of each flow, with the times at which they may leave.
    queued: BTreeMap<u64, VecDeque<(Packet, Instant)>>,
    horizon: Nanos,
    count: u32,
    accepted: u32,
    rejected: u64,
    dequeued: u32,
}

impl Model {
    fn enqueue(&mut self, fq: &mut Fq<Packet>, now: Instant, packet: Packet) {
        match fq.enqueue(now, packet) {
            Ok(()) => {
                let due = packet.departure.min(now + self.horizon);
                let queue = self.queued.entry(packet.flow).or_default();
                queue.push_back((packet, due));
                self.accepted += 1;
            }
            Err(returned) => {
                assert_eq!(returned, packet);
                self.rejected += 1;
            }
        }
    }

    fn dequeue(&mut self, fq: &mut Fq<Packet>, now: Instant) -> bool {
        let Some(packet) = fq.dequeue(now) else {
            let all = self.queued.values().flatten().count() as u32;
            assert_eq!(fq.next_departure().is_some(), all > 0, "a flow was lost");
            assert!(fq.next_departure().is_none_or(|at| at > now), "would spin");
            return false;
        };
        let queue = self.queued.get_mut(&packet.flow).unwrap();
        let (expected, due) = queue.pop_front().unwrap();
        assert_eq!(packet, expected, "order within a flow");
        assert!(packet.flow == 0 || due <= now, "early");
        self.dequeued += 1;
        true
    }
}

proptest! {
    #[test]
    fn packets_leave_once_in_order_and_not_early(
        config in small_config(),
        operations in proptest::collection::vec(operation(), 1..300),
    ) {
        let mut fq = fq(config);
        let mut model = Model { horizon: config.horizon, ..Model::default() };
        let mut now = at(1);
        for operation in operations {
            match operation {
                Operation::Enqueue { flow, len, delay_us } => {
                    model.count += 1;
                    let departure = now + Nanos::from_micros(delay_us);
                    let number = model.count;
                    let packet = Packet { departure, number, ..packet(flow, len) };
                    model.enqueue(&mut fq, now, packet);
                }
                Operation::Dequeue(n) => {
                    for _ in 0..n {
                        model.dequeue(&mut fq, now);
                    }
                }
                Operation::Wait(us) => now += Nanos::from_micros(us),
                Operation::UntilDue => {
                    while model.dequeue(&mut fq, now) {}
                    now = fq.next_departure().map_or(now, |at| at.max(now));
                }
            }
            let stats = fq.stats();
            prop_assert_eq!(stats.backlog_packets, model.accepted - model.dequeued);
            prop_assert_eq!(stats.dropped, model.rejected);
            prop_assert!(stats.backlog_packets <= config.limit);
        }
        while !fq.is_empty() {
            if !model.dequeue(&mut fq, now) {
                now = fq.next_departure().unwrap();
            }
        }
        prop_assert_eq!(model.dequeued, model.accepted);
        prop_assert_eq!(fq.stats().backlog_bytes, 0);
        prop_assert!(fq.dequeue(now).is_none() && fq.next_departure().is_none());
    }

    #[test]
    fn shares_are_fair_for_any_sizes(
        sizes in proptest::collection::vec(40_u32..70_000, 2..9),
        quantum in 256_u32..70_000,
    ) {
        let config = FqConfig { quantum, initial_quantum: quantum, ..FqConfig::default() };
        let bytes = share(config, &sizes, 3000);
        let largest = u64::from(*sizes.iter().max().unwrap());
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        prop_assert!(most - least <= 2 * (largest + u64::from(quantum)), "{:?}", bytes);
    }
}
