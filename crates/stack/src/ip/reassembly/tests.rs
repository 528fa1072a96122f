use alloc::vec::Vec;

use fullsend_offload::{Link, Packet, Slice};
use fullsend_wire::extension::FragmentRepr;
use fullsend_wire::ipv4::{Ipv4Repr, Ipv4View};
use fullsend_wire::ipv6::Ipv6Repr;
use fullsend_wire::numbers::protocol;
use fullsend_wire::{Instant, Nanos};
use proptest::prelude::*;

use super::{MAX_BYTES, MAX_FRAGMENTS, MAX_PACKETS, MAX_PER_SOURCE, Reassembled, Reassembly};

const T0: Instant = Instant::from_nanos(7);

fn parsed(frame: &[u8]) -> Packet {
    let mut packet = Packet::from_frame(Slice::copied_from(frame));
    packet.parse(Link::Ip).unwrap();
    assert!(packet.layers.fragment);
    packet
}

/// Returns bytes `at..at + len` of a numbered payload.
fn data(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| (i / 8) as u8).collect()
}

fn v4(ident: u16, at: usize, len: usize, more: bool) -> Packet {
    v4_from(2, ident, at, len, more)
}

fn v4_from(host: u8, ident: u16, at: usize, len: usize, more: bool) -> Packet {
    let (src, dst) = ([10, 0, 0, host].into(), [10, 0, 0, 1].into());
    let repr = Ipv4Repr {
        tos: if at == 8 { 3 } else { 2 },
        ident,
        dont_fragment: false,
        more_fragments: more,
        fragment_offset: at as u16,
        ..Ipv4Repr::new(src, dst, protocol::ICMP, len as u16)
    };
    let mut frame = [0; 20].to_vec();
    repr.emit(&mut frame);
    frame.extend(data(at, len));
    parsed(&frame)
}

