//! The charge of a connection to the memory of its host.

use super::Connection;
use crate::Cx;
use crate::memory::UNIT_BYTES;

impl Connection {
    /// Returns the bytes of memory held by data written and not acknowledged, or received and not
    /// read (`mem` of `sockstat`).
    #[inline]
    pub fn truesize(&self) -> usize {
        self.snd.truesize() + self.recovery.rtx.truesize() + self.rcv.truesize()
    }

    /// Charges the host for the memory that this connection holds now, and for the window that its peer
    /// may use. The window of a connection without data does not count: it is idle, or its reader as
    /// fast as the peer.
    #[inline]
    pub(crate) fn charge(&mut self, cx: &mut Cx<'_>) {
        let units = self.truesize().div_ceil(UNIT_BYTES) as u32;
        if units != self.mem_units {
            let from = core::mem::replace(&mut self.mem_units, units);
            cx.mem.change(cx.now, cx.sysctl, cx.mib, from, units);
        }
        let window = match units {
            0 => 0,
            _ => self.rcv.open_window(),
        };
        let from = core::mem::replace(&mut self.mem_window, window);
        cx.mem.change_window(from, window);
    }

    /// Releases the connection's charge. The host must call this before it drops the connection.
    pub fn release_memory(&mut self, cx: &mut Cx<'_>) {
        let from = core::mem::take(&mut self.mem_units);
        if from > 0 {
            cx.mem.change(cx.now, cx.sysctl, cx.mib, from, 0);
        }
        cx.mem
            .change_window(core::mem::take(&mut self.mem_window), 0);
    }
}
