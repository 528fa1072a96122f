//! Reports on sent data: from the connection to the error queue.

use alloc::sync::Arc;

use fullsend_buf::Slice;
use fullsend_stack::{Host, TcpId};
use fullsend_tcp::{TxEvent, TxStage};

use super::loans::{CopiedCall, LentCall};
use super::{Core, Stream};
use crate::abi::{SCM_TSTAMP_ACK, SCM_TSTAMP_SCHED, SCM_TSTAMP_SND};
use crate::errno::{Errno, Result};
use crate::errqueue::Notice;
use crate::stamps::Clock;
use crate::wake::WakeQueue;
use crate::{Handle, Received};

/// Limit of calls whose memory is lent or whose completion waits in the error queue (Linux limits
/// them by `optmem_max`).
const MAX_LENT: usize = 512;

impl Stream {
    /// Returns whether an entry waits for the error queue or in it.
    pub(super) fn has_notices(&self, host: &mut Host) -> bool {
        let more = match self.core {
            Core::Connection(id) => host.tcp_has_tx_event(id).unwrap_or(false),
            _ => false,
        };
        more || self.loans.has_returned() || !self.errors.is_empty()
    }

    /// Returns whether the current call has put an entry into the error queue.
    pub(crate) fn has_new_notices(&self) -> bool {
        self.noticed != self.errors.count
    }

    /// Returns whether the error queue has entries.
    pub(crate) fn has_queued_notices(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Moves the connection's events and the returned loans into the error queue.
    pub(super) fn take_notices(&mut self, host: &mut Host) {
        if let Core::Connection(id) = self.core {
            while let Ok(Some(event)) = host.tcp_take_tx_event(id) {
                self.take_notice(event);
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

    fn take_notice(&mut self, TxEvent { end, stage, at }: TxEvent) {
        let stage = match stage {
            TxStage::Scheduled => SCM_TSTAMP_SCHED,
            TxStage::Sent => SCM_TSTAMP_SND,
            TxStage::Acked => SCM_TSTAMP_ACK,
        };
        // The key is the number of the last byte, counted from zero.
        let key = end.wrapping_sub(self.key_base).wrapping_sub(1) as u32;
        self.errors.push(Notice::Stamp { stage, key, at });
    }

    fn complete_zerocopy(&mut self, number: u32, copied: bool) {
        self.errors.push(Notice::Zerocopy {
            first: number,
            last: number,
            copied,
        });
    }

    /// Completes a call with `MSG_ZEROCOPY` whose bytes were copied, unless it has more parts.
    pub(super) fn note_copied(&mut self) {
        let number = self.next_zerocopy();
        if self.has_parts {
            self.copied = Some(number);
        } else {
            self.complete_zerocopy(number, true);
        }
    }

    /// Prevents [`note_copied`](Self::note_copied) from completing the next call.
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

    fn next_zerocopy(&mut self) -> u32 {
        let number = self.zerocopies;
        self.zerocopies = number.wrapping_add(1);
        number
    }

    /// Returns ENOBUFS if no further call may lend memory before a completion is read.
    pub(super) fn may_lend(&mut self) -> Result<()> {
        self.take_returned();
        if self.loans.outstanding() + self.errors.completions() < MAX_LENT {
            Ok(())
        } else {
            Err(Errno::ENOBUFS)
        }
    }

    /// Wraps the memory of the next call that lends.
    pub(super) fn lend(&mut self, data: Slice, wake: (&Arc<WakeQueue>, Handle)) -> Arc<LentCall> {
        self.loans.begin(data, self.zerocopies, wake)
    }

    /// Counts a call that accepted at least a part of its lent memory.
    pub(super) fn note_lent(&mut self) {
        self.next_zerocopy();
        self.loans.commit();
    }

    /// Returns the stream offset of the end of written data.
    pub(super) fn written(host: &mut Host, id: TcpId) -> u64 {
        host.tcp_written(id).unwrap_or(0)
    }

    /// Receives an entry of the error queue (`recvmsg` with `MSG_ERRQUEUE`).
    pub(super) fn receive_notice(
        &mut self,
        host: &mut Host,
        clock: Clock,
        control: &mut [u8],
    ) -> Result<Received> {
        self.take_notices(host);
        let stamps = &self.common.stamps;
        self.errors.receive(self.domain, stamps, clock, control)
    }
}
