//! TCP input: one lookup of the 4-tuple, then the connection, a listener or a RST.

use fullsend_offload::{Chain, Checksum, Packet};
use fullsend_tcp::{IcmpError, SegmentIn};
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{EcnField, Instant, SeqNum, cold_path};

use super::socket::SocketEntry;
use crate::Host;
use crate::demux::{FlowKey, FlowOwner};
use crate::ip::IpMeta;

impl Host {
    /// Processes a segment, or several that GRO has merged, whose IP header is valid.
    #[inline]
    pub(crate) fn tcp_input(&mut self, now: Instant, ip: &IpMeta, packet: &mut Packet) {
        if packet.offload.checksum == Checksum::Unverified {
            self.mib.socket.csum_errors += u64::from(packet.segments());
            return self.tcp_in_error(packet);
        }
        let mut segment = SegmentIn {
            repr: TcpRepr::default(),
            payload: Chain::new(),
            gso_size: packet.offload.gso_size,
            gso_segs: packet.offload.gso_segs.max(1),
            ecn: EcnField::of(ip.tos),
        };
        let repr = &mut segment.repr;
        if repr.read(packet.transport_header()).is_err() {
            cold_path();
            return self.tcp_in_error(packet);
        }
        let key = FlowKey {
            local: ip.dst,
            remote: ip.src,
            local_port: repr.dst_port,
            remote_port: repr.src_port,
        };
        segment.payload = core::mem::take(&mut packet.payload);
        match self.tcp.find(&key) {
            Some(FlowOwner::Socket(index)) => self.socket_input(now, index, &mut segment),
            Some(FlowOwner::TimeWait(index)) => {
                cold_path();
                self.env.mib.in_segs += u64::from(segment.gso_segs);
                if self.time_wait_input(now, index, &segment) {
                    self.new_flow(now, ip, &key, (&mut segment, packet.network_header()), true);
                }
            }
            None => self.unmatched_input(now, ip, &key, &mut segment, packet),
        }
    }

    /// Processes a segment whose 4-tuple is free, or belongs to another shard.
    #[inline(never)]
    fn unmatched_input(
        &mut self,
        now: Instant,
        ip: &IpMeta,
        key: &FlowKey,
        segment: &mut SegmentIn,
        packet: &mut Packet,
    ) {
        if let Some(shard) = self.tcp.other_owner(key) {
            // That shard delivers it.
            *self.mib.in_delivers(ip.dst.is_v4()) -= 1;
            packet.payload = core::mem::take(&mut segment.payload);
            self.set_aside(shard, ip.iface, core::mem::take(packet));
            return;
        }
        self.env.mib.in_segs += u64::from(segment.gso_segs);
        self.new_flow(now, ip, key, (segment, packet.network_header()), false);
    }

    #[cold]
    fn tcp_in_error(&mut self, packet: &Packet) {
        let segments = u64::from(packet.segments());
        self.env.mib.in_segs += segments;
        self.env.mib.in_errs += segments;
    }

    #[inline]
    pub(super) fn socket_input(&mut self, now: Instant, index: u32, segment: &mut SegmentIn) {
        match self.tcp.table.get_mut(index) {
            Some(SocketEntry::Conn(socket)) => {
                let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
                socket.conn.handle_segment(&mut cx, segment);
                let effects = socket.post_process(index, &mut self.wakers, &mut self.tcp.wheel);
                self.apply_effects(now, index, effects);
            }
            Some(SocketEntry::DeferredSyn(_)) => self.deferred_syn_input(index, &segment.repr),
            Some(SocketEntry::HalfOpen(_)) => self.half_open_input(now, index, segment),
            None => {}
        }
    }

    /// Processes an ICMP error about a segment of this host that began at `seq`. Returns whether
    /// the segment is in flight.
    pub(crate) fn tcp_error(
        &mut self,
        now: Instant,
        key: &FlowKey,
        seq: SeqNum,
        error: IcmpError,
    ) -> bool {
        let Some(FlowOwner::Socket(index)) = self.tcp.find(key) else {
            return false;
        };
        if let Some(SocketEntry::HalfOpen(half_open)) = self.tcp.table.get(index) {
            let is_in_flight = seq == half_open.iss;
            self.env.mib.out_of_window_icmps += u64::from(!is_in_flight);
            // A SYN-ACK fits into every path MTU that is accepted.
            let IcmpError::Unreachable(_) = error else {
                return false;
            };
            // RFC 1122 4.2.3.9: a hard error before the connection is established.
            if is_in_flight {
                self.mib.socket.listen_drops += 1;
                self.drop_half_open(index);
            }
            return is_in_flight;
        }
        let Some(SocketEntry::Conn(socket)) = self.tcp.table.get_mut(index) else {
            return false;
        };
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        let is_in_flight = socket.conn.handle_icmp(&mut cx, seq, error);
        self.post_process(now, index);
        is_in_flight
    }

    /// Processes a segment whose 4-tuple is free or, with `reuse`, held by a TIME-WAIT entry that
    /// gives way.
    #[inline(never)]
    fn new_flow(
        &mut self,
        now: Instant,
        ip: &IpMeta,
        key: &FlowKey,
        (segment, headers): (&mut SegmentIn, &[u8]),
        reuse: bool,
    ) {
        let (src, dst) = (ip.src.to_ip(), ip.dst.to_ip());
        // RFC 1122 4.2.3.10: neither end of a connection is a group.
        let group = dst.is_multicast() || self.ip.addresses.is_broadcast(dst);
        if group || src.is_unspecified() || self.is_martian(ip) || self.has_local_source(ip) {
            self.env.mib.in_errs += u64::from(segment.gso_segs);
            return;
        }
        // RFC 1122 3.2.1.3, RFC 4291 2.5.2: not even for a listener for any destination.
        if ip.dst.is_unspecified() {
            *self.mib.in_addr_errors(ip.dst.is_v4()) += 1;
            return;
        }
        let repr = &segment.repr;
        let ours = self.ip.addresses.is_local(ip.dst);
        let listener = self.tcp.listeners.find(key, ours);
        match listener {
            Some(listener) if is_syn(repr) => {
                self.listen_input(now, listener, key, (segment, headers), reuse);
            }
            // RFC 9293 3.10.7.2: a segment without SYN, ACK and RST is dropped in LISTEN.
            Some(_) if !repr.flags.intersects(TcpFlags::ACK.union(TcpFlags::RST)) => {}
            Some(listener) if self.cookie_input(now, listener, key, segment) => {}
            _ if ours || listener.is_some() => {
                let len = segment.payload.len() as u32;
                self.send_reset(now, key, &segment.repr, len);
            }
            _ => *self.mib.in_addr_errors(ip.dst.is_v4()) += 1,
        }
    }
}

/// Returns whether a segment is a SYN that requests a connection. No honest peer sends FIN with it.
fn is_syn(repr: &TcpRepr) -> bool {
    let kind = TcpFlags::SYN
        .union(TcpFlags::ACK)
        .union(TcpFlags::RST)
        .union(TcpFlags::FIN);
    repr.flags.0 & kind.0 == TcpFlags::SYN.0
}
