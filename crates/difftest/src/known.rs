//! Differences that are there on purpose, or not worth a change, each with its reason.

use fullsend_posix::abi::{MSG_MORE, SIOCOUTQ, SIOCOUTQNSD};
use fullsend_script::LiveSegment;

use crate::compare::{Difference, blocks_of, is_pure_ack, without_echo};
use crate::event::{ACK, Call, Event, FIN, Inject, RST, SYN, after};
use crate::side::{Outcome, Returned};

// Values of `tcpi_state`.
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const LISTEN: u8 = 10;
const CLOSING: u8 = 11;

/// A difference that is explained.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) reason: &'static str,
    /// The two sides agree afterwards, so that the sequence goes on.
    pub(crate) continues: bool,
    /// Returns whether a difference is of this kind.
    pub(crate) matches: fn(&[Event], &Difference) -> bool,
}

/// What [`compare`](crate::compare) leaves out, and why.
pub(crate) const TOLERATED: &[(&str, &str)] = &[
    (
        "the size of windows",
        "how far a window opens depends on the memory that the buffers of a kernel's driver take; \
         zero or not is compared",
    ),
    (
        "when an acknowledgement of new data goes",
        "how long it may be delayed is up to each side, and on a busy machine the kernel's timer \
         may send it at any event; bytes received are compared by TCP_INFO",
    ),
    (
        "PSH on data",
        "it marks the end of a super-segment, whose size comes of the pacing rate and so of time",
    ),
    (
        "FIN in SACK blocks",
        "the kernel's blocks include it, ours do not (docs/rfc-exceptions.md)",
    ),
    (
        "reports of duplicates",
        "the kernel forgets a DSACK block when more data comes before the next ACK, we send it \
         (RFC 2883); we report overlap with data that waits out of order, the kernel not always",
    ),
    (
        "SACK blocks on segments with data or FIN",
        "the kernel makes room for them there, we send them on ACKs (docs/rfc-exceptions.md)",
    ),
    (
        "options of the SYN-ACK in a simultaneous open",
        "the kernel repeats those of its SYN, we answer those of the peer's",
    ),
    (
        "SYN and FIN in tcpi_bytes_acked and tcpi_bytes_received",
        "the kernel counts them, we count bytes",
    ),
    (
        "the sequence number of an ACK or RST after the peer took window back",
        "ours lies in the window; the kernel's may lie beyond by less than one step of its own \
         scaled window",
    ),
    (
        "POLLPRI once a segment with URG came",
        "the kernel reports an urgent byte that arrives out of order, we when it can be read",
    ),
];

fn injected<'a>(events: &'a [Event], difference: &Difference) -> Option<&'a Inject> {
    match &events[difference.step] {
        Event::Inject(inject) => Some(inject),
        Event::Call(_) => None,
    }
}

/// Returns whether the two agree but for segments.
fn only_segments(difference: &Difference) -> bool {
    let (kernel, ours) = (&difference.kernel, &difference.ours);
    let mask = |polls: &[(usize, i32)]| -> Vec<_> {
        let pri = i32::from(libc::POLLPRI);
        polls.iter().map(|(fd, bits)| (*fd, bits & !pri)).collect()
    };
    kernel.returned == ours.returned
        && mask(&kernel.polls) == mask(&ours.polls)
        && kernel.states == ours.states
        && kernel.others == ours.others
}

fn all_pure(segments: &[LiveSegment]) -> bool {
    segments.iter().all(is_pure_ack)
}

fn carries_data(segment: &LiveSegment) -> bool {
    !segment.data.is_empty()
}

