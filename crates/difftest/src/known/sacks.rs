//! Differences after SACK blocks that no receiver sends.

use fullsend_script::WireSegment;

use super::{KnownDifference, carries_data, has_fin, only_segments, spans};
use crate::compare::Difference;
use crate::event::{after, pattern};
use crate::history::{AcceptedAck, Range};
use crate::segment::is_pure_ack;

pub(super) const KNOWN: &[KnownDifference] = &[KnownDifference {
    name: "data sent after SACK blocks that no receiver sends",
    reason: "the blocks contradict each other, another ACK or the segments sent (RFC 2018 3 and 4), so that \
             no RFC defines which of them count; the sides use different ones, and thus retransmit \
             other segments and differ in cwnd",
    continues: false,
    matches: |_, d| {
        let sends = |s: &WireSegment| carries_data(s) || has_fin(s);
        let differing = || d.kernel_only.iter().chain(&d.ours_only);
        contradicts_any(d)
            && differing().any(sends)
            && differing().all(|s| (sends(s) || is_pure_ack(s)) && is_part_of_stream(d, s))
            && differs_by_one_flight(d)
            && only_segments(d)
    },
}];

/// Returns whether a segment's data are bytes that the application has written, at their place.
fn is_part_of_stream(difference: &Difference, segment: &WireSegment) -> bool {
    let written = difference.history.written.wrapping_add(1);
    let end = segment.seq.wrapping_add(segment.data.len() as u32);
    let bytes = segment.data.iter().zip(segment.seq..);
    !after(end, written) && bytes.into_iter().all(|(byte, seq)| *byte == pattern(seq))
}

/// Returns whether one side sends at most as many segments more as were sent before: what is in
/// flight limits cwnd.
fn differs_by_one_flight(difference: &Difference) -> bool {
    let (kernel, ours) = (
        spans(&difference.kernel.segments),
        spans(&difference.ours.segments),
    );
    let mut sent = difference.history.sent.0.clone();
    sent.sort_unstable();
    sent.dedup();
    kernel.len().abs_diff(ours.len()) <= sent.len()
}

/// Returns whether one of the accepted ACKs, including that of the event, has SACK blocks that
/// contradict themselves, the segments sent or another ACK.
fn contradicts_any(difference: &Difference) -> bool {
    let (kernel, ours) = &difference.history.sent;
    let sent = kernel.iter().chain(ours);
    let borders: Vec<u32> = sent.flat_map(|range| [range.0, range.1]).collect();
    let acks = &difference.acks;
    acks.iter().any(|ack| is_impossible(ack, &borders))
        || acks
            .iter()
            .enumerate()
            .any(|(at, later)| (acks[..at].iter()).any(|earlier| is_contradiction(earlier, later)))
}

/// Returns whether no receiver can send the SACK blocks of an ACK, whatever it has sent before.
/// `borders`: where the segments sent begin and end.
fn is_impossible(ack: &AcceptedAck, borders: &[u32]) -> bool {
    let is_border = |at: u32| at == ack.sent_end || borders.contains(&at);
    let is_wrong = |(left, right): &Range| {
        let straddles = !after(*left, ack.ack) && after(*right, ack.ack);
        let is_sent = after(*right, *left) && !after(*right, ack.sent_end);
        straddles || !is_sent || !is_border(*left) || !is_border(*right)
    };
    let (duplicate, blocks) = split_duplicate(ack);
    // Only the first block reports a duplicate (RFC 2883 4).
    let is_old = |(_, right): &Range| !after(*right, ack.ack);
    // A receiver joins blocks that touch each other.
    let meet = |a: &Range, b: &Range| !after(a.0, b.1) && !after(b.0, a.1);
    let meets = |(at, block): (usize, &Range)| blocks[..at].iter().any(|other| meet(block, other));
    duplicate.is_some_and(|(left, right)| !after(right, left) || !after(left, 0))
        || blocks.iter().any(is_wrong)
        || blocks.iter().any(is_old)
        || blocks.iter().enumerate().any(meets)
}

/// Returns whether no receiver can send both ACKs: what it has received can only grow, and so can
/// the acknowledgement number. `earlier` arrived first; the network may have reordered them.
fn is_contradiction(earlier: &AcceptedAck, later: &AcceptedAck) -> bool {
    let (lower, higher) = if after(earlier.ack, later.ack) {
        (later, earlier)
    } else {
        (earlier, later)
    };
    let (less, more) = (split_duplicate(lower).1, split_duplicate(higher).1);
    // Data that was sent after the higher ACK arrived is reported by a lower one.
    let is_later = |(_, right): &Range| after(*right, higher.sent_end);
    if lower.ack == higher.ack {
        return !includes(more, less, lower.ack) && !includes(less, more, lower.ack);
    }
    // The ACK of the first byte of a block covers the block. Otherwise a receiver may leave out the
    // blocks, e.g. on data.
    let misses = |(left, right): &Range| !after(*left, higher.ack) && after(*right, higher.ack);
    less.iter().any(is_later)
        || less.iter().any(misses)
        || !more.is_empty() && !includes(more, less, higher.ack)
}

/// Returns whether each of the `inner` blocks above `una` is part of one of the `outer` ones.
fn includes(outer: &[Range], inner: &[Range], una: u32) -> bool {
    let is_part = |inner: &Range| {
        let part = |outer: &Range| !after(outer.0, inner.0) && !after(inner.1, outer.1);
        !after(inner.1, una) || outer.iter().any(part)
    };
    inner.iter().all(is_part)
}

/// Returns the block that reports a duplicate (RFC 2883 4), and the other ones.
fn split_duplicate(ack: &AcceptedAck) -> (Option<Range>, &[Range]) {
    match &ack.sack[..] {
        [first, rest @ ..] if !after(first.1, ack.ack) => (Some(*first), rest),
        [first, rest @ ..]
            if (rest.first())
                .is_some_and(|next| !after(next.0, first.0) && !after(first.1, next.1)) =>
        {
            (Some(*first), rest)
        }
        all => (None, all),
    }
}

#[cfg(test)]
mod tests;
