//! The number of TCP sockets, their memory, and changes of its limits.

use core::fmt;
use core::ops::AddAssign;

use fullsend_wire::Instant;

use super::socket::SocketEntry;
use crate::Host;

/// Statistics of the host's TCP sockets. They are displayed as the line of `/proc/net/sockstat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SockStat {
    /// Connections that have a 4-tuple, and listeners.
    pub inuse: usize,
    /// Connections that the application has closed.
    pub orphan: usize,
    /// Connections in TIME-WAIT.
    pub tw: usize,
    /// `inuse`, and closed connections whose handle the application still has.
    pub alloc: usize,
    /// Memory of queued data, sent and received, in pages of 4096 bytes (as `tcp_mem`).
    pub mem: u64,
}

/// Adds the sockets of another shard of the same stack.
impl AddAssign for SockStat {
    fn add_assign(&mut self, other: Self) {
        self.inuse += other.inuse;
        self.orphan += other.orphan;
        self.tw += other.tw;
        self.alloc += other.alloc;
        self.mem += other.mem;
    }
}

impl fmt::Display for SockStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            inuse,
            orphan,
            tw,
            alloc,
            mem,
        } = self;
        write!(
            f,
            "TCP: inuse {inuse} orphan {orphan} tw {tw} alloc {alloc} mem {mem}"
        )
    }
}

impl Host {
    /// Applies changed limits to all connections: writers that wait for space may have it now.
    pub(crate) fn tcp_limits_changed(&mut self, now: Instant) {
        for index in 0..self.tcp.table.slots() as u32 {
            if let Some(SocketEntry::Conn(socket)) = self.tcp.table.get_mut(index) {
                let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
                socket.conn.on_limits_changed(&mut cx);
                self.post_process(now, index);
            }
        }
    }

    /// Returns the statistics of the host's TCP sockets. Iterates over all of them. As on Linux, a
    /// half-open connection of a listener does not count as a socket.
    pub fn sockstat(&self) -> SockStat {
        let listeners = self.tcp.listeners.table.len();
        let mut stat = SockStat {
            inuse: listeners,
            orphan: self.tcp.orphans,
            tw: self.tcp.time_wait.len(),
            alloc: listeners,
            mem: self.env.mem.pages(),
        };
        for (_, entry) in self.tcp.table.iter() {
            let SocketEntry::Conn(socket) = entry else {
                continue;
            };
            stat.inuse += usize::from(socket.reachable);
            stat.alloc += 1;
        }
        stat
    }
}
