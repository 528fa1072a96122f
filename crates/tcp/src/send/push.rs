//! The effects of a write: PSH (RFC 9293 3.9.1.2), autocorking, and whether a segment can be sent.

use fullsend_wire::Instant;

use super::{BlockedBy, SendLimit, Sender};
use crate::{Sysctl, TcpMib};

/// The result of appending to the last super-segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendOutcome {
    /// No data was appended: [`Connection::write`](crate::Connection::write) is needed.
    NotAppended,
    /// All data was appended, and the super-segment is held back as before.
    Queued,
    /// All data was appended, and a segment can be sent now.
    Sendable,
}

/// The state of the connection's other parts that a write depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteCx {
    pub(crate) now: Instant,
    /// Data is in flight.
    pub(crate) in_flight: bool,
}

impl Sender {
    /// Appends `data` to the last super-segment if that waits and `data` does not end the wait.
    #[inline]
    pub(crate) fn try_append(
        &mut self,
        sysctl: &Sysctl,
        data: &[u8],
        in_flight: bool,
    ) -> AppendOutcome {
        let len = self.queue.len() + data.len();
        let held = match self.blocked_by {
            BlockedBy::Nothing | BlockedBy::Defer => false,
            BlockedBy::Nagle => len < self.mss.bytes() as usize,
            BlockedBy::Autocork => self.throttled,
            BlockedBy::Cwnd
            | BlockedBy::Rwnd
            | BlockedBy::Pacing
            | BlockedBy::Tsq
            | BlockedBy::Burst => true,
        };
        if !held || data.is_empty() || self.msg_more || !self.try_append_to_tail(data) {
            return AppendOutcome::NotAppended;
        }
        self.pushed_seq = self.write_seq();
        if self.blocked_by == BlockedBy::Autocork && !self.should_autocork(sysctl, in_flight) {
            self.end_autocork();
            self.pending.retry();
            return AppendOutcome::Sendable;
        }
        AppendOutcome::Queued
    }

    /// Processes an append of data: decides about PSH, and whether a segment may be sent. `more` is
    /// `MSG_MORE`; `record_left` returns the bytes from `nxt` to the end of the first record.
    #[inline(always)]
    pub(crate) fn on_written(
        &mut self,
        sysctl: &Sysctl,
        mib: &mut TcpMib,
        write: WriteCx,
        more: bool,
        record_left: impl FnOnce() -> u32,
    ) {
        let write_seq = self.write_seq();
        // PSH where the writer pauses, and after half of the largest window without one.
        if !more || write_seq.since(self.pushed_seq) > self.max_wnd / 2 {
            self.pushed_seq = write_seq;
        }
        let uncorked = core::mem::replace(&mut self.msg_more, more) && !more;
        let push = match self.blocked_by {
            BlockedBy::Nothing | BlockedBy::Defer | BlockedBy::Autocork => true,
            // Only a full segment, a record's end, or the end of MSG_MORE ends the wait.
            BlockedBy::Nagle => {
                let queued = self.queue.len() as u32;
                uncorked || queued >= self.mss.bytes() || record_left() < queued
            }
            BlockedBy::Cwnd
            | BlockedBy::Rwnd
            | BlockedBy::Pacing
            | BlockedBy::Tsq
            | BlockedBy::Burst => false,
        };
        if push {
            self.push(sysctl, mib, write);
        }
    }

    #[inline]
    fn push(&mut self, sysctl: &Sysctl, mib: &mut TcpMib, write: WriteCx) {
        if !self.should_autocork(sysctl, write.in_flight) {
            self.end_autocork();
            self.pending.retry();
            return;
        }
        if !self.throttled {
            mib.auto_corking += 1;
            self.throttle(mib);
        }
        self.blocked_by = BlockedBy::Autocork;
        // Full super-segments ahead of the one that waits may be sent.
        if self.queue.len() > self.queue.tail_len() {
            self.pending.retry();
        }
        self.report_limit(write.now, SendLimit::Autocork);
    }

    /// Requests that queued data is sent, because a cork was removed.
    pub(crate) fn uncork(&mut self) {
        if self.has_unsent() {
            self.msg_more = false;
            self.pending.retry();
        }
    }

    /// Requests that queued data is sent even if it is corked, because `TCP_NODELAY` was set.
    pub(crate) fn flush(&mut self) {
        if self.has_unsent() {
            self.msg_more = false;
            let end = self.write_seq();
            self.pending.request_push(end);
        }
    }

    /// Ends the last super-segment at the end of a record: it cannot grow, so it does not wait.
    pub(crate) fn end_super_segment(&mut self) {
        self.queue.end_super_segment();
        if self.blocked_by == BlockedBy::Autocork {
            self.blocked_by = BlockedBy::Nothing;
            self.pending.retry();
        }
    }
}

#[cfg(test)]
mod tests;
