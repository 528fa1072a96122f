//! The host's side of an Ethernet link: processes ARP and Neighbour Discovery messages and applies
//! their results.

use core::net::{IpAddr, Ipv6Addr};

use fullsend_offload::Packet;
use fullsend_wire::Instant;
use fullsend_wire::arp::{self, ArpRepr};
use fullsend_wire::ethernet::{self, EthernetView, Mac};
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::numbers::{ethertype, protocol};

use super::neighbour::{DadResult, NeighbourActions, Neighbours};
use super::{IpMeta, Problem};
use crate::Host;
use crate::interface::LOOPBACK;

/// An Ethernet header without tags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkHeader([u8; ethernet::HEADER_LEN]);

impl LinkHeader {
    /// Returns the header of a parsed packet's frame if the frame was sent to a link group.
    pub(super) fn of_group_frame(packet: &Packet) -> Option<Self> {
        let mut header: [u8; ethernet::HEADER_LEN] = *packet.header.first_chunk()?;
        header[12..].copy_from_slice(&packet.layers.ethertype.to_be_bytes());
        was_sent_to_link_group(packet).then_some(Self(header))
    }

    /// Returns the header of a frame to `dst` from no station.
    pub(crate) fn to(dst: Mac, ethertype: u16) -> Self {
        let mut header = [0; ethernet::HEADER_LEN];
        header[..6].copy_from_slice(&dst.0);
        header[12..].copy_from_slice(&ethertype.to_be_bytes());
        Self(header)
    }

    /// Puts the header in front of a parsed packet that has none.
    pub(crate) fn prepend_to(self, packet: &mut Packet) {
        let Self(header) = self;
        packet.header.prepend(header.len()).copy_from_slice(&header);
        let layers = &mut packet.layers;
        for offset in layers.network.iter_mut().chain([&mut layers.transport]) {
            *offset += ethernet::HEADER_LEN as u16;
        }
    }
}

/// Returns whether a packet was received in an Ethernet frame to the broadcast address or to a
/// group.
pub(super) fn was_sent_to_link_group(packet: &Packet) -> bool {
    usize::from(packet.layers.network[0]) >= ethernet::HEADER_LEN && packet.header[0] & 1 != 0
}

impl Host {
    /// Returns whether an Ethernet frame is for this host, and counts it if not.
    #[inline(never)]
    pub(super) fn is_frame_for_us(&mut self, iface: u16, packet: &Packet) -> bool {
        let untagged = usize::from(packet.layers.network[0]) == ethernet::HEADER_LEN;
        let own = self.ifaces[usize::from(iface)].config.mac;
        untagged && packet.header.first_chunk() == Some(&own.0)
            || self.is_other_frame_for_us(own, packet)
    }

    /// Returns whether an Ethernet frame that has a tag, or another destination than the
    /// interface's own address, is for this host. Counts it if not.
    #[inline(never)]
    fn is_other_frame_for_us(&mut self, own: Mac, packet: &Packet) -> bool {
        let Ok(link) = EthernetView::new(&packet.header) else {
            return false;
        };
        // IEEE 802.1Q: a tag with VLAN 0 carries a priority only; frames of other VLANs are not for
        // this host.
        let in_vlan = link.tags().any(|tci| tci & 0xfff != 0);
        if in_vlan || link.dst() != own && !link.dst().is_multicast() {
            self.mib.route.rx_otherhost_dropped += u64::from(packet.segments());
            return false;
        }
        // RFC 1122 4.2.3.10: neither end of a connection is a group, and a segment in a frame to a
        // group would be answered by many hosts.
        if link.dst() != own && packet.layers.protocol == protocol::TCP {
            self.mib.socket.group_frames += u64::from(packet.segments());
            return false;
        }
        true
    }

    /// Runs `call` on an interface's neighbours, if it has any, and applies the outcome.
    pub(super) fn with_neighbours(
        &mut self,
        now: Instant,
        iface: u16,
        call: impl FnOnce(&mut Neighbours, &dyn Fn(IpAddr) -> bool, &mut NeighbourActions),
    ) {
        if iface == LOOPBACK {
            return;
        }
        let Some(neighbours) = &mut self.ifaces[usize::from(iface)].neighbours else {
            return;
        };
        let mut actions = NeighbourActions::default();
        let addresses = &self.ip.addresses;
        let is_ours = |ip: IpAddr| !ip.is_loopback() && addresses.is_local(ip.into());
        call(neighbours, &is_ours, &mut actions);
        self.apply_neighbour_actions(now, iface, actions);
    }

    fn apply_neighbour_actions(&mut self, now: Instant, iface: u16, actions: NeighbourActions) {
        self.ip.version += u32::from(actions.changed);
        for frame in actions.frames {
            let v4 = frame.layers.ethertype != ethertype::IPV6;
            let octets = frame.len() - usize::from(frame.layers.network[0]);
            // Packets that waited for resolution were counted when IP got them.
            if frame.layers.protocol == protocol::ICMPV6
                && let Some(&kind) = frame.transport_header().first()
                && self.ip.icmp.v6.count_ndp_out(kind)
            {
                self.mib.count_output(v4, octets);
            }
            self.queue_packet(now, iface, v4, frame);
        }
        for (address, result) in actions.dad {
            self.on_dad_result(now, iface, address, result);
            self.report_detection(iface, address, result);
        }
        self.mib.ip6.dad_loopbacks += actions.looped_back;
        self.mib.neigh.unresolved_discards += actions.discarded;
        self.mib.neigh.table_fulls += actions.table_fulls;
        self.queue_neighbour_messages(iface, actions.messages);
        for packet in actions.unreachable {
            self.report_host_unreachable(now, &packet);
        }
        // The driver passes messages on when it polls.
        if self.has_neighbour_messages()
            && let Some(neighbours) = &mut self.ifaces[usize::from(iface)].neighbours
        {
            neighbours.poll_soon(now);
        }
    }

