//! Reports on sent data, which move from the connection to the error queue.

use alloc::sync::Arc;

use fullsend_offload::Slice;
use fullsend_stack::{Host, TcpId};
use fullsend_tcp::{TxEvent, TxStage};

use super::loans::{CopiedCall, LentCall};
use super::{HostSocket, Stream};
use crate::abi::{SCM_TSTAMP_ACK, SCM_TSTAMP_SCHED, SCM_TSTAMP_SND};
use crate::errno::{Errno, Result};
use crate::errqueue::ErrQueueEntry;
use crate::timestamps::EpochClock;
use crate::wake::WakeQueue;
use crate::{Handle, Received};

/// Limit of calls whose memory is lent or whose completion waits in the error queue (Linux limits
/// them by `optmem_max`).
const MAX_LENT: usize = 512;

impl Stream {
    /// Returns whether an entry waits for the error queue or in it.
    pub(super) fn has_reports(&self, host: &mut Host) -> bool {
        let more = match self.host_socket {
            HostSocket::Connection(id) => host.tcp(id).has_tx_event().unwrap_or(false),
            _ => false,
        };
        more || self.loans.has_returned() || !self.errors.is_empty()
    }

    /// Returns whether the current call has put an entry into the error queue.
    pub(crate) fn has_new_reports(&self) -> bool {
        self.errors_before_send != self.errors.count
    }

    /// Returns whether the error queue has entries.
    pub(crate) fn has_queued_reports(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Moves the connection's events and the returned loans into the error queue.
    pub(super) fn collect_reports(&mut self, host: &mut Host) {
        if let HostSocket::Connection(id) = self.host_socket {
            while let Ok(Some(event)) = host.tcp(id).take_tx_event() {
                self.queue_tx_event(event);
            }
        }
        self.take_returned();
    }

    /// Queues the completions of the returned loans.
    pub(super) fn take_returned(&mut self) {
        for (number, copied) in self.loans.take() {
            self.complete_zerocopy(number, copied);
        }
    }

    fn queue_tx_event(&mut self, TxEvent { end, stage, at }: TxEvent) {
        let stage = match stage {
            TxStage::Scheduled => SCM_TSTAMP_SCHED,
            TxStage::Sent => SCM_TSTAMP_SND,
            TxStage::Acked => SCM_TSTAMP_ACK,
        };
        // The key is the number of the last byte, counted from zero.
        let key = end.wrapping_sub(self.key_base).wrapping_sub(1) as u32;
        self.errors
            .push(ErrQueueEntry::Timestamp { stage, key, at });
    }

    fn complete_zerocopy(&mut self, number: u32, copied: bool) {
        self.errors.push(ErrQueueEntry::Zerocopy {
            first: number,
            last: number,
            copied,
        });
    }

    /// Completes a call with `MSG_ZEROCOPY` whose bytes were copied, unless it has more parts.
    pub(super) fn complete_copied(&mut self) {
        let number = self.next_zerocopy_number();
        if self.has_parts {
            self.copied = Some(number);
        } else {
            self.complete_zerocopy(number, true);
        }
    }

    /// Prevents [`complete_copied`](Self::complete_copied) from completing the next call.
    pub(crate) const fn begin_parts(&mut self) {
        self.has_parts = true;
    }

    /// Returns the pending completion of a copying call since [`begin_parts`](Self::begin_parts),
    /// if any.
    pub(crate) fn take_copied(&mut self, wake: (&Arc<WakeQueue>, Handle)) -> Option<CopiedCall> {
        self.has_parts = false;
        let number = self.copied.take()?;
        Some(self.loans.begin_copied(number, wake))
    }

    fn next_zerocopy_number(&mut self) -> u32 {
        let number = self.zerocopy_calls;
        self.zerocopy_calls = number.wrapping_add(1);
        number
    }

    /// Returns ENOBUFS if no further call may lend memory before a completion is read.
    pub(super) fn check_zerocopy_limit(&mut self) -> Result<()> {
        self.take_returned();
        if self.loans.outstanding() + self.errors.completions() < MAX_LENT {
            Ok(())
        } else {
            Err(Errno::ENOBUFS)
        }
    }

    /// Wraps the memory of the next call that lends.
    pub(super) fn lend(&mut self, data: Slice, wake: (&Arc<WakeQueue>, Handle)) -> Arc<LentCall> {
        self.loans.begin(data, self.zerocopy_calls, wake)
    }

    /// Counts a call that accepted at least a part of its lent memory.
    pub(super) fn commit_lent(&mut self) {
        self.next_zerocopy_number();
        self.loans.commit();
    }

    /// Returns the stream offset of the end of written data.
    pub(super) fn written(host: &mut Host, id: TcpId) -> u64 {
        host.tcp(id).written().unwrap_or(0)
    }

    /// Receives an entry of the error queue (`recvmsg` with `MSG_ERRQUEUE`).
    pub(super) fn receive_report(
        &mut self,
        host: &mut Host,
        clock: EpochClock,
        control: &mut [u8],
    ) -> Result<Received> {
        self.collect_reports(host);
        let timestamps = &self.common.timestamps;
        self.errors.receive(self.domain, timestamps, clock, control)
    }
}