/// What [`Known`] differences there are.
pub(crate) const KNOWN: &[Known] = &[
    Known {
        name: "an ACK for the SYN-ACK of a simultaneous open",
        reason: "the kernel takes it for a duplicate and acknowledges it; RFC 9293 3.5 needs none",
        continues: true,
        matches: |events, d| {
            let syn_ack = |inject: &Inject| inject.flags & (SYN | ACK) == SYN | ACK;
            let connects = |event: &Event| matches!(event, Event::Call(Call::Connect(_)));
            injected(events, d).is_some_and(syn_ack)
                && events.iter().any(connects)
                && d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && only_segments(d)
        },
    },
    Known {
        name: "a wrong ACK in SYN-RECEIVED outside of the window or with an old timestamp",
        reason: "the kernel looks at the ACK field first and resets, we at the sequence number, as \
                 RFC 9293 3.10.7.4 has it, and answer with an ACK",
        continues: true,
        matches: |events, d| {
            let wrong = |inject: &Inject| inject.flags & ACK != 0 && inject.ack != 1;
            injected(events, d).is_some_and(wrong)
                && matches!(&d.kernel_only[..], [one] if one.flags & RST != 0)
                && d.ours_only.len() <= 1
                && all_pure(&d.ours_only)
                && only_segments(d)
        },
    },
    Known {
        name: "an ACK of the initial sequence number",
        reason: "the kernel lets one through where it connected, we also where it listened; none \
                 acknowledges data",
        continues: false,
        matches: |events, d| injected(events, d).is_some_and(|inject| inject.ack == 0),
    },
    Known {
        name: "data written with MSG_MORE",
        reason: "both send it with the next ACK that arrives; the kernel not where its fast path \
                 sees nothing new in the ACK",
        continues: false,
        matches: |events, d| {
            let more = |event: &Event| matches!(event, Event::Call(Call::Send { flags, .. }) if flags & MSG_MORE != 0);
            events[..d.step].iter().any(more)
                && d.ours_only.iter().any(carries_data) != d.kernel_only.iter().any(carries_data)
        },
    },
    Known {
        name: "SACK blocks on data segments",
        reason: "the kernel makes room for them on full segments, we send them on ACKs \
                 (docs/rfc-exceptions.md)",
        continues: false,
        matches: |_, d| {
            let blocks = |segment: &LiveSegment| !blocks_of(segment).is_empty();
            let with = |segment: &LiveSegment| carries_data(segment) && blocks(segment);
            let without = |segment: &LiveSegment| carries_data(segment) && !blocks(segment);
            d.kernel_only.iter().any(with) && d.ours_only.iter().any(without)
        },
    },
    Known {
        name: "data near the right edge of windows that differ",
        reason: "the size of windows is tolerated, and so is what lies behind the smaller one",
        continues: false,
        matches: |events, d| {
            let (kernel, ours) = (d.before.0.edge, d.before.1.edge);
            let smaller = if after(kernel, ours) { ours } else { kernel };
            let near = |inject: &Inject| {
                let end = inject.end();
                after(end, smaller) && !after(end, smaller.wrapping_add(1 << 18))
            };
            d.near_edge || kernel != ours && injected(events, d).is_some_and(near)
        },
    },
    Known {
        name: "an answer to an old segment without data",
        reason: "it lies left of the window where what follows it was acknowledged, and within (as \
                 Linux has it) where that acknowledgement is delayed",
        continues: false,
        matches: |events, d| {
            let old = |inject: &Inject| {
                let acked = d.before.0.acked.max(d.before.1.acked).unwrap_or(0);
                inject.end() == inject.seq && inject.flags & ACK != 0 && !after(inject.seq, acked)
            };
            injected(events, d).is_some_and(old)
                && d.kernel_only.is_empty() != d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && all_pure(&d.ours_only)
                && only_segments(d)
        },
    },
    Known {
        name: "an ACK beside data",
        reason: "the kernel sends what an ACK allows before it reads the segment's data, and then \
                 acknowledges that; we let the data carry the ACK",
        continues: true,
        matches: |_, d| {
            d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && d.ours.segments.iter().any(carries_data)
                && only_segments(d)
        },
    },
    Known {
        name: "an answer to a RST that ends at rcv_nxt",
        reason: "the kernel's window begins one earlier, so that it is challenged (RFC 5961 3.2)",
        continues: true,
        matches: |events, d| {
            let at_edge = |i: &Inject| i.flags & RST != 0 && d.before.1.acked == Some(i.end());
            injected(events, d).is_some_and(at_edge)
                && d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && only_segments(d)
        },
    },
    Known {
        name: "an answer to a segment without ACK after close",
        reason: "the kernel's FIN-WAIT-2 and TIME-WAIT answer it; RFC 9293 3.10.7.4 drops it",
        continues: true,
        matches: |events, d| {
            let bare = |inject: &Inject| inject.flags & (ACK | RST | SYN) == 0;
            injected(events, d).is_some_and(bare)
                && d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && only_segments(d)
        },
    },
    Known {
        name: "options of an ACK after close",
        reason: "the kernel's FIN-WAIT-2 and TIME-WAIT of a closed socket keep a few words: no SACK \
                 blocks, and a timestamp that old data does not move",
        continues: true,
        matches: |events, d| {
            let blank = |segments: &[LiveSegment]| -> Vec<_> {
                let bare = |segment: &LiveSegment| LiveSegment {
                    window: 0,
                    options: Vec::new(),
                    ..segment.clone()
                };
                segments.iter().map(bare).collect()
            };
            let closed = |event: &Event| matches!(event, Event::Call(Call::Close(_)));
            events[..d.step].iter().any(closed)
                && all_pure(&d.kernel_only)
                && blank(&d.kernel.segments) == blank(&d.ours.segments)
                && only_segments(d)
        },
    },
    Known {
        name: "data at the right edge in SYN-RECEIVED",
        reason: "the kernel cuts the window sharply there; we take what begins at its edge, as both \
                 do later while nothing waits to be read",
        continues: false,
        matches: |events, d| {
            let only_listens = |states: &[(usize, u8)]| states.iter().all(|(_, s)| *s == LISTEN);
            injected(events, d).is_some_and(|inject| {
                !after(d.before.1.edge, inject.seq) && after(inject.end(), d.before.1.edge)
            }) && only_listens(&d.ours.states)
        },
    },
    Known {
        name: "a repeated ACK with a window that does not count",
        reason: "without SACK the kernel takes it for a duplicate; RFC 5681 2 asks for the same \
                 window",
        continues: false,
        matches: |events, d| {
            let repeats = |inject: &Inject| {
                let sizes = events[..d.step].iter().filter_map(|event| match event {
                    Event::Inject(before) => Some(before),
                    Event::Call(_) => None,
                });
                let mut same = sizes.filter(|i| i.ack == inject.ack && i.flags & ACK != 0);
                inject.len == 0 && same.any(|i| i.window != inject.window)
            };
            injected(events, d).is_some_and(repeats)
                && d.kernel_only.iter().all(carries_data)
                && d.ours_only.is_empty()
                && only_segments(d)
        },
    },
    Known {
        name: "data into a window that is smaller than a segment",
        reason: "both send what is half of the largest window; the kernel forgets the window of the \
                 SYN, we count it (RFC 1122 4.2.3.4, Max(SND.WND))",
        continues: false,
        matches: |events, d| {
            let small = |event: &Event| matches!(event, Event::Inject(i) if i.window <= 512);
            let recent = events[..=d.step].iter().rev().take(6).any(small);
            let data = |segments: &[LiveSegment]| segments.iter().any(carries_data);
            recent && data(&d.kernel_only) && !data(&d.ours.segments) && d.ours_only.is_empty()
        },
    },
    Known {
        name: "a pure ACK with a very old timestamp",
        reason: "the kernel answers it where it is older than a retransmission timeout, even if it \
                 reports nothing",
        continues: true,
        matches: |events, d| {
            let pure = |i: &Inject| i.flags == ACK && i.len == 0 && i.stamp.is_some();
            injected(events, d).is_some_and(pure)
                && d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && only_segments(d)
        },
    },
    Known {
        name: "old data that ends a handshake",
        reason: "the kernel takes the ACK of data that ends at rcv_nxt in SYN-RECEIVED, we do not \
                 for a connection that waits in a listener",
        continues: false,
        matches: |events, d| {
            let old = |i: &Inject| {
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
    Known {
        name: "a forged SACK option whose first block lies in the second",
        reason: "it reports a duplicate (RFC 2883 4), which we do not take for news; the kernel does \
                 where the second block is impossible",
        continues: false,
        matches: |events, d| {
            let nested = |inject: &Inject| match &inject.sack[..] {
                [a, b] => !after(b.0, a.0) && !after(a.1, b.1),
                _ => false,
            };
            injected(events, d).is_some_and(nested)
        },
    },
    Known {
        name: "a RST with an old timestamp in SYN-RECEIVED",
        reason: "we take it (RFC 7323 5.2: a RST is not subject to PAWS), the kernel does not",
        continues: false,
        matches: |events, d| {
            let reset = |event: &Event| matches!(event, Event::Inject(i) if i.flags & RST != 0 && i.stamp.is_some());
            let only_listens = |states: &[(usize, u8)]| states.iter().all(|(_, s)| *s == LISTEN);
            events[..=d.step].iter().any(reset) && only_listens(&d.ours.states)
        },
    },
    Known {
        name: "the left edge of windows that differ",
        reason: "a delayed ACK leaves what it would acknowledge within the kernel's window",
        continues: false,
        matches: |_, d| d.left_edge,
    },
    Known {
        name: "two ends of one stream",
        reason: "no peer sends data or another FIN behind its FIN: what is kept of it, and so is in \
                 SACK blocks and byte counts, has no meaning. Who reaches which state is compared",
        continues: false,
        matches: |_, d| {
            d.two_ends && d.kernel.states == d.ours.states && d.kernel.returned == d.ours.returned
        },
    },
    Known {
        name: "the last segments that an ACK or a write lets go",
        reason: "whether less than a third of the window waits for the next ACK depends on how long \
                 ago the first segment in flight left, and so on time",
        continues: false,
        matches: |events, d| {
            let data = |segments: &[LiveSegment]| -> Vec<_> {
                let data = segments.iter().filter(|segment| carries_data(segment));
                data.map(|segment| (segment.seq, segment.data.len()))
                    .collect()
            };
            let (kernel, ours) = (data(&d.kernel.segments), data(&d.ours.segments));
            let writes = matches!(events[d.step], Event::Call(Call::Send { .. }));
            let few = kernel.len().abs_diff(ours.len()) <= if writes { 10 } else { 3 };
            let prefix = kernel.starts_with(&ours) || ours.starts_with(&kernel);
            let acks = |inject: &Inject| inject.flags & (SYN | RST | ACK) == ACK;
            (writes || injected(events, d).is_some_and(acks))
                && few
                && prefix
                && kernel != ours
                && only_segments(d)
        },
    },
    Known {
        name: "a SYN in SYN-RECEIVED",
        reason: "the kernel ends the handshake with a RST, we challenge it \
                 (docs/rfc-exceptions.md)",
        continues: false,
        matches: |events, d| {
            let syn = |inject: &Inject| inject.flags & SYN != 0;
            let reset = |segment: &LiveSegment| segment.flags & RST != 0;
            injected(events, d).is_some_and(syn)
                && d.kernel_only.iter().all(reset)
                && all_pure(&d.ours_only)
                && only_segments(d)
        },
    },
    Known {
        name: "SIOCOUTQ and SIOCOUTQNSD after a reset",
        reason: "the kernel counts what the reset threw away, we do not",
        continues: true,
        matches: |events, d| {
            let asks = matches!(
                events[d.step],
                Event::Call(Call::Ioctl(_, SIOCOUTQ | SIOCOUTQNSD))
            );
            asks && d.kernel_only.is_empty()
                && d.ours_only.is_empty()
                && d.ours.states.iter().any(|(_, state)| *state == CLOSE)
                && d.kernel.states == d.ours.states
        },
    },
    Known {
        name: "SIOCOUTQNSD with a FIN that waits",
        reason: "the kernel counts it, we count bytes",
        continues: true,
        matches: |events, d| {
            let asks = matches!(events[d.step], Event::Call(Call::Ioctl(_, SIOCOUTQNSD)));
            let value = |outcome: &Outcome| outcome.returned.as_ref().map_or(-1, |r| r.value);
            asks && d.kernel_only.is_empty()
                && d.ours_only.is_empty()
                && d.kernel.states == d.ours.states
                && value(&d.kernel) == value(&d.ours) + 1
        },
    },
    Known {
        name: "connect over a listener's connection",
        reason: "the kernel still has the child in its table after shutdown() of the listener, and \
                 refuses the 4-tuple; ours is gone",
        continues: false,
        matches: |events, d| {
            let listens = |event: &Event| matches!(event, Event::Call(Call::Listen(..)));
            let refused = |returned: &Returned| returned.value == -i64::from(libc::EADDRNOTAVAIL);
            matches!(events[d.step], Event::Call(Call::Connect(_)))
                && events.iter().any(listens)
                && d.kernel.returned.as_ref().is_some_and(refused)
        },
    },
    Known {
        name: "an error after a RST in LAST-ACK or CLOSING",
        reason: "the kernel reports ECONNRESET; RFC 9293 3.10.7.4 closes without a word, as both \
                 streams are complete",
        continues: false,
        matches: |events, d| {
            let reset = |inject: &Inject| inject.flags & RST != 0;
            let mask = |polls: &[(usize, i32)]| -> Vec<_> {
                let err = i32::from(libc::POLLERR);
                polls.iter().map(|(fd, bits)| (*fd, bits & !err)).collect()
            };
            injected(events, d).is_some_and(reset)
                && d.kernel.states == d.ours.states
                && d.kernel_only.is_empty()
                && d.ours_only.is_empty()
                && mask(&d.kernel.polls) == mask(&d.ours.polls)
        },
    },
    Known {
        name: "data behind a FIN",
        reason: "no peer sends any; we ignore it, the kernel resets where it overlaps the FIN",
        continues: false,
        matches: |_, d| {
            let reset = |segment: &LiveSegment| segment.flags & RST != 0;
            let resets = d.kernel_only.iter().any(reset);
            d.beyond_fin || d.two_ends && resets
        },
    },
    Known {
        name: "the timestamp of a segment with an old ACK",
        reason: "we echo it where the sequence number is next, as RFC 7323 4.3 has it, the kernel \
                 does not",
        continues: false,
        matches: |_, d| {
            let blank = |segments: &[LiveSegment]| -> Vec<_> {
                let unsized_window = |segment: &LiveSegment| LiveSegment {
                    window: 0,
                    ..without_echo(segment)
                };
                segments.iter().map(unsized_window).collect()
            };
            d.old_ack && blank(&d.kernel.segments) == blank(&d.ours.segments) && only_segments(d)
        },
    },
    Known {
        name: "data with an ACK that is too old",
        reason: "the kernel's fast path does not look at what its ACK processing says, and takes \
                 the data; RFC 5961 5.2 drops it",
        continues: false,
        matches: |events, d| {
            let data = |inject: &Inject| inject.len > 0 && inject.flags & ACK != 0;
            d.old_ack && injected(events, d).is_some_and(data) && d.kernel.counts > d.ours.counts
        },
    },
    Known {
        name: "what an ACK makes go before its segment's data is read",
        reason: "the kernel sends it with the acknowledgement number from before, we with the new",
        continues: true,
        matches: |_, d| {
            let blank = |segments: &[LiveSegment]| -> Vec<_> {
                let blank = |segment: &LiveSegment| LiveSegment {
                    ack: 0,
                    window: 0,
                    options: Vec::new(),
                    ..segment.clone()
                };
                let data = segments.iter().filter(|segment| carries_data(segment));
                data.map(blank).collect()
            };
            let (kernel, ours) = (blank(&d.kernel.segments), blank(&d.ours.segments));
            kernel == ours
                && !kernel.is_empty()
                && d.kernel_only
                    .iter()
                    .all(|s| carries_data(s) || is_pure_ack(s))
                && d.ours_only.iter().all(carries_data)
                && only_segments(d)
        },
    },
    Known {
        name: "a SYN within the window of a closed socket's FIN-WAIT-2",
        reason: "the kernel resets, we challenge it (RFC 5961 4.2)",
        continues: false,
        matches: |events, d| {
            let syn = |inject: &Inject| inject.flags & SYN != 0;
            let reset = |segment: &LiveSegment| segment.flags & RST != 0;
            injected(events, d).is_some_and(syn)
                && d.ours.states.is_empty()
                && d.kernel_only.iter().any(reset)
                && all_pure(&d.ours_only)
        },
    },
    Known {
        name: "an answer to old data that acknowledges a closed socket's FIN",
        reason: "the kernel's connection is over then and silent, ours still tells the peer of it",
        continues: true,
        matches: |events, d| {
            let data = |inject: &Inject| inject.len > 0 && inject.flags & ACK != 0;
            injected(events, d).is_some_and(data)
                && d.ours.states.is_empty()
                && d.kernel_only.is_empty()
                && all_pure(&d.ours_only)
        },
    },
    Known {
        name: "close in SYN-RECEIVED of a simultaneous open",
        reason: "the kernel sends the FIN at once, ours waits for the handshake's end; RFC 9293 \
                 3.10.4 allows either",
        continues: false,
        matches: |events, d| {
            let closes = matches!(
                events[d.step],
                Event::Call(Call::Close(_) | Call::Shutdown(..))
            );
            let fin = |segment: &LiveSegment| segment.flags & FIN != 0;
            closes
                && d.ours_only.is_empty()
                && d.kernel_only.iter().any(fin)
                && events[..d.step]
                    .iter()
                    .any(|event| matches!(event, Event::Inject(i) if i.flags & (SYN | ACK) == SYN))
        },
    },
    Known {
        name: "a FIN out of order that later data covers",
        reason: "the kernel forgets it with the data that it came with, we keep it",
        continues: false,
        matches: |events, d| {
            let fin = |event: &Event| matches!(event, Event::Inject(i) if i.flags & FIN != 0);
            let closes = |states: &[(usize, u8)]| {
                let ended = [CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING];
                states.iter().any(|(_, state)| ended.contains(state))
            };
            events[..d.step].iter().any(fin) && closes(&d.ours.states) && !closes(&d.kernel.states)
        },
    },
];
