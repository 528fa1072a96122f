use alloc::vec;
use alloc::vec::Vec;

use fullsend_wire::Instant;

use super::{Bucket, DEPTH, HeldRef, HeldTable, MAX_BUCKETS};
use crate::{Encap, Packet};

/// Returns a table that holds packets with these hashes at the indices 0, 1 and so on.
fn holding(hashes: impl IntoIterator<Item = u32>) -> (HeldTable, Vec<Packet>) {
    let mut table = HeldTable::default();
    let mut packets = vec![];
    for hash in hashes {
        packets.push(Packet::default());
        table.insert(hash, packets.len() - 1, Instant::ZERO, &mut packets);
    }
    (table, packets)
}

fn indices(table: &HeldTable) -> Vec<usize> {
    table.by_index().iter().map(|(index, _)| *index).collect()
}

/// Returns the indices of the packets held with this hash, in the order in which `find` inspects
/// them.
fn found(table: &HeldTable, hash: u32) -> Vec<usize> {
    let visited = core::cell::RefCell::new(vec![]);
    let none = table.find(hash, |held| {
        visited.borrow_mut().push(held.index());
        None::<()>
    });
    assert!(none.is_none());
    visited.into_inner()
}

fn at(table: &HeldTable, hash: u32) -> HeldRef {
    table.find(hash, |_| Some(())).unwrap().0
}

#[test]
fn buckets_of_earlier_polls_are_empty() {
    let mut table = HeldTable {
        poll: 1,
        ..HeldTable::default()
    };
    table.insert(7, 0, Instant::ZERO, &mut []);
    assert!(table.find(7, |_| Some(())).is_some());
    table.complete_all(&mut []);
    assert!(table.is_empty() && table.find(7, |_| Some(())).is_none());
    table.poll = u32::MAX;
    table.complete_all(&mut []);
    assert_eq!(table.poll, 1);
    assert!(table.find(7, |_| Some(())).is_none());
}

#[test]
fn find_returns_the_newest_packet_of_a_hash() {
    let (mut table, mut packets) = holding([7, 15, 7, 7]);
    assert_eq!(found(&table, 7), [3, 2, 0]);
    assert_eq!(found(&table, 15), [1]);
    assert!(found(&table, 23).is_empty());
    // After one is completed, the others keep their order.
    let second = table
        .find(7, |held| (held.index() == 2).then_some(()))
        .unwrap()
        .0;
    table.complete(second, &mut packets);
    assert_eq!(found(&table, 7), [3, 0]);
    assert_eq!(
        (found(&table, 15), indices(&table)),
        (vec![1], vec![0, 1, 3])
    );
    let last = at(&table, 7);
    table.complete(last, &mut packets);
    assert_eq!(found(&table, 7), [0]);
    // Its record is reused.
    table.insert(15, 9, Instant::ZERO, &mut packets);
    assert_eq!((found(&table, 15), table.records.len()), (vec![9, 1], 4));
    assert!(!table.is_empty());
}

/// A full bucket causes the number of buckets to be doubled if a quarter of all entries is in use.
#[test]
fn the_table_doubles_when_a_quarter_of_its_entries_are_used() {
    let full = |other: u32| (1..9).map(|n| n * 16).chain((0..other).map(|n| 1 + n * 16));
    // 8 buckets have 64 entries.
    for (other, buckets, held) in [
        (7, 8, (1..16).collect::<Vec<_>>()),
        (8, 16, (1..17).collect()),
    ] {
        let (mut table, mut packets) = holding(full(other));
        assert_eq!(table.buckets.len(), 8);
        packets.push(Packet::default());
        let index = packets.len() - 1;
        table.insert(9 * 16, index, Instant::ZERO, &mut packets);
        assert_eq!(table.buckets.len(), buckets, "{other} others");
        assert_eq!(indices(&table), held, "the oldest of the bucket has gone");
        assert_eq!(found(&table, 9 * 16), [index]);
    }
    // If the bucket is split, no packet is completed.
    let (table, _) = holding(
        (0..8)
            .map(|n| 8 + n * 8)
            .chain((0..8).map(|n| 1 + n * 8))
            .chain([72]),
    );
    assert_eq!((table.buckets.len(), indices(&table).len()), (16, 17));
    for hash in [8, 16, 64, 1, 57, 72] {
        assert_eq!(found(&table, hash).len(), 1, "{hash}");
    }
}

#[test]
fn there_are_no_more_than_512_buckets() {
    let mut table = HeldTable {
        buckets: vec![Bucket::default(); MAX_BUCKETS],
        ..HeldTable::default()
    };
    let mut packets = vec![Packet::default(); MAX_BUCKETS * DEPTH + 1];
    for index in 0..=MAX_BUCKETS * DEPTH {
        table.insert(index as u32, index, Instant::ZERO, &mut packets);
    }
    assert_eq!(table.buckets.len(), MAX_BUCKETS);
    assert_eq!(
        indices(&table),
        (1..=MAX_BUCKETS * DEPTH).collect::<Vec<_>>()
    );
}

#[test]
fn only_tunnelled_or_old_packets_are_completed() {
    let (mut table, mut packets) = holding([]);
    for index in 0..4 {
        packets.push(Packet::default());
        if index % 2 == 1 {
            packets[index].layers.encap = Encap::Gre;
        }
        let now = Instant::from_nanos(index as u64);
        table.insert(7, index, now, &mut packets);
    }
    let mut other = holding([7, 7]).0;
    table.complete_tunnelled(&mut packets);
    assert_eq!(indices(&table), [0, 2]);
    table.complete_older_than(Instant::from_nanos(2), &mut packets);
    assert_eq!(indices(&table), [2]);
    assert_eq!(found(&table, 7), [2]);
    table.complete_older_than(Instant::from_nanos(3), &mut packets);
    assert!(table.is_empty() && indices(&table).is_empty());
    // No packet of an ended poll remains.
    other.complete_all(&mut packets);
    assert!(other.is_empty() && indices(&other).is_empty() && found(&other, 7).is_empty());
    other.complete_older_than(Instant::from_nanos(9), &mut packets);
    assert!(other.is_empty());
}

/// Entries that an ended poll left in a bucket are not valid.
#[test]
fn a_bucket_that_was_full_is_empty_in_the_next_poll() {
    let (mut table, mut packets) = holding([7; DEPTH].into_iter().chain([6]));
    table.complete_all(&mut packets);
    for index in 0..DEPTH {
        table.insert(7, index, Instant::ZERO, &mut packets);
        assert_eq!(indices(&table).len(), index + 1);
        assert!(!table.is_empty());
    }
    table.insert(7, DEPTH, Instant::ZERO, &mut packets);
    assert_eq!(indices(&table), (1..=DEPTH).collect::<Vec<_>>());
}

#[test]
fn completed_packets_leave_their_bucket() {
    let (mut table, mut packets) =
        holding((1..9).map(|n| n * 16).chain((0..8).map(|n| 1 + n * 16)));
    let one = at(&table, 1);
    table.complete(one, &mut packets);
    // 15 packets are held in 64 entries.
    table.insert(9 * 16, 20, Instant::ZERO, &mut packets);
    assert_eq!(table.buckets.len(), 8);
}
