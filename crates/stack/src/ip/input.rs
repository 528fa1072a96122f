//! IP input: from GRO's packets to the transport protocols.

use alloc::vec::Vec;

use fullsend_offload::Packet;
use fullsend_units::Instant;
use fullsend_wire::numbers::{ethertype, protocol};

use crate::demux::Addr;
use crate::{Host, IfaceId};

/// What transport protocols need to know of a packet's IP header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpMeta {
    pub(crate) src: Addr,
    pub(crate) dst: Addr,
    /// Traffic class, ECN included.
    pub(crate) tos: u8,
    pub(crate) iface: u16,
}

impl Host {
    /// Takes frames fresh from an interface's device (drained) through GRO to the sockets.
    pub fn receive(&mut self, now: Instant, iface: IfaceId, frames: &mut Vec<Packet>) {
        let Some(interface) = self.ifaces.get_mut(usize::from(iface.0)) else {
            frames.clear();
            return;
        };
        let mut batch = core::mem::take(&mut self.batch);
        interface.gro.receive_batch(now, frames, &mut batch);
        interface.gro.flush(&mut batch);
        for packet in &mut batch {
            self.ip_input(now, iface.0, packet);
        }
        batch.clear();
        self.batch = batch;
    }

    /// A parsed packet; what is needed of it is taken out.
    #[inline]
    pub(crate) fn ip_input(&mut self, now: Instant, iface: u16, packet: &mut Packet) {
        match packet.layers.ethertype {
            ethertype::IPV4 => self.ipv4_input(now, iface, packet),
            ethertype::IPV6 => self.ipv6_input(now, iface, packet),
            _ => {}
        }
    }

    #[inline]
    fn ipv4_input(&mut self, now: Instant, iface: u16, packet: &mut Packet) {
        self.mib.ip4.in_receives += 1;
        let octets = packet.len() - usize::from(packet.layers.network[0]);
        self.mib.ip4.in_octets += octets as u64;
        let Some(header) = packet.network_header().first_chunk::<20>() else {
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
        if packet.layers.fragment {
            self.mib.ip4.in_discards += 1;
            return;
        }
        if packet.layers.protocol == protocol::TCP {
            self.mib.ip4.in_delivers += 1;
            self.tcp_input(now, &meta, packet);
        } else {
            self.upper_input(now, &meta, packet);
        }
    }

    #[inline]
    fn ipv6_input(&mut self, now: Instant, iface: u16, packet: &mut Packet) {
        self.mib.ip6.in_receives += 1;
        let octets = packet.len() - usize::from(packet.layers.network[0]);
        self.mib.ip6.in_octets += octets as u64;
        let Some(header) = packet.network_header().first_chunk::<40>() else {
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
        // RFC 4291 2.5.5.2: mapped addresses stand for IPv4 inside a host, never on a wire.
        if meta.src.is_v4() || meta.dst.is_v4() {
            self.mib.ip6.in_addr_errors += 1;
            return;
        }
        if packet.layers.fragment {
            self.mib.ip6.in_discards += 1;
            return;
        }
        if packet.layers.protocol == protocol::TCP {
            self.mib.ip6.in_delivers += 1;
            self.tcp_input(now, &meta, packet);
        } else {
            self.upper_input(now, &meta, packet);
        }
    }

    /// Everything but TCP.
    fn upper_input(&mut self, _now: Instant, meta: &IpMeta, _packet: &mut Packet) {
        if meta.dst.is_v4() {
            self.mib.ip4.in_unknown_protos += 1;
        } else {
            self.mib.ip6.in_unknown_protos += 1;
        }
    }
}
