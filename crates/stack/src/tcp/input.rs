//! TCP's way in: one look-up, then the connection; or a listener, or a RST.

use fullsend_offload::{Checksum, Packet};
use fullsend_tcp::{IcmpError, SegmentIn, State};
use fullsend_units::{Instant, SeqNum};
use fullsend_wire::EcnField;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

use super::ListenerId;
use super::listen::Listener;
use super::socket::{Entry, Owner};
use crate::Host;
use crate::demux::{FlowKey, Target};
use crate::ip::IpMeta;

impl Host {
    /// A segment, or a run of them, whose IP header is in order.
    #[inline]
    pub(crate) fn tcp_input(&mut self, now: Instant, ip: &IpMeta, packet: &mut Packet) {
        if packet.offload.checksum == Checksum::Unverified {
            self.mib.socket.csum_errors += 1;
            return self.tcp_in_error(packet);
        }
        let Ok((repr, _)) = TcpRepr::parse(packet.transport_header()) else {
            return self.tcp_in_error(packet);
        };
        let key = FlowKey {
            local: ip.dst,
            remote: ip.src,
            local_port: repr.dst_port,
            remote_port: repr.src_port,
        };
        let mut segment = SegmentIn {
            repr,
            payload: core::mem::take(&mut packet.payload),
            gso_size: packet.offload.gso_size,
            gso_segs: packet.offload.gso_segs.max(1),
            ecn: EcnField::of(ip.tos),
        };
        match self.tcp.find(&key) {
            Some(Target::Socket(index)) => self.socket_input(now, index, &mut segment),
            Some(Target::TimeWait(index)) => {
                self.env.mib.in_segs += u64::from(segment.gso_segs);
                if self.time_wait_input(now, index, &segment) {
                    self.new_flow(now, ip, &key, &segment);
                }
            }
            None => {
                self.env.mib.in_segs += u64::from(segment.gso_segs);
                self.new_flow(now, ip, &key, &segment);
            }
        }
    }

    #[cold]
    fn tcp_in_error(&mut self, packet: &Packet) {
        self.env.mib.in_segs += u64::from(packet.segments());
        self.env.mib.in_errs += 1;
    }

    #[inline]
    fn socket_input(&mut self, now: Instant, index: u32, segment: &mut SegmentIn) {
        match self.tcp.table.get_mut(index) {
            Some(Entry::Conn(socket)) => {
                if let Owner::HalfOpen(listener) = socket.owner
                    && socket.conn.state() == State::SynReceived
                    && self.accept_overflows(listener, &segment.repr)
                {
                    return;
                }
                let Some(Entry::Conn(socket)) = self.tcp.table.get_mut(index) else {
                    return;
                };
                let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
                socket.conn.handle_segment(&mut cx, segment);
                self.settle(now, index);
            }
            Some(Entry::Held(_)) => self.held_input(index, &segment.repr),
            None => {}
        }
    }

    /// The handshake's last ACK is dropped while nobody makes room in the accept queue; the peer's
    /// data or our SYN-ACK's repetition brings another.
    fn accept_overflows(&mut self, listener: u32, repr: &TcpRepr) -> bool {
        let full = self
            .tcp
            .listeners
            .table
            .get(listener)
            .is_some_and(Listener::accept_is_full);
        let overflows = full && !repr.flags.intersects(TcpFlags::RST.union(TcpFlags::SYN));
        if overflows {
            self.mib.socket.listen_overflows += 1;
            self.mib.socket.listen_drops += 1;
        }
        overflows
    }

    /// An ICMP error about a segment of ours that began at `seq`; true if it is under way.
    pub(crate) fn tcp_error(
        &mut self,
        now: Instant,
        key: &FlowKey,
        seq: SeqNum,
        error: IcmpError,
    ) -> bool {
        let Some(Target::Socket(index)) = self.tcp.find(key) else {
            return false;
        };
        let Some(Entry::Conn(socket)) = self.tcp.table.get_mut(index) else {
            return false;
        };
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        let about_us = socket.conn.handle_icmp(&mut cx, seq, error);
        self.settle(now, index);
        about_us
    }

    /// A segment whose four-tuple nobody has.
    #[inline(never)]
    fn new_flow(&mut self, now: Instant, ip: &IpMeta, key: &FlowKey, segment: &SegmentIn) {
        let (src, dst) = (ip.src.to_ip(), ip.dst.to_ip());
        // RFC 1122 4.2.3.10: neither end of a connection is a group.
        let groups = src.is_multicast() || dst.is_multicast() || src.is_unspecified();
        let broadcast = self.ip.addresses.is_broadcast(src) || self.ip.addresses.is_broadcast(dst);
        if groups || broadcast || self.is_from_us(ip) {
            self.env.mib.in_errs += 1;
            return;
        }
        let repr = &segment.repr;
        let ours = self.ip.addresses.is_local(ip.dst);
        let listener = self.tcp.listeners.find(ip.dst, key.local_port, ours);
        match listener {
            Some(listener) if is_syn(repr) => {
                self.listen_input(now, listener, key, (repr, segment.ecn));
            }
            // RFC 9293 3.10.7.2: what is neither SYN nor ACK nor RST is dropped in LISTEN.
            Some(_) if !repr.flags.intersects(TcpFlags::ACK.union(TcpFlags::RST)) => {}
            Some(_) => self.send_reset(now, key, repr, segment.payload.len() as u32),
            None if ours => self.send_reset(now, key, repr, segment.payload.len() as u32),
            None => *self.mib.in_addr_errors(ip.dst.is_v4()) += 1,
        }
    }

    /// RFC 9293 3.10.7.2, LISTEN: a SYN.
    fn listen_input(
        &mut self,
        now: Instant,
        id: ListenerId,
        key: &FlowKey,
        (syn, syn_ecn): (&TcpRepr, EcnField),
    ) {
        let Some(listener) = self.tcp.listeners.get_mut(id) else {
            return;
        };
        let mib = &mut self.mib.socket;
        if listener.pending_is_full() {
            mib.req_q_full_drop += 1;
            mib.listen_drops += 1;
            return;
        }
        if listener.config.hold {
            return self.hold(now, id, *key, (*syn, syn_ecn));
        }
        if listener.accept_is_full() {
            mib.listen_overflows += 1;
            mib.listen_drops += 1;
            return;
        }
        let Some(index) = self.tcp.listeners.table.by_id(id.0).map(|(index, _)| index) else {
            return;
        };
        let Ok(socket) = self.passive_socket(now, key, (syn, syn_ecn), Owner::HalfOpen(index))
        else {
            return;
        };
        if self.adopt(now, socket).is_some()
            && let Some(listener) = self.tcp.listeners.get_mut(id)
        {
            listener.pending += 1;
        }
    }
}

/// A SYN that asks for a connection. With FIN it is none of any honest peer.
fn is_syn(repr: &TcpRepr) -> bool {
    let kind = TcpFlags::SYN
        .union(TcpFlags::ACK)
        .union(TcpFlags::RST)
        .union(TcpFlags::FIN);
    repr.flags.0 & kind.0 == TcpFlags::SYN.0
}
