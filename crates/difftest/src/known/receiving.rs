//! Differences in what is accepted and answered.

use fullsend_script::WireSegment;

use super::{KnownDifference, all_pure, injected, only_segments};
use crate::event::{ACK, FuzzEvent, InjectedSegment, RST, SYN, SocketCall, after};
use crate::segment::is_pure_ack;
use crate::side::EventOutcome;

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "the reply to an old segment without data",
        reason: "the segment is left of the window if the following data was acknowledged, and \
                 inside it (as in Linux) if that acknowledgement is delayed",
        continues: false,
        matches: |events, d| {
            let old = |inject: &InjectedSegment| {
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
    KnownDifference {
        name: "the reply to a RST that ends at rcv_nxt",
        reason: "the kernel's window begins one byte earlier, so it sends a challenge ACK (RFC \
                 5961 3.2)",
        continues: true,
        matches: |events, d| {
            // Either side may have delayed the acknowledgement.
            let acked = [d.before.0.acked, d.before.1.acked];
            let at_edge =
                |i: &InjectedSegment| i.flags & RST != 0 && acked.contains(&Some(i.end()));
            injected(events, d).is_some_and(at_edge)
                && d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a pure ACK with a very old timestamp",
        reason: "the kernel replies if it is older than a retransmission timeout, even if it \
                 reports nothing",
        continues: true,
        matches: |events, d| {
            let pure = |i: &InjectedSegment| i.flags == ACK && i.len == 0 && i.timestamp.is_some();
            injected(events, d).is_some_and(pure)
                && d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a timestamp that is older than that of a segment after a delayed ACK",
        reason: "TS.Recent is updated up to the last acknowledgement sent (RFC 7323 4.3), so that \
                 PAWS, or in TIME-WAIT the test of a SYN, depends on whether a side delayed it; the \
                 other side accepts the segment",
        continues: false,
        matches: |events, d| {
            let val = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(i) => i.timestamp.map(|(val, _)| val),
                FuzzEvent::Call(_) => None,
            };
            // In TIME-WAIT the timestamp of a SYN must be later (RFC 6191 2).
            let is_syn = injected(events, d).is_some_and(|i| i.flags & (SYN | ACK | RST) == SYN);
            let is_older = |this: u32| {
                let mut vals = events[..d.step].iter().filter_map(val);
                vals.any(|before| after(before, this) || is_syn && before == this)
            };
            // PAWS replies with an ACK of what was received before.
            let drops = |segments: &[WireSegment], acked: Option<u32>| matches!(segments, [one] if is_pure_ack(one) && Some(one.ack) == acked);
            d.acks_diverged
                && val(&events[d.step]).is_some_and(is_older)
                && drops(&d.kernel.segments, d.before.0.acked)
                    != drops(&d.ours.segments, d.before.1.acked)
        },
    },
    KnownDifference {
        name: "the urgent pointer of old data, or after a FIN",
        reason: "the kernel accepts it if the segment ends at rcv_nxt or begins after a FIN; RFC \
                 9293 3.10.7.4 drops old data, and ignores URG after a FIN",
        continues: false,
        matches: |events, d| {
            let data = |outcome: &EventOutcome| outcome.returned.clone().map(|r| r.data);
            let prefix = data(&d.ours)
                .zip(data(&d.kernel))
                .is_some_and(|(ours, kernel)| {
                    ours.starts_with(&kernel) || kernel.starts_with(&ours)
                });
            d.old_urgent
                && matches!(events[d.step], FuzzEvent::Call(SocketCall::Receive { .. }))
                && prefix
                && d.kernel_only.is_empty()
                && d.ours_only.is_empty()
                && d.kernel.states == d.ours.states
        },
    },
    KnownDifference {
        name: "data with an ACK that is too old",
        reason: "the kernel's fast path ignores the result of its ACK processing and accepts the \
                 data; RFC 5961 5.2 drops it",
        continues: false,
        matches: |events, d| {
            let data = |inject: &InjectedSegment| inject.len > 0 && inject.flags & ACK != 0;
            let acks = |segments: &[WireSegment], to: u32| {
                segments.iter().any(|s| is_pure_ack(s) && s.ack == to)
            };
            // A connection that was not accepted has no counts.
            let takes = |inject: &InjectedSegment| {
                acks(&d.kernel.segments, inject.end())
                    && !acks(&d.ours.segments, inject.end())
                    && all_pure(&d.ours_only)
            };
            d.old_ack
                && injected(events, d)
                    .is_some_and(|i| data(i) && (d.kernel.counts > d.ours.counts || takes(i)))
        },
    },
];
