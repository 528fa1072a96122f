//! Differences in what is marked as lost.

use fullsend_script::WireSegment;

use super::sending::{acknowledged, most_deferred};
use super::{
    KnownDifference, ack_within_segment, carries_data, count_retransmitted, excess, has_fin,
    injected, is_retransmission, only_segments, windows_of,
};
use crate::compare::Difference;
use crate::event::{ACK, Echo, FuzzEvent, InjectedSegment, RST, SYN, SocketCall, after};
use crate::history::{Range, longest, ranges};
use crate::segment::is_pure_ack;

/// Returns the SACK blocks of ACKs.
fn blocks_of(events: &[FuzzEvent]) -> Vec<Range> {
    let blocks = events.iter().filter_map(|event| match event {
        FuzzEvent::Inject(i) if i.flags & ACK != 0 => Some(&i.sack),
        _ => None,
    });
    blocks.flatten().copied().collect()
}

/// Returns the number of segments of ours above `una` that the SACK blocks of acceptable ACKs cover.
fn sacked_segments(difference: &Difference, una: u32) -> usize {
    let acks = difference.acks.iter();
    let blocks: Vec<Range> = acks.flat_map(|ack| ack.sack.clone()).collect();
    count_sacked(&difference.history.sent.1, &blocks, una)
}

/// Joins ranges that follow one another.
fn runs_of(ranges: &[Range]) -> Vec<Range> {
    let mut runs: Vec<Range> = Vec::new();
    for (start, end) in ranges {
        match runs.last_mut() {
            Some(last) if last.1 == *start => last.1 = *end,
            _ => runs.push((*start, *end)),
        }
    }
    runs
}

