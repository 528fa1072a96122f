//! What became of bytes that the user asked to be told of: from the connection to the error
//! queue.

use fullsend_stack::{Host, TcpId};
use fullsend_tcp::{TxEvent, TxStage};

use super::{Core, Stream};
use crate::Received;
use crate::abi::{SCM_TSTAMP_ACK, SCM_TSTAMP_SCHED, SCM_TSTAMP_SND};
use crate::errno::{Errno, Result};
use crate::errqueue::Notice;
use crate::stamps::Clock;

/// Most calls whose memory is lent at a time; the connection has to keep count of each.
const MAX_LENT: usize = 512;

impl Stream {
    /// Something waits in the error queue.
    pub(super) fn has_notices(&self, host: &mut Host) -> bool {
        let more = match self.core {
            Core::Connection(id) => host.tcp_has_tx_event(id).unwrap_or(false),
            _ => false,
        };
        more || !self.errors.is_empty()
    }

    /// The call under way put something into the error queue.
    pub(crate) fn has_new_notices(&self) -> bool {
        self.noticed != self.errors.count
    }

    /// The error queue holds something.
    pub(crate) fn has_queued_notices(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Moves what the connection tells into the error queue.
    pub(super) fn take_notices(&mut self, host: &mut Host) {
        let Core::Connection(id) = self.core else {
            return;
        };
        while let Ok(Some(event)) = host.tcp_take_tx_event(id) {
            self.take_notice(event);
        }
    }

    fn take_notice(&mut self, TxEvent { end, stage, at }: TxEvent) {
        let stage = match stage {
            TxStage::Scheduled => SCM_TSTAMP_SCHED,
            TxStage::Sent => SCM_TSTAMP_SND,
            TxStage::Acked => SCM_TSTAMP_ACK,
            TxStage::Released => return self.release_lent(end),
        };
        // The key is the number of the last byte, from nought.
        let key = end.wrapping_sub(self.key_base).wrapping_sub(1) as u32;
        self.errors.push(Notice::Stamp { stage, key, at });
    }

    /// The memory of calls up to `end` is the user's again.
    pub(super) fn release_lent(&mut self, end: u64) {
        while let Some(&(lent, number)) = self.lent.front() {
            if lent > end {
                return;
            }
            self.lent.pop_front();
            self.complete_zerocopy(number, false);
        }
    }

    fn complete_zerocopy(&mut self, number: u32, copied: bool) {
        self.errors.push(Notice::Zerocopy {
            first: number,
            last: number,
            copied,
        });
    }

    /// A call with `MSG_ZEROCOPY` whose bytes were copied: they are the user's at once.
    pub(super) fn note_copied(&mut self) {
        let number = self.next_zerocopy();
        self.complete_zerocopy(number, true);
    }

    fn next_zerocopy(&mut self) -> u32 {
        let number = self.zerocopies;
        self.zerocopies = number.wrapping_add(1);
        number
    }

    /// ENOBUFS when no more can be lent before something comes back.
    pub(super) fn may_lend(&self) -> Result<()> {
        if self.lent.len() < MAX_LENT {
            Ok(())
        } else {
            Err(Errno::ENOBUFS)
        }
    }

    /// A call that lent memory, up to the stream's byte `end`.
    pub(super) fn note_lent(&mut self, end: u64) {
        let number = self.next_zerocopy();
        self.lent.push_back((end, number));
    }

    /// Where the bytes written so far end.
    pub(super) fn written(host: &mut Host, id: TcpId) -> u64 {
        host.tcp_written(id).unwrap_or(0)
    }

    /// `recvmsg` with `MSG_ERRQUEUE`.
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
