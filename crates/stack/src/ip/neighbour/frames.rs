//! The frames that address resolution sends, and the link headers of other packets.

use core::net::{IpAddr, Ipv6Addr};

use fullsend_offload::{Encap, HeaderBuf, Layers, Packet};
use fullsend_wire::arp::{self, ArpOperation, ArpRepr};
use fullsend_wire::ethernet::{self, EthernetRepr, Mac};
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::ipv6::{self, Ipv6Repr};
use fullsend_wire::ndp::{NdpRepr, Nonce};
use fullsend_wire::numbers::{ethertype, protocol};

use super::solicited_node;

/// Builds frames with the source address `mac`.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameBuilder {
    pub(super) mac: Mac,
    /// Whether advertisements show a router.
    pub(super) router: bool,
}

impl FrameBuilder {
    /// Prepends the link header to a packet that begins with its network header.
    pub(super) fn with_link(self, mut packet: Packet, dst: Mac) -> Packet {
        const LEN: u16 = ethernet::HEADER_LEN as u16;
        let link = EthernetRepr {
            dst,
            src: self.mac,
            vlan: None,
            ethertype: packet.layers.ethertype,
        };
        link.emit(packet.header.prepend(LEN.into()));
        packet.layers.network = packet.layers.network.map(|at| at + LEN);
        packet.layers.transport += LEN;
        packet
    }

    /// Builds a solicitation for `target`: multicast or broadcast, or unicast to `known`.
    pub(super) fn solicit(self, source: IpAddr, target: IpAddr, known: Option<Mac>) -> Packet {
        match (source, target) {
            (IpAddr::V6(source), IpAddr::V6(target)) => self.ndp_solicit(source, target, known),
            (IpAddr::V4(sender), IpAddr::V4(target)) => {
                let request = ArpRepr {
                    operation: ArpOperation::Request,
                    sender_mac: self.mac,
                    sender,
                    target_mac: known.unwrap_or(Mac::ZERO),
                    target,
                };
                self.arp(&request, known.unwrap_or(Mac::BROADCAST))
            }
            _ => unreachable!("a packet's source and next hop are of one family"),
        }
    }

    /// Builds the reply to an ARP request for a local address.
    pub(super) fn arp_reply(self, request: &ArpRepr) -> Packet {
        let reply = ArpRepr {
            operation: ArpOperation::Reply,
            sender_mac: self.mac,
            sender: request.target,
            target_mac: request.sender_mac,
            target: request.sender,
        };
        self.arp(&reply, request.sender_mac)
    }

    fn arp(self, message: &ArpRepr, dst: Mac) -> Packet {
        let mut packet = Packet::default();
        message.emit(packet.header.prepend(arp::LEN));
        packet.layers.ethertype = ethertype::ARP;
        self.with_link(packet, dst)
    }

    fn ndp_solicit(self, source: Ipv6Addr, target: Ipv6Addr, known: Option<Mac>) -> Packet {
        let group = solicited_node(target);
        let dst = if known.is_some() { target } else { group };
        let message = NdpRepr::NeighbourSolicit {
            target,
            source_mac: Some(self.mac),
            nonce: None,
        };
        let packet = icmpv6(source, dst, &Icmpv6Repr::Ndp(message));
        self.with_link(packet, known.unwrap_or_else(|| Mac::of_v6_group(group)))
    }

    /// Builds a solicitation for `target` in duplicate address detection: from the unspecified
    /// address, and without a source link-layer address option (RFC 4861 4.3).
    pub(super) fn dad_solicit(self, target: Ipv6Addr, nonce: Nonce) -> Packet {
        let group = solicited_node(target);
        let message = NdpRepr::NeighbourSolicit {
            target,
            source_mac: None,
            nonce: Some(nonce),
        };
        let packet = icmpv6(Ipv6Addr::UNSPECIFIED, group, &Icmpv6Repr::Ndp(message));
        self.with_link(packet, Mac::of_v6_group(group))
    }

    /// Builds an advertisement of a local address, without link header.
    pub(super) fn advertise(self, target: Ipv6Addr, dst: Ipv6Addr, solicited: bool) -> Packet {
        let message = NdpRepr::NeighbourAdvert {
            target,
            router: self.router,
            solicited,
            override_cache: true,
            target_mac: Some(self.mac),
        };
        icmpv6(target, dst, &Icmpv6Repr::Ndp(message))
    }
}

/// Builds an ICMPv6 message for the local link, with its IPv6 header.
fn icmpv6(src: Ipv6Addr, dst: Ipv6Addr, message: &Icmpv6Repr<'_>) -> Packet {
    let mut header = HeaderBuf::new();
    message.emit(src, dst, header.prepend(message.len()));
    let ip = Ipv6Repr {
        hop_limit: 255,
        ..Ipv6Repr::new(src, dst, protocol::ICMPV6, message.len() as u16)
    };
    ip.emit(header.prepend(ipv6::HEADER_LEN));
    Packet {
        header,
        layers: Layers {
            network: [0; 2],
            transport: ipv6::HEADER_LEN as u16,
            ethertype: ethertype::IPV6,
            protocol: protocol::ICMPV6,
            tunnel: 0,
            encap: Encap::None,
            fragment: false,
        },
        ..Packet::default()
    }
}
