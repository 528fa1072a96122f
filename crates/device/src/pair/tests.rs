use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fullsend_offload::{Checksum, Packet, Slice};

use super::{NicMode, PairConfig, pair};
use crate::Device;

fn packets(numbers: std::ops::Range<u8>) -> VecDeque<Packet> {
    let numbered = |n| Packet::from_frame(Slice::copied_from(&[n]));
    numbers.map(numbered).collect()
}

fn numbers(batch: &[Packet]) -> Vec<u8> {
    batch.iter().map(|p| p.to_bytes()[0]).collect()
}

fn config(nic: NicMode, queue: usize) -> PairConfig {
    PairConfig {
        nic,
        queue,
        ..PairConfig::default()
    }
}

#[test]
fn both_directions_keep_order() {
    let (mut a, mut b) = pair(config(NicMode::Tso, 8));
    let mut batch = packets(0..3);
    a.transmit(&mut batch).unwrap();
    a.transmit(&mut packets(3..5)).unwrap();
    b.transmit(&mut packets(100..102)).unwrap();
    assert!(batch.is_empty());

    let mut got = Vec::new();
    assert_eq!(b.receive(&mut got, 2).unwrap(), 2);
    // More packets arrive while the stash still has some.
    a.transmit(&mut packets(5..7)).unwrap();
    while b.receive(&mut got, 3).unwrap() > 0 {}
    assert_eq!(numbers(&got), [0, 1, 2, 3, 4, 5, 6]);

    got.clear();
    assert_eq!(a.receive(&mut got, 10).unwrap(), 2);
    assert_eq!(numbers(&got), [100, 101]);
    assert_eq!(a.receive(&mut got, 10).unwrap(), 0);
}

#[test]
fn fewer_than_max_means_that_the_queue_is_empty() {
    let (mut a, mut b) = pair(config(NicMode::Tso, 8));
    a.transmit(&mut packets(0..3)).unwrap();
    let mut got = Vec::new();
    assert_eq!(b.receive(&mut got, 2).unwrap(), 2);
    a.transmit(&mut packets(3..5)).unwrap();
    assert_eq!(b.receive(&mut got, 4).unwrap(), 3);
    assert_eq!(numbers(&got), [0, 1, 2, 3, 4]);
}

#[test]
fn packets_that_do_not_fit_stay_and_the_sender_is_notified_of_space() {
    let (mut a, mut b) = pair(config(NicMode::Tso, 4));
    let (a_notified, b_notified) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for (end, notified) in [(&a, &a_notified), (&b, &b_notified)] {
        let notified = notified.clone();
        end.on_ready(move || {
            notified.fetch_add(1, Ordering::Relaxed);
        });
    }
    let notified = || {
        (
            a_notified.load(Ordering::Relaxed),
            b_notified.load(Ordering::Relaxed),
        )
    };

    let mut batch = packets(0..6);
    a.transmit(&mut batch).unwrap();
    assert_eq!(numbers(batch.make_contiguous()), [4, 5]);
    assert_eq!(notified(), (0, 1));
    a.transmit(&mut batch).unwrap();
    assert_eq!((batch.len(), notified()), (2, (0, 1)));

    let mut got = Vec::new();
    b.receive(&mut got, 100).unwrap();
    assert_eq!(notified(), (1, 1));
    a.transmit(&mut batch).unwrap();
    assert_eq!((batch.len(), notified()), (0, (1, 2)));
    b.receive(&mut got, 100).unwrap();
    assert_eq!(numbers(&got), [0, 1, 2, 3, 4, 5]);
    // No sender waits for room now.
    assert_eq!(notified(), (1, 2));
}

#[test]
fn a_packet_is_completed_when_it_is_received() {
    let (mut a, mut b) = pair(config(NicMode::Tso, 8));
    let notified = Arc::new(AtomicUsize::new(0));
    let count = notified.clone();
    a.on_ready(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(!a.notify_completion());
    a.transmit(&mut packets(0..2)).unwrap();
    a.transmit(&mut packets(2..5)).unwrap();
    assert_eq!(a.in_flight(), 5);
    let mut got = Vec::new();
    b.receive(&mut got, 2).unwrap();
    assert_eq!((a.in_flight(), notified.load(Ordering::Relaxed)), (0, 0));

    a.transmit(&mut packets(5..6)).unwrap();
    assert!(a.notify_completion());
    while b.receive(&mut got, 8).unwrap() > 0 {}
    assert_eq!((a.in_flight(), notified.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn only_mtu_mode_packets_need_checksum_verification() {
    for (nic, want) in [
        (NicMode::Tso, Checksum::Partial),
        (NicMode::Mtu, Checksum::Unverified),
    ] {
        let (mut a, mut b) = pair(config(nic, 4));
        let mut batch = packets(0..1);
        batch[0].offload.checksum = Checksum::Partial;
        a.transmit(&mut batch).unwrap();
        let mut got = Vec::new();
        b.receive(&mut got, 4).unwrap();
        assert_eq!(got[0].offload.checksum, want);
        assert_eq!(a.caps().tx_checksum, nic == NicMode::Tso);
        assert_eq!(a.caps().tso4, nic == NicMode::Tso);
    }
}

#[test]
fn batch_memory_is_reused() {
    let (mut a, mut b) = pair(config(NicMode::Tso, 64));
    let (mut batch, mut got) = (VecDeque::new(), Vec::new());
    let mut warm = 0;
    for round in 0..100u8 {
        batch.extend(packets(0..20));
        a.transmit(&mut batch).unwrap();
        assert_eq!(b.receive(&mut got, 64).unwrap(), 20);
        got.clear();
        let held = batch.capacity() + got.capacity();
        if round == 10 {
            warm = held;
        }
        assert!(round < 10 || held <= warm.max(128));
    }
}
