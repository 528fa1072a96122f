//! The ECN receiver of DCTCP (RFC 8257 3.2). It sets ECE according to the mark of the last data
//! received, so that the sender learns of each byte whether it was marked.

use alloc::vec::Vec;

use fullsend_units::{SeqNum, WireWindow};
use fullsend_wire::EcnField;
use fullsend_wire::tcp::TcpFlags;

use super::Ecn;
use crate::congestion::{CcInfo, MarkSample};
use crate::connection::State;
use crate::recovery::AckNews;
use crate::{Connection, Cx, SegmentOut};

/// Most changes recorded until the next segment is sent; further ones count as the last.
const MOST_PAST: usize = 16;

/// The state of a DCTCP receiver.
#[derive(Clone, Debug, Default)]
pub(super) struct Mirror {
    /// Whether the last data was marked (DCTCP.CE).
    ce: bool,
    /// The acknowledgements due before changes of `ce`: the number to acknowledge, and the mark of
    /// that data.
    past: Vec<(SeqNum, bool)>,
}

impl Mirror {
    /// Processes the mark of received data; `owed` is the end of earlier unacknowledged data.
    /// Returns whether to acknowledge immediately.
    fn on_text(&mut self, ce: bool, owed: Option<SeqNum>) -> bool {
        if ce == self.ce {
            return false;
        }
        // While data is missing, rcv_nxt does not move.
        let owed = owed.filter(|owed| self.past.last().is_none_or(|(last, _)| owed.after(*last)));
        if let Some(owed) = owed
            && self.past.len() < MOST_PAST
        {
            self.past.push((owed, self.ce));
        }
        self.ce = ce;
        true
    }

    fn ce(&self) -> bool {
        self.ce
    }

    /// Removes and returns the first acknowledgement due before the present one.
    fn take_past(&mut self) -> Option<(SeqNum, bool)> {
        (!self.past.is_empty()).then(|| self.past.remove(0))
    }
}

impl Connection {
    /// Processes the mark of data received with classic ECN; `rcv_nxt` is its value before that
    /// data.
    pub(super) fn mirror_text(&mut self, flags: TcpFlags, field: EcnField, rcv_nxt: SeqNum) {
        let owed = rcv_nxt.after(self.rcv.ack.last_acked()).then_some(rcv_nxt);
        let Some(ecn) = &mut self.ecn else {
            return;
        };
        let Some(mirror) = &mut ecn.mirror else {
            return;
        };
        let changed = field.is_capable() && mirror.on_text(field == EcnField::Ce, owed);
        ecn.demands_cwr = mirror.ce();
        ecn.seen |= field.is_capable();
        // A sender that has reduced its window may wait for this acknowledgement: the window may be
        // a single segment.
        if changed || flags.contains(TcpFlags::CWR) {
            self.rcv.ack.now();
        }
    }

    /// Changes a segment into the first acknowledgement that is due for data before a change of
    /// marks (RFC 8257 3.2).
    pub(super) fn tell_past(&mut self, segment: &mut SegmentOut) {
        let mirror = self.ecn.as_mut().and_then(|ecn| ecn.mirror.as_mut());
        let Some((end, ce)) = mirror.and_then(|mirror| mirror.take_past()) else {
            return;
        };
        let repr = &mut segment.repr;
        repr.flags = repr.flags.without(TcpFlags::ECE);
        if ce {
            repr.flags = repr.flags.union(TcpFlags::ECE);
        }
        // Keeps the right edge of the window.
        let less = repr.ack.since(end) >> self.rcv.window.scale().shift();
        let window = u32::from(repr.window.0).saturating_add(less);
        repr.window = WireWindow(window.min(u16::MAX.into()) as u16);
        repr.ack = end;
        self.rcv.ack.now();
    }

    /// Adapts ECN to a newly selected congestion control, or to the end of the handshake.
    #[cold]
    pub(crate) fn settle_ecn(&mut self, cx: &Cx<'_>) {
        let needs = self.cc.needs_ecn();
        if self.state == State::SynSent && self.snd.rtx.is_empty() {
            // The SYN with the request is not sent yet.
            self.ecn = Ecn::to_ask(cx.sysctl, needs);
            return;
        }
        match &mut self.ecn {
            Some(ecn) => ecn.set_mirror(needs),
            None if needs && self.state.is_synchronized() => self.cc.go_without_ecn(),
            None => {}
        }
    }

    /// Returns the state of the congestion control (`TCP_CC_INFO`).
    pub fn cc_info(&self) -> CcInfo {
        let mut info = self.cc.info();
        if let CcInfo::Dctcp { ce_state, .. } = &mut info {
            let mirror = self.ecn.as_ref().and_then(|ecn| ecn.mirror.as_ref());
            *ce_state = mirror.is_some_and(|mirror| mirror.ce());
        }
        info
    }

    /// Reports the marks of an ACK to a congestion control that needs ECN.
    pub(super) fn tell_marks(&mut self, news: &AckNews<'_>, marked: u32) {
        let acked_bytes = self.delivered_bytes(news);
        let delivered = news.ack.delivered_segs + news.sack.delivered_segs;
        let marked_bytes = match marked {
            0 => 0,
            all if all >= delivered => acked_bytes,
            some => acked_bytes.min(some.saturating_mul(self.snd.mss.bytes())),
        };
        self.cc.on_marks(&MarkSample {
            acked_bytes,
            marked_bytes,
            snd_una: self.snd.una,
            snd_nxt: self.snd.nxt,
        });
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::SeqNum;

    use super::{MOST_PAST, Mirror};

    const fn seq(end: u32) -> SeqNum {
        SeqNum::new(end)
    }

    /// RFC 8257 figure 1.
    #[test]
    fn a_change_first_tells_what_was_before() {
        let mut mirror = Mirror::default();
        assert!(!mirror.on_text(false, None));
        assert!(!mirror.on_text(false, Some(seq(1000))));
        assert!(mirror.on_text(true, Some(seq(2000))) && mirror.ce());
        assert_eq!(mirror.take_past(), Some((seq(2000), false)));
        assert_eq!(mirror.take_past(), None);
        assert!(!mirror.on_text(true, Some(seq(3000))));
        // Everything is acknowledged already: only the change is reported.
        assert!(mirror.on_text(false, None) && !mirror.ce());
        assert_eq!(mirror.take_past(), None);
    }

    #[test]
    fn changes_wait_in_their_order() {
        let mut mirror = Mirror::default();
        for (end, ce) in [(1000, true), (2000, false), (3000, true)] {
            assert!(mirror.on_text(ce, Some(seq(end))));
        }
        for past in [(1000, false), (2000, true), (3000, false)] {
            assert_eq!(mirror.take_past(), Some((seq(past.0), past.1)));
        }
        assert_eq!(mirror.take_past(), None);
    }

    /// While data is missing nothing new is acknowledged, however often the mark changes.
    #[test]
    fn no_acknowledgement_is_told_twice() {
        let mut mirror = Mirror::default();
        for turn in 0..4 {
            assert!(mirror.on_text(turn % 2 == 0, Some(seq(1000))));
        }
        assert_eq!(mirror.take_past(), Some((seq(1000), false)));
        assert_eq!(mirror.take_past(), None);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut mirror = Mirror::default();
        for turn in 1..1000 {
            mirror.on_text(turn % 2 == 1, Some(seq(turn)));
        }
        assert_eq!(mirror.past.len(), MOST_PAST);
        assert!(mirror.ce());
    }
}
