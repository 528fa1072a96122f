//! What tools see of a running host: its sockets, as `ss` lists them, and its links.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;

use fullsend_offload::Packet;
use fullsend_tcp::{Inspection, TimerInfo};
use fullsend_units::Instant;

use crate::demux::{FlowKey, Target};
use crate::{Host, IfaceId, TcpId};

/// Where a listing of sockets goes on. The default is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketCursor {
    table: u8,
    slot: u32,
}

/// Which protocol, and which part of a connection's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketKind {
    /// A TCP listener.
    Listener,
    /// A connection.
    Tcp,
    /// A SYN that a user holds (transparent gateways).
    Held,
    /// What remains of a closed connection.
    TimeWait,
    /// UDP.
    Udp,
}

/// Who is to hear of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketOwner {
    /// A user holds it.
    User,
    /// In the handshake on behalf of a listener, or waiting to be accepted.
    Listener,
    /// Its user let go; it finishes by itself.
    Orphan,
    /// The host itself (TIME-WAIT).
    Host,
}

impl SocketOwner {
    /// In a word.
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
    /// Number of its handle; 0 in TIME-WAIT, where there is none.
    pub id: u64,
    /// What it is.
    pub kind: SocketKind,
    /// The state in the words of `ss`.
    pub state: &'static str,
    /// Who has it.
    pub owner: SocketOwner,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's, if there is one.
    pub remote: Option<SocketAddr>,
    /// Bytes that wait to be read; of a listener, connections that wait to be accepted.
    pub recv_q: u64,
    /// Bytes that are not acknowledged; of a listener, its backlog.
    pub send_q: u64,
    /// The timer that fires next.
    pub timer: Option<TimerInfo>,
    /// What only a connection has.
    pub tcp: Option<Box<Inspection>>,
}

/// Packets and bytes of an interface since it was added, link headers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkStats {
    /// Frames taken from the device; a super-segment is one.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames given to the device; a super-segment is one.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets that the sent ones are on a wire.
    pub tx_wire_packets: u64,
    /// Their bytes: the headers count once for each packet.
    pub tx_wire_bytes: u64,
}

impl LinkStats {
    #[inline]
    pub(crate) fn count_received(&mut self, frames: &[Packet]) {
        self.rx_packets += frames.len() as u64;
        self.rx_bytes += frames.iter().map(|p| p.len() as u64).sum::<u64>();
    }

    #[inline]
    pub(crate) fn count_sent(&mut self, packets: &[Packet]) {
        self.tx_packets += packets.len() as u64;
        for packet in packets {
            self.tx_bytes += packet.len() as u64;
            self.tx_wire_packets += u64::from(packet.segments());
            self.tx_wire_bytes += packet.wire_len() as u64;
        }
    }
}

/// Number of tables that a cursor runs through.
const TABLES: u8 = 4;

impl Host {
    /// Appends sockets to `out`: what stands in the next `slots` slots from `cursor` on. Gives
    /// where to go on, or `None` at the end. Sockets that come or go in between may be missed.
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

    /// A connection by its two addresses.
    pub fn tcp_find(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<TcpId> {
        if local.is_ipv4() != remote.is_ipv4() {
            return None;
        }
        match self.tcp.find(&FlowKey::new(local, remote))? {
            Target::Socket(index) => self.tcp.table.id(index).map(TcpId),
            Target::TimeWait(_) => None,
        }
    }

    /// What passed an interface.
    pub fn link_stats(&self, iface: IfaceId) -> Option<LinkStats> {
        let interface = self.ifaces.get(usize::from(iface.0))?;
        Some(interface.stats)
    }
}
