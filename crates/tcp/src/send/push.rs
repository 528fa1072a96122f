//! The effects of a write: PSH (RFC 9293 3.9.1.2), autocorking, and whether a segment can be sent.

use super::{BlockedBy, Force, SendLimit};
use crate::connection::{Connection, State};
use crate::{Cx, Sysctl};

/// The result of appending to the last super-segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendOutcome {
    /// No data was appended: [`Connection::write`] is needed.
    NotAppended,
    /// All data was appended, and the super-segment is held back as before.
    Queued,
    /// All data was appended, and a segment can be sent now.
    Sendable,
}

impl Connection {
    /// Appends `data` to the last super-segment if that waits and `data` does not end the wait: the
    /// fast path of small writes. [`write`](Self::write) covers all cases.
    #[inline]
    pub fn try_append(&mut self, sysctl: &Sysctl, data: &[u8]) -> AppendOutcome {
        let snd = &mut self.snd;
        let len = snd.queue.len() + data.len();
        let held = match snd.blocked_by {
            BlockedBy::Nothing | BlockedBy::Defer => false,
            BlockedBy::Nagle => len < snd.mss.bytes() as usize,
            BlockedBy::Autocork => snd.throttled,
            BlockedBy::Cwnd
            | BlockedBy::Rwnd
            | BlockedBy::Pacing
            | BlockedBy::Tsq
            | BlockedBy::Burst => true,
        };
        let is_eligible =
            matches!(self.state, State::Established | State::CloseWait) && !snd.msg_more;
        // Delivery-rate samples record when the application limits the flow.
        let is_eligible = is_eligible && snd.rtx.delivery().is_none();
        if !held || !is_eligible || !snd.queue.try_append_to_tail(data, snd.size_goal as usize) {
            return AppendOutcome::NotAppended;
        }
        snd.pushed_seq = snd.write_seq();
        if snd.blocked_by == BlockedBy::Autocork
            && !self.snd.should_autocork(sysctl, !self.snd.rtx.is_empty())
        {
            self.snd.end_autocork();
            self.snd.pending.retry();
            return AppendOutcome::Sendable;
        }
        AppendOutcome::Queued
    }

    /// Processes an append of data: decides about PSH, and whether a segment may be sent.
    #[inline]
    pub(crate) fn after_write(&mut self, cx: &mut Cx<'_>, more: bool) {
        let snd = &mut self.snd;
        let write_seq = snd.write_seq();
        // PSH where the writer pauses, and after half of the largest window without one.
        if !more || write_seq.since(snd.pushed_seq) > snd.max_wnd / 2 {
            snd.pushed_seq = write_seq;
        }
        let uncorked = core::mem::replace(&mut snd.msg_more, more) && !more;
        let push = match snd.blocked_by {
            BlockedBy::Nothing | BlockedBy::Defer | BlockedBy::Autocork => true,
            // Only a full segment, a record's end, or the end of MSG_MORE ends the wait.
            BlockedBy::Nagle => {
                let queued = self.snd.queue.len() as u32;
                uncorked || queued >= self.snd.mss.bytes() || self.record_left() < queued
            }
            BlockedBy::Cwnd
            | BlockedBy::Rwnd
            | BlockedBy::Pacing
            | BlockedBy::Tsq
            | BlockedBy::Burst => false,
        };
        if push {
            self.push(cx);
        }
    }

    #[inline]
    fn push(&mut self, cx: &mut Cx<'_>) {
        if !self
            .snd
            .should_autocork(cx.sysctl, !self.snd.rtx.is_empty())
        {
            self.snd.end_autocork();
            self.snd.pending.retry();
            return;
        }
        if !self.snd.throttled {
            cx.mib.auto_corking += 1;
            self.snd.throttle(cx.mib);
        }
        self.snd.blocked_by = BlockedBy::Autocork;
        // Full super-segments ahead of the one that waits may be sent.
        if self.snd.queue.len() > self.snd.queue.tail_len() {
            self.snd.pending.retry();
        }
        self.snd.report_limit(cx.now, SendLimit::Autocork);
    }

    /// Requests that queued data is sent, because `TCP_NODELAY` was set or a cork removed.
    pub(crate) fn push_pending(&mut self, force: Force) {
        if self.snd.has_unsent() {
            self.snd.msg_more = false;
            self.snd.pending.request_forced(force);
        }
    }
}

#[cfg(test)]
mod tests;
