use alloc::vec;
use alloc::vec::Vec;

use fullsend_offload::{Chain, Pool, Slice};
use proptest::prelude::*;

use super::{SUPER_SEGMENT_OVERHEAD_BYTES, WriteQueue};

const GOAL: usize = 65_160;

fn bytes_of(chain: &Chain) -> Vec<u8> {
    let mut out = vec![0; chain.len()];
    chain.copy_to(&mut out);
    out
}

#[test]
fn small_writes_become_one_slice_per_full_super_segment() {
    let pool = Pool::new(1 << 20);
    let mut queue = WriteQueue::new();
    let mut slices = Vec::new();
    for _ in 0..20 {
        while queue.len() < GOAL {
            queue.append(&pool, &[7; 128], GOAL, false);
        }
        let taken = queue.take(GOAL);
        assert_eq!(taken.payload.len(), GOAL);
        slices.push(taken.payload.slices().len());
    }
    // Chunks of 512 bytes, 2, 16 and 64 KiB first; then the size is known.
    assert_eq!(slices[0], 4, "{slices:?}");
    assert!(slices[2..].iter().all(|&n| n <= 2), "{slices:?}");
}

#[test]
fn a_small_message_pins_a_small_chunk() {
    let pool = Pool::new(1 << 20);
    let mut queue = WriteQueue::new();
    for _ in 0..3 {
        queue.append(&pool, &[1; 100], GOAL, false);
        assert_eq!(queue.truesize(), 512);
        let taken = queue.take(GOAL);
        assert_eq!(taken.truesize, 512 + SUPER_SEGMENT_OVERHEAD_BYTES);
        assert_eq!(taken.payload.pinned(), 512);
        assert_eq!(queue.truesize(), 0);
    }
    queue.append(&pool, &[1; 4096], GOAL, false);
    assert_eq!(queue.take(GOAL).payload.pinned(), 4096);
}

#[test]
fn block_shared_by_super_segments_is_charged_once() {
    let pool = Pool::new(1 << 20);
    let mut queue = WriteQueue::new();
    queue.append(&pool, &[1; 10_000], GOAL, false);
    let charged = queue.truesize();
    let sum: u32 = (0..4)
        .map(|_| queue.take(2896).truesize - SUPER_SEGMENT_OVERHEAD_BYTES)
        .sum();
    assert_eq!((sum as usize, queue.truesize()), (charged, 0));
}

#[test]
fn tail_is_the_data_after_the_last_full_super_segment() {
    let pool = Pool::new(1 << 20);
    let mut queue = WriteQueue::new();
    assert_eq!(queue.tail_room(1000), 0);
    queue.append(&pool, &[1; 1500], 1000, false);
    assert_eq!((queue.tail_len(), queue.tail_room(1000)), (500, 500));
    queue.append(&pool, &[1; 500], 1000, false);
    assert_eq!((queue.tail_len(), queue.tail_room(1000)), (1000, 0));
    queue.append_slice(Slice::copied_from(&[2; 2300]), 1000);
    assert_eq!((queue.len(), queue.tail_len()), (4300, 300));
    queue.append_slice(Slice::copied_from(&[2; 700]), 1000);
    assert_eq!(queue.tail_len(), 1000);
    let _ = queue.take(4200);
    assert_eq!((queue.len(), queue.tail_len()), (800, 800));
}

#[test]
fn an_empty_queue_holds_no_memory() {
    let pool = Pool::new(1 << 24);
    let mut queue = WriteQueue::new();
    for _ in 0..100 {
        queue.append(&pool, &vec![1; 60_000], GOAL, false);
    }
    drop(queue.take(usize::MAX));
    assert!(queue.is_empty() && queue.buf.is_none());
    assert!(queue.slices.capacity() <= super::KEPT_SLICES);
    assert!(size_of::<WriteQueue>() <= 80);
}

