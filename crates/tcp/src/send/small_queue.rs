//! TCP Small Queues: no more of a flow stands in the host's queues than they need to stay busy;
//! the rest waits where it can still grow, and where it is not in others' way.

use super::pacing::PACING_SHIFT;
use super::{Blocked, UNIT_OVERHEAD_BYTES};
use crate::connection::Connection;
use crate::{Cx, Sysctl};

/// What is handed out: text for the first time, or once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Handout {
    First,
    Retransmission,
}

impl Connection {
    /// So much is with the host already that `len` bytes more must wait.
    #[inline]
    pub(super) fn small_queue_holds(&self, cx: &Cx<'_>, len: u32, what: Handout) -> bool {
        // With so little out, an ACK could come before the completion, and find nothing to send.
        if self.snd.wmem_inflight == 0 || self.snd.rtx.units() <= 1 {
            return false;
        }
        let two_units = 2 * (u64::from(len) + u64::from(UNIT_OVERHEAD_BYTES));
        let least = two_units.min(cx.sysctl.tcp_limit_output_bytes.into());
        u64::from(self.snd.wmem_inflight) >= least && self.small_queue_is_full(cx, two_units, what)
    }

    fn small_queue_is_full(&self, cx: &Cx<'_>, two_units: u64, what: Handout) -> bool {
        let mut limit = two_units.max(self.pacing_rate(cx.sysctl).0 >> PACING_SHIFT);
        if !self.is_paced(cx) {
            limit = limit.min(cx.sysctl.tcp_limit_output_bytes.into());
        }
        if what == Handout::Retransmission {
            limit <<= 1;
        }
        u64::from(self.snd.wmem_inflight) >= limit
    }

    /// What is held goes after the next completion.
    pub(super) fn throttle(&mut self, cx: &mut Cx<'_>) {
        if !self.snd.throttled {
            cx.mib.small_queue_throttled += 1;
            self.snd.throttled = true;
        }
    }

    /// Autocorking: a unit that is not full waits while the host has at least as much of this
    /// flow; the next completion sends it.
    #[inline]
    pub(super) fn autocorks(&mut self, sysctl: &Sysctl) -> bool {
        let snd = &self.snd;
        let tail = snd.queue.tail_len();
        // A unit that is complete, be it short, does not wait for more.
        if tail == 0 || tail >= snd.size_goal as usize || snd.wmem_inflight == 0 {
            return false;
        }
        let truesize = if tail == snd.queue.len() {
            snd.queue.truesize()
        } else {
            tail
        };
        let truesize = truesize + UNIT_OVERHEAD_BYTES as usize;
        snd.wmem_inflight as usize >= truesize && sysctl.tcp_autocorking && !snd.rtx.is_empty()
    }

    /// The unit that is being filled waits for a completion, which is under way.
    #[inline]
    pub(super) fn is_autocorked(&self) -> bool {
        let snd = &self.snd;
        snd.blocked == Blocked::Autocork && snd.throttled && snd.wmem_inflight > 0
    }

    /// The device completed a segment of `truesize`.
    pub fn handle_tx_complete(&mut self, cx: &mut Cx<'_>, truesize: u32) {
        if truesize == 0 {
            return;
        }
        self.forget_handed_out(truesize);
        if self.extras.is_some() {
            self.watch_sent(cx);
        }
        if core::mem::take(&mut self.snd.throttled) {
            self.uncork_automatically();
            // The socket's own flags decide now: MSG_MORE was of one call.
            self.snd.more = false;
            self.out.any = true;
        }
    }

    /// The host has this no longer.
    #[inline]
    pub(crate) fn forget_handed_out(&mut self, truesize: u32) {
        if truesize == 0 {
            return;
        }
        debug_assert!(truesize <= self.snd.wmem_inflight, "completed twice");
        self.snd.wmem_inflight = self.snd.wmem_inflight.saturating_sub(truesize);
        if let Some(flow) = &mut self.snd.flow {
            flow.on_completed();
        }
    }

    /// What waited for a completion waits no longer.
    #[inline]
    pub(crate) fn uncork_automatically(&mut self) {
        if self.snd.blocked == Blocked::Autocork {
            self.snd.blocked = Blocked::No;
        }
    }
}
