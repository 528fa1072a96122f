//! The context of the sender: the values that it reads of the other parts.

use super::{Connection, State};
use crate::send::{Path, SendCx, Sender};

impl Connection {
    /// Returns the sender, and the parts that its limits read.
    #[inline]
    pub(crate) fn sender_and_path(&mut self) -> (&mut Sender, Path<'_>) {
        let path = Path::new(&self.congestion, &self.rtt, &self.recovery);
        (&mut self.snd, path)
    }

    /// Returns the sender, and what its limits on new data read of the other parts.
    #[inline]
    pub(crate) fn sender_and_cx(&mut self) -> (&mut Sender, SendCx<'_>) {
        let send = SendCx {
            path: Path::new(&self.congestion, &self.rtt, &self.recovery),
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
        Path::new(&self.congestion, &self.rtt, &self.recovery)
    }
}