/// `SO_SNDBUF` charges each super-segment: full ones, and the one that is being filled.
#[test]
fn super_segments_are_counted_by_the_size_goal() {
    let pool = Pool::new(1 << 20);
    for (len, super_segments) in [(0, 0), (1, 1), (1000, 1), (1001, 2), (2000, 2), (2500, 3)] {
        let mut queue = WriteQueue::new();
        queue.append(&pool, &vec![1; len], 1000, false);
        assert_eq!(queue.super_segments(1000), super_segments, "{len}");
    }
    // After a record's end no super-segment has begun yet.
    let mut queue = WriteQueue::new();
    queue.append(&pool, &[1; 500], 1000, false);
    queue.end_super_segment();
    assert_eq!(queue.super_segments(1000), 1);
    queue.append(&pool, &[1; 500], 1000, false);
    assert_eq!(queue.super_segments(1000), 2);
}

/// `MSG_EOR`: no data is appended to a super-segment that a record's end closed, although its chunk
/// has room.
#[test]
fn nothing_is_appended_to_an_ended_super_segment() {
    let pool = Pool::new(1 << 20);
    let mut queue = WriteQueue::new();
    assert_eq!(queue.buf_remaining(), 0);
    queue.append(&pool, &[1; 100], GOAL, false);
    assert_eq!(queue.buf_remaining(), 412);
    queue.end_super_segment();
    assert!(!queue.try_append_to_tail(&[1], GOAL));
    assert_eq!(queue.buf_remaining(), 412);
}

/// A chunk of 512 bytes with less than a quarter of a super-segment left is closed with the
/// super-segment in it, so that the next one lies in a single chunk.
#[test]
fn nearly_full_block_is_closed_with_its_super_segment() {
    let pool = Pool::new(1 << 20);
    for (goal, closed) in [
        (400, false),
        (409, false),
        (410, false),
        (411, true),
        (412, true),
    ] {
        let mut queue = WriteQueue::new();
        queue.append(&pool, &vec![1; goal], goal, true);
        assert_eq!(queue.truesize(), 512);
        queue.append(&pool, &[1], goal, true);
        assert_eq!(queue.slices.len(), usize::from(closed), "{goal}");
    }
}

/// A write is cut where the allocator fails, and returns the number of bytes accepted.
#[test]
fn refused_allocation_shortens_a_write() {
    let pool = Pool::new(1 << 20);
    let mut queue = WriteQueue::new();
    assert_eq!(queue.append(&pool, &[1; 100], GOAL, false), 100);
    pool.set_reserve(usize::MAX);
    assert_eq!(queue.append(&pool, &[1; 600], GOAL, false), 412);
    assert_eq!((queue.len(), queue.tail_len()), (512, 512));
}

#[derive(Clone, Debug)]
enum Op {
    Write(u16),
    Lend(u16),
    Take(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..300u16).prop_map(Op::Write),
        1 => any::<u16>().prop_map(Op::Write),
        1 => (0..5000u16).prop_map(Op::Lend),
        2 => (0..80_000u32).prop_map(Op::Take),
    ]
}

proptest! {
    /// Bytes are removed in the order in which they were appended; lengths and charges always
    /// agree.
    #[test]
    fn behaves_as_a_byte_queue(ops in prop::collection::vec(op(), 1..100), goal in 1..70_000usize) {
        let pool = Pool::new(1 << 20);
        let mut queue = WriteQueue::new();
        let mut model: Vec<u8> = Vec::new();
        let mut next = 0u32;
        let mut make = |len: u16| -> Vec<u8> {
            (0..len).map(|_| { next = next.wrapping_mul(1_664_525).wrapping_add(1); (next >> 24) as u8 }).collect()
        };
        for op in ops {
            match op {
                Op::Write(len) => {
                    let data = make(len);
                    if !queue.try_append_to_tail(&data, goal) {
                        queue.append(&pool, &data, goal, false);
                    }
                    model.extend(data);
                }
                Op::Lend(len) => {
                    let data = make(len);
                    queue.append_slice(Slice::copied_from(&data), goal);
                    model.extend(data);
                }
                Op::Take(limit) => {
                    let n = model.len().min(limit as usize);
                    let want: Vec<u8> = model.drain(..n).collect();
                    prop_assert_eq!(bytes_of(&queue.take(limit as usize).payload), want);
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert!(queue.tail_len() <= goal.min(queue.len()));
            prop_assert_eq!(queue.tail_len() == 0, queue.is_empty());
            prop_assert!(queue.truesize() >= queue.len());
            if queue.is_empty() {
                prop_assert_eq!(queue.truesize(), 0);
            }
        }
    }
}
