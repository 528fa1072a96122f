//! TCP output: polls the sockets of the ready queue, one super-segment each, and adds headers from
//! the path's template.

use alloc::vec::Vec;

use fullsend_offload::{Checksum, GsoKind, Offload, Packet, TxToken, segment as segment_packet};
use fullsend_tcp::SegmentOut;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{CHECKSUM_OFFSET, MAX_HEADER_LEN, TcpFlags};
use fullsend_wire::{Instant, cold_path};

use super::socket::{Effects, Socket, SocketEntry};
use crate::demux::FlowKey;
use crate::interface::DroppedPacket;
use crate::ip::Path;
use crate::slab::Slab;
use crate::{Host, StackError};

#[inline]
const fn gso_kind(path: &Path, segment: &SegmentOut) -> GsoKind {
    match (segment.gso_segs > 1, path.is_v4()) {
        (false, _) => GsoKind::None,
        (true, true) => GsoKind::TcpV4,
        (true, false) => GsoKind::TcpV6,
    }
}

/// Fills a new packet in place with a segment and the headers of a path. Returns its length from the IP
/// header on, bytes.
#[inline(always)]
fn fill(
    packet: &mut Packet,
    path: &Path,
    segment: &mut SegmentOut,
    socket: u64,
    ident: u16,
) -> usize {
    let header_len = segment.repr.header_len();
    debug_assert!(header_len <= MAX_HEADER_LEN);
    let all = packet.header.prepend(path.headers_len() + header_len);
    let (below, tcp) = all.split_at_mut(path.headers_len());
    segment.repr.fill(tcp);
    let len = header_len + segment.payload.len();
    tcp[CHECKSUM_OFFSET..][..2].copy_from_slice(&path.partial_checksum(len).to_be_bytes());
    path.fill(below, len, ident, segment.ecn.bits());
    let kind = gso_kind(path, segment);
    let is_super_segment = kind != GsoKind::None;
    debug_assert!(packet.payload.is_empty());
    let payload = core::mem::take(&mut segment.payload);
    // An assignment would drop the old value, which in a new packet has no memory.
    core::mem::forget(core::mem::replace(&mut packet.payload, payload));
    packet.layers = path.layers(protocol::TCP);
    packet.offload = Offload {
        gso_size: segment.gso_size * u16::from(is_super_segment),
        gso_segs: segment.gso_segs,
        kind,
        checksum: Checksum::Partial,
        repeats_cwr: segment.repeats_cwr,
        ..Offload::default()
    };
    // A FIN without data is not charged, but must not overtake its flow's data in a qdisc.
    let has_fin = segment.repr.flags.contains(TcpFlags::FIN);
    if (segment.truesize != 0 || has_fin) && socket != 0 {
        packet.tx = TxToken {
            socket,
            truesize: segment.truesize,
            departure_ns: segment.departure.as_nanos(),
        };
    }
    usize::from(path.network_len()) + len
}

/// Segments the last packet.
#[inline(never)]
fn segment_last(packets: &mut Vec<Packet>) {
    if let Some(packet) = packets.pop() {
        segment_packet(packet, packets);
    }
}

/// Builds the packet of a segment on a path.
#[inline(never)]
fn build(path: &Path, mut segment: SegmentOut, socket: u64, ident: u16) -> Packet {
    let mut packet = Packet::default();
    fill(&mut packet, path, &mut segment, socket, ident);
    packet
}

impl Host {
    /// Appends TCP packets of an interface to `out`: at most `max` super-segments, before software
    /// GSO.
    #[inline]
    pub(crate) fn tcp_transmit(
        &mut self,
        now: Instant,
        iface: u16,
        out: &mut Vec<Packet>,
        max: usize,
    ) {
        let interface = self.ifaces.get(usize::from(iface));
        let ready = &interface.unwrap_or(&self.loopback).ready;
        self.tcp.prefetch_ready(ready, max);
        let mut remaining = max;
        while remaining > 0
            && let Some(index) = self.iface_mut(iface).ready.pop_front()
        {
            remaining -= usize::from(self.socket_transmit(now, iface, index, out));
        }
    }

    /// Polls one socket of the ready queue. Returns whether it sent a segment.
    #[inline]
    fn socket_transmit(
        &mut self,
        now: Instant,
        iface: u16,
        index: u32,
        out: &mut Vec<Packet>,
    ) -> bool {
        let Some((socket, id)) = self.tcp.table.queued_socket(index) else {
            return false;
        };
        if socket.path.version != self.ip.version {
            return self.reroute(now, iface, index, out);
        }
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        let mut segment = socket.conn.poll_transmit(&mut cx);
        let sent = segment.is_some();
        if let Some(segment) = &mut segment {
            let ident = socket.ip_ident;
            socket.ip_ident = ident.wrapping_add(segment.gso_segs.max(1));
            if !socket.path.resolved {
                return self.transmit_unresolved(now, index, segment, ident);
            }
            let interface = self.ifaces.get(usize::from(iface));
            let interface = interface.unwrap_or(&self.loopback);
            let kind = gso_kind(&socket.path, segment);
            // Built in place: `push` would build it on the stack first.
            out.resize_with(out.len() + 1, Packet::default);
            if let Some(packet) = out.last_mut() {
                let octets = fill(packet, &socket.path, segment, id, ident);
                self.mib.count_output(socket.path.is_v4(), octets);
            }
            if interface.segments_at_socket(kind, segment.repeats_cwr) {
                segment_last(out);
            }
        }
        socket.queued = sent && socket.conn.needs_transmit();
        let wakes = socket.conn.take_wakes();
        if wakes.read || wakes.write {
            cold_path();
            socket.wake(wakes, &mut self.wakers);
        }
        socket.arm_timer(index, &mut self.tcp.wheel);
        if let Some(at) = socket.conn.paced_until() {
            self.paced_until = self.paced_until.max(at);
        }
        let effects = Effects {
            ready_iface: socket.queued.then_some(iface),
            needs_state_check: !socket.queued && socket.needs_state_check(),
        };
        self.apply_effects(now, index, effects);
        sent
    }

