//! What a write sets off (RFC 9293 3.9.1.2), and what holds it back at once.

use super::{Blocked, Force, SendLimit};
use crate::connection::{Connection, State};
use crate::{Cx, Sysctl};

/// What came of lengthening the unit that is being filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extended {
    /// Nothing was taken: only [`Connection::write`] can.
    No,
    /// All was taken, and what held the unit back holds it still.
    Held,
    /// All was taken, and something can be sent now.
    Sendable,
}

impl Connection {
    /// Most small writes: they lengthen a unit that waits, and what it waits for does not change.
    /// [`write`](Self::write) does the same and asks more on the way.
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
        // Delivery-rate samples want to know of writers that pause.
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

    /// Text was appended: decides about PSH, and whether it is worth asking for a segment.
    #[inline]
    pub(crate) fn after_write(&mut self, cx: &mut Cx<'_>, more: bool) {
        let snd = &mut self.snd;
        let write_seq = snd.write_seq();
        // PSH where the writer pauses, and before half a window has gone without one.
        if !more || write_seq.since(snd.pushed) > snd.max_wnd / 2 {
            snd.pushed = write_seq;
        }
        let uncorked = core::mem::replace(&mut snd.more, more) && !more;
        let push = match snd.blocked {
            Blocked::No | Blocked::Defer | Blocked::Autocork => true,
            // Only a full segment, or the end of MSG_MORE, changes that.
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
        // Full units in front of the one that waits go.
        self.out.any |= self.snd.queue.len() > self.snd.queue.tail_len();
        self.report_held(cx.now, SendLimit::Autocork);
    }

    /// `TCP_NODELAY` was set, or a cork pulled: what is queued gets another chance.
    pub(crate) fn push_held(&mut self, force: Force) {
        if self.snd.has_unsent() {
            self.snd.more = false;
            self.out.force = self.out.force.max(force);
            self.out.any = true;
        }
    }
}
