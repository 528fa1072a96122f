//! Kinds of traffic whose consequences are not compared. They come last: what a narrower kind
//! explains is counted there.

use fullsend_posix::abi::{SIOCINQ, SIOCOUTQ};
use fullsend_script::WireSegment;

use super::{
    CLOSE, KnownDifference, LISTEN, has_fin, injected, is_reset, only_segments, same_polls_without,
};
use crate::compare::Difference;
use crate::event::{ACK, FuzzEvent, InjectedSegment, RST, SYN, SocketCall, after};
use crate::history::ranges;
use crate::side::EventOutcome;

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "data near the right edge of windows that differ",
        reason: "the size of windows is not compared, so neither is data beyond the smaller one",
        continues: false,
        matches: |events, d| {
            let (kernel, ours) = (d.before.0.edge, d.before.1.edge);
            let smaller = if after(kernel, ours) { ours } else { kernel };
            let near = |inject: &InjectedSegment| {
                let end = inject.end();
                after(end, smaller) && !after(end, smaller.wrapping_add(1 << 18))
            };
            // Later, by the data, the ACK and the window of the segment that only one side used.
            d.near_edge && (only_segments(d) || sends_the_same(d))
                || kernel != ours && injected(events, d).is_some_and(near)
        },
    },
    KnownDifference {
        name: "the left edge of windows that differ",
        reason: "data that a delayed ACK would acknowledge is still inside the kernel's window",
        continues: false,
        matches: |events, d| {
            // Later, by the ACK and the window of the segment that only one side used.
            d.left_edge
                || d.left_edge_before
                    && (only_segments(d) || only_counts(d) || only_queue(events, d))
        },
    },
    KnownDifference {
        name: "two ends of one stream",
        reason: "no peer sends data or another FIN after its FIN, so the kept part of it, in SACK \
                 blocks and byte counts, has no meaning; states are compared",
        continues: false,
        matches: |events, d| {
            let data = |outcome: &EventOutcome| outcome.returned.clone().map(|r| r.data);
            let ends = || {
                let read = data(&d.kernel).zip(data(&d.ours));
                // The bytes before the first FIN are not in doubt.
                let unread = |fin: &u32| fin.saturating_sub(d.history.read + 1) as usize;
                let certain = d.history.fins.iter().map(unread).min().unwrap_or(0);
                let starts = |(a, b): (Vec<u8>, Vec<u8>)| {
                    let common = certain.min(a.len()).min(b.len());
                    a[..common] == b[..common]
                };
                let counts = matches!(
                    events[d.step],
                    FuzzEvent::Call(SocketCall::Ioctl(_, SIOCINQ))
                );
                let reads = matches!(events[d.step], FuzzEvent::Call(SocketCall::Receive { .. }));
                counts || reads && read.is_some_and(starts)
            };
            // Which number a RST has to have depends on the end.
            let resets = injected(events, d).is_some_and(|inject| {
                let at_end = |fin: &u32| inject.seq.wrapping_sub(*fin) <= 1;
                inject.flags & RST != 0 && d.history.fins.iter().any(at_end)
            });
            d.conflicting_fins
                && (d.kernel.states == d.ours.states || resets)
                && (d.kernel.returned == d.ours.returned || ends())
        },
    },
    KnownDifference {
        name: "data after a FIN",
        reason: "no peer sends any; we ignore it, the kernel resets if it overlaps the FIN",
        continues: false,
        matches: |_, d| {
            let resets = d.kernel_only.iter().any(is_reset);
            d.beyond_fin || d.conflicting_fins && resets
        },
    },
    KnownDifference {
        name: "the timestamp of a segment with an old ACK",
        reason: "we echo it if the sequence number is the next one (RFC 7323 4.3), the kernel does \
                 not; its fast path echoes it even if the ACK is too old (RFC 5961 5.2)",
        continues: false,
        matches: |events, d| {
            // A SYN in TIME-WAIT must be later (RFC 6191 2), unless its sequence number is.
            let ended = |outcome: &EventOutcome| {
                let none = |(_, state): &(usize, u8)| matches!(*state, CLOSE | LISTEN);
                outcome.states.iter().all(none)
            };
            let is_old_syn = |i: &InjectedSegment| {
                let acked = d.before.0.acked.zip(d.before.1.acked);
                i.flags & (SYN | ACK | RST) == SYN
                    && acked.is_some_and(|(a, b)| !after(i.seq, a) || !after(i.seq, b))
                    && ended(&d.kernel)
                    && ended(&d.ours)
                    && only_segments(d)
            };
            // PAWS rejects other segments by it, too (RFC 7323 5.3).
            let older = |i: &InjectedSegment| {
                let timestamps = i.timestamp.zip(d.old_ack_tsval);
                timestamps.is_some_and(|((val, _), latest)| {
                    if i.flags & SYN == 0 {
                        after(latest, val)
                    } else {
                        !after(val, latest) && is_old_syn(i)
                    }
                })
            };
            d.old_ack && d.only_echo && only_segments(d) || injected(events, d).is_some_and(older)
        },
    },
];

/// Returns whether both sides send the same data, FINs and RSTs, so that they differ only in what
/// they received.
fn sends_the_same(difference: &Difference) -> bool {
    let (kernel, ours) = (&difference.kernel.segments, &difference.ours.segments);
    let count = |segments: &[WireSegment], is: fn(&WireSegment) -> bool| {
        segments.iter().filter(|s| is(s)).count()
    };
    ranges(kernel) == ranges(ours)
        && count(kernel, has_fin) == count(ours, has_fin)
        && count(kernel, is_reset) == count(ours, is_reset)
}

/// Returns whether the outcomes differ in byte counts, and in nothing else.
fn only_counts(difference: &Difference) -> bool {
    let (kernel, ours) = (&difference.kernel, &difference.ours);
    difference.kernel_only.is_empty()
        && difference.ours_only.is_empty()
        && kernel.returned == ours.returned
        && kernel.states == ours.states
        && same_polls_without(0, difference)
}

/// Returns whether `SIOCOUTQ` differs, and nothing else, by no more than the SYN and the FIN that the
/// comparison of byte counts leaves out.
fn only_queue(events: &[FuzzEvent], difference: &Difference) -> bool {
    let queries = matches!(
        events[difference.step],
        FuzzEvent::Call(SocketCall::Ioctl(_, SIOCOUTQ))
    );
    let (kernel, ours) = (&difference.kernel, &difference.ours);
    let values = kernel.returned.as_ref().zip(ours.returned.as_ref());
    queries
        && values.is_some_and(|(kernel, ours)| kernel.value.abs_diff(ours.value) <= 2)
        && difference.kernel_only.is_empty()
        && difference.ours_only.is_empty()
        && kernel.states == ours.states
        && same_polls_without(0, difference)
}
