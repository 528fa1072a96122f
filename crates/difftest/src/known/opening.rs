//! Differences of the handshake.

use fullsend_script::WireSegment;
use fullsend_script::tcp_option::TcpOption;

use super::{
    CLOSE, CLOSE_WAIT, CLOSING, ESTABLISHED, FIN_WAIT_1, KnownDifference, LISTEN, SYN_RECEIVED,
    SYN_SENT, all_pure, carries_data, has_fin, in_syn_received, injected, is_opening, is_reset,
    only_segments, same_polls_without, waits_in_syn_received, was_in_syn_received,
};
use crate::event::{ACK, Echo, FuzzEvent, InjectedSegment, RST, SYN, SocketCall, after};
use crate::segment::is_pure_ack;
use crate::side::{CallResult, EventOutcome};

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "an ACK for the SYN-ACK of a simultaneous open",
        reason: "the kernel treats it as a duplicate and acknowledges it; RFC 9293 3.5 requires no \
                 reply",
        continues: true,
        matches: |events, d| {
            let syn_ack = |inject: &InjectedSegment| inject.flags & (SYN | ACK) == SYN | ACK;
            injected(events, d).is_some_and(syn_ack)
                && was_in_syn_received(events, d)
                && d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a wrong ACK in SYN-RECEIVED outside of the window or with an old timestamp",
        reason: "the kernel checks the ACK field first and resets, we check the sequence number \
                 first (RFC 9293 3.10.7.4) and reply with an ACK",
        continues: true,
        matches: |events, d| {
            let wrong = |inject: &InjectedSegment| inject.flags & ACK != 0 && inject.ack != 1;
            injected(events, d).is_some_and(wrong)
                && is_opening(d)
                && d.before.1.sent == 1
                && matches!(&d.kernel_only[..], [one] if one.flags & RST != 0)
                && d.ours_only.len() <= 1
                && all_pure(&d.ours_only)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "data at the right edge in SYN-RECEIVED",
        reason: "the kernel accepts no data at the edge; we accept data that begins at the edge, \
                 as both do later while no data is unread",
        continues: false,
        matches: |events, d| {
            let only_listens = |states: &[(usize, u8)]| {
                let is = |(_, state): &(usize, u8)| matches!(*state, LISTEN | CLOSE);
                states.iter().all(is)
            };
            injected(events, d).is_some_and(|inject| {
                !after(d.before.1.edge, inject.seq) && after(inject.end(), d.before.1.edge)
            }) && only_listens(&d.ours.states)
        },
    },
    KnownDifference {
        name: "old data that ends a handshake",
        reason: "in SYN-RECEIVED the kernel accepts the ACK of data that ends at rcv_nxt, we do \
                 not for a connection of a listener",
        continues: false,
        matches: |events, d| {
            let old = |i: &InjectedSegment| {
                let ends = [i.end(), i.seq.wrapping_add(i.len)];
                i.len > 0 && ends.into_iter().any(|end| d.before.1.acked == Some(end))
            };
            let only_listens = |states: &[(usize, u8)]| {
                states
                    .iter()
                    .all(|(_, state)| matches!(*state, LISTEN | CLOSE))
            };
            injected(events, d).is_some_and(old)
                && only_listens(&d.ours.states)
                && all_pure(&d.ours_only)
        },
    },
    KnownDifference {
        name: "a RST with an old timestamp or a wrong echo in SYN-RECEIVED",
        reason: "we accept it (RFC 7323 5.2: a RST is not subject to PAWS), the kernel does not; for it \
                 an echo is right if it is that of a SYN-ACK, and not that of an ACK in the next ms",
        continues: false,
        matches: |events, d| {
            let mut latest = None;
            let mut resets = false;
            // Whether a segment after the SYN may have drawn an ACK.
            let mut answered = false;
            for event in &events[..=d.step] {
                if let FuzzEvent::Inject(i) = event
                    && let Some((val, echo)) = i.timestamp
                {
                    let old = latest.is_some_and(|latest| after(latest, val));
                    let wrong = old || answered || echo != Echo::Latest(0);
                    resets |= i.flags & RST != 0 && wrong;
                    answered |= latest.is_some();
                    latest = if old { latest } else { Some(val) };
                }
            }
            resets && is_opening(d)
        },
    },
    KnownDifference {
        name: "a repeated SYN in SYN-RECEIVED of a simultaneous open",
        reason: "the kernel acknowledges it, we repeat the SYN-ACK, which the peer may have lost \
                 (docs/rfc-exceptions.md)",
        continues: true,
        matches: |events, d| {
            let again = |inject: &InjectedSegment| {
                let first = Some(inject.seq.wrapping_add(1));
                inject.flags & SYN != 0 && d.before.1.acked == first
            };
            let syn_ack = |segment: &WireSegment| segment.flags == SYN | ACK;
            injected(events, d).is_some_and(again)
                && in_syn_received(d)
                && d.kernel_only.len() <= 1
                && all_pure(&d.kernel_only)
                && matches!(&d.ours_only[..], [one] if syn_ack(one))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a write after shutdown(WR) before the end of the handshake",
        reason: "the kernel waits for the end of the handshake (EAGAIN), ours returns EPIPE \
                 immediately (POSIX)",
        continues: true,
        matches: |events, d| {
            let is = |outcome: &EventOutcome, errno: i32| {
                let returned = outcome.returned.as_ref();
                returned.is_some_and(|returned| returned.value == -i64::from(errno))
            };
            let shuts =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Shutdown(..)));
            matches!(events[d.step], FuzzEvent::Call(SocketCall::Send { .. }))
                && events[..d.step].iter().any(shuts)
                && (in_syn_received(d) || d.ours.states.iter().any(|(_, s)| *s == SYN_SENT))
                && is(&d.kernel, libc::EAGAIN)
                && is(&d.ours, libc::EPIPE)
                && d.kernel_only.is_empty()
                && d.ours_only.is_empty()
        },
    },
    KnownDifference {
        name: "the end of a simultaneous open whose socket was shut down before connect()",
        reason: "shutdown() fails with ENOTCONN; the kernel nevertheless sends the FIN later, ours \
                 applies the shutdown to calls only",
        continues: false,
        matches: |events, d| {
            let connects =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Connect(_)));
            let shuts = |event: &FuzzEvent| {
                matches!(event, FuzzEvent::Call(SocketCall::Shutdown(_, 1 | 2)))
            };
            // The first connect() after it; another one fails with EALREADY.
            let first = events[..d.step].iter().position(shuts).unwrap_or(d.step);
            let begins = events[first..d.step].iter().position(connects);
            let begins = begins.map_or(d.step, |at| first + at);
            let syn = |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(i) if i.flags & (SYN | ACK | RST) == SYN);
            // The FIN waits while the window is closed.
            let closed = |inject: &InjectedSegment| inject.window == 0;
            let fin = d.kernel.segments.iter().any(has_fin);
            injected(events, d).is_some_and(|inject| fin || closed(inject))
                && events[begins..d.step].iter().any(syn)
                // The segment's own data or FIN follows it.
                && (d.kernel_only.iter()).all(|one| {
                    !carries_data(one) && (has_fin(one) || is_reset(one) || is_pure_ack(one))
                })
                && all_pure(&d.ours_only)
                && (d.kernel.states.iter())
                    .any(|(_, state)| [FIN_WAIT_1, CLOSING, CLOSE].contains(state))
                && (d.ours.states.iter()).any(|(_, state)| [ESTABLISHED, CLOSE_WAIT].contains(state))
        },
    },
    KnownDifference {
        name: "data after both directions were shut down, one of them before connect()",
        reason: "shutdown() fails with ENOTCONN, but in the kernel it applies to the next connection, \
                 too, so that data after shutdown(WR) resets it; ours applies it to calls only",
        continues: false,
        matches: |events, d| {
            let shuts = |event: &FuzzEvent, of: [i32; 2]| matches!(event, FuzzEvent::Call(SocketCall::Shutdown(_, how)) if of.contains(how));
            let connects =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Connect(_)));
            let before = &events[..d.step];
            let begins = |at: usize| {
                connects(&before[at])
                    && before[..at].iter().any(|event| shuts(event, [0, 2]))
                    && before[at..].iter().any(|event| shuts(event, [1, 2]))
            };
            let resets = |segments: &[WireSegment]| segments.iter().any(is_reset);
            let open =
                |(_, state): &(usize, u8)| ![CLOSE, LISTEN, SYN_SENT, SYN_RECEIVED].contains(state);
            injected(events, d).is_some_and(|i| i.len > 0 && i.flags & ACK != 0)
                && (0..before.len()).any(begins)
                && resets(&d.kernel.segments)
                && !resets(&d.ours.segments)
                && d.kernel.states.iter().all(|(_, state)| *state == CLOSE)
                && d.ours.states.iter().any(open)
        },
    },
    KnownDifference {
        name: "the error of a RST in SYN-RECEIVED of a simultaneous open",
        reason: "we report ECONNREFUSED (RFC 9293 3.10.7.4), the kernel reports ECONNRESET",
        continues: true,
        matches: |events, d| {
            let value =
                |outcome: &EventOutcome| outcome.returned.as_ref().map_or(0, |r| r.value.abs());
            let resets = |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(inject) if inject.flags & RST != 0);
            let connects =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Connect(_)));
            matches!(events[d.step], FuzzEvent::Call(_))
                && events[..d.step].iter().any(resets)
                && events[..d.step].iter().any(connects)
                && value(&d.kernel) == i64::from(libc::ECONNRESET)
                && value(&d.ours) == i64::from(libc::ECONNREFUSED)
                && d.kernel_only.is_empty()
                && d.ours_only.is_empty()
                && d.kernel.states == d.ours.states
                && same_polls_without(0, d)
        },
    },
    KnownDifference {
        name: "a RST that begins left of the window in SYN-RECEIVED",
        reason: "the kernel sends a challenge ACK if the data of the RST reaches into the window, \
                 we check the sequence number only (RFC 5961 3.2)",
        continues: true,
        matches: |events, d| {
            let straddles = |inject: &InjectedSegment| {
                let acked = |at: u32| d.before.1.acked.is_some_and(|acked| after(acked, at));
                inject.flags & RST != 0 && acked(inject.seq) && !acked(inject.end())
            };
            injected(events, d).is_some_and(straddles)
                && is_opening(d)
                && d.ours.segments.is_empty()
                && matches!(&d.kernel.segments[..], [one] if is_pure_ack(one))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "an ACK of the initial sequence number in SYN-RECEIVED of a simultaneous open",
        reason: "it ends the handshake in the kernel, we reset (RFC 9293 3.10.7.4: SND.UNA < \
                 SEG.ACK)",
        continues: false,
        matches: |events, d| {
            let first =
                |inject: &InjectedSegment| inject.flags & (ACK | RST) == ACK && inject.ack == 0;
            let connects =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Connect(_)));
            injected(events, d).is_some_and(first)
                && events[..d.step].iter().any(connects)
                && d.before.1.sent == 1
                && matches!(&d.ours.segments[..], [one] if is_reset(one))
                && waits_in_syn_received(&d.ours.states)
        },
    },
    KnownDifference {
        name: "the echo of a challenge ACK's timestamp in SYN-RECEIVED",
        reason: "the kernel accepts only timestamps of SYN-ACKs, and drops the ACK if its clock \
                 has ticked; we accept both",
        continues: false,
        matches: |events, d| {
            let syn = |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(i) if i.flags & (SYN | ACK) == SYN);
            let begins = events[..d.step].iter().rposition(syn).unwrap_or(0);
            let another = |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(_));
            let echoes =
                |i: &InjectedSegment| i.timestamp.is_some() && i.flags & (ACK | SYN | RST) == ACK;
            injected(events, d).is_some_and(echoes)
                && events[begins + 1..d.step].iter().any(another)
                && d.before.1.sent == 1
                && is_opening(d)
                && matches!(&d.kernel.segments[..], [one] if is_pure_ack(one))
                && !same_polls_without(0, d)
        },
    },
    KnownDifference {
        name: "the timestamp of an ACK in SYN-RECEIVED whose SYN had TSval 0",
        reason: "the kernel's small entry treats TS.Recent 0 as unset and omits the option; RFC \
                 7323 3.2 requires it on each segment",
        continues: true,
        matches: |events, d| {
            let zero = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(i) => {
                    i.flags & SYN != 0 && i.timestamp.is_some_and(|(val, _)| val == 0)
                }
                FuzzEvent::Call(_) => false,
            };
            let bare = |segment: &WireSegment| WireSegment {
                window: 0,
                options: Vec::new(),
                ..segment.clone()
            };
            events[..d.step].iter().any(zero)
                && is_opening(d)
                && matches!(
                    (&d.kernel_only[..], &d.ours_only[..]),
                    ([kernel], [ours]) if is_pure_ack(kernel)
                        && kernel.options.is_empty()
                        && bare(kernel) == bare(ours)
                        && ours.options.iter().any(|option| {
                            matches!(option, TcpOption::Timestamps { ecr: 0, .. })
                        })
                )
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a SYN-ACK in SYN-RECEIVED of a listener",
        reason: "the kernel removes the SYN, and the ACK ends the handshake; we send a challenge \
                 ACK (RFC 5961 4.2)",
        continues: false,
        matches: |events, d| {
            let again = |inject: &InjectedSegment| {
                inject.flags & (SYN | ACK | RST) == SYN | ACK
                    && d.before.1.acked == Some(inject.seq.wrapping_add(1))
            };
            injected(events, d).is_some_and(again)
                && is_opening(d)
                && d.before.1.sent == 1
                && all_pure(&d.kernel.segments)
                && matches!(&d.ours.segments[..], [one] if is_pure_ack(one))
        },
    },
    KnownDifference {
        name: "a segment without ACK and with a wrong echo in SYN-RECEIVED",
        reason: "the kernel checks the echo first and replies with an ACK; RFC 9293 3.10.7.4 drops a \
                 segment without ACK",
        continues: true,
        matches: |events, d| {
            let bare = |i: &InjectedSegment| {
                i.flags & (SYN | RST | ACK) == 0
                    && i.timestamp.is_some_and(|(_, echo)| echo != Echo::Latest(0))
            };
            injected(events, d).is_some_and(bare)
                && is_opening(d)
                && d.before.1.sent == 1
                && d.ours_only.is_empty()
                && matches!(&d.kernel.segments[..], [one] if is_pure_ack(one))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a SYN in SYN-RECEIVED",
        reason: "the kernel ends the handshake with a RST, we send a challenge ACK \
                 (docs/rfc-exceptions.md)",
        continues: false,
        matches: |events, d| {
            let syn = |inject: &InjectedSegment| inject.flags & SYN != 0;
            injected(events, d).is_some_and(syn)
                && is_opening(d)
                && d.before.1.sent == 1
                && d.kernel_only.iter().all(is_reset)
                && all_pure(&d.ours_only)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "connect over a listener's connection",
        reason: "after shutdown() of the listener the kernel's table still contains the child, \
                 which blocks the 4-tuple; ours does not. The kernel replaces the 4-tuple of a \
                 closed socket in FIN-WAIT-2 by its timestamp, ours refuses it",
        continues: false,
        matches: |events, d| {
            let listens =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Listen(..)));
            let refused = |returned: &CallResult| returned.value == -i64::from(libc::EADDRNOTAVAIL);
            let in_use = |returned: &CallResult| returned.value == -i64::from(libc::EADDRINUSE);
            matches!(events[d.step], FuzzEvent::Call(SocketCall::Connect(_)))
                && events.iter().any(listens)
                && (d.kernel.returned.as_ref().is_some_and(refused)
                    || d.ours.returned.as_ref().is_some_and(in_use))
        },
    },
    KnownDifference {
        name: "close in SYN-RECEIVED of a simultaneous open",
        reason: "the kernel sends the FIN immediately, ours waits for the end of the handshake; \
                 RFC 9293 3.10.4 allows either",
        continues: false,
        matches: |events, d| {
            let closes = matches!(
                events[d.step],
                FuzzEvent::Call(SocketCall::Close(_) | SocketCall::Shutdown(_, 1 | 2))
            );
            // shutdown() leaves the socket open, in a state that shows whether the FIN was sent.
            let differs = |(kernel, ours): (&(usize, u8), &(usize, u8))| {
                kernel == ours || kernel.1 == FIN_WAIT_1 && ours.1 == SYN_RECEIVED
            };
            closes
                && was_in_syn_received(events, d)
                && matches!(&d.kernel_only[..], [one] if has_fin(one) && !carries_data(one))
                && d.ours_only.is_empty()
                && d.kernel.returned == d.ours.returned
                && d.kernel.states.len() == d.ours.states.len()
                && (d.kernel.states.iter().zip(&d.ours.states)).all(differs)
        },
    },
];
