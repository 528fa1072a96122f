//! The host's processing of ICMP messages: echo replies, received errors and sent errors.

use core::net::IpAddr;

use fullsend_offload::{Chain, Packet, Slice};
use fullsend_tcp::{IcmpError, IpSettings, TcpError};
use fullsend_wire::Instant;
use fullsend_wire::numbers::{DEFAULT_TTL, ethertype, protocol};
use fullsend_wire::tcp::TcpRepr;

use super::icmp::{IcmpAction, IcmpAddrs, IcmpPacket, TransportError, host_unreachable};
use super::pmtu::clamp_path_mtu;
use super::{IpMeta, Problem};
use crate::demux::{Addr, FlowKey};
use crate::interface::LOOPBACK;
use crate::{Host, UdpError};

/// Type and code of ICMPv6 "fragment reassembly time exceeded" (RFC 4443 3.3).
const V6_REASSEMBLY_TIME: (u8, u8) = (3, 1);

/// Returns the source and the destination of a parsed IP packet.
fn packet_addrs(packet: &Packet) -> Option<(Addr, Addr)> {
    let header = packet.network_header();
    if packet.layers.ethertype == ethertype::IPV4 {
        let &[.., s0, s1, s2, s3, d0, d1, d2, d3] = header.first_chunk::<20>()?;
        return Some((Addr::v4([s0, s1, s2, s3]), Addr::v4([d0, d1, d2, d3])));
    }
    let (src, dst) = header.get(8..40)?.split_at(16);
    Some((
        Addr::v6(src.try_into().ok()?),
        Addr::v6(dst.try_into().ok()?),
    ))
}

/// Returns the ICMP message of a packet. One that comes from this host has not been parsed: its header
/// may be apart from its data.
fn message_of(meta: &IpMeta, packet: &Packet) -> Chain {
    let header = packet.transport_header();
    if meta.iface != LOOPBACK || header.is_empty() {
        return packet.payload.clone();
    }
    let mut message = Chain::from(Slice::copied_from(header));
    message.append(packet.payload.clone());
    message
}

/// Returns the TTL or hop limit of a packet.
fn ttl_of(meta: &IpMeta, packet: &Packet) -> u8 {
    let offset = if meta.dst.is_v4() { 8 } else { 7 };
    packet.network_header().get(offset).copied().unwrap_or(0)
}

impl Host {
    /// Processes an ICMP message to a local address or to a group.
    pub(super) fn icmp_input(&mut self, now: Instant, meta: &IpMeta, packet: &Packet) {
        let (src, dst) = (meta.src.to_ip(), meta.dst.to_ip());
        // A host whose addresses are all tentative has none to answer from, but its duplicate
        // address detection still processes the messages (RFC 4862 5.4).
        let own = if self.ip.addresses.is_local(meta.dst) {
            Some(dst)
        } else {
            self.ip.addresses.source_for(src, meta.iface)
        };
        let addrs = IcmpAddrs { src, dst, own };
        let message = message_of(meta, packet);
        match self.ip.icmp.input(&addrs, &message) {
            IcmpAction::None => {}
            IcmpAction::Reply(reply) => self.send_datagram(now, reply),
            IcmpAction::Error(report)
                if matches!(report.protocol, protocol::ICMP | protocol::ICMPV6) =>
            {
                self.ping_error(now, (meta.iface, ttl_of(meta, packet)), &report);
            }
            // Over IPv6 the sockets of datagrams get the report of a lost fragment, as on Linux. TCP
            // sends none, so the report is no reason to give up a connection (RFC 5461 2).
            IcmpAction::Error(report)
                if !meta.dst.is_v4()
                    && report.protocol == protocol::TCP
                    && report.kind == V6_REASSEMBLY_TIME => {}
            IcmpAction::Error(error) => self.transport_error(now, error),
            IcmpAction::EchoReply(ident, seq) => {
                self.ping_reply(meta, (ident, seq), ttl_of(meta, packet), &message);
            }
            IcmpAction::Mld(message) => {
                let hop_limit = packet.network_header().get(7).copied().unwrap_or(0);
                self.mld_input(now, meta, hop_limit, &message);
            }
            IcmpAction::Ndp(message) => {
                let kind = message.first().copied().unwrap_or(0);
                let hop_limit = packet.network_header().get(7).copied().unwrap_or(0);
                self.queue_router_solicit(meta, packet, (kind, hop_limit));
                self.ndp_input(now, meta, hop_limit, &message);
            }
        }
    }

