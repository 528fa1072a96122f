//! The state of the connection that the events and segments of a sequence show.

use fullsend_script::WireSegment;

use crate::compare::PeerView;
use crate::event::{ACK, FIN, InjectedSegment, RST, SYN, URG, after};
use crate::side::EventOutcome;

/// The sequence numbers at which a segment with data begins and ends.
pub(crate) type Range = (u32, u32);

/// The index and `tcpi_state` of each open socket.
type SocketStates = Vec<(usize, u8)>;

/// Returns the ranges of the segments with data.
pub(crate) fn ranges(segments: &[WireSegment]) -> Vec<Range> {
    let data = segments.iter().filter(|s| !s.data.is_empty());
    data.map(|s| (s.seq, s.seq.wrapping_add(s.data.len() as u32)))
        .collect()
}

/// The state of the connection before an event, as far as earlier events show it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct History {
    /// The data that the kernel has sent, and that ours has sent.
    pub(crate) sent: (Vec<Range>, Vec<Range>),
    /// The sequence numbers of the injected FINs.
    pub(crate) fins: Vec<u32>,
    /// The states of the kernel's sockets, and of ours.
    pub(crate) states: (SocketStates, SocketStates),
    /// Whether a segment with URG was injected.
    pub(crate) urgent: bool,
    /// The latest TSval of the segments that update TS.Recent (RFC 7323 4.3).
    pub(crate) latest_tsval: Option<u32>,
    /// The sequence number after the FIN that the kernel has sent.
    fin_end: Option<u32>,
    /// Whether an acceptable segment acknowledged that FIN.
    fin_acked: bool,
    /// The sequence numbers of the injected FINs that were not old.
    new_fins: Vec<u32>,
}

impl History {
    /// Updates the state with an injected segment, before the responses to it.
    /// `views` are the peer's views of both sides.
    pub(crate) fn on_inject(&mut self, inject: &InjectedSegment, views: [&PeerView; 2]) {
        let (seq, end) = (inject.seq, inject.end());
        let is_in_window = |view: &PeerView| {
            let reaches = |acked| !after(acked, end) && !after(seq, view.edge);
            view.acked.is_some_and(reaches)
        };
        let is_next = |view: &PeerView| view.acked.is_some_and(|acked| !after(seq, acked));
        let is_plain = inject.flags & (SYN | RST | ACK) == ACK;
        let opens = inject.flags & (SYN | RST) == SYN && views.iter().all(|v| v.acked.is_none());
        if let Some((val, _)) = inject.timestamp {
            let updates = |view: &&PeerView| is_in_window(view) && is_next(view);
            let is_later = self.latest_tsval.is_none_or(|latest| after(val, latest));
            if opens || is_plain && is_later && views.iter().any(updates) {
                self.latest_tsval = Some(val);
            }
        }
        if inject.flags & (SYN | RST) == SYN && views.iter().any(|v| v.acked.is_none()) {
            self.fin_end = None;
            self.fin_acked = false;
            // A FIN before the SYN belongs to no connection.
            self.new_fins.clear();
        }
        self.fin_acked |=
            is_plain && self.fin_end == Some(inject.ack) && views.into_iter().any(is_in_window);
        if inject.flags & FIN != 0 {
            self.fins.push(end.wrapping_sub(1));
            let is_new = |view: &PeerView| view.acked.is_none_or(|acked| after(end, acked));
            if views.into_iter().any(is_new) {
                self.new_fins.push(end.wrapping_sub(1));
            }
        }
        self.urgent |= inject.flags & URG != 0;
    }

    /// Updates the state with the responses to an event.
    pub(crate) fn on_responses(&mut self, kernel: &EventOutcome, ours: &EventOutcome) {
        self.sent.0.extend(ranges(&kernel.segments));
        self.sent.1.extend(ranges(&ours.segments));
        for segment in kernel.segments.iter().filter(|s| s.flags & FIN != 0) {
            let end = segment.seq.wrapping_add(segment.data.len() as u32 + 1);
            self.fin_end = Some(end);
        }
        self.states = (kernel.states.clone(), ours.states.clone());
    }

    /// Returns whether the connection is in FIN-WAIT-2: the FIN is acknowledged, and no FIN of the
    /// peer was received.
    pub(crate) fn in_fin_wait_2(&self, views: (PeerView, PeerView)) -> bool {
        let received = |fin: &u32| {
            let acks = |view: PeerView| view.acked.is_some_and(|acked| after(acked, *fin));
            acks(views.0) && acks(views.1)
        };
        self.fin_acked && !self.new_fins.iter().any(received)
    }
}
