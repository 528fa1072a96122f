//! The TIME-WAIT table: a bounded number of closed connections.

use alloc::vec::Vec;

use fullsend_tcp::{SegmentIn, TimeWait, TimeWaitVerdict};
use fullsend_units::{Instant, SeqNum};

use super::socket::Entry;
use crate::Host;
use crate::demux::{FlowKey, Target};
use crate::table::Table;
use crate::timer::Wheel;

/// A TIME-WAIT entry.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(super) key: FlowKey,
    tw: TimeWait,
    ts_offset: u32,
}

/// The TIME-WAIT table.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    table: Table<Remains>,
    wheel: Wheel,
    due: Vec<u32>,
}

impl TimeWaits {
    pub(super) fn new() -> Self {
        Self {
            table: Table::new(),
            wheel: Wheel::new(),
            due: Vec::new(),
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&Remains> {
        self.table.get(index)
    }

    /// Returns the number of slots, used or not.
    pub(crate) fn slots(&self) -> usize {
        self.table.slots()
    }

    /// Returns an entry's 4-tuple and when it expires.
    pub(super) fn shown(&self, slot: u32) -> Option<(&FlowKey, Instant)> {
        let entry = self.table.get(slot)?;
        Some((&entry.key, entry.tw.expires))
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns when [`Host::expire_time_wait`] must be called next.
    pub(crate) fn next(&self) -> Option<Instant> {
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

    fn remove(&mut self, index: u32) -> Option<Remains> {
        self.wheel.disarm(index);
        let remains = self.table.remove(index);
        if self.table.slots() == 0 {
            self.wheel.shrink(0);
        }
        remains
    }
}

impl Host {
    /// Moves the 4-tuple of a closed connection to a TIME-WAIT entry. Returns `false` if there is
    /// no room for one.
    pub(super) fn enter_time_wait(&mut self, index: u32, tw: TimeWait) -> bool {
        let Some(Entry::Conn(socket)) = self.tcp.table.get(index) else {
            return false;
        };
        let key = socket.key;
        if self.tcp.time_wait.table.len() >= self.env.sysctl.tcp_max_tw_buckets as usize {
            self.mib.socket.tw_overflow += 1;
            return false;
        }
        let expires = tw.expires;
        let remains = Remains {
            key,
            tw,
            ts_offset: socket.conn.ts_offset(),
        };
        let Some((entry, _)) = self.tcp.time_wait.table.insert(remains) else {
            return false;
        };
        self.tcp.time_wait.wheel.arm(entry, expires);
        let (from, to) = (Target::Socket(index), Target::TimeWait(entry));
        self.tcp.flows.replace(&key, from, to);
        true
    }

    /// Removes an entry. Returns the smallest ISN for a new incarnation of its connection.
    pub(super) fn forget_time_wait(&mut self, index: u32) -> Option<SeqNum> {
        let remains = self.tcp.time_wait.remove(index)?;
        let target = Target::TimeWait(index);
        self.tcp.flows.remove(&remains.key, target);
        Some(remains.tw.reuse_isn())
    }

    /// Removes the entries that have expired.
    pub(crate) fn expire_time_wait(&mut self, now: Instant) {
        let time_wait = &mut self.tcp.time_wait;
        let mut due = core::mem::take(&mut time_wait.due);
        time_wait.wheel.expire(now, &mut due);
        for index in due.drain(..) {
            let Some(remains) = self.tcp.time_wait.get(index) else {
                continue;
            };
            let expires = remains.tw.expires;
            if expires <= now {
                self.forget_time_wait(index);
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
        let Some(remains) = self.tcp.time_wait.table.get_mut(index) else {
            return false;
        };
        let mut cx = self.env.cx_without_path(now, remains.ts_offset);
        let key = remains.key;
        match remains.tw.handle_segment(&mut cx, segment) {
            TimeWaitVerdict::Drop => false,
            TimeWaitVerdict::Reply(reply) => {
                self.send_alone(now, &key, reply);
                false
            }
            TimeWaitVerdict::Reuse => true,
            TimeWaitVerdict::Forget => {
                self.forget_time_wait(index);
                false
            }
        }
    }
}
