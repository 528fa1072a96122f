use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use fullsend_offload::{HeaderBuf, Packet, Slice};
use fullsend_wire::arp::{ArpOperation, ArpRepr};
use fullsend_wire::ethernet::{EthernetView, Mac};
use fullsend_wire::icmpv6::{Icmpv6Repr, checksum_ok};
use fullsend_wire::ipv6::Ipv6View;
use fullsend_wire::ndp::NdpRepr;
use fullsend_wire::numbers::ethertype;
use fullsend_wire::{Instant, Nanos};

use super::pending::{MAX_PENDING_BYTES, OVERHEAD};
use super::{
    MAX_ENTRIES, MAX_PENDING_TOTAL, NeighbourActions, NeighbourConfig, Neighbours, solicited_node,
};

mod shards;

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 3]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ip6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// The neighbours of an interface with 10.0.0.1 and fd00::1, and a clock.
struct Rig {
    neighbours: Neighbours,
    now: Instant,
}

fn is_ours(ip: IpAddr) -> bool {
    ip == self::ip("10.0.0.1") || ip == self::ip("fd00::1")
}

impl Rig {
    fn new() -> Self {
        Self {
            neighbours: Neighbours::new(OURS, NeighbourConfig::HOST),
            now: Instant::from_nanos(1),
        }
    }

    /// Sends packet number `n` to `to`. Returns the effects.
    fn send(&mut self, n: u8, to: &str) -> Vec<String> {
        show(&self.on_send(n, to))
    }

    fn on_send(&mut self, n: u8, to: &str) -> NeighbourActions {
        let source = if to.contains(':') {
            "fd00::1"
        } else {
            "10.0.0.1"
        };
        let mut packet = Packet {
            header: HeaderBuf::from_slice(&[n]),
            ..Packet::default()
        };
        packet.layers.ethertype = ethertype::IPV4;
        let mut out = NeighbourActions::default();
        let flow = (ip(source), ip(to));
        self.neighbours.send(self.now, flow, packet, &mut out);
        out
    }

    fn arp(&mut self, operation: ArpOperation, from: (&str, Mac), target: &str) -> Vec<String> {
        show(&self.on_arp(operation, from, target))
    }

    fn on_arp(
        &mut self,
        operation: ArpOperation,
        from: (&str, Mac),
        target: &str,
    ) -> NeighbourActions {
        let arp = ArpRepr {
            operation,
            sender_mac: from.1,
            sender: from.0.parse().unwrap(),
            target_mac: Mac::ZERO,
            target: target.parse().unwrap(),
        };
        let mut out = NeighbourActions::default();
        self.neighbours.on_arp(self.now, &arp, is_ours, &mut out);
        out
    }

    fn ndp(&mut self, src: &str, dst: &str, hop_limit: u8, message: NdpRepr<'_>) -> Vec<String> {
        let mut out = NeighbourActions::default();
        let header = (ip6(src), ip6(dst), hop_limit);
        self.neighbours
            .on_ndp(self.now, header, &message, is_ours, &mut out);
        show(&out)
    }

    /// Advances to the next deadline. Returns how many milliseconds that took, and the effects.
    fn wait(&mut self) -> (u64, Vec<String>) {
        let deadline = self.neighbours.deadline();
        let ms = deadline.since(self.now).as_nanos() / 1_000_000;
        self.now = deadline;
        (ms, show(&self.on_poll()))
    }

    fn on_poll(&mut self) -> NeighbourActions {
        let mut out = NeighbourActions::default();
        self.neighbours.poll(self.now, &mut out);
        out
    }
}

/// Returns one line for each frame and event.
fn show(out: &NeighbourActions) -> Vec<String> {
    let mut lines: Vec<String> = out
        .frames
        .iter()
        .map(|f| show_frame(&f.to_bytes()))
        .collect();
    let unreachable = out.unreachable.iter();
    lines.extend(unreachable.map(|p| format!("unreachable {}", p.header[0])));
    if out.discarded != 0 {
        lines.push(format!("discarded {}", out.discarded));
    }
    lines.extend(out.dad.iter().map(|(a, result)| format!("{a} {result:?}")));
    if out.looped_back != 0 {
        lines.push(format!("looped back {}", out.looped_back));
    }
    if out.changed {
        lines.push("changed".into());
    }
    lines
}