/// Returns the number of the segments `sent` above `una` that a block covers. A block beyond the
/// data sent is invalid and does not count.
pub(super) fn count_sacked(sent: &[Range], blocks: &[Range], una: u32) -> usize {
    let mut segments = sent.to_vec();
    segments.sort_unstable();
    segments.dedup();
    let last = segments.iter().map(|(_, end)| *end).max().unwrap_or(0);
    let is_sacked = |(start, end): &&Range| {
        let covers = |(left, right): &Range| {
            !after(*left, *start) && !after(*end, *right) && !after(*right, last)
        };
        !after(una, *start) && blocks.iter().any(covers)
    };
    segments.iter().filter(is_sacked).count()
}

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "a forged SACK option whose first block is inside the second",
        reason: "it reports a duplicate (RFC 2883 4), which delivers no data for us; it does for \
                 the kernel if the second block is impossible",
        continues: false,
        matches: |events, d| {
            let nested = |inject: &InjectedSegment| match &inject.sack[..] {
                [a, b] => !after(b.0, a.0) && !after(a.1, b.1),
                _ => false,
            };
            let before = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(inject) if nested(inject) => Some(inject.sack[0]),
                _ => None,
            };
            let firsts: Vec<Range> = events[..d.step].iter().filter_map(before).collect();
            // Each segment that the kernel counts as delivered leaves the flight and increases cwnd, and
            // the ACK that covers it increases cwnd by one less. One side may defer the last segments.
            let counted = count_sacked(&d.history.sent.0, &firsts, 0);
            let most = 2 * counted + most_deferred(events, d);
            let is_new = |range: &Range| !after(d.before.1.sent, range.0);
            let sends_more = excess(d).is_some_and(|excess| {
                counted > 0 && excess.extra.len() <= most && excess.extra.iter().all(is_new)
            });
            (injected(events, d).is_some_and(nested) || sends_more) && only_segments(d)
        },
    },
    KnownDifference {
        name: "retransmissions after an ACK that ends within a segment",
        reason: "the kernel's segments begin at multiples of their size from the ACK on, and a SACK \
                 block covers only whole ones, so that it retransmits up to a segment more at each \
                 end of a block; we send the missing part (RFC 6675 4, NextSeg)",
        continues: false,
        matches: |events, d| {
            let blocks = blocks_of(&events[..=d.step]);
            let again = |s: &&WireSegment| is_retransmission(d, s);
            let runs = |segments: &[WireSegment]| -> Vec<Range> {
                let again: Vec<_> = segments.iter().filter(again).cloned().collect();
                runs_of(&ranges(&again))
            };
            let (kernel, ours) = (runs(&d.kernel.segments), runs(&d.ours.segments));
            let sent = &d.history.sent.1;
            // The ends of segments as they were sent, and of the missing parts.
            let is_end = |(_, end): &Range| {
                sent.iter().any(|range| range.1 == *end)
                    || blocks.iter().any(|block| block.0 == *end)
            };
            let count = |segments: &[WireSegment]| ranges(segments).len();
            let (kernels, own) = (count(&d.kernel.segments), count(&d.ours.segments));
            ack_within_segment(d).is_some()
                && !blocks.is_empty()
                && (kernel.first().zip(ours.first())).is_some_and(|(a, b)| a.0 == b.0)
                && kernel != ours
                && ours.iter().all(is_end)
                && kernels.abs_diff(own) <= 2 * blocks.len()
                && (d.kernel_only.iter().chain(&d.ours_only))
                    .all(|s| carries_data(s) || has_fin(s) || is_pure_ack(s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "losses after an ACK that ends within a segment",
        reason: "the kernel counts only the whole segments from the ACK on as SACKed, so that there \
                 may be fewer than three, and the ACK that covers the rest of the segment as \
                 reordering, after which it waits for the reordering window; we count the segments \
                 as they were sent",
        continues: false,
        matches: |events, d| {
            let again = |s: &WireSegment| is_retransmission(d, s);
            let reports = |i: &InjectedSegment| i.flags & ACK != 0 && !i.sack.is_empty();
            injected(events, d).is_some_and(reports)
                && ack_within_segment(d).is_some()
                && d.ours.segments.first().is_some_and(again)
                && !d.kernel.segments.iter().any(again)
                && (d.kernel_only.iter().chain(&d.ours_only))
                    .all(|s| carries_data(s) || has_fin(s) || is_pure_ack(s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "losses detected by an ACK for data sent at different times",
        reason: "the kernel's RACK.rtt is that of the segment that it processes last, the last one \
                 below the ACK, so that later segments are not yet lost; ours is that of the most \
                 recently sent segment (RFC 8985 6.2)",
        continues: false,
        matches: |events, d| {
            let news = |i: &InjectedSegment| {
                // The kernel's count includes the SYN of an active open.
                let una = |count: u64| i.ack.wrapping_sub(count as u32) <= 1;
                let is_new = d.kernel.counts.iter().any(|(_, acked, _)| una(*acked))
                    || !after(d.history.una, i.ack);
                let above =
                    |(left, right): &(u32, u32)| after(*right, *left) && after(*left, i.ack);
                is_new && i.flags & (SYN | RST | ACK) == ACK && i.sack.iter().any(above)
            };
            let again = |segments: &[WireSegment]| -> Vec<_> {
                let again = segments.iter().filter(|s| carries_data(s));
                let again = again.filter(|s| after(d.before.1.sent, s.seq));
                again.map(|s| (s.seq, s.data.len())).collect()
            };
            let (kernel, ours) = (again(&d.kernel.segments), again(&d.ours.segments));
            injected(events, d).is_some_and(news)
                && ours.len() > kernel.len()
                && ours.starts_with(&kernel)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "losses by time, on an ACK that reports nothing",
        reason: "RFC 8985 6.2 runs for each ACK; the kernel's RACK waits for the next delivery or for \
                 its timer",
        continues: false,
        matches: |events, d| {
            let before = &d.history.acks;
            let reports_nothing = |i: &InjectedSegment| {
                // Or less than a segment.
                let len = longest(&d.history.sent.1);
                let near = |ack: u32| !after(i.ack, ack) || i.ack.wrapping_sub(ack) < len;
                let earlier = blocks_of(&events[..d.step]);
                // A block that begins at the acknowledgement number is invalid.
                let reports = |block: &Range| {
                    let covers = |outer: &Range, inner: &Range| {
                        !after(outer.0, inner.0) && !after(inner.1, outer.1)
                    };
                    let is_new = |segment: &Range| {
                        covers(block, segment)
                            && !earlier.iter().any(|earlier| covers(earlier, segment))
                    };
                    after(block.0, i.ack)
                        && after(block.0, d.history.una)
                        && !after(block.1, d.before.1.sent)
                        && d.history.sent.1.iter().any(is_new)
                };
                !i.sack.iter().any(reports) && before.iter().any(|earlier| near(earlier.ack))
            };
            let again = |s: &WireSegment| is_retransmission(d, s);
            injected(events, d).is_some_and(reports_nothing)
                && before.iter().any(|earlier| !earlier.sack.is_empty())
                && d.ours.segments.first().is_some_and(again)
                && !d.kernel.segments.iter().any(again)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "losses by time, at a call",
        reason: "the reordering timer is due 2 ms after the ACK that reports a hole; the kernel's fires \
                 with a tick after that, and where many segments are sent, the next call is in between",
        continues: false,
        matches: |events, d| {
            let again = |s: &WireSegment| is_retransmission(d, s);
            let is_hole = |s: &WireSegment| {
                let blocks = blocks_of(&events[..d.step]);
                blocks.iter().any(|(left, _)| after(*left, s.seq))
            };
            matches!(events[d.step], FuzzEvent::Call(_))
                && (d.ours.segments.first()).is_some_and(|s| again(s) && is_hole(s))
                && !d.kernel.segments.iter().any(again)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a recovery that a reordered ACK begins",
        reason: "the kernel sends all data that cwnd admits, as an older ACK does not reduce cwnd, and \
                 does not count what it SACKs as delivered; we follow RFC 9937",
        continues: false,
        matches: |events, d| {
            let overtaken = |at: usize, inject: &InjectedSegment| {
                events[..at].iter().any(|event| match event {
                    FuzzEvent::Inject(i) => {
                        after(i.ack, inject.ack) && !after(i.ack, d.before.1.sent)
                    }
                    FuzzEvent::Call(_) => false,
                })
            };
            let begins = |(at, event): (usize, &FuzzEvent)| match event {
                FuzzEvent::Inject(i) => {
                    i.flags & ACK != 0 && !i.sack.is_empty() && overtaken(at, i)
                }
                FuzzEvent::Call(_) => false,
            };
            // A pure ACK answers the data or FIN of the older ACK; our data may carry it.
            let sends = |s: &WireSegment| carries_data(s) || has_fin(s);
            let sends_or_acks = |s: &WireSegment| sends(s) || is_pure_ack(s);
            let more = d.kernel.segments.len() > d.ours.segments.len()
                && events[..=d.step].iter().enumerate().any(begins)
                && d.kernel_only.iter().any(sends)
                && d.kernel_only.iter().all(sends_or_acks)
                && d.ours.segments.iter().all(sends_or_acks);
            // In the recovery.
            let older = events[..=d.step]
                .iter()
                .enumerate()
                .filter(|one| begins(*one));
            let older: Vec<FuzzEvent> = older.map(|(_, event)| event.clone()).collect();
            let sacked = count_sacked(&d.history.sent.1, &blocks_of(&older), 0);
            let fewer = excess(d).is_some_and(|excess| {
                !excess.is_kernels
                    && count_retransmitted(d) > 0
                    && sacked > 0
                    && excess.extra.len() <= sacked + most_deferred(events, d)
            });
            (more || fewer) && only_segments(d)
        },
    },
    KnownDifference {
        name: "a SACK block that extends beyond a later ACK",
        reason: "the receiver has discarded data, which RFC 2018 8 allows but no implementation \
                 does: the kernel first waits 10 ms, we retransmit other lost data",
        continues: false,
        matches: |events, d| {
            let covers = |ack: u32| {
                events[..=d.step].iter().any(|event| match event {
                    FuzzEvent::Inject(i) => {
                        let over =
                            |(left, right): &(u32, u32)| !after(*left, ack) && after(*right, ack);
                        i.sack.iter().any(over)
                    }
                    FuzzEvent::Call(_) => false,
                })
            };
            // At a later call we retransmit the first segment in flight.
            let una = acknowledged(events, d);
            let is_first = |s: &WireSegment| s.seq == una && is_retransmission(d, s);
            let acks = match &events[d.step] {
                FuzzEvent::Inject(i) => i.flags & ACK != 0 && covers(i.ack),
                FuzzEvent::Call(_) => covers(una) && d.ours.segments.first().is_some_and(is_first),
            };
            let sends = |s: &WireSegment| carries_data(s) || has_fin(s);
            acks && d.ours_only.iter().all(sends)
                && d.kernel_only.iter().all(|s| sends(s) || is_pure_ack(s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a loss soon after a simultaneous open",
        reason: "three SACKed segments above a hole indicate its loss (RFC 6675 4, IsLost); the \
                 kernel first sends new data, because of the times of its segments",
        continues: false,
        matches: |events, d| {
            let connects =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Connect(_)));
            let syn = |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(i) if i.flags & (SYN | ACK) == SYN);
            let again = |segment: &WireSegment| {
                carries_data(segment) && after(d.before.1.sent, segment.seq)
            };
            let reports = |inject: &InjectedSegment| {
                let block =
                    |(left, right): &(u32, u32)| after(*left, inject.ack) && after(*right, *left);
                inject.sack.iter().any(block)
            };
            injected(events, d).is_some_and(reports)
                && events[..d.step].iter().any(connects)
                && events[..d.step].iter().any(syn)
                && d.ours.segments.first().is_some_and(again)
                && d.kernel.segments.iter().all(carries_data)
                && !d.kernel.segments.iter().any(again)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "losses because of a shorter minimum round trip",
        reason: "the kernel's minimum includes round trips of segments that overtook others, ours does \
                 not, so that our reordering window (a quarter of it, RFC 8985 6.2 step 4) may be \
                 longer, and a retransmission that is acknowledged sooner gives the kernel a RACK.rtt, \
                 and us none (step 2)",
        continues: false,
        matches: |events, d| {
            let overtakes = |i: &InjectedSegment| {
                let above =
                    |(left, right): &(u32, u32)| after(*right, *left) && after(*left, i.ack);
                i.flags & (SYN | RST | ACK) == ACK && i.sack.iter().any(above)
            };
            let overtook =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(i) if overtakes(i));
            // With three SACKed segments the reordering window is zero.
            let reports_few = |i: &InjectedSegment| (1..3).contains(&sacked_segments(d, i.ack));
            let retransmissions = |segments: &[WireSegment]| -> Vec<_> {
                let again = segments.iter().filter(|s| is_retransmission(d, s));
                again.map(|s| (s.seq, s.data.len())).collect()
            };
            let kernel = retransmissions(&d.kernel.segments);
            let ours = retransmissions(&d.ours.segments);
            let acks = |i: &InjectedSegment| i.flags & (SYN | RST | ACK) == ACK;
            injected(events, d).is_some_and(|i| {
                overtakes(i) && reports_few(i) || acks(i) && count_retransmitted(d) > 0
            }) && events[..=d.step].iter().any(overtook)
                && kernel.len() > ours.len()
                && kernel.starts_with(&ours)
                && (d.ours_only.iter()).all(|s| carries_data(s) || has_fin(s) || is_pure_ack(s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "lost segments while an undo is pending",
        reason: "an echo older than the retransmission shows that an original arrived (RFC 3522 3.2); until \
                 the other retransmissions are acknowledged, the kernel sends new data instead of the \
                 segments that are marked as lost; we retransmit these first (RFC 6675 4, NextSeg)",
        continues: false,
        matches: |events, d| {
            let sent = &d.history.sent.1;
            let is_old_echo = |i: &InjectedSegment| {
                i.flags & (SYN | RST | ACK) == ACK
                    && matches!(i.timestamp, Some((_, Echo::Latest(offset))) if offset < 0)
            };
            let is_outstanding = |i: &InjectedSegment| {
                let mut later = sent.iter().filter(|(_, end)| after(*end, i.ack));
                later.any(|range| sent.iter().filter(|r| *r == range).count() > 1)
            };
            let is_old = |s: &WireSegment| after(d.before.1.sent, s.seq);
            let new = ranges(&d.kernel_only);
            // New data ends with the window or with what is written.
            let is_limited = |i: &InjectedSegment| {
                let last = new.last().map_or(d.before.1.sent, |range| range.1);
                let next = last.wrapping_add(longest(sent));
                let mut edges = windows_of(events, i).map(|window| i.ack.wrapping_add(window));
                after(next, d.history.written.wrapping_add(1))
                    || edges.any(|edge| after(next, edge))
            };
            let is_as_long = |i: &InjectedSegment| {
                new.len() == d.ours_only.len() || new.len() < d.ours_only.len() && is_limited(i)
            };
            injected(events, d)
                .is_some_and(|i| is_old_echo(i) && is_outstanding(i) && is_as_long(i))
                && (d.kernel_only.iter()).all(|s| carries_data(s) && !is_old(s) || is_pure_ack(s))
                && d.ours_only.iter().all(carries_data)
                && d.ours_only.first().is_some_and(is_old)
                && only_segments(d)
        },
    },
];

#[cfg(test)]
mod tests;
