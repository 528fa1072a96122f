//! Differences in the size of cwnd. A segment more may be enough for the kernel or ours not to defer
//! the last ones (`tcp_tso_win_divisor`).

use fullsend_script::WireSegment;

use super::losses::count_sacked;
use super::sending::{acknowledged, most_deferred};
use super::{
    KnownDifference, ack_within_segment, carries_data, count_retransmitted, excess, has_fin,
    only_segments,
};
use crate::compare::Difference;
use crate::event::{ACK, FuzzEvent, after};
use crate::history::{AcceptedAck, Range, longest};

/// The least cwnd at which the kernel's HyStart ends slow start (`hystart_low_window`).
const HYSTART_LOW_WINDOW: usize = 16;
/// The degree of reordering, in segments, above which SACKed segments increase cwnd (`tcp_reordering`).
const TCP_REORDERING: u32 = 3;

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "the end of slow start after a train of ACKs",
        reason: "the kernel's HyStart also ends slow start, from 16 segments on, if the ACKs of a round \
                 trip arrive for longer than half of the minimum round-trip time; RFC 9406 4.2 considers \
                 only the delay of each ACK",
        continues: false,
        matches: |events, d| {
            let una = acknowledged(events, d);
            // Since then slow start increases our cwnd by one segment for each one that is acknowledged.
            let acked = acknowledged_since(d, 1, una);
            let in_flight = |common: &[Range]| {
                let mut sent = [&d.history.sent.0[..], common].concat();
                sent.retain(|(_, end)| after(*end, una));
                sent.sort_unstable();
                sent.dedup();
                sent.len()
            };
            let is_new = |range: &Range| !after(d.before.1.sent, range.0);
            count_retransmitted(d) == 0
                && excess(d).is_some_and(|excess| {
                    !excess.is_kernels
                        && excess.extra.iter().all(is_new)
                        && excess.extra.len() <= acked + most_deferred(events, d)
                        && in_flight(&excess.common) >= HYSTART_LOW_WINDOW
                })
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "segments that CUBIC's rounding allows after a loss",
        reason: "the kernel rounds the target up to a whole segment and keeps it for the rest of a ms, \
                 so that cwnd grows by one with each of the first ACKs after a recovery; RFC 9438 4.2 \
                 defines W_cubic(0) as cwnd",
        continues: false,
        matches: |events, d| {
            let is_new =
                |s: &WireSegment| !after(d.before.1.sent, s.seq) && (carries_data(s) || has_fin(s));
            let acks = acks_after_a_loss(d);
            count_retransmitted(d) > 0
                && !d.kernel_only.is_empty()
                && acks > 0
                && d.kernel_only.len() <= acks + most_deferred(events, d)
                && d.kernel_only.iter().all(is_new)
                && d.ours_only.is_empty()
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "cwnd after an ACK that ends within a segment",
        reason: "the kernel counts this segment as received with the first ACK, we with the one that \
                 covers it; slow start ends at twice the segments in flight, so that cwnd differs \
                 by what the ACKs since then acknowledge",
        continues: false,
        matches: |events, d| {
            let una = acknowledged(events, d);
            let is_new = |range: &Range| !after(d.before.1.sent, range.0);
            ack_within_segment(d).is_some_and(|(before, _)| {
                excess(d).is_some_and(|excess| {
                    excess.extra.iter().all(is_new)
                        && excess.extra.len()
                            <= acknowledged_since(d, before, una) + 1 + most_deferred(events, d)
                })
            }) && only_segments(d)
        },
    },
    KnownDifference {
        name: "SACKed segments after reordering that one side measures as longer",
        reason: "above three segments of reordering each SACKed segment increases cwnd. The kernel \
                 measures up to the beginning of the highest SACKed segments, or up to the \
                 acknowledgement number if that covers them all; we measure up to the end of the \
                 highest SACKed segment",
        continues: false,
        matches: |events, d| {
            let una = acknowledged(events, d);
            let is_new = |range: &Range| !after(d.before.1.sent, range.0);
            uncertain_reordering(&d.history.sent.0, &d.acks).is_some_and(|(at, first)| {
                let above = |ack: &AcceptedAck| {
                    let mut blocks = ack.sack.clone();
                    blocks.retain(|block| after(block.0, ack.ack));
                    blocks
                };
                let blocks: Vec<Range> = d.acks[at + 1..].iter().flat_map(above).collect();
                let sacked = count_sacked(&d.history.sent.0, &blocks, first);
                // In slow start, each of them may be sent and acknowledged since, and increase cwnd again.
                let most = sacked + acknowledged_since(d, first, una) + most_deferred(events, d);
                sacked > 0
                    && excess(d).is_some_and(|excess| {
                        excess.extra.iter().all(is_new) && excess.extra.len() <= most
                    })
            }) && only_segments(d)
        },
    },
    KnownDifference {
        name: "a forged DSACK after another retransmission",
        reason: "a DSACK is plausible for the kernel if as many segments were retransmitted, whichever \
                 they are, even a SYN or SYN-ACK, and increases cwnd by their number; for us only if it \
                 reports data that was retransmitted (RFC 2883 4)",
        continues: false,
        matches: |events, d| {
            let is_dsack = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(i) if i.flags & ACK != 0 => match &i.sack[..] {
                    [first, ..] if after(i.ack, first.0) => true,
                    [first, second, ..] => !after(second.0, first.0) && !after(first.1, second.1),
                    _ => false,
                },
                _ => false,
            };
            let is_new = |range: &Range| !after(d.before.1.sent, range.0);
            let repeated = d.history.repeated_syns + count_retransmitted(d);
            events[..=d.step].iter().any(is_dsack)
                && excess(d).is_some_and(|excess| {
                    excess.is_kernels
                        && repeated > 0
                        && excess.extra.len() <= repeated + most_deferred(events, d)
                        && excess.extra.iter().all(is_new)
                })
                && only_segments(d)
        },
    },
];