    pub(super) fn on_dad_result(
        &mut self,
        now: Instant,
        iface: u16,
        addr: Ipv6Addr,
        result: DadResult,
    ) {
        let same = |(on, cidr): &(u16, super::Cidr)| *on == iface && cidr.addr == addr;
        let Some(at) = self.ip.tentative.iter().position(same) else {
            return;
        };
        let (_, cidr) = self.ip.tentative.swap_remove(at);
        if result == DadResult::Duplicate {
            self.ip.duplicates.push((iface, cidr));
            if self.is_first_shard() {
                self.mib.ip6.dad_duplicates += 1;
                self.notices.on_duplicate_address(addr);
            }
            return;
        }
        self.ip.addresses.add(iface, cidr);
        self.ip.version += 1;
        if addr.is_unicast_link_local() {
            self.ip.multicast.on_link_local(now, iface);
        }
    }

    /// Begins duplicate address detection. The first shard does it for all, and reports the result.
    pub(super) fn start_dad(&mut self, now: Instant, iface: u16, addr: Ipv6Addr) {
        if !self.is_first_shard() {
            return;
        }
        // RFC 7527 4.1: the nonce is random.
        let [_, _, nonce @ ..] = self.env.rng.next_u64().to_be_bytes();
        self.with_neighbours(now, iface, |neighbours, _, out| {
            neighbours.start_dad(now, (addr, nonce), out);
        });
    }

    /// Sends a packet that begins with its network header to a neighbour that is not resolved yet.
    pub(crate) fn send_unresolved(
        &mut self,
        now: Instant,
        iface: u16,
        (source, to): (IpAddr, IpAddr),
        packet: Packet,
    ) {
        let next = self.ip.routes.lookup(to).map_or(to, |hop| hop.neighbour);
        // The neighbour answers to the sender of a solicitation. A packet with another host's
        // address, of a transparent gateway, must not direct the answer there.
        let is_own = self.ip.addresses.is_local(source.into());
        let source = match self.source_for(next) {
            Ok(own) if !is_own => own,
            _ => source,
        };
        self.with_neighbours(now, iface, |neighbours, _, out| {
            neighbours.send(now, (source, next), packet, out);
        });
    }

    #[cold]
    pub(super) fn arp_input(&mut self, now: Instant, iface: u16, packet: &Packet) {
        let mut message = [0; arp::LEN];
        let len = packet.payload.copy_to(&mut message);
        if let Ok(arp) = ArpRepr::parse(&message[..len]) {
            self.with_neighbours(now, iface, |neighbours, is_ours, out| {
                neighbours.on_arp(now, &arp, is_ours, out);
            });
        }
    }

    /// Processes a Neighbour Discovery message whose checksum has been verified.
    pub(super) fn ndp_input(&mut self, now: Instant, meta: &IpMeta, hop_limit: u8, message: &[u8]) {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (meta.src.to_ip(), meta.dst.to_ip()) else {
            return;
        };
        if let Ok(Icmpv6Repr::Ndp(ndp)) = Icmpv6Repr::parse(message) {
            self.with_neighbours(now, meta.iface, |neighbours, is_ours, out| {
                neighbours.on_ndp(now, (src, dst, hop_limit), &ndp, is_ours, out);
            });
        }
    }

    /// Runs the timers of neighbours, groups and reassembly.
    pub(crate) fn poll_ip(&mut self, now: Instant) {
        self.poll_multicast(now);
        for iface in 0..self.ifaces.len() {
            let neighbours = self.ifaces[iface].neighbours.as_ref();
            if neighbours.is_some_and(|neighbours| neighbours.deadline() <= now) {
                self.with_neighbours(now, iface as u16, |neighbours, _, out| {
                    neighbours.poll(now, out);
                });
            }
        }
        let mut expired = core::mem::take(&mut self.ip.expired);
        self.ip.reassembly.poll(now, &mut expired);
        for packet in expired.drain(..) {
            self.send_icmp_error(now, Problem::ReassemblyTime, &packet);
        }
        self.ip.expired = expired;
    }

    /// Returns when the next timer of neighbours, groups, reassembly or qdiscs fires; the far future
    /// if there is none.
    pub(crate) fn ip_deadline(&self) -> Instant {
        let mut first = self
            .ip
            .reassembly
            .deadline()
            .min(self.ip.multicast.deadline());
        for iface in &self.ifaces {
            if let Some(neighbours) = &iface.neighbours {
                first = first.min(neighbours.deadline());
            }
            first = first.min(iface.poll_at());
        }
        first
    }
}
