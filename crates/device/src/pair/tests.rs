use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fullsend_buf::Slice;
use fullsend_offload::{Checksum, Packet};

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
fn fewer_than_asked_for_means_that_there_is_no_more() {
    let (mut a, mut b) = pair(config(NicMode::Tso, 8));
    a.transmit(&mut packets(0..3)).unwrap();
    let mut got = Vec::new();
    assert_eq!(b.receive(&mut got, 2).unwrap(), 2);
    a.transmit(&mut packets(3..5)).unwrap();
    assert_eq!(b.receive(&mut got, 4).unwrap(), 3);
    assert_eq!(numbers(&got), [0, 1, 2, 3, 4]);
}

#[test]
fn what_does_not_fit_stays_with_the_sender_who_is_told_of_room() {
    let (mut a, mut b) = pair(config(NicMode::Tso, 4));
    let (a_told, b_told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for (end, told) in [(&a, &a_told), (&b, &b_told)] {
        let told = told.clone();
        end.on_ready(move || {
            told.fetch_add(1, Ordering::Relaxed);
        });
    }
    let told = || {
        (
            a_told.load(Ordering::Relaxed),
            b_told.load(Ordering::Relaxed),
        )
    };

    let mut batch = packets(0..6);
    a.transmit(&mut batch).unwrap();
    assert_eq!(numbers(batch.make_contiguous()), [4, 5]);
    assert_eq!(told(), (0, 1));
    a.transmit(&mut batch).unwrap();
    assert_eq!((batch.len(), told()), (2, (0, 1)));

    let mut got = Vec::new();
    b.receive(&mut got, 100).unwrap();
    assert_eq!(told(), (1, 1));
    a.transmit(&mut batch).unwrap();
    assert_eq!((batch.len(), told()), (0, (1, 2)));
    b.receive(&mut got, 100).unwrap();
    assert_eq!(numbers(&got), [0, 1, 2, 3, 4, 5]);
    // No sender waits for room now.
    assert_eq!(told(), (1, 2));
}

#[test]
fn a_packet_is_completed_when_the_receiver_takes_it() {
    let (mut a, mut b) = pair(config(NicMode::Tso, 8));
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    a.on_ready(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(!a.notify_completion());
    a.transmit(&mut packets(0..2)).unwrap();
    a.transmit(&mut packets(2..5)).unwrap();
    assert_eq!(a.in_flight(), 5);
    let mut got = Vec::new();
    b.receive(&mut got, 2).unwrap();
    assert_eq!((a.in_flight(), told.load(Ordering::Relaxed)), (0, 0));

    a.transmit(&mut packets(5..6)).unwrap();
    assert!(a.notify_completion());
    while b.receive(&mut got, 8).unwrap() > 0 {}
    assert_eq!((a.in_flight(), told.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn only_the_mtu_mode_leaves_checksums_to_be_verified() {
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
fn memory_of_batches_goes_around() {
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
