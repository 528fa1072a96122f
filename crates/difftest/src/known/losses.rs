//! Differences in what is marked as lost.

use fullsend_script::WireSegment;

use super::{KnownDifference, carries_data, has_fin, injected, only_segments};
use crate::compare::Difference;
use crate::event::{ACK, Echo, FuzzEvent, InjectedSegment, RST, SYN, SocketCall, after};
use crate::history::Range;
use crate::segment::is_pure_ack;

/// Returns the number of segments of ours above `una` that the SACK blocks of all events so far cover.
fn sacked_segments(events: &[FuzzEvent], difference: &Difference, una: u32) -> usize {
    let blocks = events[..=difference.step]
        .iter()
        .filter_map(|event| match event {
            FuzzEvent::Inject(i) if i.flags & ACK != 0 => Some(&i.sack),
            _ => None,
        });
    let blocks: Vec<Range> = blocks.flatten().copied().collect();
    count_sacked(&difference.history.sent.1, &blocks, una)
}

/// Returns the number of the segments `sent` above `una` that a block covers. A block beyond the
/// data sent is invalid and does not count.
fn count_sacked(sent: &[Range], blocks: &[Range], una: u32) -> usize {
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
            // The segment that the kernel counts as delivered lets a call send one more.
            let before = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(inject) => nested(inject),
                FuzzEvent::Call(_) => false,
            };
            let call_sends_more = injected(events, d).is_none()
                && events[..d.step].iter().any(before)
                && d.ours_only.is_empty()
                && matches!(&d.kernel_only[..], [one] if carries_data(one) || has_fin(one));
            (injected(events, d).is_some_and(nested) || call_sends_more) && only_segments(d)
        },
    },
    KnownDifference {
        name: "a retransmission that SACK covers in part",
        reason: "if a partial ACK moved the segment boundaries, the kernel sends a whole segment, \
                 we send the missing part (RFC 6675 4, NextSeg)",
        continues: false,
        matches: |events, d| {
            let lefts: Vec<u32> = (events[..=d.step].iter())
                .filter_map(|event| match event {
                    FuzzEvent::Inject(inject) => Some(&inject.sack),
                    FuzzEvent::Call(_) => None,
                })
                .flatten()
                .map(|block| block.0)
                .collect();
            let end = |s: &WireSegment| s.seq.wrapping_add(s.data.len() as u32);
            // An ACK ended within a segment, so that the kernel's segments begin at multiples of
            // their size from there on.
            let (kernel, ours) = &d.history.sent;
            let splits = |(start, end): &Range, at: u32| after(at, *start) && after(*end, at);
            let is_inside = |at: u32| kernel.iter().chain(ours).any(|range| splits(range, at));
            let partial = |range: &Range| {
                events[..=d.step].iter().any(|event| match event {
                    FuzzEvent::Inject(i) if i.flags & (SYN | RST | ACK) == ACK => {
                        let behind = range.0.wrapping_sub(i.ack);
                        !after(i.ack, range.0)
                            && behind.is_multiple_of(range.1.wrapping_sub(range.0))
                            && is_inside(i.ack)
                    }
                    _ => false,
                })
            };
            let shorter = |kernel: &WireSegment, ours: &WireSegment| {
                kernel.seq == ours.seq
                    && ours.data.len() < kernel.data.len()
                    && !after(end(kernel), d.before.1.sent)
                    && (lefts.contains(&end(ours)) || partial(&(kernel.seq, end(kernel))))
            };
            let is_same = |kernel: &WireSegment, ours: &WireSegment| {
                kernel.seq == ours.seq && kernel.data == ours.data
            };
            let pairs = || d.kernel_only.iter().zip(&d.ours_only);
            let short = pairs()
                .filter(|(kernel, ours)| shorter(kernel, ours))
                .count();
            let again = |s: &WireSegment| carries_data(s) && after(d.before.1.sent, s.seq);
            // Each shorter one leaves space for another lost segment.
            short > 0
                && (d.kernel_only.len()..=d.kernel_only.len() + short).contains(&d.ours_only.len())
                && d.ours_only[d.kernel_only.len()..].iter().all(again)
                && pairs().all(|(kernel, ours)| shorter(kernel, ours) || is_same(kernel, ours))
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
            let acks = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(i) if i.flags & (SYN | RST | ACK) == ACK => {
                    Some((i.ack, !i.sack.is_empty()))
                }
                _ => None,
            };
            let before: Vec<_> = events[..d.step].iter().filter_map(acks).collect();
            let reports_nothing = |i: &InjectedSegment| {
                // Or less than a segment.
                let sent = d.kernel.segments.iter().chain(&d.ours.segments);
                let len = sent.map(|s| s.data.len() as u32).max().unwrap_or(0);
                let near = |ack: u32| !after(i.ack, ack) || i.ack.wrapping_sub(ack) < len;
                let reports = |(left, right): &(u32, u32)| {
                    after(*right, *left) && after(*right, i.ack) && !after(*right, d.before.1.sent)
                };
                !i.sack.iter().any(reports) && before.iter().any(|(ack, _)| near(*ack))
            };
            let again = |s: &WireSegment| carries_data(s) && after(d.before.1.sent, s.seq);
            injected(events, d).is_some_and(reports_nothing)
                && before.iter().any(|(_, sacks)| *sacks)
                && d.ours.segments.first().is_some_and(again)
                && !d.kernel.segments.iter().any(again)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a recovery that a reordered ACK begins",
        reason: "the kernel sends all data that cwnd admits, as an older ACK does not reduce cwnd; \
                 we follow RFC 9937",
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
            let more = d.kernel.segments.len() > d.ours.segments.len();
            events[..=d.step].iter().enumerate().any(begins)
                && more
                && d.kernel_only.iter().all(carries_data)
                && (d.ours.segments.iter()).all(|s| carries_data(s) || is_pure_ack(s))
                && only_segments(d)
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
            injected(events, d).is_some_and(|i| i.flags & ACK != 0 && covers(i.ack))
                && d.ours_only.iter().all(carries_data)
                && d.kernel_only
                    .iter()
                    .all(|s| carries_data(s) || is_pure_ack(s))
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
        name: "losses within the reordering window of a shorter minimum round trip",
        reason: "the reordering window is a quarter of the minimum (RFC 8985 6.2 step 4); the kernel's minimum \
             includes round trips of segments that overtook others, ours does not, so that our window may \
             be longer",
        continues: false,
        matches: |events, d| {
            let una = |i: &InjectedSegment| i.ack;
            let overtakes = |i: &InjectedSegment| {
                let above =
                    |(left, right): &(u32, u32)| after(*right, *left) && after(*left, i.ack);
                i.flags & (SYN | RST | ACK) == ACK && i.sack.iter().any(above)
            };
            let overtook =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(i) if overtakes(i));
            // With three SACKed segments the reordering window is zero.
            let reports_few =
                |i: &InjectedSegment| (1..3).contains(&sacked_segments(events, d, una(i)));
            let retransmissions = |segments: &[WireSegment]| -> Vec<_> {
                let old = |s: &&WireSegment| carries_data(s) && after(d.before.1.sent, s.seq);
                let old = segments.iter().filter(old);
                old.map(|s| (s.seq, s.data.len())).collect()
            };
            let kernel = retransmissions(&d.kernel.segments);
            let ours = retransmissions(&d.ours.segments);
            injected(events, d).is_some_and(|i| overtakes(i) && reports_few(i))
                && events[..d.step].iter().any(overtook)
                && kernel.len() > ours.len()
                && kernel.starts_with(&ours)
                && (d.ours_only.iter()).all(|s| carries_data(s) || is_pure_ack(s))
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
            injected(events, d).is_some_and(|i| is_old_echo(i) && is_outstanding(i))
                && d.kernel_only.len() == d.ours_only.len()
                && d.kernel_only.iter().all(|s| carries_data(s) && !is_old(s))
                && d.ours_only.iter().all(carries_data)
                && d.ours_only.first().is_some_and(is_old)
                && only_segments(d)
        },
    },
];

#[cfg(test)]
mod tests;
