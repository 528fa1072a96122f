//! TIME-WAIT: the little that remains of a connection for 2 MSL (RFC 9293 3.10.7.4, RFC 6191).

use fullsend_units::Instant;

use crate::{Cx, SegmentIn, SegmentOut};

/// A closed connection that still answers for its old segments.
#[derive(Debug)]
pub struct TimeWait {
    /// When it may be forgotten.
    pub expires: Instant,
}

/// What the host does with a segment for a TIME-WAIT entry.
#[derive(Debug)]
pub enum TimeWaitVerdict {
    /// Nothing.
    Drop,
    /// Send this.
    Reply(SegmentOut),
    /// RFC 6191 / RFC 9293: a new SYN that is provably later; forget the entry and treat the
    /// segment as one for a listener, with an ISN above the given one.
    Reuse,
    /// Forget the entry (RFC 1337 off, acceptable RST).
    Forget,
}

impl TimeWait {
    /// Judges a segment.
    pub fn handle_segment(&mut self, cx: &mut Cx<'_>, segment: &SegmentIn) -> TimeWaitVerdict {
        let _ = (cx, segment);
        todo!()
    }
}