fn v6(ident: u32, at: usize, len: usize, more: bool) -> Packet {
    let (src, dst) = ("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap());
    let repr = Ipv6Repr::new(src, dst, protocol::FRAGMENT, (len + 8) as u16);
    let mut frame = [0; 48].to_vec();
    repr.emit(&mut frame);
    let fragment = FragmentRepr {
        next_header: protocol::ICMPV6,
        offset: at as u16,
        more,
        ident,
    };
    fragment.emit(&mut frame[40..]);
    frame.extend(data(at, len));
    parsed(&frame)
}

fn reassembled(result: Reassembled) -> Option<Vec<u8>> {
    match result {
        Reassembled::Nothing | Reassembled::Invalid(..) => None,
        Reassembled::Complete(mut packet, _) => {
            let bytes = packet.to_bytes();
            packet.parse(Link::Ip).unwrap();
            assert!(!packet.layers.fragment);
            Some(bytes)
        }
    }
}

#[test]
fn ipv4_fragments_are_reassembled_in_any_order() {
    let pieces = [(0, 8, true), (8, 16, true), (24, 5, false)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
        let mut reassembly = Reassembly::default();
        let mut result = None;
        for i in order {
            let (at, len, more) = pieces[i];
            assert_eq!(result, None);
            result = reassembled(reassembly.input(T0, v4(9, at, len, more)));
        }
        let bytes = result.unwrap();
        let view = Ipv4View::new(&bytes).unwrap();
        assert!(view.is_complete() && view.checksum_ok() && !view.is_fragment());
        assert_eq!(view.payload(), data(0, 29));
        // One fragment had CE.
        assert_eq!(view.tos() & 3, 3);
        assert_eq!((reassembly.v4.reqds, reassembly.v4.oks), (3, 1));
        assert_eq!(reassembly.bytes, 0);
    }
}

#[test]
fn ipv6_loses_its_fragment_header() {
    let mut reassembly = Reassembly::default();
    assert_eq!(reassembled(reassembly.input(T0, v6(9, 16, 8, false))), None);
    let bytes = reassembled(reassembly.input(T0, v6(9, 0, 16, true))).unwrap();
    assert_eq!(bytes[4..7], [0, 24, protocol::ICMPV6]);
    assert_eq!(bytes[40..], data(0, 24));
    assert_eq!(reassembly.v6.oks, 1);
}

#[test]
fn packets_do_not_mix() {
    let mut reassembly = Reassembly::default();
    assert_eq!(reassembled(reassembly.input(T0, v4(1, 0, 8, true))), None);
    assert_eq!(reassembled(reassembly.input(T0, v4(2, 8, 8, false))), None);
    assert!(reassembled(reassembly.input(T0, v4(1, 8, 8, false))).is_some());
}

#[test]
fn overlaps_discard_the_packet_and_duplicates_do_not() {
    let mut reassembly = Reassembly::default();
    reassembly.input(T0, v4(1, 8, 16, true));
    assert_eq!(reassembled(reassembly.input(T0, v4(1, 8, 16, true))), None);
    assert_eq!(reassembly.v4.overlaps, 0);
    for (at, len) in [(0, 16), (16, 8), (8, 8), (0, 32)] {
        let mut reassembly = Reassembly::default();
        reassembly.input(T0, v4(1, 8, 16, true));
        reassembly.input(T0, v4(1, at, len, true));
        assert_eq!(
            (reassembly.v4.overlaps, reassembly.v4.fails),
            (1, 1),
            "{at}+{len}"
        );
        assert!(reassembly.partials.is_empty() && reassembly.bytes == 0);
    }
}

#[test]
fn the_last_fragment_sets_the_length() {
    for (first, second) in [
        // Two different ends; data beyond the end, before and after the end is known.
        ((24, 8, false), (40, 8, false)),
        ((24, 8, false), (40, 8, true)),
        ((40, 8, true), (24, 8, false)),
        ((24, 8, false), (16, 8, false)),
    ] {
        let mut reassembly = Reassembly::default();
        reassembly.input(T0, v4(1, first.0, first.1, first.2));
        reassembly.input(T0, v4(1, second.0, second.1, second.2));
        assert_eq!(reassembly.v4.fails, 1, "{first:?} {second:?}");
    }
}

#[test]
fn invalid_fragments_are_rejected() {
    let mut reassembly = Reassembly::default();
    // Not a multiple of 8; empty; beyond 64 KiB (ping of death).
    reassembly.input(T0, v4(1, 0, 9, true));
    reassembly.input(T0, v4(1, 8, 0, true));
    reassembly.input(T0, v4(1, 65528, 100, false));
    assert_eq!(reassembly.v4.fails, 3);
    assert!(reassembly.partials.is_empty());
}

/// IPv6's length field does not count the header, IPv4's does.
#[test]
fn the_longest_packets_are_reassembled_and_longer_ones_rejected() {
    for (len, good) in [(65_535, true), (65_536, false)] {
        let mut reassembly = Reassembly::default();
        reassembly.input(T0, v6(1, 0, 65_000, true));
        let rest = v6(1, 65_000, len - 65_000, false);
        let reassembled = reassembled(reassembly.input(T0, rest));
        assert_eq!(reassembled.map(|bytes| bytes.len()), good.then_some(65_575));
        assert_eq!(reassembly.v6.fails, u64::from(!good));
    }
    for (len, good) in [(65_515, true), (65_516, false)] {
        let mut reassembly = Reassembly::default();
        reassembly.input(T0, v4(1, 0, 65_000, true));
        let rest = v4(1, 65_000, len - 65_000, false);
        let reassembled = reassembled(reassembly.input(T0, rest));
        assert_eq!(reassembled.map(|bytes| bytes.len()), good.then_some(65_535));
        assert_eq!(reassembly.v4.fails, u64::from(!good));
    }
}

#[test]
fn slow_packets_time_out() {
    let mut reassembly = Reassembly::default();
    let mut expired = Vec::new();
    reassembly.input(T0, v4(1, 0, 8, true));
    reassembly.input(T0 + Nanos::from_secs(1), v4(2, 8, 8, true));
    assert_eq!(reassembly.deadline(), T0 + Nanos::from_secs(30));
    reassembly.poll(T0 + Nanos::from_secs(29), &mut expired);
    assert!(expired.is_empty());
    reassembly.poll(T0 + Nanos::from_secs(31), &mut expired);
    // Only the packet whose first fragment has arrived is reported.
    assert_eq!(expired.len(), 1);
    let bytes = expired[0].to_bytes();
    assert_eq!(Ipv4View::new(&bytes).unwrap().payload(), data(0, 8));
    assert_eq!((reassembly.v4.timeouts, reassembly.v4.fails), (2, 2));
    let none = (Instant::FAR_FUTURE, 0);
    assert_eq!((reassembly.deadline(), reassembly.bytes), none);
}

#[test]
fn memory_is_bounded() {
    let mut reassembly = Reassembly::default();
    for ident in 0..20 * MAX_PACKETS as u32 {
        reassembly.input(T0, v6(ident, 8, 1232, true));
        assert!(reassembly.partials.len() <= MAX_PACKETS && reassembly.bytes <= MAX_BYTES);
    }
    for ident in 0..2000 {
        reassembly.input(T0, v6(ident, 0, 60_000, true));
        assert!(reassembly.bytes <= MAX_BYTES + 70_000);
    }
    // A flood of finished packets leaves nothing behind.
    for ident in 0..5 * MAX_PACKETS as u32 {
        reassembly.input(T0, v6(1 << 20 | ident, 0, 8, true));
        reassembly.input(T0, v6(1 << 20 | ident, 8, 8, false));
    }
    assert!(reassembly.order.len() <= 4 * MAX_PACKETS + 1);
}

proptest! {
    #[test]
    fn any_fragments_are_accepted_or_dropped(
        pieces in prop::collection::vec((0usize..12, 1usize..12, any::<bool>()), 1..40),
    ) {
        let mut reassembly = Reassembly::default();
        for (at, len, more) in pieces {
            // A single, complete piece would not be a fragment.
            let at = if more { at } else { at + 1 };
            let len = if more { len * 8 } else { len };
            if let Some(bytes) = reassembled(reassembly.input(T0, v4(1, at * 8, len, more))) {
                let view = Ipv4View::new(&bytes).unwrap();
                prop_assert_eq!(view.payload(), data(0, view.payload().len()));
            }
        }
        let held: usize = reassembly.partials.values().map(|p| p.bytes).sum();
        prop_assert_eq!(held, reassembly.bytes);
    }
}

#[test]
fn one_source_does_not_crowd_out_the_others() {
    let mut r = Reassembly::default();
    r.input(T0, v4_from(7, 1, 0, 8, true));
    for ident in 0..5000 {
        r.input(T0, v4_from(66, ident, 0, 8, true));
    }
    assert_eq!(r.partials.len(), 1 + MAX_PER_SOURCE);
    let rest = v4_from(7, 1, 8, 8, false);
    assert!(reassembled(r.input(T0, rest)).is_some());
}

/// RFC 8200 4.5: an exact duplicate is no overlap, also one of the last fragment.
#[test]
fn a_duplicate_of_the_last_fragment_is_dropped_alone() {
    let mut reassembly = Reassembly::default();
    for _ in 0..2 {
        assert_eq!(reassembled(reassembly.input(T0, v4(1, 8, 5, false))), None);
    }
    assert!(reassembled(reassembly.input(T0, v4(1, 0, 8, true))).is_some());
    assert_eq!((reassembly.v4.oks, reassembly.v4.fails), (1, 0));
}

#[test]
fn the_number_of_fragments_of_a_packet_is_bounded() {
    let mut reassembly = Reassembly::default();
    for n in 1..=MAX_FRAGMENTS {
        reassembly.input(T0, v4(1, 8 * n, 8, true));
    }
    assert_eq!((reassembly.partials.len(), reassembly.v4.fails), (1, 0));
    reassembly.input(T0, v4(1, 8 * (MAX_FRAGMENTS + 1), 8, true));
    assert_eq!((reassembly.partials.len(), reassembly.v4.fails), (0, 1));
    assert_eq!(reassembly.bytes, 0);
}
