//! TCP Small Queues: bounds a flow's bytes in the host's queues to what keeps them busy. The rest
//! waits in the send buffer, where super-segments still grow and other flows are not delayed.

use super::pacing::{PACING_SHIFT, Path};
use super::{BlockedBy, SUPER_SEGMENT_OVERHEAD_BYTES, Sender};
use crate::{Cx, Sysctl, TcpMib};

/// Whether data is sent for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transmission {
    First,
    Retransmission,
}

impl Sender {
    /// Returns whether TCP Small Queues defers `len` more bytes while `flight` super-segments are in
    /// flight.
    #[inline]
    pub(crate) fn small_queue_holds(
        &self,
        cx: &Cx<'_>,
        path: Path<'_>,
        (len, flight): (u32, usize),
        transmission: Transmission,
    ) -> bool {
        // With at most one super-segment out, the ACK may come before the completion and would then
        // find nothing to send.
        if self.wmem_inflight == 0 || flight <= 1 {
            return false;
        }
        let two_super_segments = 2 * (u64::from(len) + u64::from(SUPER_SEGMENT_OVERHEAD_BYTES));
        let least = two_super_segments.min(cx.sysctl.tcp_limit_output_bytes.into());
        u64::from(self.wmem_inflight) >= least
            && self.small_queue_is_full(cx, path, two_super_segments, transmission)
    }

    fn small_queue_is_full(
        &self,
        cx: &Cx<'_>,
        path: Path<'_>,
        two_super_segments: u64,
        transmission: Transmission,
    ) -> bool {
        let rate = self.pacing_rate(path, cx.sysctl);
        let mut limit = two_super_segments.max(rate.0 >> PACING_SHIFT);
        if !self.is_paced(cx, path) {
            limit = limit.min(cx.sysctl.tcp_limit_output_bytes.into());
        }
        if transmission == Transmission::Retransmission {
            limit <<= 1;
        }
        u64::from(self.wmem_inflight) >= limit
    }

    /// Defers sending to the next completion.
    pub(crate) fn throttle(&mut self, mib: &mut TcpMib) {
        if !self.throttled {
            mib.small_queue_throttled += 1;
            self.throttled = true;
        }
    }

    /// Returns whether autocorking holds the last super-segment: it is not full, data is `in_flight`,
    /// and the host's queues have at least as many bytes of this flow. The next completion sends it.
    #[inline]
    pub(super) fn should_autocork(&self, sysctl: &Sysctl, in_flight: bool) -> bool {
        let tail = self.queue.tail_len();
        // A record's end completes a super-segment, which then has no tail to fill.
        if tail == 0 || tail >= self.size_goal as usize || self.wmem_inflight == 0 {
            return false;
        }
        let truesize = if tail == self.queue.len() {
            self.queue.truesize()
        } else {
            tail
        };
        let truesize = truesize + SUPER_SEGMENT_OVERHEAD_BYTES as usize;
        self.wmem_inflight as usize >= truesize && sysctl.tcp_autocorking && in_flight
    }

    /// Returns whether the last super-segment waits for a completion that will come.
    #[inline]
    pub(super) fn is_autocorked(&self) -> bool {
        self.blocked_by == BlockedBy::Autocork && self.throttled && self.wmem_inflight > 0
    }

    /// Sends the data that waited for a completion.
    #[inline]
    pub(crate) fn on_tx_complete(&mut self) {
        if core::mem::take(&mut self.throttled) {
            self.end_autocork();
            // MSG_MORE was of one call: from now on TCP_CORK alone decides.
            self.msg_more = false;
            self.pending.retry();
        }
    }

    /// Subtracts a segment that has left the host's queues.
    #[inline]
    pub(crate) fn uncharge_wmem(&mut self, truesize: u32) {
        if truesize == 0 {
            return;
        }
        debug_assert!(truesize <= self.wmem_inflight, "completed twice");
        self.wmem_inflight = self.wmem_inflight.saturating_sub(truesize);
        if let Some(flow) = &mut self.flow {
            flow.on_completed();
        }
    }
}

#[cfg(test)]
mod tests;
