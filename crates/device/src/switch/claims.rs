//! The addresses that a frame claims for its sender.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_offload::Packet;
use fullsend_wire::extension;
use fullsend_wire::numbers::{ethertype, protocol};
use smallvec::SmallVec;

/// Number of bytes of a frame that are inspected: up to the Ethernet address in a DHCP message.
const INSPECTED: usize = 128;
/// The port of DHCP servers, and the offset of the client's Ethernet address in a message.
const DHCP_SERVER: u16 = 67;
const DHCP_MAC_AT: usize = 28;
/// The types of ICMPv6's router solicitation, neighbor solicitation and advertisement, and the offset of
/// the target in the latter two.
const ROUTER_SOLICITATION: u8 = 133;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const TARGET_AT: usize = 8;
/// The options for the Ethernet addresses of the source and of the target (RFC 4861 4.6.1).
const LINK_ADDRESS_OPTIONS: [u8; 2] = [1, 2];
/// Values below this are lengths of IEEE 802.3 frames, and not EtherTypes. The first bytes of such a
/// frame whose EtherType follows in a SNAP header.
const ETHERTYPE_MIN: u16 = 0x600;
const SNAP: [u8; 2] = [0xaa, 0xaa];
const VLAN_TAGS: [u16; 2] = [ethertype::VLAN, ethertype::QINQ];

/// The Ethernet addresses of a frame, and the IP addresses that its sender claims.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Claims {
    pub(super) dst: [u8; 6],
    pub(super) src: [u8; 6],
    /// The source of IP, the sender of ARP, and the target of a neighbor advertisement; `None` for
    /// unspecified addresses.
    pub(super) addresses: [Option<IpAddr>; 2],
    /// The address that the sender will use if no other host has it: the target of an ARP probe (RFC
    /// 5227), or of duplicate address detection (RFC 4862).
    pub(super) probed: Option<IpAddr>,
    /// The client's Ethernet address in a message to a DHCP server, if it is not the sender's: that of a
    /// station behind the guest, whose frames have the guest's address, e.g. on a wireless bridge.
    pub(super) client: Option<[u8; 6]>,
}

