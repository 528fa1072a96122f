//! The TIME-WAIT table: a bounded number of closed connections.

use alloc::vec::Vec;

use fullsend_tcp::{SegmentIn, TimeWait, TimeWaitAction};
use fullsend_wire::{Instant, SeqNum};

use super::socket::SocketEntry;
use crate::Host;
use crate::demux::{FlowKey, FlowOwner};
use crate::slab::Slab;
use crate::timer::TimerWheel;

/// A TIME-WAIT entry.
#[derive(Debug)]
pub(crate) struct TimeWaitEntry {
    pub(super) key: FlowKey,
    tw: TimeWait,
    ts_offset: u32,
}

/// The TIME-WAIT table.
#[derive(Debug)]
pub(crate) struct TimeWaitTable {
    table: Slab<TimeWaitEntry>,
    wheel: TimerWheel,
    due: Vec<u32>,
}

impl TimeWaitTable {
    pub(super) fn new() -> Self {
        Self {
            table: Slab::new(),
            wheel: TimerWheel::new(),
            due: Vec::new(),
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&TimeWaitEntry> {
        self.table.get(index)
    }

    /// Returns the number of slots, used or not.
    pub(crate) fn slots(&self) -> usize {
        self.table.slots()
    }

    /// Returns an entry's 4-tuple and when it expires.
    pub(super) fn key_and_expiry(&self, slot: u32) -> Option<(&FlowKey, Instant)> {
        let entry = self.table.get(slot)?;
        Some((&entry.key, entry.tw.expires))
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns when [`Host::expire_time_wait`] must be called next; the far future for never.
    #[inline]
    pub(crate) const fn next(&self) -> Instant {
        self.wheel.next()
    }

    /// Returns whether a new local connection may reuse the entry's 4-tuple.
    pub(super) fn is_reusable(&self, now: Instant, index: u32, tcp_tw_reuse: u32) -> bool {
        let entry = self.table.get(index);
        entry.is_some_and(|e| match tcp_tw_reuse {
            0 => false,
            2 if !(e.key.local.is_loopback() || e.key.remote.is_loopback()) => false,
            _ => e.tw.is_reusable(now),
        })
    }

    fn remove(&mut self, index: u32) -> Option<TimeWaitEntry> {
        self.wheel.disarm(index);
        let entry = self.table.remove(index);
        if self.table.slots() == 0 {
            self.wheel.shrink(0);
        }
        entry
    }
}

impl Host {
    /// Moves the 4-tuple of a closed connection to a TIME-WAIT entry. Returns `false` if there is
    /// no room for one.
    pub(super) fn enter_time_wait(&mut self, index: u32, tw: TimeWait) -> bool {
        let Some(SocketEntry::Conn(socket)) = self.tcp.table.get(index) else {
            return false;
        };
        let key = socket.key;
        if self.tcp.time_wait.table.len() >= self.env.sysctl.tcp_max_tw_buckets as usize {
            self.mib.socket.tw_overflow += 1;
            return false;
        }
        let expires = tw.expires;
        let entry = TimeWaitEntry {
            key,
            tw,
            ts_offset: socket.conn.ts_offset(),
        };
        let Some((slot, _)) = self.tcp.time_wait.table.insert(entry) else {
            return false;
        };
        self.tcp.time_wait.wheel.arm(slot, expires);
        let (from, to) = (FlowOwner::Socket(index), FlowOwner::TimeWait(slot));
        self.tcp.flows.replace(&key, from, to);
        true
    }

    /// Removes an entry. Returns the smallest ISN for a new incarnation of its connection.
    pub(super) fn remove_time_wait(&mut self, index: u32) -> Option<SeqNum> {
        let entry = self.tcp.time_wait.remove(index)?;
        let owner = FlowOwner::TimeWait(index);
        self.tcp.flows.remove(&entry.key, owner);
        Some(entry.tw.reuse_isn())
    }

    /// Removes the entry of a 4-tuple that a new incarnation takes over. Returns the smallest ISN for
    /// that, or `None` if there is no entry.
    pub(super) fn replace_time_wait(&mut self, key: &FlowKey) -> Option<SeqNum> {
        let Some(FlowOwner::TimeWait(index)) = self.tcp.find(key) else {
            return None;
        };
        self.mib.socket.tw_recycled += 1;
        self.remove_time_wait(index)
    }

    /// Removes the entries that have expired.
    pub(crate) fn expire_time_wait(&mut self, now: Instant) {
        let time_wait = &mut self.tcp.time_wait;
        let mut due = core::mem::take(&mut time_wait.due);
        time_wait.wheel.expire(now, &mut due);
        for index in due.drain(..) {
            let Some(entry) = self.tcp.time_wait.get(index) else {
                continue;
            };
            let expires = entry.tw.expires;
            if expires <= now {
                self.remove_time_wait(index);
            } else {
                self.tcp.time_wait.wheel.arm(index, expires);
            }
        }
        self.tcp.time_wait.due = due;
    }

    /// Processes a segment for an entry. Returns whether it is a SYN that may open a new
    /// connection.
    pub(super) fn time_wait_input(
        &mut self,
        now: Instant,
        index: u32,
        segment: &SegmentIn,
    ) -> bool {
        let Some(entry) = self.tcp.time_wait.table.get_mut(index) else {
            return false;
        };
        let mut cx = self.env.cx_without_path(now, entry.ts_offset);
        let key = entry.key;
        match entry.tw.handle_segment(&mut cx, segment) {
            TimeWaitAction::Drop => false,
            TimeWaitAction::Reply(reply) => {
                self.send_stateless(now, &key, reply);
                false
            }
            TimeWaitAction::Reuse => true,
            TimeWaitAction::Remove => {
                self.remove_time_wait(index);
                false
            }
        }
    }
}
