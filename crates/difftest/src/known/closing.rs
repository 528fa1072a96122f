//! Differences of the end of a connection.

use fullsend_posix::abi::{SIOCOUTQ, SIOCOUTQNSD};
use fullsend_script::WireSegment;
use fullsend_script::tcp_option::TcpOption;

use super::{
    CLOSE, CLOSE_WAIT, CLOSING, KnownDifference, LAST_ACK, all_pure, injected, is_closed, is_reset,
    only_segments, same_polls_without,
};
use crate::compare::{Difference, SCALED_UNIT};
use crate::event::{ACK, FIN, FuzzEvent, InjectedSegment, RST, SYN, SocketCall};
use crate::segment::is_pure_ack;
use crate::side::EventOutcome;

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "the reply to a segment without ACK after close",
        reason: "the kernel's FIN-WAIT-2 and TIME-WAIT reply to it; RFC 9293 3.10.7.4 drops it",
        continues: true,
        matches: |events, d| {
            let bare = |inject: &InjectedSegment| inject.flags & (ACK | RST | SYN) == 0;
            injected(events, d).is_some_and(bare)
                && has_small_entry(events, d)
                && d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "options of an ACK after close",
        reason: "the kernel's TIME-WAIT, and FIN-WAIT-2 of a closed socket, keep little state: no \
                 SACK blocks, and a timestamp that old data does not update, or that was not \
                 negotiated (RFC 7323 3.2). We send no SACK blocks once no application can read \
                 the data",
        continues: true,
        matches: |events, d| {
            // The sequence number is compared as in `compare`: either side's may lie beyond a
            // window that the peer shrank.
            let like = |kernel: &WireSegment, ours: &WireSegment| {
                let bare = WireSegment {
                    seq: kernel.seq,
                    window: kernel.window,
                    ..without_sack_and_timestamps(ours)
                };
                bare == without_sack_and_timestamps(kernel)
                    && kernel.seq.wrapping_sub(ours.seq) < SCALED_UNIT
            };
            let (kernel, ours) = (&d.kernel.segments, &d.ours.segments);
            (is_closed(events, d) || has_small_entry(events, d))
                && all_pure(&d.kernel_only)
                && kernel.len() == ours.len()
                && kernel
                    .iter()
                    .zip(ours)
                    .all(|(kernel, ours)| like(kernel, ours))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "an out-of-order FIN inside out-of-order data",
        reason: "one of them is forged, so either side may end the stream at the FIN or accept the \
                 data",
        continues: false,
        matches: |events, d| {
            let fin =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(i) if i.flags & FIN != 0);
            let ended = |state: u8| [CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING].contains(&state);
            let one_ended = (d.kernel.states.iter().zip(&d.ours.states))
                .any(|(kernel, ours)| ended(kernel.1) != ended(ours.1));
            d.conflicting_fins && events[..d.step].iter().any(fin) && one_ended
        },
    },
    KnownDifference {
        name: "an unacceptable ACK or one with an old timestamp in a closed socket's FIN-WAIT-2",
        reason: "we reply to it (RFC 9293 3.10.7.4, RFC 5961 5.2, RFC 7323 5.3), the kernel's small \
                 entry ignores the ACK field and the timestamps of ACKs",
        continues: true,
        matches: |events, d| {
            let wrong = |inject: &InjectedSegment| {
                inject.flags & (ACK | RST | SYN | FIN) == ACK
                    && inject.len == 0
                    && (inject.ack != d.before.1.sent || has_old_timestamp(inject, d))
            };
            injected(events, d).is_some_and(wrong)
                && in_closed_fin_wait_2(events, d)
                && d.kernel.segments.is_empty()
                && all_pure(&d.ours_only)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "data with an unacceptable ACK or an old timestamp in a closed socket's FIN-WAIT-2",
        reason: "we reply to it (RFC 9293 3.10.7.4, RFC 5961 5.2, RFC 7323 5.3), the kernel's \
                 small entry ignores the ACK field and the timestamps of ACKs: it accepts a FIN, \
                 and resets after data",
        continues: false,
        matches: |events, d| {
            let wrong = |inject: &InjectedSegment| {
                inject.flags & (RST | SYN) == 0
                    && inject.end() != inject.seq
                    && (inject.flags & ACK == 0
                        || inject.ack != d.before.1.sent
                        || has_old_timestamp(inject, d))
            };
            injected(events, d).is_some_and(wrong)
                && in_closed_fin_wait_2(events, d)
                && d.kernel_only.len() <= 1
                && d.kernel_only.iter().all(is_reset)
                && all_pure(&d.ours_only)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a RST within the window of a closed socket",
        reason: "the RST ends the kernel's small FIN-WAIT-2 entry and, before that state, a \
                 connection whose out-of-order data ends at its sequence number; we keep no such \
                 data and send a challenge ACK (RFC 5961 3.2)",
        continues: false,
        matches: |events, d| {
            let within = |inject: &InjectedSegment| {
                inject.flags & RST != 0 && d.before.1.acked != Some(inject.seq)
            };
            injected(events, d).is_some_and(within)
                && is_closed(events, d)
                && d.kernel.segments.is_empty()
                && matches!(&d.ours.segments[..], [one] if is_pure_ack(one))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a RST outside of the window of a closed socket's FIN-WAIT-2",
        reason: "the kernel's small entry replies to it; RFC 9293 3.10.7.4 drops it",
        continues: true,
        matches: |events, d| {
            let reset = |inject: &InjectedSegment| inject.flags & RST != 0;
            injected(events, d).is_some_and(reset)
                && in_closed_fin_wait_2(events, d)
                && d.ours.segments.is_empty()
                && matches!(&d.kernel.segments[..], [one] if is_pure_ack(one))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a SYN within the window of a closed socket's FIN-WAIT-2",
        reason: "the kernel's small entry resets, or ignores a SYN that begins before the window; we \
                 send a challenge ACK (RFC 5961 4.2)",
        continues: false,
        matches: |events, d| {
            let syn = |inject: &InjectedSegment| inject.flags & (SYN | RST) == SYN;
            injected(events, d).is_some_and(syn)
                && in_closed_fin_wait_2(events, d)
                && d.kernel.segments.len() <= 1
                && d.kernel.segments.iter().all(is_reset)
                && matches!(&d.ours.segments[..], [one] if is_pure_ack(one))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "SIOCOUTQ and SIOCOUTQNSD after a reset",
        reason: "the kernel counts the data that the reset discarded, we do not",
        continues: true,
        matches: |events, d| {
            let is_query = matches!(
                events[d.step],
                FuzzEvent::Call(SocketCall::Ioctl(_, SIOCOUTQ | SIOCOUTQNSD))
            );
            is_query
                && d.kernel_only.is_empty()
                && d.ours_only.is_empty()
                && d.ours.states.iter().any(|(_, state)| *state == CLOSE)
                && d.kernel.states == d.ours.states
        },
    },
    KnownDifference {
        name: "SIOCOUTQNSD with an unsent FIN",
        reason: "the kernel counts the FIN, we count only bytes",
        continues: true,
        matches: |events, d| {
            let is_query = matches!(
                events[d.step],
                FuzzEvent::Call(SocketCall::Ioctl(_, SIOCOUTQNSD))
            );
            let value = |outcome: &EventOutcome| outcome.returned.as_ref().map_or(-1, |r| r.value);
            is_query
                && d.kernel_only.is_empty()
                && d.ours_only.is_empty()
                && d.kernel.states == d.ours.states
                && value(&d.kernel) == value(&d.ours) + 1
        },
    },
    KnownDifference {
        name: "an error after a RST in LAST-ACK or CLOSING",
        reason: "the kernel reports ECONNRESET; RFC 9293 3.10.7.4 closes without an error, as both \
                 streams are complete",
        continues: false,
        matches: |events, d| {
            let reset = |inject: &InjectedSegment| inject.flags & RST != 0;
            let (kernel, ours) = &d.history.states;
            let ended = |fd: usize| {
                let is = |(socket, state): &(usize, u8)| {
                    *socket == fd && matches!(*state, LAST_ACK | CLOSING)
                };
                kernel == ours && ours.iter().any(is)
            };
            let error = i32::from(libc::POLLERR);
            let is_same = |(kernel, ours): (&(usize, i32), &(usize, i32))| {
                let differs = (kernel.1 ^ ours.1) & error != 0;
                !differs || kernel.1 & error != 0 && ended(kernel.0)
            };
            injected(events, d).is_some_and(reset)
                && d.kernel.states == d.ours.states
                && d.kernel.others == d.ours.others
                && d.kernel_only.is_empty()
                && d.ours_only.is_empty()
                && !same_polls_without(0, d)
                && same_polls_without(libc::POLLERR, d)
                && (d.kernel.polls.iter().zip(&d.ours.polls)).all(is_same)
        },
    },
    KnownDifference {
        name: "a later SYN in TIME-WAIT without a listener",
        reason: "we reset as for any closed port (RFC 6191 2), the kernel acknowledges, so that \
                 the peer resets and repeats the SYN",
        continues: true,
        matches: |events, d| {
            let syn = |inject: &InjectedSegment| inject.flags & (SYN | ACK | RST) == SYN;
            let none = |states: &[(usize, u8)]| states.iter().all(|(_, s)| *s == CLOSE);
            injected(events, d).is_some_and(syn)
                && none(&d.ours.states)
                && matches!(&d.kernel.segments[..], [one] if is_pure_ack(one))
                && matches!(&d.ours_only[..], [one] if is_reset(one))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a segment after a later SYN with FIN in TIME-WAIT",
        reason: "the kernel removes its small entry and then drops such a SYN, so that later segments \
                 find no connection; we keep the entry",
        continues: false,
        matches: |events, d| {
            let ends = |event: &FuzzEvent| {
                matches!(event, FuzzEvent::Inject(i)
                    if i.flags & (SYN | FIN | ACK | RST) == SYN | FIN)
            };
            let is_syn_ack = |s: &WireSegment| s.flags & (SYN | ACK) == SYN | ACK;
            let answers = |s: &WireSegment| is_reset(s) || is_syn_ack(s);
            events[..d.step].iter().any(ends)
                && has_small_entry(events, d)
                && d.kernel.segments.len() <= 1
                && d.kernel.segments.iter().all(answers)
                && d.ours.segments.len() <= 1
                && all_pure(&d.ours.segments)
                && only_segments(d)
        },
    },
];

/// Returns whether the kernel represents the connection by a small entry without a socket: it is in
/// TIME-WAIT, or in FIN-WAIT-2 and closed by the application.
fn has_small_entry(events: &[FuzzEvent], difference: &Difference) -> bool {
    // Only TIME-WAIT of a socket that is still open replies with an ACK in CLOSE.
    let time_wait = difference
        .ours
        .states
        .iter()
        .any(|(_, state)| *state == CLOSE);
    difference.history.has_sent_fin() && (is_closed(events, difference) || time_wait)
}

/// Returns a segment without SACK blocks and timestamps, and the NOPs before them.
fn without_sack_and_timestamps(segment: &WireSegment) -> WireSegment {
    let mut segment = segment.clone();
    (segment.options).retain(|option| {
        !matches!(
            option,
            TcpOption::Nop | TcpOption::Sack(_) | TcpOption::Timestamps { .. }
        )
    });
    segment
}

/// Returns whether the application has closed its only connection, which is in FIN-WAIT-2.
fn in_closed_fin_wait_2(events: &[FuzzEvent], difference: &Difference) -> bool {
    is_closed(events, difference) && difference.history.in_fin_wait_2(difference.before)
}

/// Returns whether a segment's timestamp is older than that of an earlier, accepted segment (RFC
/// 7323 5.3).
fn has_old_timestamp(inject: &InjectedSegment, difference: &Difference) -> bool {
    let is_old = |(val, _)| difference.history.is_old_timestamp(val);
    inject.timestamp.is_some_and(is_old)
}