/// Returns whether an Ethernet address belongs to a group or to all hosts.
pub(super) const fn is_group(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// Returns whether a bridge does not forward frames to this group (IEEE 802.1D 7.12.6).
pub(super) fn is_of_link(mac: [u8; 6]) -> bool {
    mac[..5] == [0x01, 0x80, 0xc2, 0, 0] && mac[5] < 0x10
}

impl Claims {
    /// Returns the claims of a packet in the form of a device, or `None` if its sender cannot be
    /// determined or contradicts itself.
    pub(super) fn of_packet(packet: &Packet) -> Option<Self> {
        let mut pieces = packet.slices();
        let first = pieces.next()?;
        if first.len() >= INSPECTED || first.len() == packet.len() {
            return Self::parse(first);
        }
        let mut head = SmallVec::<[u8; INSPECTED]>::from_slice(first);
        for piece in pieces {
            let room = INSPECTED - head.len();
            head.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        Self::parse(&head)
    }

    /// Returns the claims of a frame, of which the first [`INSPECTED`] bytes suffice.
    pub(super) fn parse(frame: &[u8]) -> Option<Self> {
        let dst = *frame.first_chunk()?;
        let src = *frame.get(6..)?.first_chunk()?;
        if is_group(src) || src == [0; 6] {
            return None;
        }
        let kind = be16(frame, 12)?;
        let payload = frame.get(14..)?;
        let mut client = None;
        let (addresses, probed) = match kind {
            ethertype::IPV4 => {
                client = dhcp_client(payload)?.filter(|client| *client != src);
                ([of_ipv4(payload)?, None], None)
            }
            ethertype::ARP => of_arp(payload, src)?,
            ethertype::IPV6 => of_ipv6(payload, src)?,
            // The addresses in a frame with a VLAN tag or a SNAP header are not parsed.
            kind if VLAN_TAGS.contains(&kind) => return None,
            ..ETHERTYPE_MIN if payload.get(..2) == Some(&SNAP) => return None,
            _ => ([None, None], None),
        };
        Some(Self {
            dst,
            src,
            addresses,
            probed,
            client,
        })
    }
}

/// The `addresses` and the `probed` address of [`Claims`].
type Addresses = ([Option<IpAddr>; 2], Option<IpAddr>);

/// Returns an address unless it is unspecified.
fn specified(address: impl Into<IpAddr>) -> Option<IpAddr> {
    Some(address.into()).filter(|address| !address.is_unspecified())
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn ipv4_at(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = *bytes.get(at..)?.first_chunk()?;
    Some(octets.into())
}

fn ipv6_at(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
    Some(octets.into())
}

/// Returns the source of a packet, `Some(None)` if it is unspecified, or `None` if it is not a valid
/// source.
#[allow(clippy::option_option, reason = "the outer one is the validity")]
fn of_ipv4(packet: &[u8]) -> Option<Option<IpAddr>> {
    let source = ipv4_at(packet, 12)?;
    let is_group = source.is_multicast() || source.is_broadcast();
    (!is_group).then_some(specified(source))
}

/// Returns the client's Ethernet address in a message to a DHCP server, `Some(None)` for other packets,
/// or `None` if it is invalid or not within the first fragment.
#[allow(clippy::option_option, reason = "the outer one is the validity")]
fn dhcp_client(packet: &[u8]) -> Option<Option<[u8; 6]>> {
    let fragment = be16(packet, 6)?;
    // Only the first fragment contains the port.
    if *packet.get(9)? != protocol::UDP || fragment & 0x1fff != 0 {
        return Some(None);
    }
    let datagram = packet.get(usize::from(packet[0] & 0xf) * 4..)?;
    if be16(datagram, 2)? != DHCP_SERVER {
        return Some(None);
    }
    let more_fragments = fragment & 0x2000 != 0;
    let mac: [u8; 6] = *datagram.get(8 + DHCP_MAC_AT..)?.first_chunk()?;
    let is_valid = !more_fragments && !is_group(mac) && mac != [0; 6];
    is_valid.then_some(Some(mac))
}

fn of_arp(packet: &[u8], src: [u8; 6]) -> Option<Addresses> {
    // The hardware must be Ethernet, and the protocol IPv4.
    if packet.get(..6)? != [0, 1, 8, 0, 6, 4] || packet.get(8..14)? != src {
        return None;
    }
    let sender = ipv4_at(packet, 14)?;
    if sender.is_multicast() || sender.is_broadcast() {
        return None;
    }
    // A probe has no sender address (RFC 5227 2.1.1).
    let (sender, target) = (specified(sender), ipv4_at(packet, 24)?);
    let probed = specified(target).filter(|_| sender.is_none());
    Some(([sender, None], probed))
}

fn of_ipv6(packet: &[u8], src: [u8; 6]) -> Option<Addresses> {
    let source = ipv6_at(packet, 8)?;
    if source.is_multicast() {
        return None;
    }
    let source = specified(source);
    let (upper, at) = upper_layer(packet)?;
    let Some(at) = at.filter(|_| upper == protocol::ICMPV6) else {
        return Some(([source, None], None));
    };
    let kind = *packet.get(at)?;
    let options_at = match kind {
        ROUTER_SOLICITATION => 8,
        NEIGHBOR_SOLICITATION | NEIGHBOR_ADVERTISEMENT => TARGET_AT + 16,
        _ => return Some(([source, None], None)),
    };
    // The padding of the frame is cut off. The whole message must be there, as each option counts.
    let len = usize::from(be16(packet, 4)?);
    let message = packet.get(at..40 + len)?;
    if !has_own_link_address(message.get(options_at..)?, src)? {
        return None;
    }
    let target = match kind {
        ROUTER_SOLICITATION => None,
        _ => specified(ipv6_at(message, TARGET_AT)?),
    };
    Some(match kind {
        NEIGHBOR_ADVERTISEMENT => ([source, target], None),
        _ => ([source, None], target.filter(|_| source.is_none())),
    })
}

/// Returns whether the Ethernet addresses in neighbor discovery options are the sender's; otherwise the
/// receiver would send another guest's packets there. `None` if the options are malformed.
fn has_own_link_address(mut options: &[u8], src: [u8; 6]) -> Option<bool> {
    while let Some(&kind) = options.first() {
        let len = usize::from(*options.get(1)?) * 8;
        let (option, rest) = options.split_at_checked(len.max(8))?;
        if len == 0 || LINK_ADDRESS_OPTIONS.contains(&kind) && option[2..8] != src {
            return Some(false);
        }
        options = rest;
    }
    Some(true)
}

/// Returns the protocol after the extension headers of an IPv6 packet and its offset, which only the
/// first fragment has. `None` if it is not within the inspected bytes.
fn upper_layer(packet: &[u8]) -> Option<(u8, Option<usize>)> {
    let (mut next, mut at) = (*packet.get(6)?, 40);
    loop {
        match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => {
                let header: [u8; 2] = *packet.get(at..)?.first_chunk()?;
                next = header[0];
                at += (usize::from(header[1]) + 1) * 8;
            }
            // Hosts ignore fragmented neighbor discovery messages (RFC 6980), but older ones do not. The
            // first fragment has all headers (RFC 7112).
            protocol::FRAGMENT => {
                let header: [u8; 4] = *packet.get(at..)?.first_chunk()?;
                let offset = be16(&header, 2)? >> 3;
                if offset != 0 {
                    return Some((header[0], None));
                }
                next = header[0];
                at += extension::FRAGMENT_LEN;
            }
            upper => return Some((upper, Some(at))),
        }
    }
}

/// Parses the first bytes of a frame, for the fuzz target.
#[doc(hidden)]
pub fn fuzz_claims(frame: &[u8]) {
    let claims = Claims::parse(frame);
    let packet = Packet::from_frame(fullsend_offload::Slice::copied_from(frame));
    let head = &frame[..frame.len().min(INSPECTED)];
    if frame.len() <= INSPECTED {
        assert_eq!(Claims::of_packet(&packet), claims);
    } else {
        // If the inspected bytes suffice, the later ones must change nothing.
        let of_head = Claims::parse(head);
        assert!(of_head.is_none() || of_head == claims);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn frame(kind: u16, payload: &[u8]) -> Vec<u8> {
        [&[0xff; 6][..], &MAC, &kind.to_be_bytes(), payload].concat()
    }

    fn addresses(frame: &[u8]) -> Option<Vec<String>> {
        let all = Claims::parse(frame)?.addresses.into_iter().flatten();
        Some(all.map(|address| address.to_string()).collect())
    }

    fn probed(frame: &[u8]) -> Option<String> {
        let claims = Claims::parse(frame)?;
        Some(claims.probed?.to_string())
    }

    fn ipv4(source: [u8; 4], fragment: u16, port: u16, mac: [u8; 6]) -> Vec<u8> {
        let mut packet = vec![0; 20 + 8 + 240];
        packet[0] = 0x45;
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = protocol::UDP;
        packet[12..16].copy_from_slice(&source);
        packet[22..24].copy_from_slice(&port.to_be_bytes());
        packet[56..62].copy_from_slice(&mac);
        frame(ethertype::IPV4, &packet)
    }

    #[test]
    fn an_ipv4_packet_claims_its_source() {
        let other = [2, 0, 0, 0, 0, 8];
        let of = |source, fragment, port, mac| addresses(&ipv4(source, fragment, port, mac));
        let one = || Some(vec!["10.0.2.15".to_owned()]);
        assert_eq!(of([10, 0, 2, 15], 0, 53, other), one());
        assert_eq!(of([0; 4], 0, 67, MAC), Some(vec![]));
        assert_eq!(of([10, 0, 2, 15], 0x4000, 67, MAC), one());
        // DHCP in fragments, and for clients that are none.
        assert_eq!(of([0; 4], 0x2000, 67, MAC), None);
        assert_eq!(of([10, 0, 2, 15], 0x2001, 67, other), one());
        for mac in [[0; 6], [0xff; 6], [1, 0, 0, 0, 0, 8]] {
            assert_eq!(of([0; 4], 0, 67, mac), None);
        }
        for group in [[224, 0, 0, 1], [255; 4]] {
            assert_eq!(of(group, 0, 53, MAC), None);
        }
        for len in 0..62 {
            assert_eq!(addresses(&ipv4([10, 0, 2, 15], 0, 67, MAC)[..len]), None);
        }
    }

    #[test]
    fn a_dhcp_message_claims_its_client() {
        let other = [2, 0, 0, 0, 0, 8];
        let of = |port, mac| Claims::parse(&ipv4([0; 4], 0, port, mac)).unwrap().client;
        assert_eq!(of(67, other), Some(other));
        assert_eq!((of(67, MAC), of(68, other)), (None, None));
    }

    #[test]
    fn an_arp_packet_claims_its_sender() {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
        packet.extend(MAC);
        packet.extend([10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
        let of = |packet: &[u8]| addresses(&frame(ethertype::ARP, packet));
        assert_eq!(of(&packet), Some(vec!["10.0.2.15".to_owned()]));
        assert_eq!(probed(&frame(ethertype::ARP, &packet)), None);
        packet[14..18].fill(0);
        assert_eq!(of(&packet), Some(vec![]));
        let target = probed(&frame(ethertype::ARP, &packet));
        assert_eq!(target, Some("10.0.2.2".to_owned()));
        packet[13] = 8;
        assert_eq!(of(&packet), None);
    }

    fn neighbor_advertisement(extension: &[u8], next: u8) -> Vec<u8> {
        let len = extension.len() as u8 + 24;
        let mut packet = vec![0x60, 0, 0, 0, 0, len, next, 255];
        packet.extend(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7).octets());
        packet.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
        packet.extend(extension);
        packet.extend([136, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9).octets());
        frame(ethertype::IPV6, &packet)
    }

    #[test]
    fn a_neighbor_advertisement_claims_its_target() {
        let both = Some(vec!["fe80::7".to_owned(), "fd00::9".to_owned()]);
        assert_eq!(addresses(&neighbor_advertisement(&[], 58)), both);
        let options = [58, 0, 1, 4, 0, 0, 0, 0];
        assert_eq!(addresses(&neighbor_advertisement(&options, 60)), both);
        let atomic = [58, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(addresses(&neighbor_advertisement(&atomic, 44)), both);
        // Reserved bits make it no other fragment, and the first one has the message, too.
        for flags in [1, 2, 4, 7] {
            let first = [58, 0, 0, flags, 0, 0, 0, 1];
            assert_eq!(addresses(&neighbor_advertisement(&first, 44)), both);
        }
        let second = [58, 0, 0, 9, 0, 0, 0, 1];
        let one = Some(vec!["fe80::7".to_owned()]);
        assert_eq!(addresses(&neighbor_advertisement(&second, 44)), one);
        // Headers that hide the message.
        let long = [58, 20, 1, 4, 0, 0, 0, 0];
        assert_eq!(addresses(&neighbor_advertisement(&long, 60)), None);
    }

    /// A message of neighbor discovery from an unspecified source.
    fn neighbor_message(kind: u8, options: &[u8]) -> Vec<u8> {
        let fixed = if kind == ROUTER_SOLICITATION { 8 } else { 24 };
        let len = (fixed + options.len()) as u8;
        let mut packet = vec![0x60, 0, 0, 0, 0, len, protocol::ICMPV6, 255];
        packet.resize(40 + fixed, 0);
        packet[40] = kind;
        if fixed == 24 {
            let target = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
            packet[48..].copy_from_slice(&target.octets());
        }
        packet.extend(options);
        // Padding is no option.
        packet.extend([0; 7]);
        frame(ethertype::IPV6, &packet)
    }

    #[test]
    fn duplicate_address_detection_probes_its_target() {
        let target = Some("fd00::9".to_owned());
        assert_eq!(
            probed(&neighbor_message(NEIGHBOR_SOLICITATION, &[])),
            target
        );
        let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
        assert_eq!(
            probed(&neighbor_message(NEIGHBOR_SOLICITATION, &nonce)),
            target
        );
        assert_eq!(probed(&neighbor_message(NEIGHBOR_ADVERTISEMENT, &[])), None);
        let mut resolution = neighbor_message(NEIGHBOR_SOLICITATION, &[]);
        resolution[22] = 0xfe;
        assert_eq!(probed(&resolution), None);
    }

    #[test]
    fn the_ethernet_address_in_neighbor_discovery_is_that_of_the_frame() {
        let option = |kind: u8, mac: [u8; 6]| [&[kind, 1][..], &mac].concat();
        let other = [2, 0, 0, 0, 0, 8];
        for kind in [
            ROUTER_SOLICITATION,
            NEIGHBOR_SOLICITATION,
            NEIGHBOR_ADVERTISEMENT,
        ] {
            for code in LINK_ADDRESS_OPTIONS {
                let own = neighbor_message(kind, &option(code, MAC));
                assert!(Claims::parse(&own).is_some());
                assert_eq!(Claims::parse(&own[..own.len() - 8]), None);
                let of_other = [option(14, other), option(code, other)].concat();
                assert_eq!(Claims::parse(&neighbor_message(kind, &of_other)), None);
            }
            for malformed in [
                &[1, 0, 0, 0, 0, 0, 0, 0][..],
                &[1],
                &[14, 2, 0, 0, 0, 0, 0, 0],
            ] {
                assert_eq!(Claims::parse(&neighbor_message(kind, malformed)), None);
            }
        }
    }

    #[test]
    fn frames_without_a_sender_or_with_a_tag_have_no_claims() {
        assert_eq!(addresses(&frame(0x88cc, &[])), Some(vec![]));
        assert_eq!(addresses(&frame(ethertype::VLAN, &[0, 5, 8, 0])), None);
        // IEEE 802.3: LLC alone has no IP, SNAP may.
        assert_eq!(addresses(&frame(3, &[0x42, 0x42, 3])), Some(vec![]));
        assert_eq!(addresses(&frame(8, &[0xaa, 0xaa, 3, 0, 0, 0, 8, 6])), None);
        let mut group = frame(0x88cc, &[]);
        group[6] |= 1;
        assert_eq!(addresses(&group), None);
        group[6..12].fill(0);
        assert_eq!(addresses(&group), None);
    }
}
