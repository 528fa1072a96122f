//! Completions of the device, which the send limits depend on.

use super::Connection;
use crate::Cx;
use crate::send::{Path, Sender};

impl Connection {
    /// Handles the completion of a segment that was charged with `truesize` bytes.
    pub fn handle_tx_complete(&mut self, cx: &mut Cx<'_>, truesize: u32) {
        if truesize == 0 {
            return;
        }
        self.snd.uncharge_wmem(truesize);
        if self.uncommon.is_some() {
            self.watch_sent(cx);
        }
        self.snd.on_tx_complete();
    }

    /// Returns the sender, and the parts that its limits read.
    #[inline]
    pub(crate) fn sender_and_path(&mut self) -> (&mut Sender, Path<'_>) {
        let path = Path {
            congestion: &self.congestion,
            rtt: &self.rtt,
            packets_out: self.recovery.rtx.packets_out(),
        };
        (&mut self.snd, path)
    }

    /// Returns the parts that the limits of sending read.
    #[inline]
    pub(crate) fn path(&self) -> Path<'_> {
        Path {
            congestion: &self.congestion,
            rtt: &self.rtt,
            packets_out: self.recovery.rtx.packets_out(),
        }
    }
}