/// Returns the number of the kernel's segments that end above `first` and are acknowledged by `una`.
fn acknowledged_since(difference: &Difference, first: u32, una: u32) -> usize {
    let mut sent = difference.history.sent.0.clone();
    sent.sort_unstable();
    sent.dedup();
    let is_acked = |(start, end): &&Range| after(*end, first) && !after(*start, una);
    sent.iter().filter(is_acked).count()
}

/// Returns the first accepted ACK that delivers a segment late, after higher ones were SACKed, by at
/// most three segments if the highest ones count from their beginning, and by more if they, or the ACK,
/// count up to their end. With it, returns where that segment begins.
fn uncertain_reordering(sent: &[Range], acks: &[AcceptedAck]) -> Option<(usize, u32)> {
    let least = TCP_REORDERING * longest(sent);
    let is_sent_once = |range: &Range| {
        let overlaps = |other: &&Range| after(other.1, range.0) && after(range.1, other.0);
        sent.iter().filter(overlaps).count() == 1
    };
    let covers =
        |outer: &Range, inner: &Range| !after(outer.0, inner.0) && !after(inner.1, outer.1);
    let mut una = 1;
    let mut blocks: Vec<Range> = Vec::new();
    for (at, ack) in acks.iter().enumerate() {
        // The highest SACKed segments before this ACK.
        let highest = blocks
            .iter()
            .filter(|block| after(block.0, una))
            .max_by_key(|block| block.1);
        if let Some(highest) = highest {
            let is_late = |range: &&Range| {
                !after(una, range.0)
                    && after(highest.0, range.0)
                    && !blocks.iter().any(|block| covers(block, range))
                    && is_sent_once(range)
                    && (!after(range.1, ack.ack)
                        || ack.sack.iter().any(|block| covers(block, range)))
            };
            let end = if after(ack.ack, highest.1) {
                ack.ack
            } else {
                highest.1
            };
            let is_uncertain = |range: &&Range| {
                highest.0.wrapping_sub(range.0) <= least && end.wrapping_sub(range.0) > least
            };
            let late = sent.iter().filter(is_late).min_by_key(|range| range.0);
            if let Some(late) = late.filter(is_uncertain) {
                return Some((at, late.0));
            }
        }
        una = if after(ack.ack, una) { ack.ack } else { una };
        let is_valid = |block: &&Range| after(block.1, block.0) && !after(block.1, ack.sent_end);
        blocks.extend(ack.sack.iter().filter(is_valid));
    }
    None
}

/// Returns the number of ACKs that acknowledge more than the first segment that was sent again.
fn acks_after_a_loss(difference: &Difference) -> usize {
    let sent = &difference.history.sent.0;
    let is_again = |at: &usize| (sent[..*at].iter()).any(|(_, end)| after(*end, sent[*at].0));
    let first = (0..sent.len()).find(is_again).map(|at| sent[at].0);
    let mut una = first.unwrap_or(0);
    let mut count = 0;
    for ack in &difference.acks {
        if after(ack.ack, una) {
            una = ack.ack;
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests;
