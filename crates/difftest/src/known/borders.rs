//! Differences in where segments begin and end.

use super::{KnownDifference, carries_data, only_segments, windows_of};
use crate::event::{ACK, FuzzEvent, RST, SYN, after};
use crate::history::{Range, longest, ranges};
use crate::segment::is_pure_ack;

/// Returns whether each range begins where the one before it ends.
fn is_contiguous(ranges: &[Range]) -> bool {
    ranges.windows(2).all(|pair| pair[0].1 == pair[1].0)
}

/// Returns whether a segment before the last one is shorter than the longest.
fn has_short(ranges: &[Range]) -> bool {
    let longest = longest(ranges);
    let before_last = ranges.split_last().map_or(ranges, |(_, rest)| rest);
    (before_last.iter()).any(|(start, end)| end.wrapping_sub(*start) < longest)
}

/// Returns whether the last range is shorter than the longest, and less than that one's length is missing
/// up to the end of `other`: Nagle's algorithm delays the rest.
fn ends_short(ranges: &[Range], other: &[Range]) -> bool {
    let longest = longest(ranges);
    let ends = ranges.last().zip(other.last());
    ends.is_some_and(|(last, other)| {
        last.1.wrapping_sub(last.0) < longest && other.1.wrapping_sub(last.1) < longest
    })
}

pub(super) const KNOWN: &[KnownDifference] = &[KnownDifference {
    name: "the borders of segments after a window that ended within one",
    reason: "the kernel keeps the rest of the buffer that the window cut apart from the next buffer, so \
             that a short segment ends there; we fill segments across writes",
    continues: false,
    matches: |events, d| {
        let (kernel, ours) = (ranges(&d.kernel.segments), ranges(&d.ours.segments));
        let ([first, ..], [ours_first, ..]) = (&kernel[..], &ours[..]) else {
            return false;
        };
        let (start, largest) = (first.0, longest(&kernel));
        // The kernel sent data up to the right edge of a window; full segments may have followed.
        let ends = |edge: u32| d.history.sent.0.iter().any(|(_, end)| *end == edge);
        let is_cut = |event: &FuzzEvent| match event {
            FuzzEvent::Inject(i) if i.flags & (SYN | RST | ACK) == ACK => windows_of(events, i)
                .map(|window| i.ack.wrapping_add(window))
                .any(|edge| {
                    ends(edge)
                        && !after(edge, start)
                        && start.wrapping_sub(edge).is_multiple_of(largest)
                }),
            _ => false,
        };
        let few = kernel.len().abs_diff(ours.len()) <= 1;
        (has_short(&kernel) || ends_short(&kernel, &ours))
            && !has_short(&ours)
            && start == ours_first.0
            && largest == longest(&ours)
            && (is_contiguous(&kernel) && is_contiguous(&ours) && few)
            && events[..d.step].iter().any(is_cut)
            && (d.kernel_only.iter().chain(&d.ours_only)).all(|s| carries_data(s) || is_pure_ack(s))
            && only_segments(d)
    },
}];
