//! The effects of a write: PSH (RFC 9293 3.9.1.2), autocorking, and whether a segment can be sent.

use super::{Blocked, Force, SendLimit};
use crate::connection::{Connection, State};
use crate::{Cx, Sysctl};

/// The result of appending to the last super-segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extended {
    /// No data was appended: [`Connection::write`] is needed.
    No,
    /// All data was appended, and the super-segment is held back as before.
    Held,
    /// All data was appended, and a segment can be sent now.
    Sendable,
}

impl Connection {
    /// Appends `data` to the last super-segment if that waits and `data` does not end the wait: the
    /// fast path of small writes. [`write`](Self::write) covers all cases.
    #[inline]
    pub fn extend(&mut self, sysctl: &Sysctl, data: &[u8]) -> Extended {
        let snd = &mut self.snd;
        let len = snd.queue.len() + data.len();
        let held = match snd.blocked {
            Blocked::No | Blocked::Defer => false,
            Blocked::Nagle => len < snd.mss.bytes() as usize,
            Blocked::Autocork => snd.throttled,
            Blocked::Cwnd | Blocked::Rwnd | Blocked::Pacing | Blocked::Tsq | Blocked::Burst => true,
        };
        let plain = matches!(self.state, State::Established | State::CloseWait) && !snd.more;
        // Delivery-rate samples record when the application limits the flow.
        let plain = plain && snd.rtx.delivery().is_none();
        if !held || !plain || !snd.queue.extend_tail(data, snd.size_goal as usize) {
            return Extended::No;
        }
        snd.pushed = snd.write_seq();
        if snd.blocked == Blocked::Autocork && !self.autocorks(sysctl) {
            self.uncork_automatically();
            self.out.any = true;
            return Extended::Sendable;
        }
        Extended::Held
    }

    /// Processes an append of data: decides about PSH, and whether a segment may be sent.
    #[inline]
    pub(crate) fn after_write(&mut self, cx: &mut Cx<'_>, more: bool) {
        let snd = &mut self.snd;
        let write_seq = snd.write_seq();
        // PSH where the writer pauses, and after half of the largest window without one.
        if !more || write_seq.since(snd.pushed) > snd.max_wnd / 2 {
            snd.pushed = write_seq;
        }
        let uncorked = core::mem::replace(&mut snd.more, more) && !more;
        let push = match snd.blocked {
            Blocked::No | Blocked::Defer | Blocked::Autocork => true,
            // Only a full segment, a record's end, or the end of MSG_MORE ends the wait.
            Blocked::Nagle => {
                let queued = self.snd.queue.len() as u32;
                uncorked || queued >= self.snd.mss.bytes() || self.record_left() < queued
            }
            Blocked::Cwnd | Blocked::Rwnd | Blocked::Pacing | Blocked::Tsq | Blocked::Burst => {
                false
            }
        };
        if push {
            self.push(cx);
        }
    }

    #[inline]
    fn push(&mut self, cx: &mut Cx<'_>) {
        if !self.autocorks(cx.sysctl) {
            self.uncork_automatically();
            self.out.any = true;
            return;
        }
        if !self.snd.throttled {
            cx.mib.auto_corking += 1;
            self.throttle(cx);
        }
        self.snd.blocked = Blocked::Autocork;
        // Full super-segments ahead of the one that waits may be sent.
        self.out.any |= self.snd.queue.len() > self.snd.queue.tail_len();
        self.report_held(cx.now, SendLimit::Autocork);
    }

    /// Requests that queued data is sent, because `TCP_NODELAY` was set or a cork removed.
    pub(crate) fn push_held(&mut self, force: Force) {
        if self.snd.has_unsent() {
            self.snd.more = false;
            self.out.force = self.out.force.max(force);
            self.out.any = true;
        }
    }
}

#[cfg(test)]
mod tests;
