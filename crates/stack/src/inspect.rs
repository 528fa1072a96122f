//! Inspection of a running host: its sockets, as `ss` lists them, and its links.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::AddAssign;

use fullsend_offload::Packet;
use fullsend_tcp::{Inspection, TimerInfo};
use fullsend_wire::Instant;

use crate::demux::{FlowKey, FlowOwner};
use crate::{Host, IfaceId, TcpId};

/// The position at which a listing of sockets continues. The default is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketCursor {
    table: u8,
    slot: u32,
}

/// The protocol of a socket and, for TCP, which kind of entry it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketKind {
    /// A TCP listener.
    Listener,
    /// A connection.
    Tcp,
    /// A deferred SYN, which the application still has to answer (transparent gateways).
    DeferredSyn,
    /// A connection in TIME-WAIT.
    TimeWait,
    /// A UDP socket.
    Udp,
}

/// The owner of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketOwner {
    /// The application has a handle to it.
    User,
    /// A listener: the connection is in the handshake or waits to be accepted.
    Listener,
    /// None: the application has closed it, and it finishes by itself.
    Orphan,
    /// The host itself (TIME-WAIT).
    Host,
}

impl SocketOwner {
    /// Returns the name of the owner, in one lower-case word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Listener => "listener",
            Self::Orphan => "orphan",
            Self::Host => "host",
        }
    }
}

/// A socket, as `ss` lists it.
#[derive(Clone, PartialEq, Debug)]
pub struct SocketInfo {
    /// The handle's number; 0 in TIME-WAIT, where there is no handle.
    pub id: u64,
    /// The kind of socket.
    pub kind: SocketKind,
    /// The state, as `ss` names it.
    pub state: &'static str,
    /// The owner of the socket.
    pub owner: SocketOwner,
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address, if there is a peer.
    pub remote: Option<SocketAddr>,
    /// Bytes waiting to be read; for a listener, connections waiting to be accepted.
    pub recv_q: u64,
    /// Bytes not acknowledged yet; for a listener, its backlog.
    pub send_q: u64,
    /// The timer that fires next.
    pub timer: Option<TimerInfo>,
    /// Further details of a connection.
    pub tcp: Option<Box<Inspection>>,
}

/// Packets and bytes of an interface since it was added, link headers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkStats {
    /// Frames received from the device; a super-segment counts as one.
    pub rx_packets: u64,
    /// Bytes of the received frames.
    pub rx_bytes: u64,
    /// Frames sent to the device; a super-segment counts as one.
    pub tx_packets: u64,
    /// Bytes of the sent frames.
    pub tx_bytes: u64,
    /// Packets on the wire that the sent frames make.
    pub tx_wire_packets: u64,
    /// Bytes of these packets: each has its own headers.
    pub tx_wire_bytes: u64,
}

/// Adds the counters of another queue of the same device.
impl AddAssign for LinkStats {
    fn add_assign(&mut self, other: Self) {
        self.rx_packets += other.rx_packets;
        self.rx_bytes += other.rx_bytes;
        self.tx_packets += other.tx_packets;
        self.tx_bytes += other.tx_bytes;
        self.tx_wire_packets += other.tx_wire_packets;
        self.tx_wire_bytes += other.tx_wire_bytes;
    }
}

impl LinkStats {
    #[inline]
    pub(crate) fn count_received(&mut self, frames: &[Packet]) {
        self.rx_packets += frames.len() as u64;
        self.rx_bytes += frames.iter().map(|p| p.len() as u64).sum::<u64>();
    }

    #[inline]
    pub(crate) fn count_sent(&mut self, packets: &[Packet]) {
        for packet in packets {
            self.count_sent_packet(packet);
        }
    }

    // Inlined, the loop would be vectorized for many packets, and it is mostly one.
    #[inline(never)]
    fn count_sent_packet(&mut self, packet: &Packet) {
        self.tx_packets += 1;
        self.tx_bytes += packet.len() as u64;
        self.tx_wire_packets += u64::from(packet.segments());
        self.tx_wire_bytes += packet.wire_len() as u64;
    }
}

/// Number of tables that a cursor iterates over.
const TABLES: u8 = 4;

impl Host {
    /// Appends the sockets of the next `slots` table slots, from `cursor` on, to `out`. Returns
    /// where to continue, or `None` at the end. Sockets that are created or closed in between may
    /// be missed.
    pub fn sockets(
        &mut self,
        now: Instant,
        mut cursor: SocketCursor,
        slots: usize,
        out: &mut Vec<SocketInfo>,
    ) -> Option<SocketCursor> {
        for _ in 0..slots {
            while cursor.slot as usize >= self.slots_of(cursor.table) {
                cursor = SocketCursor {
                    table: cursor.table + 1,
                    slot: 0,
                };
                if cursor.table >= TABLES {
                    return None;
                }
            }
            let slot = cursor.slot;
            out.extend(match cursor.table {
                0 => self.listener_info(slot),
                1 => self.connection_info(now, slot),
                2 => self.time_wait_info(now, slot),
                _ => self.udp.info(slot),
            });
            cursor.slot += 1;
        }
        Some(cursor)
    }

    fn slots_of(&self, table: u8) -> usize {
        match table {
            0 => self.listener_slots(),
            1 => self.tcp.table.slots(),
            2 => self.tcp.time_wait.slots(),
            3 => self.udp.slots(),
            _ => 0,
        }
    }

    /// Returns the handle of the connection with these two addresses.
    pub fn tcp_find(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<TcpId> {
        if local.is_ipv4() != remote.is_ipv4() {
            return None;
        }
        match self.tcp.find(&FlowKey::new(local, remote))? {
            FlowOwner::Socket(index) => self.tcp.table.id(index).map(TcpId),
            FlowOwner::TimeWait(_) => None,
        }
    }

    /// Returns the connection with these two addresses, as [`sockets`](Self::sockets) does.
    pub fn tcp_socket(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<SocketInfo> {
        if local.is_ipv4() != remote.is_ipv4() {
            return None;
        }
        match self.tcp.find(&FlowKey::new(local, remote))? {
            FlowOwner::Socket(slot) => self.connection_info(now, slot),
            FlowOwner::TimeWait(slot) => self.time_wait_info(now, slot),
        }
    }

    /// Returns the packet and byte counters of an interface.
    pub fn link_stats(&self, iface: IfaceId) -> Option<LinkStats> {
        let interface = self.ifaces.get(usize::from(iface.0))?;
        Some(interface.stats)
    }
}
