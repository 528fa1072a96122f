//! Differences in what a window of the peer admits.

use fullsend_script::WireSegment;

use super::sending::acknowledged;
use super::{
    KnownDifference, all_pure, carries_data, has_fin, injected, only_segments, windows_of,
};
use crate::event::{ACK, FuzzEvent, InjectedSegment, RST, SYN, after};
use crate::history::ranges;
use crate::segment::{scale_of, with_blocks, without_echo};

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "data into a window that is smaller than a segment",
        reason: "both send half of the largest window; the kernel ignores the window of the SYN, \
                 we include it (RFC 1122 4.2.3.4, Max(SND.WND))",
        continues: false,
        matches: |events, d| {
            let small = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(i) => i.flags & (SYN | RST | ACK) == ACK && i.window <= 512,
                FuzzEvent::Call(_) => false,
            };
            let recent = events[..=d.step].iter().any(small);
            let data = |segments: &[WireSegment]| segments.iter().any(carries_data);
            recent
                && data(&d.kernel_only)
                && !data(&d.ours.segments)
                && all_pure(&d.ours_only)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "segments of half of the largest window",
        reason: "the kernel ignores the window of the SYN, so that a handshake that ends with a \
                 small window causes small segments; we include it (RFC 1122 4.2.3.4, \
                 Max(SND.WND))",
        continues: false,
        matches: |events, d| {
            let data = |segments: &[WireSegment]| {
                let first = segments.iter().find(|s| carries_data(s));
                first.map(|s| (s.seq, s.data.len()))
            };
            let small = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(i) if i.flags & (SYN | RST) == 0 => {
                    windows_of(events, i).any(|window| window <= 5000)
                }
                _ => false,
            };
            let smaller = |(kernel, ours): ((u32, usize), (u32, usize))| {
                kernel.0 == ours.0 && kernel.1 < ours.1
            };
            events[..d.step].iter().any(small)
                && data(&d.kernel_only)
                    .zip(data(&d.ours_only))
                    .is_some_and(smaller)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "the window of a reordered segment",
        reason: "the kernel's fast path sets SND.WL1 back; we ignore the older of two windows (RFC \
                 9293 3.10.7.4)",
        continues: false,
        matches: |events, d| {
            let plain = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(i) if i.flags & (SYN | RST | ACK) == ACK => {
                    Some((i.seq, i.window))
                }
                _ => None,
            };
            let windows: Vec<_> = events[..=d.step].iter().filter_map(plain).collect();
            // A segment that a newer one overtook; it or a later one has another window.
            let overtaken = |(at, (newer, size)): (usize, &(u32, u16))| {
                let late = windows[at..]
                    .iter()
                    .position(|(seq, _)| after(*newer, *seq));
                late.is_some_and(|late| {
                    let mut rest = windows[at + late..].iter();
                    rest.any(|(seq, window)| !after(*seq, *newer) && window != size)
                })
            };
            let sent = |segments: &[WireSegment]| -> Vec<_> {
                let sent = segments.iter().filter(|s| carries_data(s) || has_fin(s));
                sent.map(|s| (s.seq, s.data.len(), has_fin(s))).collect()
            };
            // The last segment ends with the window.
            let cut = |less: &[(u32, usize, bool)], more: &[(u32, usize, bool)]| match less {
                [] => !more.is_empty(),
                [whole @ .., last] => {
                    more.starts_with(whole)
                        && (more.get(whole.len()))
                            .is_some_and(|next| next.0 == last.0 && next.1 >= last.1)
                }
            };
            let (kernel, ours) = (sent(&d.kernel.segments), sent(&d.ours.segments));
            // Without data, the sequence number is bounded by the window.
            let bare = |s: &WireSegment| !carries_data(s) && !has_fin(s);
            let (answers, own) = (&d.kernel.segments, &d.ours.segments);
            let moved = !answers.is_empty()
                && answers.len() == own.len()
                && answers.iter().chain(own).all(bare)
                && answers.iter().zip(own).all(|(k, o)| {
                    let (seq, window) = (k.seq, k.window);
                    let ours = WireSegment {
                        seq,
                        window,
                        ..o.clone()
                    };
                    // The kernel adds SACK blocks to RSTs. The echo depends on delayed ACKs.
                    let bare = |s: &WireSegment| {
                        let bare = with_blocks(s, Vec::clear);
                        if d.acks_diverged {
                            without_echo(&bare)
                        } else {
                            bare
                        }
                    };
                    bare(k) == bare(&ours)
                });
            windows.iter().enumerate().any(overtaken)
                && (kernel != ours && (cut(&kernel, &ours) || cut(&ours, &kernel))
                    || kernel == ours && moved)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a FIN after the last byte that the window admits",
        reason: "the kernel checks only the first segment of a super-segment; RFC 9293 3.4: the \
                 FIN occupies a sequence number",
        continues: false,
        matches: |events, d| {
            let edges = |edge: u32| {
                events[..=d.step].iter().any(|event| match event {
                    FuzzEvent::Inject(i) => {
                        windows_of(events, i).any(|window| i.ack.wrapping_add(window) == edge)
                    }
                    FuzzEvent::Call(_) => false,
                })
            };
            let end = |s: &WireSegment| s.seq.wrapping_add(s.data.len() as u32);
            let like = |kernel: &WireSegment, ours: &WireSegment| {
                has_fin(kernel) && !has_fin(ours) && kernel.data == ours.data
            };
            matches!(
                (&d.kernel_only[..], &d.ours_only[..]),
                ([kernel], [ours]) if like(kernel, ours) && edges(end(kernel))
            ) && only_segments(d)
        },
    },
    KnownDifference {
        name: "a window that differs from the unscaled one of a SYN by less than a unit of the scale",
        reason: "the kernel's fast path compares the window field with its own window in units of the \
                 scale, so that it keeps the window of the SYN; we follow the field (RFC 7323 2.3)",
        continues: false,
        matches: |events, d| {
            let una = acknowledged(events, d);
            let syns = events[..=d.step].iter().filter_map(|event| match event {
                FuzzEvent::Inject(i) if i.flags & (SYN | RST) == SYN => {
                    let shift = i.options.iter().find_map(scale_of).unwrap_or(0);
                    Some((u32::from(i.window), shift.min(14)))
                }
                _ => None,
            });
            let is_rounded = |window: u32, shift: u8| {
                events[..=d.step].iter().any(|event| match event {
                    FuzzEvent::Inject(i) if i.flags & (SYN | RST | ACK) == ACK => {
                        u32::from(i.window) == window >> shift
                    }
                    _ => false,
                })
            };
            let end = |segments: &[WireSegment]| ranges(segments).last().map(|range| range.1);
            let (kernel, ours) = (end(&d.kernel.segments), end(&d.ours.segments));
            // What is sent ends with the smaller window, or is in between.
            let is_between = |(window, shift): (u32, u8)| {
                let smaller = una.wrapping_add(window >> shift << shift);
                kernel
                    .is_some_and(|end| after(end, smaller) && !after(end, una.wrapping_add(window)))
                    && ours.is_none_or(|end| !after(end, smaller))
            };
            let sends = |s: &WireSegment| carries_data(s) || has_fin(s);
            syns.into_iter()
                .any(|(window, shift)| is_rounded(window, shift) && is_between((window, shift)))
                && (d.kernel_only.iter().chain(&d.ours_only)).all(sends)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a retransmission beyond a window that the peer shrank",
        reason: "RFC 9293 3.8.6 allows it (MAY); the kernel respects the window",
        continues: false,
        matches: |events, d| {
            let data = |segments: &[WireSegment]| -> Vec<(u32, u32)> {
                let data = segments.iter().filter(|s| carries_data(s));
                data.map(|s| (s.seq, s.seq.wrapping_add(s.data.len() as u32)))
                    .collect()
            };
            let (kernel, ours) = (data(&d.kernel.segments), data(&d.ours.segments));
            let again = |(_, end): &(u32, u32)| !after(*end, d.before.1.sent);
            // An ACK may be overtaken, and its window does not count then.
            let is_latest = |i: &InjectedSegment, inject: &InjectedSegment| {
                i.ack == inject.ack || after(i.ack, inject.ack) && !after(i.ack, d.before.1.sent)
            };
            // The window of one of the segments with this acknowledgement number counts; one
            // segment probes a closed one.
            let is_within = |edge: u32, closed: bool| {
                (kernel.iter().all(|(_, end)| !after(*end, edge)) || closed && kernel.len() == 1)
                    && ours.iter().any(|(_, end)| after(*end, edge))
            };
            let keeps = |inject: &InjectedSegment| {
                events[..=d.step].iter().any(|event| match event {
                    FuzzEvent::Inject(i) if is_latest(i, inject) => windows_of(events, i)
                        .any(|window| is_within(i.ack.wrapping_add(window), window == 0)),
                    _ => false,
                })
            };
            let begins = kernel.is_empty() || ours.first().map(|r| r.0) == Some(kernel[0].0);
            (kernel.iter().all(again) && ours.iter().all(again))
                && begins
                && injected(events, d).is_some_and(keeps)
                && only_segments(d)
        },
    },
];
