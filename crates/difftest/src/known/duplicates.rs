//! Differences in which repeated ACKs count as duplicates.

use fullsend_script::WireSegment;

use super::sending::most_deferred;
use super::{KnownDifference, carries_data, has_fin, only_segments, permits_sack};
use crate::event::{ACK, FuzzEvent, RST, SYN, after};
use crate::history::AcceptedAck;
use crate::segment::is_pure_ack;

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "a repeated ACK with an ignored window",
        reason: "without SACK the kernel counts it as a duplicate; RFC 5681 2 requires the same \
                 window",
        continues: false,
        matches: |events, d| {
            let counts = count_repeated(&d.acks);
            let ignored = counts.ignored + counts.ignored_before;
            let sends = |s: &WireSegment| carries_data(s) || has_fin(s);
            // Each duplicate lets the kernel send one segment, and the third retransmits one. The ACK
            // for the segments that it counted as delivered increases cwnd by fewer.
            !permits_sack(events)
                && ignored > 0
                && d.kernel_only.len() <= ignored + 1 + most_deferred(events, d)
                && d.ours_only.len() <= ignored + 1 + most_deferred(events, d)
                && (d.kernel_only.iter().chain(&d.ours_only)).all(sends)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a repeated ACK with a later sequence number or a closed window",
        reason: "without SACK the kernel treats it as a window update with any window; RFC 5681 2 \
                 requires the same window, not the same sequence number",
        continues: false,
        matches: |events, d| {
            let later = |(at, this): &(usize, &AcceptedAck)| {
                let mut before = d.acks[..*at].iter().filter(|same| same.ack == this.ack);
                this.is_pure && before.any(|same| after(this.seq, same.seq) || this.window == 0)
            };
            // Each of them lets one side send one segment, or retransmits one.
            let later = d.acks.iter().enumerate().filter(later).count();
            let most = later + 1 + most_deferred(events, d);
            !permits_sack(events)
                && later > 0
                && d.ours_only.len() <= most
                && d.kernel_only.len() <= most
                && (d.ours_only.iter().chain(&d.kernel_only)).all(|s| carries_data(s) || has_fin(s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a retransmission after fewer than three duplicate ACKs",
        reason: "without SACK, a duplicate ACK with fewer segments in flight sets the kernel's \
                 reordering degree to their number; RFC 5681 3.2 requires three duplicate ACKs",
        continues: false,
        matches: |events, d| {
            let is_repeated = |at: usize| match &events[at] {
                FuzzEvent::Inject(ack) if ack.flags & (SYN | RST | ACK) == ACK => {
                    events[..at].iter().any(|event| match event {
                        FuzzEvent::Inject(i) => i.flags & ACK != 0 && i.ack == ack.ack,
                        FuzzEvent::Call(_) => false,
                    })
                }
                _ => false,
            };
            let again = |s: &WireSegment| carries_data(s) && after(d.before.1.sent, s.seq);
            let counts = count_repeated(&d.acks);
            !permits_sack(events)
                && counts.duplicates < 3
                && is_repeated(d.step)
                && (0..d.step).any(is_repeated)
                && d.kernel.segments.first().is_some_and(again)
                && !d.ours.segments.iter().any(again)
                && (d.ours_only.iter()).all(|s| carries_data(s) || has_fin(s) || is_pure_ack(s))
                && only_segments(d)
        },
    },
];

/// The repeated ACKs since the last one that acknowledged new data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct RepeatedAcks {
    /// Repeated ACKs with the same window (RFC 5681 2, "duplicate acknowledgment"), at most one for each
    /// segment in flight above the first.
    duplicates: usize,
    /// Repeated ACKs whose window the kernel ignores: it has an old sequence number, or the same one and
    /// is smaller than the window before, but not zero.
    ignored: usize,
    /// Repeated ACKs with an ignored window before that ACK.
    ignored_before: usize,
}

/// Counts the repeated ACKs.
fn count_repeated(acks: &[AcceptedAck]) -> RepeatedAcks {
    let mut counts = RepeatedAcks::default();
    // The latest ACK, with the window that counts and the sequence number that set it.
    let mut last: Option<AcceptedAck> = None;
    for this in acks {
        let Some(latest) = &mut last else {
            last = Some(this.clone());
            continue;
        };
        if after(this.ack, latest.ack) {
            *latest = this.clone();
            counts = RepeatedAcks {
                ignored_before: counts.ignored_before + counts.ignored,
                ..RepeatedAcks::default()
            };
        } else if this.ack == latest.ack {
            let counted = usize::from(this.is_pure && this.in_flight > 0);
            let grows = this.window > latest.window || this.window == 0;
            if this.window == latest.window {
                // The first segment in flight is missing, so that it elicits none.
                let most = this.in_flight.saturating_sub(1);
                counts.duplicates = (counts.duplicates + counted).min(most);
            } else if after(this.seq, latest.seq) || this.seq == latest.seq && grows {
                *latest = this.clone();
            } else {
                counts.ignored += counted;
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests;
