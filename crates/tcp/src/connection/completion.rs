//! Completions of the device, which the send limits depend on.

use super::{Connection, State};
use crate::Cx;
use crate::send::{Path, SendCx, Sender};

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

    /// Returns the sender, and what its limits on new data read of the other parts.
    #[inline]
    pub(crate) fn sender_and_cx(&mut self) -> (&mut Sender, SendCx<'_>) {
        let send = SendCx {
            path: Path {
                congestion: &self.congestion,
                rtt: &self.rtt,
                packets_out: self.recovery.rtx.packets_out(),
            },
            recovery: &self.recovery,
            nodelay: self.settings.nodelay,
            cork: self.settings.cork,
            is_urgent: self.is_urgent(),
            record_left: self.record_left(),
            uncounted_segs: u32::from(self.state == State::SynReceived),
        };
        (&mut self.snd, send)
    }

    /// Returns the bytes that cwnd admits.
    #[inline]
    pub(super) fn cwnd_room_bytes(&mut self) -> u32 {
        let (snd, send) = self.sender_and_cx();
        snd.cwnd_room_bytes(send)
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
