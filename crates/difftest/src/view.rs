//! The peer's view of a side.

use fullsend_script::WireSegment;

use crate::event::{ACK, FIN, RST, SYN, after};
use crate::segment::scale_of;

/// The peer's view of one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PeerView {
    /// The highest acknowledgement number received.
    pub(crate) acked: Option<u32>,
    /// The right edge of the latest window.
    pub(crate) edge: u32,
    /// The highest sequence number that the side has sent.
    pub(crate) sent: u32,
    pub(crate) scale: u8,
}

impl PeerView {
    /// Updates the view with the segments that the side sends. `scales`: the peer's SYN has the window
    /// scale option.
    pub(crate) fn record(&mut self, segments: &[WireSegment], scales: bool) {
        for segment in segments.iter().filter(|s| s.flags & RST == 0) {
            let room = u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
            let end = (segment.seq.wrapping_add(room)).wrapping_add(segment.data.len() as u32);
            let is_new = segment.flags & SYN != 0 || after(end, self.sent);
            self.sent = if is_new { end } else { self.sent };
        }
        for segment in segments.iter().filter(|s| s.flags & (SYN | RST) == SYN) {
            // A SYN without ACK begins a connection, perhaps another one.
            if segment.flags & ACK == 0 {
                self.acked = None;
            }
            self.scale = segment.options.iter().find_map(scale_of).unwrap_or(0);
        }
        for segment in segments.iter().filter(|s| s.flags & (ACK | RST) == ACK) {
            let syn = segment.flags & SYN != 0;
            if syn || self.acked.is_none_or(|acked| after(segment.ack, acked)) {
                self.acked = Some(segment.ack);
            }
            let scale = if syn || !scales { 0 } else { self.scale };
            let window = u32::from(segment.window) << scale;
            self.edge = segment.ack.wrapping_add(window);
        }
    }
}
