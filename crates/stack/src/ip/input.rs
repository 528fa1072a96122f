//! IP input: validates GRO's packets and delivers them to the transport protocols.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use fullsend_offload::Packet;
use fullsend_wire::extension::{ExtensionError, UpperHeader};
use fullsend_wire::ipv4::OptionError;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::{Instant, cold_path, extension, ipv4, ipv6};

use super::Problem;
use super::reassembly::Reassembled;
use crate::demux::Addr;
use crate::interface::LOOPBACK;
use crate::{Host, IfaceId};

/// The longest hop-by-hop header, bytes (RFC 8200 4.3).
const MAX_HOP_BY_HOP: usize = 256 * 8;

/// The fields of a packet's IP header that the transport protocols use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpMeta {
    pub(crate) src: Addr,
    pub(crate) dst: Addr,
    /// Traffic class, including the ECN field.
    pub(crate) tos: u8,
    pub(crate) iface: u16,
}

impl IpMeta {
    /// Returns whether one of the IPv6 addresses is a loopback address though the packet was received
    /// from a link (RFC 4291 2.5.3).
    #[inline]
    const fn is_v6_loopback_outside(&self) -> bool {
        (self.src.is_loopback() || self.dst.is_loopback()) && self.iface != LOOPBACK
    }
}

impl Host {
    /// Processes frames received from an interface's device, through GRO to the sockets. Empties
    /// `frames`.
    pub fn receive(&mut self, now: Instant, iface: IfaceId, frames: &mut Vec<Packet>) {
        self.update_memory_state(now);
        let Some(interface) = self.ifaces.get_mut(usize::from(iface.0)) else {
            cold_path();
            frames.clear();
            return;
        };
        let [frame] = frames.as_mut_slice() else {
            return self.receive_batch(now, iface.0, frames);
        };
        interface.stats.count_received(core::slice::from_ref(frame));
        // GRO is flushed after each poll, so it holds no earlier packet here.
        if interface.gro.receive_single(frame) {
            self.ip_input(now, iface.0, frame);
        }
        frames.clear();
    }

    #[inline(never)]
    fn receive_batch(&mut self, now: Instant, iface: u16, frames: &mut Vec<Packet>) {
        let mut batch = core::mem::take(&mut self.batch);
        let interface = &mut self.ifaces[usize::from(iface)];
        interface.stats.count_received(frames);
        interface.gro.receive_batch(now, frames);
        interface.gro.flush(&mut batch);
        self.tcp_prefetch(&batch);
        for packet in &mut batch {
            self.ip_input(now, iface, packet);
        }
        batch.clear();
        self.batch = batch;
    }

    /// Processes a parsed packet. May take the payload out of it.
    #[inline]
    pub(crate) fn ip_input(&mut self, now: Instant, iface: u16, packet: &mut Packet) {
        if packet.layers.network[0] != 0 && !self.is_frame_for_us(iface, packet) {
            return;
        }
        let octets = packet.len() - usize::from(packet.layers.network[0]);
        match packet.layers.ethertype {
            ethertype::IPV4 => {
                self.mib.ip4.in_receives += 1;
                self.mib.ip4.in_octets += octets as u64;
                self.ipv4_input(now, iface, packet);
            }
            ethertype::IPV6 => {
                self.mib.ip6.in_receives += 1;
                self.mib.ip6.in_octets += octets as u64;
                self.ipv6_input(now, iface, packet);
            }
            ethertype::ARP => self.arp_input(now, iface, packet),
            _ => {}
        }
    }

    #[inline]
    fn ipv4_input(&mut self, now: Instant, iface: u16, packet: &mut Packet) {
        let Some(header) = packet.network_header().first_chunk::<20>() else {
            cold_path();
            self.mib.ip4.in_hdr_errors += 1;
            return;
        };
        let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
        let meta = IpMeta {
            src: Addr::v4([s0, s1, s2, s3]),
            dst: Addr::v4([d0, d1, d2, d3]),
            tos: header[1],
            iface,
        };
        self.mib.ip4.count_ecn(meta.tos, packet.segments());
        // RFC 1122 3.2.1.3: loopback addresses do not appear on a link.
        if (s0 == 127 || d0 == 127) && iface != LOOPBACK {
            cold_path();
            if meta.src.is_loopback() {
                self.mib.route.in_martian_src += 1;
            } else {
                self.mib.ip4.in_addr_errors += 1;
            }
            return;
        }
        if header[0] != 0x45 {
            cold_path();
            if !self.check_options(now, &meta, packet) {
                return;
            }
        }
        if packet.layers.protocol == protocol::TCP && !packet.layers.fragment {
            self.mib.ip4.in_delivers += 1;
            self.tcp_input(now, &meta, packet);
        } else {
            self.non_tcp_input(now, &meta, packet);
        }
    }

