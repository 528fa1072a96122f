//! Differences in what is sent, and when.

use fullsend_posix::abi::{IPPROTO_TCP, MSG_MORE, TCP_CORK, TCP_NODELAY};
use fullsend_script::WireSegment;

use super::{
    Excess, KnownDifference, all_pure, carries_data, excess, has_fin, injected, is_reset,
    only_segments, windows_of,
};
use crate::compare::Difference;
use crate::event::{ACK, FuzzEvent, InjectedSegment, PSH, RST, SYN, SocketCall, after};
use crate::history::{Range, longest, ranges};
use crate::segment::{blocks_of, is_pure_ack, with_blocks, without_echo};

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "data written with MSG_MORE",
        reason: "the next ACK sends it; in the kernel's fast path also one that is rejected (RFC 5961 \
                 5.2), but not one of a segment with data that acknowledges nothing new",
        continues: false,
        matches: |events, d| {
            let (una, sent) = (d.history.una, d.before.1.sent);
            let is_ack = |i: &InjectedSegment| i.flags & (SYN | RST | ACK) == ACK;
            let is_rejected = |i: &InjectedSegment| after(i.ack, sent) || after(una, i.ack);
            let skips = |i: &InjectedSegment| i.end() != i.seq && !after(i.ack, una);
            let sends = |segments: &[WireSegment]| segments.iter().any(carries_data);
            let sides = (sends(&d.kernel.segments), sends(&d.ours.segments));
            injected(events, d).is_some_and(|i| {
                is_ack(i)
                    && match sides {
                        (true, false) => is_rejected(i),
                        (false, true) => skips(i),
                        _ => false,
                    }
            }) && has_deferred_write(events, d)
                && (d.kernel_only.iter().chain(&d.ours_only))
                    .all(|s| carries_data(s) || is_pure_ack(s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "SACK blocks on data segments",
        reason: "the kernel adds them to full segments, which they shorten, so that corked data may \
                 fill one; we send them on ACKs (docs/rfc-exceptions.md)",
        continues: false,
        matches: |_, d| {
            let blocks = |segment: &WireSegment| !blocks_of(segment).is_empty();
            let with = |segment: &WireSegment| carries_data(segment) && blocks(segment);
            let is_full = |segment: &WireSegment| {
                let options = 4 + 8 * blocks_of(segment).len();
                segment.data.len() + options >= longest(&d.history.sent.1) as usize
            };
            let without = |segment: &WireSegment| carries_data(segment) && !blocks(segment);
            let reports = |segment: &WireSegment| is_pure_ack(segment) && blocks(segment);
            let is_new = |segment: &WireSegment| segment.seq == d.before.1.sent;
            // Ours sends an ACK or, in a call, nothing.
            let fills = matches!(
                &d.kernel_only[..],
                [first, rest @ ..] if with(first) && is_new(first) && is_full(first) && all_pure(rest)
            ) && all_pure(&d.ours_only);
            fills && only_segments(d)
                || d.kernel_only.iter().any(with) && d.ours_only.iter().any(without)
                || d.kernel_only.is_empty()
                    && d.kernel.segments.iter().any(with)
                    && d.ours_only.iter().all(reports)
                    && only_segments(d)
        },
    },
    KnownDifference {
        name: "an ACK in addition to data",
        reason: "the kernel sends the data that an ACK allows before it reads the segment's data, \
                 and then acknowledges the latter; we piggyback the ACK",
        continues: true,
        matches: |_, d| {
            let sends = |s: &&WireSegment| carries_data(s) || has_fin(s);
            // After an old ACK the echoes differ, too (`broad.rs`).
            let data = |segments: &[WireSegment]| -> Vec<_> {
                let blank = |s: &WireSegment| WireSegment {
                    window: 0,
                    ..without_echo(s)
                };
                segments.iter().filter(sends).map(blank).collect()
            };
            let same = d.ours_only.is_empty() && all_pure(&d.kernel_only)
                || d.old_ack && data(&d.kernel.segments) == data(&d.ours.segments);
            same && d.kernel_only.iter().any(is_pure_ack)
                && !d.ours_only.iter().any(is_pure_ack)
                && (d.ours.segments.iter()).any(|s| sends(&s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "the last segments that an ACK or a call allows",
        reason: "while data is in flight, less than a third of the window or of cwnd \
                 (tcp_tso_win_divisor) is deferred until the next ACK, if the first segment in \
                 flight is older than half of the round-trip time; whether it is depends on time",
        continues: false,
        matches: |events, d| {
            // Those that write, push or end the stream.
            let sends = matches!(
                events[d.step],
                FuzzEvent::Call(
                    SocketCall::Send { .. }
                        | SocketCall::Set(..)
                        | SocketCall::Shutdown(..)
                        | SocketCall::Close(_)
                )
            );
            let acks = |inject: &InjectedSegment| inject.flags & (SYN | RST | ACK) == ACK;
            (sends || injected(events, d).is_some_and(acks))
                // A FIN alone is not deferred.
                && d.kernel_only.iter().chain(&d.ours_only).any(carries_data)
                && excess(d).is_some_and(|excess| is_deferrable(events, d, &excess))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a partial segment at the end of the window",
        reason: "the part of a segment that the window still admits is sent only as the end of a \
                 super-segment, whose size depends on the pacing rate and thus on time; we also \
                 hold it during a write with MSG_MORE or TCP_CORK",
        continues: false,
        matches: |events, d| {
            let una = acknowledged(events, d);
            let is_edge = |end: u32| {
                events[..=d.step].iter().any(|event| match event {
                    FuzzEvent::Inject(i) => windows_of(events, i)
                        .any(|window| end.wrapping_sub(una.wrapping_add(window)) <= 1),
                    FuzzEvent::Call(_) => false,
                })
            };
            let is_partial = |excess: &Excess| {
                let largest = longest(&[&excess.common[..], &excess.extra].concat());
                matches!(&excess.extra[..], [(start, end)]
                    if end.wrapping_sub(*start) < largest && is_edge(*end))
            };
            excess(d).is_some_and(|excess| is_partial(&excess)) && only_segments(d)
        },
    },
    KnownDifference {
        name: "corked data written after TCP_NODELAY",
        reason: "setsockopt(TCP_NODELAY) sends data that TCP_CORK holds. If a limit delays that, the \
                 kernel sends the whole buffer with a later ACK; we send the data written before the \
                 call",
        continues: false,
        matches: |events, d| {
            let sets = |event: &FuzzEvent, option: i32| {
                matches!(event, FuzzEvent::Call(SocketCall::Set(_, IPPROTO_TCP, name, on))
                    if *name == option && *on != 0)
            };
            let before = &events[..d.step];
            let pushes = before.iter().position(|event| sets(event, TCP_NODELAY));
            let writes =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Send { .. }));
            let acks = |i: &InjectedSegment| i.flags & (SYN | RST | ACK) == ACK;
            let written = d.history.written.wrapping_add(1);
            let is_last = |s: &WireSegment| s.seq.wrapping_add(s.data.len() as u32) == written;
            injected(events, d).is_some_and(acks)
                && before.iter().any(|event| sets(event, TCP_CORK))
                && pushes.is_some_and(|at| before[at..].iter().any(writes))
                && matches!(&d.kernel_only[..], [one] if carries_data(one) && is_last(one))
                && d.ours_only.is_empty()
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "the last data before a FIN that does not fit the window",
        reason: "the kernel sends it with the FIN, we send it immediately (RFC 9293 3.8.6.2.1: all \
                 queued data)",
        continues: false,
        matches: |events, d| {
            let ends = match &events[d.step] {
                FuzzEvent::Call(SocketCall::Close(_) | SocketCall::Shutdown(..)) => true,
                FuzzEvent::Call(_) => false,
                FuzzEvent::Inject(i) => i.flags & (SYN | RST | ACK) == ACK,
            };
            let closes = |event: &FuzzEvent| {
                matches!(
                    event,
                    FuzzEvent::Call(SocketCall::Close(_) | SocketCall::Shutdown(_, 1 | 2))
                )
            };
            let written = d.history.written.wrapping_add(1);
            let is_last = |s: &WireSegment| s.seq.wrapping_add(s.data.len() as u32) == written;
            ends && events[..=d.step].iter().any(closes)
                && !d.history.has_sent_fin()
                && !d.kernel.segments.iter().any(has_fin)
                && all_pure(&d.kernel_only)
                && matches!(&d.ours_only[..], [one] if carries_data(one) && !has_fin(one) && is_last(one))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "data sent because of an ACK before the data of its segment causes a RST",
        reason: "the kernel sends it, or the FIN that the end of the handshake allows, before it \
                 reads the data; we send only the RST",
        continues: true,
        matches: |events, d| {
            let resets = |segments: &[WireSegment]| segments.last().is_some_and(is_reset);
            injected(events, d).is_some_and(|i| i.flags & ACK != 0 && i.end() != i.seq)
                && !d.kernel_only.is_empty()
                && d.kernel_only.iter().all(|s| carries_data(s) || has_fin(s))
                && d.ours_only.is_empty()
                && resets(&d.kernel.segments)
                && resets(&d.ours.segments)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "data sent because of an ACK before the data of its segment is read",
        reason: "the kernel sends it with the previous acknowledgement number, we send it with the \
                 new one",
        continues: true,
        matches: |events, d| {
            let blank = |segment: &WireSegment| WireSegment {
                flags: segment.flags & !PSH,
                ack: 0,
                window: 0,
                ..with_blocks(&without_echo(segment), Vec::clear)
            };
            let sends = |s: &WireSegment| carries_data(s) || has_fin(s);
            let sent = |segments: &[WireSegment]| -> Vec<_> {
                segments.iter().filter(|s| sends(s)).map(blank).collect()
            };
            let (kernel, ours) = (sent(&d.kernel.segments), sent(&d.ours.segments));
            let new_ack = d.ours_only.first().map(|s| s.ack);
            let is_new = |ack: u32| d.before.0.acked.is_some_and(|acked| after(ack, acked));
            // The kernel may have delayed the acknowledgement of earlier data.
            let was_received = |ack: u32| {
                events[..d.step].iter().any(|event| match event {
                    FuzzEvent::Inject(i) => !after(ack, i.end()),
                    FuzzEvent::Call(_) => false,
                })
            };
            let is_old = |ack: u32| {
                d.before
                    .0
                    .acked
                    .is_some_and(|acked| ack == acked || after(ack, acked) && was_received(ack))
            };
            injected(events, d).is_some_and(|i| i.flags & ACK != 0 && i.end() != i.seq)
                && kernel == ours
                && new_ack.is_some_and(is_new)
                && d.ours_only
                    .iter()
                    .all(|s| sends(s) && Some(s.ack) == new_ack)
                && d.kernel_only
                    .first()
                    .is_some_and(|s| sends(s) && is_old(s.ack))
                && d.kernel_only.iter().all(|s| {
                    sends(s) && is_old(s.ack)
                        || (sends(s) || is_pure_ack(s)) && Some(s.ack) == new_ack
                })
                && only_segments(d)
        },
    },
];

/// Returns whether the last write that wrote bytes has `MSG_MORE`, and some of its data waits.
fn has_deferred_write(events: &[FuzzEvent], difference: &Difference) -> bool {
    let write = |event: &FuzzEvent| match event {
        FuzzEvent::Call(SocketCall::Send { flags, len, .. }) if *len > 0 => {
            Some(flags & MSG_MORE != 0)
        }
        _ => None,
    };
    let last = events[..difference.step].iter().rev().find_map(write);
    // The sequence number of the first byte is 1.
    let written = difference.history.written.wrapping_add(1);
    last == Some(true) && after(written, difference.before.1.sent)
}

/// Returns whether `tcp_tso_should_defer` may defer the segments at the end of what an event sends:
/// they are new data, other data is in flight, and they are less than a third of the window or of
/// cwnd, and thus less than half of what is in flight before them: in bytes of the window, or in
/// segments of cwnd. After an ACK within a segment, the sides differ in how many segments are in flight.
fn is_deferrable(events: &[FuzzEvent], difference: &Difference, excess: &Excess) -> bool {
    let deferred = &excess.extra[..];
    let ([(start, _), ..], [.., (_, end)]) = (deferred, deferred) else {
        return false;
    };
    let una = acknowledged(events, difference);
    let (in_flight, largest) = (start.wrapping_sub(una), longest(deferred));
    let is_within = |(start, end): &Range| after(una, *start) && after(*end, una);
    let (kernel, ours) = &difference.history.sent;
    let slack = if kernel.iter().chain(ours).any(is_within) {
        3
    } else {
        1
    };
    let mut before = [&ours[..], &excess.common].concat();
    before.retain(|(_, end)| after(*end, una));
    before.sort_unstable();
    before.dedup();
    let segments = before.len();
    // Without an echoed timestamp, the answer to a repeated SYN-ACK gives no RTT sample (RFC 6298 3), so
    // that no segment in flight is young; it gives the kernel one, which repeats an ACK instead.
    let history = &difference.history;
    let has_no_rtt = history.repeats_syn_ack && !history.syn_echoed && una == 1;
    !after(difference.before.1.sent, *start)
        && (after(difference.before.1.sent, una) || has_no_rtt)
        && (end.wrapping_sub(*start) <= in_flight / 2 + slack * largest
            || deferred.len() <= segments / 2 + slack as usize)
}

/// Returns the most segments that one side defers in an event and the other does not, as in
/// [`is_deferrable`].
pub(super) fn most_deferred(events: &[FuzzEvent], difference: &Difference) -> usize {
    let (kernel, ours) = (
        ranges(&difference.kernel.segments),
        ranges(&difference.ours.segments),
    );
    let last = |ranges: &[Range]| ranges.last().map_or(difference.before.1.sent, |r| r.1);
    let end = if after(last(&kernel), last(&ours)) {
        last(&ours)
    } else {
        last(&kernel)
    };
    let in_flight = end.wrapping_sub(acknowledged(events, difference));
    (in_flight / (2 * longest(&[kernel, ours].concat()).max(1))) as usize
}

/// Returns the highest acknowledgement number that was accepted, by `tcpi_bytes_acked`; without an
/// open socket, by the acceptability of the segments.
pub(super) fn acknowledged(events: &[FuzzEvent], difference: &Difference) -> u32 {
    let counts = &difference.ours.counts;
    if let Some(acked) = counts.iter().map(|(_, acked, _)| *acked).max() {
        return 1 + acked as u32;
    }
    let (una, sent) = (difference.history.una, difference.before.1.sent);
    let ack = injected(events, difference).map_or(una, |i| i.ack);
    if after(ack, una) && !after(ack, sent) {
        ack
    } else {
        una
    }
}