    /// Passes a segment to the neighbour table, as the next hop's hardware address is not known
    /// yet. The segment counts as completed.
    #[cold]
    fn transmit_unresolved(
        &mut self,
        now: Instant,
        index: u32,
        segment: &mut SegmentOut,
        ident: u16,
    ) -> bool {
        let Some((socket, _)) = self.tcp.table.queued_socket(index) else {
            return false;
        };
        let (key, path) = (socket.key, socket.path);
        let mut cx = self.env.cx(now, &path, socket.conn.ts_offset());
        socket.conn.handle_tx_complete(&mut cx, segment.truesize);
        socket.queued = false;
        let mut packet = Packet::default();
        let octets = fill(&mut packet, &path, segment, 0, ident);
        self.mib.count_output(path.is_v4(), octets);
        self.send_with_path(now, &path, (key.local, key.remote), packet);
        self.post_process(now, index);
        false
    }

    /// Looks up the socket's path again, after routes, neighbours or limits have changed, and polls
    /// the socket on the interface of the new path.
    #[cold]
    fn reroute(&mut self, now: Instant, iface: u16, index: u32, out: &mut Vec<Packet>) -> bool {
        let Some((socket, _)) = self.tcp.table.queued_socket(index) else {
            return false;
        };
        let key = socket.key;
        let path = self.tcp_path(now, &key);
        let version = self.ip.version;
        let Some((socket, _)) = self.tcp.table.queued_socket(index) else {
            return false;
        };
        match path {
            Ok(path) => {
                socket.path = path;
                socket.apply_ip_settings();
            }
            // The old path may still work; the connection's own timers detect it if not.
            Err(_) => socket.path.version = version,
        }
        let to = socket.path.iface;
        if to != iface {
            self.iface_mut(to).ready.push_back(index);
            return false;
        }
        self.socket_transmit(now, iface, index, out)
    }

    /// Returns the path of a connection.
    pub(super) fn tcp_path(&mut self, now: Instant, key: &FlowKey) -> Result<Path, StackError> {
        let flow_label = self.tcp.flow_label(key);
        self.path(
            now,
            (key.local, key.remote),
            None,
            (protocol::TCP, flow_label),
        )
    }

    /// Sends a segment that belongs to no connection.
    pub(super) fn send_stateless(&mut self, now: Instant, key: &FlowKey, segment: SegmentOut) {
        // Without a route there is no connection to report it to.
        if let Ok(path) = self.tcp_path(now, key) {
            self.send_stateless_on_path(now, key, &path, segment);
        }
    }

    /// Sends a segment that belongs to no connection on a known path.
    pub(super) fn send_stateless_on_path(
        &mut self,
        now: Instant,
        key: &FlowKey,
        path: &Path,
        segment: SegmentOut,
    ) {
        let octets = usize::from(path.network_len()) + segment.repr.header_len();
        self.mib.count_output(path.is_v4(), octets);
        let packet = build(path, segment, 0, 0);
        self.send_with_path(now, path, (key.local, key.remote), packet);
    }

    /// Completes a segment that the device no longer uses.
    #[inline]
    pub(crate) fn tcp_complete(&mut self, now: Instant, token: TxToken) {
        if let Some((index, SocketEntry::Conn(socket))) = self.tcp.table.by_id(token.socket) {
            let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
            socket.conn.handle_tx_complete(&mut cx, token.truesize);
            // A completion can only change whether more may be sent.
            if !socket.queued && socket.conn.needs_transmit() {
                self.post_process(now, index);
            }
        }
    }
}

impl Host {
    /// Reports a segment to its connection that a queue of the host has dropped.
    #[cold]
    pub(crate) fn tcp_dropped(&mut self, now: Instant, dropped: &DroppedPacket) {
        let Some((index, SocketEntry::Conn(socket))) = self.tcp.table.by_id(dropped.tx.socket)
        else {
            return;
        };
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        let truesize = dropped.tx.truesize;
        let Some((seq, end)) = dropped.seq_range else {
            return socket.conn.handle_tx_complete(&mut cx, truesize);
        };
        socket.conn.handle_tx_dropped(&mut cx, truesize, seq, end);
        // The socket leaves the ready queue even if it has more to send: the next completion, ACK
        // or timeout polls it again. Until then the queue would only drop further segments.
        socket.queued = false;
        socket.arm_timer(index, &mut self.tcp.wheel);
    }
}

impl Slab<SocketEntry> {
    /// Returns a socket of the ready queue, and its handle.
    #[inline]
    fn queued_socket(&mut self, index: u32) -> Option<(&mut Socket, u64)> {
        match self.get_mut_with_id(index) {
            Some((SocketEntry::Conn(socket), id)) if socket.queued => Some((socket, id)),
            _ => None,
        }
    }
}