fn show_frame(frame: &[u8]) -> String {
    let link = EthernetView::new(frame).unwrap();
    assert_eq!(link.src(), OURS);
    let dst = link.dst();
    match (link.ethertype(), link.payload()) {
        (ethertype::ARP, message) => {
            let arp = ArpRepr::parse(message).unwrap();
            assert_eq!(arp.sender_mac, OURS);
            match arp.operation {
                Request => {
                    format!("{dst} who has {} tell {}", arp.target, arp.sender)
                }
                Reply => format!("{dst} {} is here, {}", arp.sender, arp.target),
            }
        }
        (_, &[n]) => format!("{dst} packet {n}"),
        (_, packet) => {
            let ip = Ipv6View::new(packet).unwrap();
            assert_eq!(ip.hop_limit(), 255);
            assert!(ip.is_complete() && checksum_ok(ip.src(), ip.dst(), ip.payload()));
            let (src, to) = (ip.src(), ip.dst());
            match Icmpv6Repr::parse(ip.payload()).unwrap() {
                Icmpv6Repr::Ndp(NdpRepr::NeighbourSolicit {
                    target,
                    source_mac,
                    nonce,
                }) => {
                    assert_eq!(source_mac.is_none(), src.is_unspecified());
                    assert_eq!(nonce.is_some(), src.is_unspecified());
                    format!("{dst} {src} > {to} who has {target}")
                }
                Icmpv6Repr::Ndp(NdpRepr::NeighbourAdvert {
                    target,
                    solicited,
                    target_mac,
                    ..
                }) => {
                    assert_eq!(target_mac, Some(OURS));
                    format!("{dst} {src} > {to} {target} is here, solicited {solicited}")
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

const REQUEST: &str = "ff:ff:ff:ff:ff:ff who has 10.0.0.2 tell 10.0.0.1";
const PROBE: &str = "02:00:00:00:00:02 who has 10.0.0.2 tell 10.0.0.1";
const NONE: [&str; 0] = [];

use ArpOperation::{Reply, Request};

#[test]
fn arp_resolves_and_sends_queued_packets() {
    let mut rig = Rig::new();
    assert_eq!(rig.send(1, "10.0.0.2"), [REQUEST]);
    assert_eq!(rig.send(2, "10.0.0.2"), NONE);
    assert_eq!(
        rig.arp(Reply, ("10.0.0.2", THEIRS), "10.0.0.1"),
        [
            "02:00:00:00:00:02 packet 1",
            "02:00:00:00:00:02 packet 2",
            "changed"
        ]
    );
    assert_eq!(rig.send(3, "10.0.0.2"), ["02:00:00:00:00:02 packet 3"]);
}

#[test]
fn three_unanswered_requests_fail_the_neighbour() {
    let mut rig = Rig::new();
    assert_eq!(rig.send(1, "10.0.0.2"), [REQUEST]);
    assert_eq!(rig.wait(), (1000, [REQUEST].map(String::from).into()));
    assert_eq!(rig.wait(), (1000, [REQUEST].map(String::from).into()));
    assert_eq!(
        rig.wait(),
        (1000, ["unreachable 1"].map(String::from).into())
    );
    assert_eq!(rig.neighbours.deadline(), Instant::FAR_FUTURE);
    // The next packet starts a new resolution.
    assert_eq!(rig.send(2, "10.0.0.2"), [REQUEST]);
}

#[test]
fn a_used_neighbour_is_probed_and_removed_without_an_answer() {
    let mut rig = Rig::new();
    rig.send(1, "10.0.0.2");
    rig.arp(Reply, ("10.0.0.2", THEIRS), "10.0.0.1");
    // The first deadline is that of the old solicitation: no timer is due then.
    assert_eq!(rig.wait(), (1000, Vec::new()));
    assert_eq!(rig.wait(), (29_000, ["changed"].map(String::from).into()));
    assert_eq!(rig.neighbours.deadline(), Instant::FAR_FUTURE);
    assert_eq!(rig.send(2, "10.0.0.2"), ["02:00:00:00:00:02 packet 2"]);
    for ms in [5000, 1000, 1000] {
        assert_eq!(rig.wait(), (ms, [PROBE].map(String::from).into()));
    }
    assert_eq!(rig.wait(), (1000, ["changed"].map(String::from).into()));
    assert_eq!(rig.send(3, "10.0.0.2"), [REQUEST]);
}

#[test]
fn requests_for_us_are_answered_and_update_the_cache() {
    let mut rig = Rig::new();
    let answer = "02:00:00:00:00:02 10.0.0.1 is here, 10.0.0.2";
    assert_eq!(rig.arp(Request, ("10.0.0.2", THEIRS), "10.0.0.1"), [answer]);
    assert_eq!(rig.send(1, "10.0.0.2"), ["02:00:00:00:00:02 packet 1"]);
    assert_eq!(rig.arp(Request, ("10.0.0.3", THEIRS), "10.0.0.9"), NONE);
    assert_eq!(rig.neighbours.resolve(rig.now, ip("10.0.0.3")), None);
    // A probe (RFC 5227) is answered and creates no entry.
    let answer = "02:00:00:00:00:02 10.0.0.1 is here, 0.0.0.0";
    assert_eq!(rig.arp(Request, ("0.0.0.0", THEIRS), "10.0.0.1"), [answer]);
    assert_eq!(rig.neighbours.entries.len(), 1);
}

#[test]
fn unsolicited_replies_are_ignored() {
    let mut rig = Rig::new();
    // Unsolicited replies; groups; the local address.
    assert_eq!(rig.arp(Reply, ("10.0.0.2", THEIRS), "10.0.0.1"), NONE);
    assert_eq!(
        rig.arp(Request, ("10.0.0.2", Mac::BROADCAST), "10.0.0.1"),
        NONE
    );
    rig.arp(Request, ("10.0.0.1", THEIRS), "10.0.0.1");
    rig.arp(Request, ("224.0.0.1", THEIRS), "10.0.0.1");
    assert_eq!(rig.neighbours.entries.len(), 0);
}

#[test]
fn a_neighbour_that_moved_is_followed() {
    let mut rig = Rig::new();
    rig.arp(Request, ("10.0.0.2", THEIRS), "10.0.0.1");
    // A gratuitous ARP: the neighbour announces its new address.
    assert_eq!(
        rig.arp(Request, ("10.0.0.2", OTHER), "10.0.0.2"),
        ["changed"]
    );
    assert_eq!(rig.send(1, "10.0.0.2"), ["02:00:00:00:00:03 packet 1"]);
}

/// RFC 4861 7.3.3: only an answer to us shows that a neighbour is reachable, not a new address of its.
#[test]
fn a_reachable_neighbour_that_moved_is_probed_after_its_next_use() {
    let mut rig = Rig::new();
    rig.send(1, "10.0.0.2");
    rig.arp(Reply, ("10.0.0.2", THEIRS), "10.0.0.1");
    // Its own request, with the address that is known, changes nothing.
    let answer = "02:00:00:00:00:02 10.0.0.1 is here, 10.0.0.2";
    assert_eq!(rig.arp(Request, ("10.0.0.2", THEIRS), "10.0.0.1"), [answer]);
    assert_eq!(
        rig.arp(Request, ("10.0.0.2", OTHER), "10.0.0.2"),
        ["changed"]
    );
    rig.send(2, "10.0.0.2");
    // The old solicitation's time, then the delay.
    assert_eq!(rig.wait(), (1000, Vec::new()));
    let (ms, probe) = rig.wait();
    assert_eq!((ms, probe.len()), (4000, 1));
    assert!(probe[0].starts_with("02:00:00:00:00:03"), "{probe:?}");
}

#[test]
fn multicast_needs_no_resolution() {
    let mut rig = Rig::new();
    assert_eq!(rig.send(1, "224.0.0.251"), ["01:00:5e:00:00:fb packet 1"]);
    assert_eq!(
        rig.send(2, "255.255.255.255"),
        ["ff:ff:ff:ff:ff:ff packet 2"]
    );
    assert_eq!(rig.send(3, "ff02::1"), ["33:33:00:00:00:01 packet 3"]);
}

#[test]
fn nd_resolves() {
    let mut rig = Rig::new();
    let ask = "33:33:ff:00:00:02 fd00::1 > ff02::1:ff00:2 who has fd00::2";
    assert_eq!(rig.send(1, "fd00::2"), [ask]);
    let mut advert = NdpRepr::NeighbourAdvert {
        target: ip6("fd00::2"),
        router: false,
        solicited: true,
        override_cache: true,
        target_mac: Some(THEIRS),
    };
    // From another link: ignored.
    assert_eq!(rig.ndp("fd00::2", "fd00::1", 254, advert), NONE);
    assert_eq!(
        rig.ndp("fd00::2", "fd00::1", 255, advert),
        ["02:00:00:00:00:02 packet 1", "changed"]
    );
    // Without the override flag, another address only makes the entry stale.
    if let NdpRepr::NeighbourAdvert {
        override_cache,
        target_mac,
        ..
    } = &mut advert
    {
        *override_cache = false;
        *target_mac = Some(OTHER);
    }
    assert_eq!(rig.ndp("fd00::2", "fd00::1", 255, advert), ["changed"]);
    assert_eq!(rig.send(2, "fd00::2"), ["02:00:00:00:00:02 packet 2"]);
    assert_eq!(rig.wait().0, 1000);
    let probe = "02:00:00:00:00:02 fd00::1 > fd00::2 who has fd00::2";
    assert_eq!(rig.wait(), (4000, [probe].map(String::from).into()));
}

#[test]
fn nd_answers_for_us() {
    let mut rig = Rig::new();
    let solicit = |source_mac| NdpRepr::NeighbourSolicit {
        target: ip6("fd00::1"),
        source_mac,
        nonce: None,
    };
    let group = "ff02::1:ff00:1";
    assert_eq!(
        rig.ndp("fd00::2", group, 255, solicit(Some(THEIRS))),
        ["02:00:00:00:00:02 fd00::1 > fd00::2 fd00::1 is here, solicited true"]
    );
    // Duplicate address detection of another host for the local address.
    assert_eq!(
        rig.ndp("::", group, 255, solicit(None)),
        ["33:33:00:00:00:01 fd00::1 > ff02::1 fd00::1 is here, solicited false"]
    );
    // Not for a local address.
    let other = NdpRepr::NeighbourSolicit {
        target: ip6("fd00::9"),
        source_mac: Some(THEIRS),
        nonce: None,
    };
    assert_eq!(rig.ndp("fd00::2", "ff02::1:ff00:9", 255, other), NONE);
}

#[test]
fn duplicate_detection() {
    let mut rig = Rig::new();
    let mut out = NeighbourActions::default();
    for n in 5..8 {
        let address = ip6(&format!("fd00::{n}"));
        let candidate = (address, [n; 6]);
        rig.neighbours.start_dad(rig.now, candidate, &mut out);
    }
    assert_eq!(
        show(&out)[0],
        "33:33:ff:00:00:05 :: > ff02::1:ff00:5 who has fd00::5"
    );
    let target = ip6("fd00::5");
    let solicit = |source_mac, nonce| NdpRepr::NeighbourSolicit {
        target,
        source_mac,
        nonce,
    };
    let group = "ff02::1:ff00:5";
    // The host's own solicitation, looped back by the link (RFC 7527).
    let own = solicit(None, Some([5; 6]));
    assert_eq!(rig.ndp("::", group, 255, own), ["looped back 1"]);
    // From another link, to another group, with a source link-layer address (RFC 4861 7.1.1), and
    // from a host that resolves the address.
    let other = solicit(None, Some([6; 6]));
    assert_eq!(rig.ndp("::", group, 254, other), NONE);
    assert_eq!(rig.ndp("::", "ff02::1", 255, other), NONE);
    let with_mac = solicit(Some(THEIRS), None);
    assert_eq!(rig.ndp("::", group, 255, with_mac), NONE);
    assert_eq!(rig.ndp("fd00::2", group, 255, with_mac), NONE);
    // Another host tries to configure the same address, and another one has the next address.
    assert_eq!(rig.ndp("::", group, 255, other), ["fd00::5 Duplicate"]);
    let advert = NdpRepr::NeighbourAdvert {
        target: ip6("fd00::6"),
        router: false,
        solicited: false,
        override_cache: true,
        target_mac: Some(THEIRS),
    };
    assert_eq!(
        rig.ndp("fd00::6", "ff02::1", 255, advert),
        ["fd00::6 Duplicate"]
    );
    assert_eq!(
        rig.wait(),
        (1000, ["fd00::7 Unique"].map(String::from).into())
    );
    assert_eq!(rig.neighbours.deadline(), Instant::FAR_FUTURE);
}

/// Only the address that another host has is not used.
#[test]
fn a_duplicate_does_not_end_the_detection_of_other_addresses() {
    let mut rig = Rig::new();
    let mut out = NeighbourActions::default();
    for n in 5..8 {
        let candidate = (ip6(&format!("fd00::{n}")), [n; 6]);
        rig.neighbours.start_dad(rig.now, candidate, &mut out);
    }
    let advert = NdpRepr::NeighbourAdvert {
        target: ip6("fd00::6"),
        router: false,
        solicited: false,
        override_cache: true,
        target_mac: Some(THEIRS),
    };
    assert_eq!(
        rig.ndp("fd00::6", "ff02::1", 255, advert),
        ["fd00::6 Duplicate"]
    );
    let (ms, mut unique) = rig.wait();
    unique.sort();
    assert_eq!(ms, 1000);
    assert_eq!(unique, ["fd00::5 Unique", "fd00::7 Unique"]);
}

/// As with Linux's `unres_qlen_bytes`: three super-segments wait, and a fourth replaces the oldest.
/// A packet that exceeds the limit alone is kept alone.
#[test]
fn queued_packets_are_bounded_in_bytes() {
    let mut rig = Rig::new();
    let mut send = |n: u8, len: usize| {
        let mut packet = Packet {
            header: HeaderBuf::from_slice(&[n]),
            payload: Slice::copied_from(&vec![0; len]).into(),
            ..Packet::default()
        };
        packet.layers.ethertype = ethertype::IPV4;
        let mut out = NeighbourActions::default();
        let flow = (ip("10.0.0.1"), ip("10.0.0.2"));
        rig.neighbours.send(rig.now, flow, packet, &mut out);
        (out.discarded, out.unreachable.len())
    };
    let sent = [1, 2, 3, 4, 5].map(|n| send(n, 65_000));
    assert_eq!(sent, [(0, 0), (0, 0), (0, 0), (1, 0), (1, 0)]);
    assert_eq!(send(6, 300_000), (3, 0));
    assert_eq!(send(7, 1), (1, 0));
    let out = rig.on_arp(Reply, ("10.0.0.2", THEIRS), "10.0.0.1");
    assert_eq!(out.frames.len(), 1);
    assert_eq!(rig.neighbours.entries[&ip("10.0.0.2")].pending.bytes(), 0);
}

fn of_payload(payload: Slice) -> Packet {
    let mut packet = Packet {
        header: HeaderBuf::from_slice(&[1]),
        payload: payload.into(),
        ..Packet::default()
    };
    packet.layers.ethertype = ethertype::IPV4;
    packet
}

/// An echo reply shares the memory of its request, which may be in a chunk of 256 KiB.
#[test]
fn a_queued_packet_does_not_pin_a_large_chunk() {
    let mut rig = Rig::new();
    let mut out = NeighbourActions::default();
    let flow = (ip("10.0.0.1"), ip("10.0.0.2"));
    for _ in 0..100 {
        let block = Slice::copied_from(&vec![7; 256 << 10]);
        let packet = of_payload(block.slice(0..64));
        rig.neighbours.send(rig.now, flow, packet, &mut out);
    }
    assert_eq!(out.discarded, 0);
    let pending = &rig.neighbours.entries[&flow.1].pending;
    let pinned = pending.pinned();
    assert_eq!(pending.bytes(), pinned + 100 * (OVERHEAD + 1));
    assert!(pending.bytes() < MAX_PENDING_BYTES, "{}", pending.bytes());
    assert_eq!(rig.neighbours.pending_bytes, pending.bytes());
}

/// The packets of all neighbours together are bounded, too. Their sum is reduced when they are
/// sent, or dropped because no answer came.
#[test]
fn queued_packets_of_an_interface_are_bounded_in_total() {
    let mut rig = Rig::new();
    let mut out = NeighbourActions::default();
    let payload = Slice::copied_from(&vec![7; 100_000]);
    for n in 2..200 {
        for _ in 0..2 {
            let flow = (ip("10.0.0.1"), ip(&format!("10.0.0.{n}")));
            let packet = of_payload(payload.clone());
            rig.neighbours.send(rig.now, flow, packet, &mut out);
        }
    }
    let sum = |rig: &Rig| -> usize {
        let entries = rig.neighbours.entries.values();
        entries.map(|entry| entry.pending.bytes()).sum()
    };
    let held = rig.neighbours.pending_bytes;
    assert!(out.discarded > 300, "{}", out.discarded);
    assert!((MAX_PENDING_TOTAL / 2..=MAX_PENDING_TOTAL).contains(&held));
    assert_eq!(held, sum(&rig));
    let answered = rig.on_arp(Reply, ("10.0.0.2", THEIRS), "10.0.0.1");
    assert_eq!(answered.frames.len(), 2);
    assert!(rig.neighbours.pending_bytes < held);
    assert_eq!(rig.neighbours.pending_bytes, sum(&rig));
    for _ in 0..3 {
        rig.now += Nanos::from_secs(1);
        rig.neighbours.poll(rig.now, &mut out);
    }
    assert_eq!(rig.neighbours.pending_bytes, 0);
}

#[test]
fn tables_and_queues_are_bounded() {
    let mut rig = Rig::new();
    rig.send(0, "10.0.0.2");
    for n in 1..MAX_PENDING_BYTES / (OVERHEAD + 1) {
        assert_eq!(rig.send(n as u8, "10.0.0.2"), NONE);
    }
    assert_eq!(rig.send(200, "10.0.0.2"), ["discarded 1"]);
    for n in 0..2 * MAX_ENTRIES {
        let sender = format!("10.1.{}.{}", n >> 8, n & 0xff);
        rig.now += Nanos::from_micros(1);
        rig.arp(Request, (&sender, THEIRS), "10.0.0.1");
    }
    let len = rig.neighbours.entries.len();
    assert!(len > MAX_ENTRIES * 9 / 10 && len <= MAX_ENTRIES, "{len}");
    // The entry in resolution stayed.
    assert!(rig.neighbours.entries.contains_key(&ip("10.0.0.2")));
    assert_eq!(
        solicited_node(ip6("fe80::aabb:ccdd")),
        ip6("ff02::1:ffbb:ccdd")
    );
}

/// Entries of one time are as old as each other: some of them make room.
#[test]
fn a_flood_of_one_instant_is_bounded() {
    let mut rig = Rig::new();
    for n in 0..2 * MAX_ENTRIES {
        let sender = format!("10.1.{}.{}", n >> 8, n & 0xff);
        rig.arp(Request, (&sender, THEIRS), "10.0.0.1");
    }
    let len = rig.neighbours.entries.len();
    assert!(len > MAX_ENTRIES * 9 / 10 && len <= MAX_ENTRIES, "{len}");
}