    #[inline]
    fn ipv6_input(&mut self, now: Instant, iface: u16, packet: &mut Packet) {
        let Some(header) = packet.network_header().first_chunk::<40>() else {
            cold_path();
            self.mib.ip6.in_hdr_errors += 1;
            return;
        };
        let (head, rest) = header.split_at(24);
        let meta = IpMeta {
            src: Addr::v6(*head.last_chunk().unwrap_or(&[0; 16])),
            dst: Addr::v6(*rest.first_chunk().unwrap_or(&[0; 16])),
            tos: header[0] << 4 | header[1] >> 4,
            iface,
        };
        self.mib.ip6.count_ecn(meta.tos, packet.segments());
        // RFC 4291 2.5.5.2: mapped addresses represent IPv4 inside a host and are never valid on a
        // link.
        if meta.src.is_v4() || meta.dst.is_v4() || meta.is_v6_loopback_outside() {
            cold_path();
            self.mib.ip6.in_addr_errors += 1;
            return;
        }
        let next_header = header[6];
        let plain = next_header == packet.layers.protocol && !extension::is_extension(next_header);
        if !plain && !self.check_extensions(now, &meta, packet) {
            return;
        }
        if packet.layers.protocol == protocol::TCP && !packet.layers.fragment {
            self.mib.ip6.in_delivers += 1;
            self.tcp_input(now, &meta, packet);
        } else {
            self.non_tcp_input(now, &meta, packet);
        }
    }

    /// Checks the extension headers: unknown options may require that the packet is dropped (RFC
    /// 8200 4.2).
    #[cold]
    fn check_extensions(&mut self, now: Instant, meta: &IpMeta, packet: &Packet) -> bool {
        if self.has_local_source(meta) {
            self.mib.ip6.in_addr_errors += 1;
            return false;
        }
        let problem = match parse_extensions(packet) {
            Ok(upper) if upper.protocol == packet.layers.protocol => return true,
            // The authentication header (RFC 4302) lies between: what cannot be verified is not
            // accepted. It is an unrecognized next header (RFC 8200 4).
            Ok(_) => {
                self.mib.ip6.in_unknown_protos += 1;
                Some(Problem::ProtocolUnreachable)
            }
            Err(fault) => {
                self.mib.ip6.in_hdr_errors += 1;
                Problem::from_fault(fault)
            }
        };
        if let Some(problem) = problem {
            self.send_icmp_error(now, problem, packet);
        }
        false
    }

    /// Checks the options of an IPv4 header. A packet with a source route is dropped silently (RFC 7126
    /// 4.3, 4.4), one with a malformed option is answered (RFC 1122 3.2.2.5).
    #[cold]
    fn check_options(&mut self, now: Instant, meta: &IpMeta, packet: &Packet) -> bool {
        let header = packet.network_header();
        let header_len = usize::from(header[0] & 0xf) * 4;
        let header = header.get(..header_len).unwrap_or(header);
        let Err(fault) = ipv4::check_options(header) else {
            return true;
        };
        self.mib.ip4.in_hdr_errors += 1;
        let is_answered = !self.has_local_source(meta) && !self.is_martian(meta);
        if let OptionError::Malformed { pointer } = fault
            && is_answered
        {
            let problem = Problem::Header {
                code: 0,
                pointer: pointer.into(),
                even_multicast: false,
            };
            self.send_icmp_error(now, problem, packet);
        }
        false
    }

    /// Returns whether a packet from a link has a local source address. Checked only where no
    /// connection has matched the packet.
    pub(crate) fn has_local_source(&self, meta: &IpMeta) -> bool {
        meta.iface != LOOPBACK && self.ip.addresses.is_local(meta.src)
    }

    /// Returns whether the source address cannot be that of a single host, and counts the packet.
    /// Such packets are neither delivered nor answered.
    pub(crate) fn is_martian(&mut self, meta: &IpMeta) -> bool {
        let martian = meta.iface != LOOPBACK && !self.ip.may_be_source(meta.src.to_ip());
        if martian {
            *self.mib.martian_src(meta.src.is_v4()) += 1;
        }
        martian
    }

    /// Returns whether a packet may come from a host that has no address yet, and counts it if not.
    /// As on Linux, those are over IPv4 packets to the limited broadcast address, such as a DHCP
    /// client's (RFC 2131 4.1), and to link-local groups; over IPv6 those of Neighbour Discovery
    /// and MLD.
    fn may_lack_source(&mut self, meta: &IpMeta, protocol: u8) -> bool {
        let may = match meta.dst.to_ip() {
            IpAddr::V4(dst) => dst.is_broadcast() || matches!(dst.octets(), [224, 0, 0, _]),
            IpAddr::V6(dst) => dst.is_multicast() && protocol == protocol::ICMPV6,
        };
        if !may {
            *self.mib.martian_src(meta.src.is_v4()) += 1;
        }
        may
    }

