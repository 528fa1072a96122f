use fullsend_wire::Mss;
use fullsend_wire::tcp::SackBlock;

use super::super::tests::{MSS, at, block, entry, queue, seq};
use super::super::{RtxQueue, SuperSegment};
use super::{MAX_SACKED_RANGES, dsack_of};

fn delivered(q: &mut RtxQueue, left: u32, right: u32) -> u32 {
    let out = q.sack(at(9), seq(0), &[block(left, right)]);
    out.delivered_segs
}

/// A block covers whole segments only; a FIN is delivered with the data before it.
#[test]
fn a_fin_is_sacked_only_with_data_before_it() {
    // Without a FIN: the last segment lacks a byte.
    assert_eq!(delivered(&mut queue(&[300]), 100, 299), 1);
    // With a FIN, but the block ends before the last segments.
    let fin = |from, len| SuperSegment {
        fin: true,
        ..entry(from, len, 0)
    };
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    q.push(entry(0, 300, 0));
    q.push(fin(300, 250));
    assert_eq!(delivered(&mut q, 300, 400), 1);
    // A FIN without data.
    let mut q = queue(&[300]);
    q.push(fin(300, 0));
    assert_eq!(delivered(&mut q, 200, 300), 1);
    assert_eq!(delivered(&mut q, 200, 301), 1);
}

/// The FIN belongs to the last segment, even if that is full.
#[test]
fn a_segment_with_fin_ends_after_the_fin() {
    let mut q = queue(&[100]);
    q.push(SuperSegment {
        fin: true,
        ..entry(100, 200, 0)
    });
    let ends = [100, 101, 200, 201, 300].map(|n| q.ceil(seq(n)));
    assert_eq!(ends, [100, 200, 200, 301, 301].map(seq));
}

/// A hostile peer cannot create more than `MAX_SACKED_RANGES` ranges; existing ones may grow.
#[test]
fn a_separate_block_is_ignored_when_there_are_too_many_ranges() {
    let most = MAX_SACKED_RANGES as u32;
    // Every third segment.
    let mut q = queue(&[(3 * most + 12) * MSS]);
    for n in 0..most {
        let left = (3 * n + 1) * MSS;
        assert_eq!(delivered(&mut q, left, left + MSS), 1);
    }
    let segs = |a: u32, b: u32| (a * MSS, b * MSS);
    let end = 3 * most;
    for ((left, right), new) in [
        // Apart from all others.
        (segs(end + 3, end + 4), 0),
        // Adjoining the last one from above.
        (segs(end - 1, end), 1),
        // Adjoining the second one from below.
        (segs(3, 4), 1),
        // Around the third one.
        (segs(6, 9), 2),
        // Overlapping one, and beyond it.
        (segs(16, 18), 1),
        // Apart, although less than three segments lie between.
        (segs(end + 2, end + 3), 0),
    ] {
        assert_eq!(delivered(&mut q, left, right), new, "{left}..{right}");
    }
    q.check();
}

/// RFC 7323 2.3: no window is larger than 2^30 bytes, so a DSACK does not lie further back.
#[test]
fn a_dsack_older_than_a_window_is_ignored() {
    let una = seq(0);
    for (back, counts) in [(1 << 30, false), ((1 << 30) - 1, true), (0, true)] {
        let right = una - back;
        let old = SackBlock {
            left: right - 100,
            right,
        };
        assert_eq!(dsack_of(una, &[old]).is_some(), counts, "{back}");
    }
}