    fn send_datagram(&mut self, now: Instant, datagram: IcmpPacket) {
        let addrs = (datagram.src.into(), datagram.dst.into());
        let upper = (datagram.protocol, IpSettings::default());
        // Without a route the answer is dropped and counted.
        let _ = self.ip_output(now, addrs, None, upper, datagram.packet);
    }

    /// Processes an ICMP error about a packet of this host, if the quoted packet is really one.
    fn transport_error(&mut self, now: Instant, report: TransportError) {
        let (local, remote) = (report.local, report.remote);
        let key = FlowKey::new(local.into(), remote.into());
        let error = match report.error {
            IcmpError::TooBig { mtu } => IcmpError::TooBig {
                mtu: clamp_path_mtu(remote.0, mtu),
            },
            error @ IcmpError::Unreachable(_) => error,
        };
        let is_in_flight = if report.protocol == protocol::TCP {
            self.tcp_error(now, &key, report.seq, error)
        } else {
            let (error, mtu) = match error {
                IcmpError::Unreachable(error) => (error, 0),
                IcmpError::TooBig { mtu } => (TcpError::MessageTooLong, mtu),
            };
            let udp_error = UdpError {
                error,
                kind: report.kind,
                mtu,
                offender: report.offender,
                is_local: false,
                to: remote.into(),
                payload: report.payload,
            };
            self.udp.icmp(local.into(), &udp_error, &mut self.wakers)
        };
        // RFC 5927 4: accepted only if it is about data of this host in flight, and only for the
        // protocol whose packet is quoted.
        if let IcmpError::TooBig { mtu } = error
            && is_in_flight
        {
            self.reduce_path_mtu(now, report.protocol, (remote.0, mtu));
        }
    }

    /// Records that the path to `to` carries packets of at most `mtu` bytes, for packets of
    /// `protocol`. The caller has verified that the message quotes a packet of this host.
    pub(crate) fn reduce_path_mtu(&mut self, now: Instant, protocol: u8, (to, mtu): (IpAddr, u32)) {
        let current = self.interface_mtu(to);
        let learned = self.ip.pmtu.of_mut(protocol);
        let reduced = learned.reduce(now, to, (current, mtu));
        self.ip.version += u32::from(reduced.is_some());
    }

    /// Returns the MTU of the interface that packets to `to` are sent on, or 0 if there is no
    /// route.
    fn interface_mtu(&self, to: IpAddr) -> u32 {
        let hop = self.ip.routes.lookup(to);
        hop.map_or(0, |hop| self.ifaces[usize::from(hop.iface)].config.caps.mtu)
    }

    /// Reports "host unreachable" to the socket of a packet whose next hop did not answer.
    pub(super) fn report_host_unreachable(&mut self, now: Instant, packet: &Packet) {
        let Some((src, dst)) = packet_addrs(packet) else {
            return;
        };
        let error = IcmpError::Unreachable(TcpError::HostUnreachable);
        if packet.layers.protocol == protocol::TCP
            && let Ok((repr, _)) = TcpRepr::parse(packet.transport_header())
        {
            let key = FlowKey {
                local: src,
                remote: dst,
                local_port: repr.src_port,
                remote_port: repr.dst_port,
            };
            self.tcp_error(now, &key, repr.seq, error);
        } else if let Some(report) = host_unreachable(packet) {
            if report.protocol == protocol::UDP {
                self.transport_error(now, report);
            } else {
                self.ping_error(now, (LOOPBACK, DEFAULT_TTL), &report);
            }
        }
    }

    /// Sends an ICMP error about a received packet to its source, if that can be a single host (RFC
    /// 1122 3.2.2).
    pub(crate) fn send_icmp_error(&mut self, now: Instant, problem: Problem, packet: &Packet) {
        let Some((src, dst)) = packet_addrs(packet) else {
            return;
        };
        let own = if self.ip.addresses.is_local(dst) {
            dst.to_ip()
        } else if let Ok(own) = self.source_for(src.to_ip()) {
            own
        } else {
            return;
        };
        let ours = self.ip.addresses.is_local(src);
        if !ours && !self.ip.may_be_source(src.to_ip()) {
            return;
        }
        let limits = (!ours).then_some((&self.env.sysctl, &mut self.env.rng));
        if let Some(datagram) = self.ip.icmp.error(now, problem, packet, own, limits) {
            self.send_datagram(now, datagram);
        }
    }
}