    /// Processes all packets except unfragmented TCP segments.
    #[inline(never)]
    fn non_tcp_input(&mut self, now: Instant, meta: &IpMeta, packet: &mut Packet) {
        let dst = meta.dst.to_ip();
        let ours = self.ip.addresses.is_local(meta.dst);
        let is_looped = meta.iface == LOOPBACK && dst.is_multicast();
        let group = is_looped || is_group(dst) || self.ip.addresses.is_broadcast(dst);
        let v4 = meta.dst.is_v4();
        let foreign = !ours && !group;
        // RFC 1122 3.2.1.3, RFC 4291 2.5.2: the unspecified address is never a destination, not
        // even for a socket that receives packets to any.
        if meta.dst.is_unspecified()
            || foreign && !self.accepts_foreign(packet)
            || self.has_local_source(meta)
        {
            return *self.mib.in_addr_errors(v4) += 1;
        }
        if self.is_martian(meta)
            || meta.src.to_ip().is_unspecified()
                && !self.may_lack_source(meta, packet.layers.protocol)
        {
            return;
        }
        if packet.layers.fragment {
            return self.fragment_input(now, meta.iface, packet);
        }
        *self.mib.in_delivers(v4) += 1;
        match (packet.layers.protocol, v4) {
            (protocol::ICMP, true) | (protocol::ICMPV6, false) => {
                if foreign {
                    self.foreign_icmp_input(meta, packet);
                } else {
                    self.icmp_input(now, meta, packet);
                }
            }
            (protocol::UDP, _) => self.udp_input(now, meta, packet),
            (protocol::IGMP, true) => self.igmp_input(now, meta, packet),
            // RFC 8200 4.7: nothing follows, and what does is ignored.
            (protocol::NO_NEXT_HEADER, false) => {}
            _ => {
                *self.mib.in_delivers(v4) -= 1;
                *self.mib.in_unknown_protos(v4) += 1;
                self.send_icmp_error(now, Problem::ProtocolUnreachable, packet);
            }
        }
    }

    /// Returns whether a packet to another host is accepted, because a socket receives those of its
    /// protocol. Fragments are accepted if there is any such socket.
    fn accepts_foreign(&self, packet: &Packet) -> bool {
        let (udp, icmp) = (self.udp.has_any(), self.ip.icmp_queue.is_open());
        match packet.layers.protocol {
            _ if packet.layers.fragment => udp || icmp,
            protocol::UDP => udp,
            protocol::ICMP | protocol::ICMPV6 => icmp,
            _ => false,
        }
    }

    fn fragment_input(&mut self, now: Instant, iface: u16, packet: &mut Packet) {
        // The fragments of one sender could otherwise hold the pool's reserve, which all
        // connections need.
        if self.env.mem.is_refused() {
            return self.ip.reassembly.count_refused(packet);
        }
        let fragment = core::mem::take(packet);
        let (packet, group_link) = match self.ip.reassembly.input(now, fragment) {
            Reassembled::Nothing => return,
            Reassembled::Invalid(fragment, problem) => {
                return self.send_icmp_error(now, problem, &fragment);
            }
            Reassembled::Complete(packet, group_link) => (packet, group_link),
        };
        let mut parsed = Vec::new();
        self.ip.reassembled_gro.receive(now, packet);
        self.ip.reassembled_gro.flush(&mut parsed);
        for mut packet in parsed {
            // A reassembled packet must not be a fragment itself.
            if packet.layers.fragment {
                continue;
            }
            if let Some(link) = group_link {
                link.prepend_to(&mut packet);
                if !self.is_frame_for_us(iface, &packet) {
                    continue;
                }
            }
            match packet.layers.ethertype {
                ethertype::IPV4 => self.ipv4_input(now, iface, &mut packet),
                _ => self.ipv6_input(now, iface, &mut packet),
            }
        }
    }
}

/// Parses the extension headers of an IPv6 packet.
fn parse_extensions(packet: &Packet) -> Result<UpperHeader, ExtensionError> {
    let header = packet.network_header();
    let is_hop_by_hop = [header[6], packet.layers.protocol] == [protocol::HOP_BY_HOP; 2];
    if is_hop_by_hop && header[4..6] == [0, 0] {
        let mut bytes = vec![0; packet.payload.len().min(MAX_HOP_BY_HOP)];
        packet.payload.copy_to(&mut bytes);
        return Err(extension::zero_length_fault(&bytes));
    }
    extension::parse_headers(header[6], &header[ipv6::HEADER_LEN..])
}

/// Returns whether packets to the group `dst` may come from a link. Those to an IPv6 group of a
/// reserved or interface-local scope may not (RFC 4291 2.7).
fn is_group(dst: IpAddr) -> bool {
    match dst {
        IpAddr::V4(dst) => dst.is_multicast(),
        IpAddr::V6(dst) => dst.is_multicast() && dst.octets()[1] & 0xf > 1,
    }
}
