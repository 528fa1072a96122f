//! TCP Small Queues: bounds a flow's bytes in the host's queues to what keeps them busy. The rest
//! waits in the send buffer, where super-segments still grow and other flows are not delayed.

use super::pacing::PACING_SHIFT;
use super::{BlockedBy, SUPER_SEGMENT_OVERHEAD_BYTES};
use crate::connection::Connection;
use crate::{Cx, Sysctl};

/// Whether data is sent for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transmission {
    First,
    Retransmission,
}

impl Connection {
    /// Returns whether TCP Small Queues defers `len` more bytes.
    #[inline]
    pub(super) fn small_queue_holds(
        &self,
        cx: &Cx<'_>,
        len: u32,
        transmission: Transmission,
    ) -> bool {
        // With at most one super-segment out, the ACK may come before the completion and would then
        // find nothing to send.
        if self.snd.wmem_inflight == 0 || self.snd.rtx.len() <= 1 {
            return false;
        }
        let two_super_segments = 2 * (u64::from(len) + u64::from(SUPER_SEGMENT_OVERHEAD_BYTES));
        let least = two_super_segments.min(cx.sysctl.tcp_limit_output_bytes.into());
        u64::from(self.snd.wmem_inflight) >= least
            && self.small_queue_is_full(cx, two_super_segments, transmission)
    }

    fn small_queue_is_full(
        &self,
        cx: &Cx<'_>,
        two_super_segments: u64,
        transmission: Transmission,
    ) -> bool {
        let mut limit = two_super_segments.max(self.pacing_rate(cx.sysctl).0 >> PACING_SHIFT);
        if !self.is_paced(cx) {
            limit = limit.min(cx.sysctl.tcp_limit_output_bytes.into());
        }
        if transmission == Transmission::Retransmission {
            limit <<= 1;
        }
        u64::from(self.snd.wmem_inflight) >= limit
    }

    /// Defers sending to the next completion.
    pub(super) fn throttle(&mut self, cx: &mut Cx<'_>) {
        if !self.snd.throttled {
            cx.mib.small_queue_throttled += 1;
            self.snd.throttled = true;
        }
    }

    /// Returns whether autocorking holds the last super-segment: it is not full, and the host's queues
    /// have at least as many bytes of this flow. The next completion sends it.
    #[inline]
    pub(super) fn should_autocork(&mut self, sysctl: &Sysctl) -> bool {
        let snd = &self.snd;
        let tail = snd.queue.tail_len();
        // A record's end completes a super-segment, which then has no tail to fill.
        if tail == 0 || tail >= snd.size_goal as usize || snd.wmem_inflight == 0 {
            return false;
        }
        let truesize = if tail == snd.queue.len() {
            snd.queue.truesize()
        } else {
            tail
        };
        let truesize = truesize + SUPER_SEGMENT_OVERHEAD_BYTES as usize;
        snd.wmem_inflight as usize >= truesize && sysctl.tcp_autocorking && !snd.rtx.is_empty()
    }

    /// Returns whether the last super-segment waits for a completion that will come.
    #[inline]
    pub(super) fn is_autocorked(&self) -> bool {
        let snd = &self.snd;
        snd.blocked_by == BlockedBy::Autocork && snd.throttled && snd.wmem_inflight > 0
    }

    /// Handles the completion of a segment that was charged with `truesize` bytes.
    pub fn handle_tx_complete(&mut self, cx: &mut Cx<'_>, truesize: u32) {
        if truesize == 0 {
            return;
        }
        self.uncharge_wmem(truesize);
        if self.uncommon.is_some() {
            self.watch_sent(cx);
        }
        if core::mem::take(&mut self.snd.throttled) {
            self.snd.end_autocork();
            // MSG_MORE was of one call: from now on TCP_CORK alone decides.
            self.snd.msg_more = false;
            self.snd.pending.retry();
        }
    }

    /// Subtracts a segment that has left the host's queues.
    #[inline]
    pub(crate) fn uncharge_wmem(&mut self, truesize: u32) {
        if truesize == 0 {
            return;
        }
        debug_assert!(truesize <= self.snd.wmem_inflight, "completed twice");
        self.snd.wmem_inflight = self.snd.wmem_inflight.saturating_sub(truesize);
        if let Some(flow) = &mut self.snd.flow {
            flow.on_completed();
        }
    }
}

#[cfg(test)]
mod tests;
