//! Differences in what is sent, and when.

use fullsend_posix::abi::MSG_MORE;
use fullsend_script::WireSegment;

use super::{
    KnownDifference, all_pure, carries_data, has_fin, injected, is_reset, only_segments,
    permits_sack, third_of_window, windows_of,
};
use crate::compare::{blocks_of, is_pure_ack};
use crate::event::{ACK, FuzzEvent, InjectedSegment, PSH, RST, SYN, SocketCall, after};
use crate::history::Range;

pub(super) const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        name: "data written with MSG_MORE",
        reason: "both send it when the next ACK arrives, but the kernel not if its fast path finds \
                 nothing new in the ACK",
        continues: false,
        matches: |events, d| {
            let more = |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Send { flags, .. }) if flags & MSG_MORE != 0);
            events[..d.step].iter().any(more)
                && d.ours_only.iter().any(carries_data) != d.kernel_only.iter().any(carries_data)
        },
    },
    KnownDifference {
        name: "SACK blocks on data segments",
        reason: "the kernel adds them to full segments, we send them on ACKs \
                 (docs/rfc-exceptions.md)",
        continues: false,
        matches: |_, d| {
            let blocks = |segment: &WireSegment| !blocks_of(segment).is_empty();
            let with = |segment: &WireSegment| carries_data(segment) && blocks(segment);
            let without = |segment: &WireSegment| carries_data(segment) && !blocks(segment);
            let reports = |segment: &WireSegment| is_pure_ack(segment) && blocks(segment);
            d.kernel_only.iter().any(with) && d.ours_only.iter().any(without)
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
            d.ours_only.is_empty()
                && all_pure(&d.kernel_only)
                && d.ours.segments.iter().any(carries_data)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a repeated ACK with an ignored window",
        reason: "without SACK the kernel counts it as a duplicate; RFC 5681 2 requires the same \
                 window",
        continues: false,
        matches: |events, d| {
            let repeats = |at: usize, inject: &InjectedSegment| {
                let sizes = events[..at].iter().filter_map(|event| match event {
                    FuzzEvent::Inject(before) => Some(before),
                    FuzzEvent::Call(_) => None,
                });
                let mut same = sizes.filter(|i| i.ack == inject.ack && i.flags & ACK != 0);
                let differs = |i: &InjectedSegment| {
                    (windows_of(events, i).zip(windows_of(events, inject))).any(|(a, b)| a != b)
                };
                inject.len == 0 && same.any(differs)
            };
            // A duplicate that was counted before lets a call send more.
            let repeated = |(at, event): (usize, &FuzzEvent)| match event {
                FuzzEvent::Inject(i) => i.flags & (SYN | RST | ACK) == ACK && repeats(at, i),
                FuzzEvent::Call(_) => false,
            };
            let is_call = injected(events, d).is_none();
            (injected(events, d).is_some_and(|i| repeats(d.step, i))
                || is_call
                    && !permits_sack(events)
                    && events[..d.step].iter().enumerate().any(repeated))
                && (d.kernel_only.iter()).all(|s| carries_data(s) || has_fin(s))
                && (d.ours_only.is_empty()
                    || d.ours_only.iter().all(|s| carries_data(s) || has_fin(s))
                        && !permits_sack(events))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a repeated ACK with a later sequence number",
        reason: "without SACK the kernel treats it as a window update with any window; RFC 5681 2 \
                 requires the same window, not the same sequence number",
        continues: false,
        matches: |events, d| {
            // The SYN-ACK of an active open sets SND.WL1, too.
            let plain = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(i) if i.flags & (RST | ACK) == ACK => {
                    Some((i.ack, i.seq, i.end() == i.seq))
                }
                _ => None,
            };
            let acks: Vec<_> = events[..=d.step].iter().filter_map(plain).collect();
            let later = |(at, (ack, seq, pure)): (usize, &(u32, u32, bool))| {
                let mut before = acks[..at].iter();
                *pure && before.any(|(same, earlier, _)| same == ack && after(*seq, *earlier))
            };
            !permits_sack(events)
                && acks.iter().enumerate().any(later)
                && !d.ours_only.is_empty()
                && (d.ours_only.iter().chain(&d.kernel_only)).all(|s| carries_data(s) || has_fin(s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "data into a window that is smaller than a segment",
        reason: "both send half of the largest window; the kernel ignores the window of the SYN, \
                 we include it (RFC 1122 4.2.3.4, Max(SND.WND))",
        continues: false,
        matches: |events, d| {
            let small =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(i) if i.window <= 512);
            let recent = events[..=d.step].iter().rev().take(6).any(small);
            let data = |segments: &[WireSegment]| segments.iter().any(carries_data);
            recent && data(&d.kernel_only) && !data(&d.ours.segments) && all_pure(&d.ours_only)
        },
    },
    KnownDifference {
        name: "a forged SACK option whose first block is inside the second",
        reason: "it reports a duplicate (RFC 2883 4), which delivers no data for us; it does for \
                 the kernel if the second block is impossible",
        continues: false,
        matches: |events, d| {
            let nested = |inject: &InjectedSegment| match &inject.sack[..] {
                [a, b] => !after(b.0, a.0) && !after(a.1, b.1),
                _ => false,
            };
            // The segment that the kernel counts as delivered lets a call send more.
            let before = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(inject) => nested(inject),
                FuzzEvent::Call(_) => false,
            };
            let call_sends_more = injected(events, d).is_none()
                && events[..d.step].iter().any(before)
                && d.ours_only.is_empty()
                && (d.kernel_only.iter()).all(|s| carries_data(s) || has_fin(s));
            (injected(events, d).is_some_and(nested) || call_sends_more) && only_segments(d)
        },
    },
    KnownDifference {
        name: "the last segments that an ACK or a write allows",
        reason: "whether less than a third of the window is deferred until the next ACK depends on \
                 the age of the first segment in flight, and thus on time",
        continues: false,
        matches: |events, d| {
            let data = |segments: &[WireSegment]| -> Vec<_> {
                let data = segments.iter().filter(|segment| carries_data(segment));
                data.map(|segment| (segment.seq, segment.data.len()))
                    .collect()
            };
            let (kernel, ours) = (data(&d.kernel.segments), data(&d.ours.segments));
            let writes = matches!(events[d.step], FuzzEvent::Call(SocketCall::Send { .. }));
            let third = third_of_window(events, d).max(if writes { 10 } else { 3 });
            // The kernel counts a segment of a super-segment that an ACK ends within as received.
            let largest = (d.kernel.segments.iter().chain(&d.ours.segments))
                .map(|s| s.data.len() as u32)
                .max();
            let within = injected(events, d)
                .zip(largest)
                .is_some_and(|(inject, largest)| {
                    largest > 0 && !inject.ack.wrapping_sub(1).is_multiple_of(largest)
                });
            let third = third + 2 * usize::from(within);
            let few = kernel.len().abs_diff(ours.len()) <= third;
            let prefix = kernel.starts_with(&ours) || ours.starts_with(&kernel);
            let acks = |inject: &InjectedSegment| inject.flags & (SYN | RST | ACK) == ACK;
            (writes || injected(events, d).is_some_and(acks))
                && few
                && prefix
                && kernel != ours
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a retransmission that SACK covers in part",
        reason: "if a partial ACK moved the segment boundaries, the kernel sends a whole segment, \
                 we send the missing part (RFC 6675 4, NextSeg)",
        continues: false,
        matches: |events, d| {
            let lefts: Vec<u32> = (events[..=d.step].iter())
                .filter_map(|event| match event {
                    FuzzEvent::Inject(inject) => Some(&inject.sack),
                    FuzzEvent::Call(_) => None,
                })
                .flatten()
                .map(|block| block.0)
                .collect();
            let end = |s: &WireSegment| s.seq.wrapping_add(s.data.len() as u32);
            // An ACK ended within a segment, so that the kernel's segments begin at multiples of
            // their size from there on.
            let (kernel, ours) = &d.history.sent;
            let splits = |(start, end): &Range, at: u32| after(at, *start) && after(*end, at);
            let is_inside = |at: u32| kernel.iter().chain(ours).any(|range| splits(range, at));
            let partial = |range: &Range| {
                events[..=d.step].iter().any(|event| match event {
                    FuzzEvent::Inject(i) if i.flags & (SYN | RST | ACK) == ACK => {
                        let behind = range.0.wrapping_sub(i.ack);
                        !after(i.ack, range.0)
                            && behind.is_multiple_of(range.1.wrapping_sub(range.0))
                            && is_inside(i.ack)
                    }
                    _ => false,
                })
            };
            let shorter = |kernel: &WireSegment, ours: &WireSegment| {
                kernel.seq == ours.seq
                    && ours.data.len() < kernel.data.len()
                    && !after(end(kernel), d.before.1.sent)
                    && (lefts.contains(&end(ours)) || partial(&(kernel.seq, end(kernel))))
            };
            let has_shorter = |kernel| d.ours_only.iter().any(|ours| shorter(kernel, ours));
            d.kernel_only.iter().any(has_shorter) && only_segments(d)
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
        name: "corked data before a FIN that does not fit the window",
        reason: "the kernel sends it with the FIN, we send it immediately (RFC 9293 3.8.6.2.1: all \
                 queued data)",
        continues: false,
        matches: |events, d| {
            let ends = matches!(
                events[d.step],
                FuzzEvent::Call(SocketCall::Close(_) | SocketCall::Shutdown(..))
            );
            ends && d.kernel.segments.is_empty()
                && matches!(&d.ours_only[..], [one] if carries_data(one) && !has_fin(one))
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
            let moved = !d.kernel_only.is_empty()
                && d.kernel_only.len() == d.ours_only.len()
                && d.kernel_only.iter().chain(&d.ours_only).all(bare)
                && (d.kernel_only.iter().zip(&d.ours_only)).all(|(k, o)| {
                    let (seq, window) = (k.seq, k.window);
                    *k == WireSegment {
                        seq,
                        window,
                        ..o.clone()
                    }
                });
            windows.iter().enumerate().any(overtaken)
                && (kernel != ours && (cut(&kernel, &ours) || cut(&ours, &kernel))
                    || kernel == ours && moved)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "losses detected by an ACK for data sent at different times",
        reason: "the kernel's RACK.rtt is that of the segment that it processes last, the last one \
                 below the ACK, so that later segments are not yet lost; ours is that of the most \
                 recently sent segment (RFC 8985 6.2)",
        continues: false,
        matches: |events, d| {
            let news = |i: &InjectedSegment| {
                // No less than what is acknowledged; what an earlier segment acknowledged may have
                // been rejected. The kernel's count includes the SYN of an active open.
                let una = |count: u64| i.ack.wrapping_sub(count as u32) <= 1;
                let is_new = d.kernel.counts.iter().any(|(_, acked, _)| una(*acked))
                    || !events[..d.step].iter().any(|event| match event {
                        FuzzEvent::Inject(before) => {
                            after(before.ack, i.ack) && !after(before.ack, d.before.1.sent)
                        }
                        FuzzEvent::Call(_) => false,
                    });
                let above =
                    |(left, right): &(u32, u32)| after(*right, *left) && after(*left, i.ack);
                is_new && i.flags & (SYN | RST | ACK) == ACK && i.sack.iter().any(above)
            };
            let again = |segments: &[WireSegment]| -> Vec<_> {
                let again = segments.iter().filter(|s| carries_data(s));
                let again = again.filter(|s| after(d.before.1.sent, s.seq));
                again.map(|s| (s.seq, s.data.len())).collect()
            };
            let (kernel, ours) = (again(&d.kernel.segments), again(&d.ours.segments));
            injected(events, d).is_some_and(news)
                && ours.len() > kernel.len()
                && ours.starts_with(&kernel)
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
        name: "losses by time, on an ACK that reports nothing",
        reason: "RFC 8985 6.2 runs for each ACK; the kernel's RACK waits for the next delivery or for \
                 its timer",
        continues: false,
        matches: |events, d| {
            let acks = |event: &FuzzEvent| match event {
                FuzzEvent::Inject(i) if i.flags & (SYN | RST | ACK) == ACK => {
                    Some((i.ack, !i.sack.is_empty()))
                }
                _ => None,
            };
            let before: Vec<_> = events[..d.step].iter().filter_map(acks).collect();
            let reports_nothing = |i: &InjectedSegment| {
                // Or less than a segment.
                let sent = d.kernel.segments.iter().chain(&d.ours.segments);
                let len = sent.map(|s| s.data.len() as u32).max().unwrap_or(0);
                let near = |ack: u32| !after(i.ack, ack) || i.ack.wrapping_sub(ack) < len;
                let reports = |(left, right): &(u32, u32)| {
                    after(*right, *left) && after(*right, i.ack) && !after(*right, d.before.1.sent)
                };
                !i.sack.iter().any(reports) && before.iter().any(|(ack, _)| near(*ack))
            };
            let again = |s: &WireSegment| carries_data(s) && after(d.before.1.sent, s.seq);
            injected(events, d).is_some_and(reports_nothing)
                && before.iter().any(|(_, sacks)| *sacks)
                && d.ours.segments.first().is_some_and(again)
                && !d.kernel.segments.iter().any(again)
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a recovery that a reordered ACK begins",
        reason: "the kernel sends all data that cwnd admits, as an older ACK does not reduce cwnd; \
                 we follow RFC 9937",
        continues: false,
        matches: |events, d| {
            let overtaken = |at: usize, inject: &InjectedSegment| {
                events[..at].iter().any(|event| match event {
                    FuzzEvent::Inject(i) => {
                        after(i.ack, inject.ack) && !after(i.ack, d.before.1.sent)
                    }
                    FuzzEvent::Call(_) => false,
                })
            };
            let begins = |(at, event): (usize, &FuzzEvent)| match event {
                FuzzEvent::Inject(i) => {
                    i.flags & ACK != 0 && !i.sack.is_empty() && overtaken(at, i)
                }
                FuzzEvent::Call(_) => false,
            };
            let more = d.kernel.segments.len() > d.ours.segments.len();
            events[..=d.step].iter().enumerate().any(begins)
                && more
                && d.kernel_only.iter().all(carries_data)
                && (d.ours.segments.iter()).all(|s| carries_data(s) || is_pure_ack(s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a SACK block that extends beyond a later ACK",
        reason: "the receiver has discarded data, which RFC 2018 8 allows but no implementation \
                 does: the kernel first waits 10 ms, we retransmit other lost data",
        continues: false,
        matches: |events, d| {
            let covers = |ack: u32| {
                events[..=d.step].iter().any(|event| match event {
                    FuzzEvent::Inject(i) => {
                        let over =
                            |(left, right): &(u32, u32)| !after(*left, ack) && after(*right, ack);
                        i.sack.iter().any(over)
                    }
                    FuzzEvent::Call(_) => false,
                })
            };
            injected(events, d).is_some_and(|i| i.flags & ACK != 0 && covers(i.ack))
                && d.ours_only.iter().all(carries_data)
                && d.kernel_only
                    .iter()
                    .all(|s| carries_data(s) || is_pure_ack(s))
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
        matches: |_, d| {
            let blank = |segments: &[WireSegment]| -> Vec<_> {
                let blank = |segment: &WireSegment| WireSegment {
                    flags: segment.flags & !PSH,
                    ack: 0,
                    window: 0,
                    options: Vec::new(),
                    ..segment.clone()
                };
                let data = segments.iter().filter(|s| carries_data(s) || has_fin(s));
                data.map(blank).collect()
            };
            let (kernel, ours) = (blank(&d.kernel.segments), blank(&d.ours.segments));
            kernel == ours
                && !kernel.is_empty()
                && d.kernel_only
                    .iter()
                    .all(|s| carries_data(s) || has_fin(s) || is_pure_ack(s))
                && d.ours_only.iter().all(|s| carries_data(s) || has_fin(s))
                && only_segments(d)
        },
    },
    KnownDifference {
        name: "a loss soon after a simultaneous open",
        reason: "three SACKed segments above a hole indicate its loss (RFC 6675 4, IsLost); the \
                 kernel first sends new data, because of the times of its segments",
        continues: false,
        matches: |events, d| {
            let connects =
                |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Connect(_)));
            let syn = |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(i) if i.flags & (SYN | ACK) == SYN);
            let again = |segment: &WireSegment| {
                carries_data(segment) && after(d.before.1.sent, segment.seq)
            };
            let reports = |inject: &InjectedSegment| {
                let block =
                    |(left, right): &(u32, u32)| after(*left, inject.ack) && after(*right, *left);
                inject.sack.iter().any(block)
            };
            injected(events, d).is_some_and(reports)
                && events[..d.step].iter().any(connects)
                && events[..d.step].iter().any(syn)
                && d.ours.segments.first().is_some_and(again)
                && d.kernel.segments.iter().all(carries_data)
                && !d.kernel.segments.iter().any(again)
                && only_segments(d)
        },
    },
];
