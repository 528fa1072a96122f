//! The numbers of retransmissions in the host's queues, which an original must have left before it
//! is retransmitted.

use super::Sender;
use crate::recovery::{Retransmit, RtxQueue};
use crate::{Cx, TcpMib};

impl Sender {
    /// Returns the last segment for retransmission, unless it is still in the host's queues.
    pub(crate) fn retransmit_tail(
        &mut self,
        cx: &mut Cx<'_>,
        rtx: &mut RtxQueue,
    ) -> Option<Retransmit> {
        let is_empty = self.wmem_inflight == 0;
        let sent_at = self.departure_time(cx);
        let Some(flow) = &mut self.flow else {
            return rtx.probe_tail(sent_at, 0);
        };
        let last = rtx.tail_number();
        if !is_empty && last.is_some_and(|number| flow.is_in_host_queue(number)) {
            cx.mib.spurious_rtx_host_queues += 1;
            return None;
        }
        let retransmit = rtx.probe_tail(sent_at, flow.next_number())?;
        if retransmit.truesize > 0 {
            flow.on_enqueued();
        }
        Some(retransmit)
    }

    /// Takes the next lost range, under a number of its own in the host's queues.
    pub(crate) fn take_lost(
        &mut self,
        cx: &Cx<'_>,
        rtx: &mut RtxQueue,
        limit: u32,
    ) -> Option<Retransmit> {
        let is_empty = self.wmem_inflight == 0;
        // RACK and the rate samples count from the departure.
        let sent_at = self.departure_time(cx);
        let Some(flow) = &mut self.flow else {
            // Without data no segment has a number in the host's queues.
            return rtx.next_retransmit(sent_at, limit, 0, |_| false);
        };
        let in_host_queue = |number| !is_empty && flow.is_in_host_queue(number);
        let number = flow.next_number();
        let retransmit = rtx.next_retransmit(sent_at, limit, number, in_host_queue);
        if retransmit
            .as_ref()
            .is_some_and(|retransmit| retransmit.truesize > 0)
        {
            flow.on_enqueued();
        }
        retransmit
    }

    /// Returns whether the original is still in the host's queues: it is late, not lost, and its
    /// completion triggers another attempt.
    pub(crate) fn is_original_in_host_queue(&mut self, mib: &mut TcpMib, rtx: &RtxQueue) -> bool {
        let Some(flow) = &self.flow else {
            return false;
        };
        let number = rtx.next_lost_number();
        let in_host_queue =
            self.wmem_inflight > 0 && number.is_some_and(|n| flow.is_in_host_queue(n));
        if in_host_queue {
            mib.spurious_rtx_host_queues += 1;
            self.throttle(mib);
        }
        in_host_queue
    }
}

#[cfg(test)]
mod tests;
