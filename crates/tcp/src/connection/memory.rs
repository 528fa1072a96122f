//! The charge of a connection to the memory of its host.

use super::Connection;
use crate::{Cx, PAGE_BYTES};

impl Connection {
    /// Returns the bytes of memory held by data written and not acknowledged, or received and not
    /// read (`mem` of `sockstat`).
    #[inline]
    pub fn truesize(&self) -> usize {
        self.snd.truesize() + self.recovery.rtx.truesize() + self.rcv.truesize()
    }

    /// Charges the host for the memory that this connection holds now.
    #[inline]
    pub(crate) fn charge(&mut self, cx: &mut Cx<'_>) {
        let pages = self.truesize().div_ceil(PAGE_BYTES) as u32;
        if pages != self.mem_pages {
            let from = core::mem::replace(&mut self.mem_pages, pages);
            cx.mem.change(cx.now, cx.sysctl, cx.mib, from, pages);
        }
    }

    /// Releases the connection's charge. The host must call this before it drops the connection.
    pub fn release_memory(&mut self, cx: &mut Cx<'_>) {
        let from = core::mem::take(&mut self.mem_pages);
        if from > 0 {
            cx.mem.change(cx.now, cx.sysctl, cx.mib, from, 0);
        }
    }
}
