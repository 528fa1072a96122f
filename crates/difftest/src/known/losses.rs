//! Differences in what is marked as lost.

use fullsend_script::WireSegment;
use fullsend_script::tcp_option::TcpOption;

use super::{KnownDifference, carries_data, has_fin, injected, only_segments, permits_sack};
use crate::compare::is_pure_ack;
use crate::event::{ACK, Echo, FuzzEvent, InjectedSegment, RST, SYN, after};

/// The largest segment of the device, and the one of a peer whose SYN has no MSS option.
const DEVICE_MSS: u16 = 1460;
const DEFAULT_MSS: u16 = 536;

/// Returns the MSS of the peer's SYN, at most that of the device.
fn mss_of(events: &[FuzzEvent]) -> u32 {
    let mss = |option: &TcpOption| match option {
        TcpOption::Mss(mss) => Some(*mss),
        _ => None,
    };
    let syn = |event: &FuzzEvent| match event {
        FuzzEvent::Inject(i) if i.flags & SYN != 0 => Some(i.options.iter().find_map(mss)),
        _ => None,
    };
    let mss = events.iter().find_map(syn).flatten().unwrap_or(DEFAULT_MSS);
    mss.min(DEVICE_MSS).into()
}

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "losses within the reordering window of a shorter minimum round trip",
        reason: "the reordering window is a quarter of the minimum (RFC 8985 6.2 step 4); the kernel's minimum \
             includes round trips of segments that overtook others, ours does not, so that our window may \
             be longer",
        continues: false,
        matches: |events, d| {
            let above = |i: &InjectedSegment| -> u32 {
                let above =
                    |(left, right): &&(u32, u32)| after(*right, *left) && after(*left, i.ack);
                let lengths = i.sack.iter().filter(above);
                lengths.map(|(left, right)| right.wrapping_sub(*left)).sum()
            };
            // With three SACKed segments the reordering window is zero.
            let reports_few = |i: &InjectedSegment| {
                let sacked = above(i);
                i.flags & (SYN | RST | ACK) == ACK && sacked > 0 && sacked < 3 * mss_of(events)
            };
            let retransmissions = |segments: &[WireSegment]| -> Vec<_> {
                let old = |s: &&WireSegment| carries_data(s) && after(d.before.1.sent, s.seq);
                let old = segments.iter().filter(old);
                old.map(|s| (s.seq, s.data.len())).collect()
            };
            let kernel = retransmissions(&d.kernel.segments);
            let ours = retransmissions(&d.ours.segments);
            injected(events, d).is_some_and(reports_few)
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
            !permits_sack(events)
                && is_repeated(d.step)
                && (0..d.step).any(is_repeated)
                && d.kernel.segments.first().is_some_and(again)
                && !d.ours.segments.iter().any(again)
                && (d.ours_only.iter()).all(|s| carries_data(s) || has_fin(s) || is_pure_ack(s))
                && only_segments(d)
        },
    },
];
