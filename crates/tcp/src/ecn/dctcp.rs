//! The ECN receiver of DCTCP (RFC 8257 3.2). It sets ECE according to the mark of the last data
//! received, so that the sender learns of each byte whether it was marked.

use alloc::vec::Vec;

use fullsend_wire::tcp::TcpFlags;
use fullsend_wire::{EcnField, SeqNum, WindowScale, WireWindow};

use super::{Ecn, FeedbackCx};
use crate::SegmentOut;
use crate::congestion::MarkSample;

/// Most changes recorded until the next segment is sent; further ones count as the last.
const MAX_DUE_ACKS: usize = 16;

/// The state of a DCTCP receiver.
#[derive(Clone, Debug, Default)]
pub(super) struct DctcpReceiver {
    /// Whether the last data was marked (DCTCP.CE).
    ce: bool,
    /// The acknowledgements due before changes of `ce`: the number to acknowledge, and the mark of
    /// that data.
    due_acks: Vec<(SeqNum, bool)>,
}

impl DctcpReceiver {
    /// Processes the mark of received data; `unacked_end` is the end of earlier unacknowledged data.
    /// Returns whether to acknowledge immediately.
    fn on_data(&mut self, ce: bool, unacked_end: Option<SeqNum>) -> bool {
        if ce == self.ce {
            return false;
        }
        // While data is missing, rcv_nxt does not move.
        let unacked_end = unacked_end.filter(|unacked_end| {
            self.due_acks
                .last()
                .is_none_or(|(last, _)| unacked_end.after(*last))
        });
        if let Some(unacked_end) = unacked_end
            && self.due_acks.len() < MAX_DUE_ACKS
        {
            self.due_acks.push((unacked_end, self.ce));
        }
        self.ce = ce;
        true
    }

    fn ce(&self) -> bool {
        self.ce
    }

    /// Removes and returns the first acknowledgement due before the present one.
    fn take_due_ack(&mut self) -> Option<(SeqNum, bool)> {
        (!self.due_acks.is_empty()).then(|| self.due_acks.remove(0))
    }
}

impl Ecn {
    /// Processes the mark of data received with classic ECN. `unacked_end`: the end of earlier data
    /// that is not acknowledged yet. Returns whether to acknowledge immediately.
    pub(super) fn on_dctcp_data(
        &mut self,
        flags: TcpFlags,
        field: EcnField,
        unacked_end: Option<SeqNum>,
    ) -> bool {
        let Some(dctcp) = &mut self.dctcp else {
            return false;
        };
        let changed = field.is_capable() && dctcp.on_data(field == EcnField::Ce, unacked_end);
        self.demands_cwr = dctcp.ce();
        self.ect_seen |= field.is_capable();
        // A sender that has reduced its window may wait for this acknowledgement: the window may be
        // a single segment.
        changed || flags.contains(TcpFlags::CWR)
    }

    /// Changes a segment into the first acknowledgement that is due for data before a change of
    /// marks (RFC 8257 3.2). `scale`: that of the windows that we advertise. Returns whether it
    /// did, so that the present acknowledgement follows.
    pub(crate) fn apply_due_ack(&mut self, segment: &mut SegmentOut, scale: WindowScale) -> bool {
        let dctcp = self.dctcp.as_mut();
        let Some((end, ce)) = dctcp.and_then(|dctcp| dctcp.take_due_ack()) else {
            return false;
        };
        let repr = &mut segment.repr;
        repr.flags = repr.flags.without(TcpFlags::ECE);
        if ce {
            repr.flags = repr.flags.union(TcpFlags::ECE);
        }
        // Keeps the right edge of the window.
        let less = repr.ack.since(end) >> scale.shift();
        let window = u32::from(repr.window.0).saturating_add(less);
        repr.window = WireWindow(window.min(u16::MAX.into()) as u16);
        repr.ack = end;
        true
    }

    /// Returns whether the congestion control needs the share of marked data.
    pub(crate) fn counts_marked_share(&self) -> bool {
        self.dctcp.is_some()
    }

    /// Returns whether the last data received was marked (DCTCP.CE).
    pub(crate) fn is_ce_state(&self) -> bool {
        self.dctcp.as_ref().is_some_and(|dctcp| dctcp.ce())
    }
}

impl FeedbackCx<'_> {
    /// Returns the marked share of the acknowledged data, of which `marked` segments were marked.
    pub(crate) fn mark_sample(&self, marked: u32, una: SeqNum, nxt: SeqNum) -> MarkSample {
        let acked_bytes = self.summary.delivered_bytes(self.mss);
        let marked_bytes = match marked {
            0 => 0,
            all if all >= self.summary.delivered_segs() => acked_bytes,
            some => acked_bytes.min(some.saturating_mul(self.mss.bytes())),
        };
        MarkSample {
            acked_bytes,
            marked_bytes,
            snd_una: una,
            snd_nxt: nxt,
        }
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::SeqNum;

    use super::{DctcpReceiver, MAX_DUE_ACKS};

    const fn seq(end: u32) -> SeqNum {
        SeqNum::new(end)
    }

    /// RFC 8257 figure 1.
    #[test]
    fn change_of_marks_acknowledges_earlier_data_first() {
        let mut dctcp = DctcpReceiver::default();
        assert!(!dctcp.on_data(false, None));
        assert!(!dctcp.on_data(false, Some(seq(1000))));
        assert!(dctcp.on_data(true, Some(seq(2000))) && dctcp.ce());
        assert_eq!(dctcp.take_due_ack(), Some((seq(2000), false)));
        assert_eq!(dctcp.take_due_ack(), None);
        assert!(!dctcp.on_data(true, Some(seq(3000))));
        // Everything is acknowledged already: only the change is reported.
        assert!(dctcp.on_data(false, None) && !dctcp.ce());
        assert_eq!(dctcp.take_due_ack(), None);
    }

    #[test]
    fn due_acks_keep_their_order() {
        let mut dctcp = DctcpReceiver::default();
        for (end, ce) in [(1000, true), (2000, false), (3000, true)] {
            assert!(dctcp.on_data(ce, Some(seq(end))));
        }
        for due_acks in [(1000, false), (2000, true), (3000, false)] {
            assert_eq!(dctcp.take_due_ack(), Some((seq(due_acks.0), due_acks.1)));
        }
        assert_eq!(dctcp.take_due_ack(), None);
    }

    /// While data is missing nothing new is acknowledged, however often the mark changes.
    #[test]
    fn no_acknowledgement_is_queued_twice() {
        let mut dctcp = DctcpReceiver::default();
        for turn in 0..4 {
            assert!(dctcp.on_data(turn % 2 == 0, Some(seq(1000))));
        }
        assert_eq!(dctcp.take_due_ack(), Some((seq(1000), false)));
        assert_eq!(dctcp.take_due_ack(), None);
    }

    #[test]
    fn due_acks_are_limited() {
        let mut dctcp = DctcpReceiver::default();
        for turn in 1..1000 {
            dctcp.on_data(turn % 2 == 1, Some(seq(turn)));
        }
        assert_eq!(dctcp.due_acks.len(), MAX_DUE_ACKS);
        assert!(dctcp.ce());
    }
}
