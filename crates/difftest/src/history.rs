//! The state of the connection that the events and segments of a sequence show.

use fullsend_posix::abi::MSG_PEEK;
use fullsend_script::WireSegment;

use crate::compare::SCALED_UNIT;
use crate::event::{ACK, Echo, FIN, FuzzEvent, InjectedSegment, RST, SYN, SocketCall, URG, after};
use crate::known::{CLOSE, LISTEN, SYN_RECEIVED, SYN_SENT};
use crate::segment::{echo_of, scale_of};
use crate::side::EventOutcome;
use crate::view::PeerView;

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

/// Returns the length of the longest range.
pub(crate) fn longest(ranges: &[Range]) -> u32 {
    let lengths = ranges.iter().map(|(start, end)| end.wrapping_sub(*start));
    lengths.max().unwrap_or(0)
}

/// An acceptable segment with an ACK, of a SYN-ACK or after the handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AcceptedAck {
    pub(crate) ack: u32,
    pub(crate) seq: u32,
    pub(crate) window: u16,
    /// Whether the segment has neither data nor FIN.
    pub(crate) is_pure: bool,
    /// The number of segments in flight above the acknowledgement number.
    pub(crate) in_flight: usize,
    /// The highest sequence number that was sent before the segment.
    pub(crate) sent_end: u32,
    pub(crate) sack: Vec<Range>,
}

/// The state of the connection before an event, as far as earlier events show it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct History {
    /// The acceptable ACKs.
    pub(crate) acks: Vec<AcceptedAck>,
    /// The number of SYNs and SYN-ACKs that the kernel has sent again.
    pub(crate) repeated_syns: usize,
    /// Whether our side has sent the SYN-ACK of a simultaneous open again.
    pub(crate) repeats_syn_ack: bool,
    /// Whether the segment that acknowledged our SYN echoed a timestamp, which gives an RTT sample even
    /// if the SYN was sent again (RFC 7323 4.1).
    pub(crate) syn_echoed: bool,
    /// Whether the kernel has sent a SYN without ACK.
    has_sent_syn: bool,
    /// The sequence number after the last SYN that the kernel acknowledged with a SYN-ACK.
    syn_end: Option<u32>,
    /// The data that the kernel has sent, and that ours has sent.
    pub(crate) sent: (Vec<Range>, Vec<Range>),
    /// The sequence numbers of the injected FINs that a side may accept.
    pub(crate) fins: Vec<u32>,
    /// Whether there were such FINs before the last SYN.
    had_fins: bool,
    /// The states of the kernel's sockets, and of ours.
    pub(crate) states: (SocketStates, SocketStates),
    /// Whether a segment with URG was injected.
    pub(crate) urgent: bool,
    /// The latest TSval of the segments that update TS.Recent (RFC 7323 4.3).
    pub(crate) latest_tsval: Option<u32>,
    /// The bytes that calls on our side have written, and those that they have read.
    pub(crate) written: u32,
    pub(crate) read: u32,
    /// The sequence number after the FIN that the kernel has sent.
    fin_end: Option<u32>,
    /// Whether an acceptable segment acknowledged that FIN.
    fin_acked: bool,
    /// The highest acknowledgement number of an acceptable segment.
    pub(crate) una: u32,
    /// The largest window of the peer, and its scale.
    max_window: u32,
    window_scale: u8,
}

impl History {
    /// Updates the state with an injected segment, before the responses to it.
    /// `views` are the peer's views of both sides.
    pub(crate) fn on_inject(&mut self, inject: &InjectedSegment, views: [&PeerView; 2]) {
        let (seq, end) = (inject.seq, inject.end());
        let is_in_window = |view: &PeerView| {
            // The window may be larger than the one advertised, by what its scale cuts off.
            let edge = view.edge.wrapping_add(2 * SCALED_UNIT);
            let reaches = |acked| !after(acked, end) && !after(seq, edge);
            view.acked.is_some_and(reaches)
        };
        let is_next = |view: &PeerView| view.acked.is_some_and(|acked| !after(seq, acked));
        let is_plain = inject.flags & (SYN | RST | ACK) == ACK;
        let may_open = inject.flags & (SYN | RST) == SYN && !self.is_synchronized();
        let opens = may_open && views.iter().all(|v| v.acked.is_none());
        let opens_actively = opens && views.iter().all(|view| inject.ack == view.sent);
        let val = inject.timestamp.map(|(val, _)| val);
        let acks_sent = views.iter().any(|view| !after(inject.ack, view.sent));
        if may_open && views.iter().any(|v| v.acked.is_none()) {
            self.fin_end = None;
            self.fin_acked = false;
            self.una = 0;
            self.window_scale = inject.options.iter().find_map(scale_of).unwrap_or(0);
            self.max_window = inject.window.into();
        }
        if opens {
            self.latest_tsval = val;
        }
        let una = self.una;
        if inject.flags & (SYN | RST | ACK) == SYN | ACK && opens_actively {
            self.record_ack(inject, views, false);
        }
        // RFC 7323 5.3: PAWS drops a segment with an old timestamp.
        let is_old = val.is_some_and(|val| self.is_old_timestamp(val));
        let is_acceptable = is_plain && acks_sent && !is_old && views.into_iter().any(is_in_window);
        self.fin_acked |= is_acceptable && self.fin_end == Some(inject.ack);
        // A FIN before the last acknowledgement is old.
        let is_new = |view: &PeerView| view.acked.is_none_or(|acked| after(end, acked));
        if is_acceptable && inject.flags & FIN != 0 && views.into_iter().any(is_new) {
            self.fins.push(end.wrapping_sub(1));
        }
        if acks_sent && views.into_iter().any(is_in_window) {
            self.record_ack(inject, views, is_old);
        }
        if is_acceptable && !self.is_too_old(inject.ack) {
            if views.into_iter().any(is_next) && self.latest_tsval.is_some() && val.is_some() {
                self.latest_tsval = val;
            }
            self.una = if after(inject.ack, self.una) {
                inject.ack
            } else {
                self.una
            };
            let window = u32::from(inject.window) << self.window_scale;
            self.max_window = self.max_window.max(window);
        }
        if una == 0 && self.una > 0 {
            let echoes = matches!(inject.timestamp, Some((_, Echo::Latest(0))));
            self.syn_echoed = echoes && self.latest_tsval.is_some();
        }
        self.urgent |= inject.flags & URG != 0;
    }

    /// Records an ACK whose numbers are acceptable. `is_old`: its timestamp is.
    fn record_ack(&mut self, inject: &InjectedSegment, views: [&PeerView; 2], is_old: bool) {
        let is_pure = inject.end() == inject.seq;
        let [kernel, ours] = views.map(|view| view.sent);
        let ack = AcceptedAck {
            ack: inject.ack,
            seq: inject.seq,
            window: inject.window,
            is_pure,
            in_flight: self.count_in_flight(inject.ack),
            sent_end: if after(kernel, ours) { kernel } else { ours },
            sack: inject.sack.clone(),
        };
        let is_accepted = match inject.flags & (SYN | RST | ACK) {
            // Linux accepts a duplicate ACK that is older by less than the retransmission timeout.
            ACK => !is_old || is_pure && inject.ack == self.una,
            // RFC 5961 4.2 rejects later ones.
            flags => flags == SYN | ACK && !is_old && self.ends_open(inject, views),
        };
        if is_accepted && !self.is_too_old(inject.ack) {
            self.acks.push(ack);
            if inject.flags & SYN != 0 {
                self.una = inject.ack;
            }
        }
    }

    /// Returns whether a SYN-ACK ends an active open: it acknowledges the SYN, and in SYN-RECEIVED of a
    /// simultaneous open it repeats the peer's SYN and has neither data nor FIN.
    fn ends_open(&self, inject: &InjectedSegment, views: [&PeerView; 2]) -> bool {
        let is_bare = inject.end() == inject.seq.wrapping_add(1);
        let repeats = |acked: u32| is_bare && inject.end() == acked;
        let is_next = |view: &PeerView| inject.ack == view.sent && view.acked.is_none_or(repeats);
        let mut states = self.states.0.iter().chain(&self.states.1);
        states.any(|(_, state)| matches!(*state, SYN_SENT | SYN_RECEIVED))
            && views.into_iter().any(is_next)
    }

    /// Returns whether a timestamp is older than that of an earlier, accepted segment. A TSval of 0
    /// makes no later one old (docs/rfc-exceptions.md).
    pub(crate) fn is_old_timestamp(&self, val: u32) -> bool {
        let latest = self.latest_tsval.filter(|latest| *latest != 0);
        latest.is_some_and(|latest| after(latest, val))
    }

    /// Returns the number of our segments with data or FIN above an acknowledgement number.
    fn count_in_flight(&self, ack: u32) -> usize {
        let mut ends: Vec<u32> = self.sent.1.iter().map(|range| range.1).collect();
        ends.extend(self.fin_end);
        ends.retain(|end| after(*end, ack));
        ends.sort_unstable();
        ends.dedup();
        ends.len()
    }

    /// Returns whether an acknowledgement number is too old for the segment to be accepted (RFC 5961
    /// 5.2). That of the initial sequence number is not if our SYN was acknowledged later.
    fn is_too_old(&self, ack: u32) -> bool {
        let first = u32::from(!self.has_sent_syn);
        after(self.una.saturating_sub(self.max_window).max(first), ack)
    }

    /// Updates the state with the responses to an event.
    pub(crate) fn on_responses(
        &mut self,
        event: &FuzzEvent,
        kernel: &EventOutcome,
        ours: &EventOutcome,
    ) {
        let count = (ours.returned.as_ref()).map_or(0, |returned| returned.value.max(0) as u32);
        match event {
            FuzzEvent::Call(SocketCall::Send { .. }) => {
                self.written = self.written.wrapping_add(count);
            }
            FuzzEvent::Call(SocketCall::Receive { flags, .. }) if flags & MSG_PEEK == 0 => {
                self.read = self.read.wrapping_add(count);
            }
            _ => {}
        }
        let sends_syn_ack = |o: &EventOutcome| {
            o.segments
                .iter()
                .any(|s| s.flags & (SYN | ACK) == SYN | ACK)
        };
        self.repeats_syn_ack |= self.has_sent_syn && self.syn_end.is_some() && sends_syn_ack(ours);
        self.on_syns(event, kernel);
        self.on_echoes(kernel, ours);
        self.sent.0.extend(ranges(&kernel.segments));
        self.sent.1.extend(ranges(&ours.segments));
        for segment in kernel.segments.iter().filter(|s| s.flags & FIN != 0) {
            let end = segment.seq.wrapping_add(segment.data.len() as u32 + 1);
            self.fin_end = Some(end);
        }
        self.states = (kernel.states.clone(), ours.states.clone());
    }

    /// Updates the latest timestamp by the one that both sides echo, which is TS.Recent.
    fn on_echoes(&mut self, kernel: &EventOutcome, ours: &EventOutcome) {
        let is_plain = |s: &&WireSegment| s.flags & (SYN | RST | ACK) == ACK;
        let echo = |o: &EventOutcome| {
            o.segments
                .iter()
                .filter(is_plain)
                .filter_map(echo_of)
                .next_back()
        };
        if let (Some(_), Some(kernel), Some(ours)) = (self.latest_tsval, echo(kernel), echo(ours))
            && kernel == ours
        {
            self.latest_tsval = Some(kernel);
        }
    }

    /// Processes the SYNs that the kernel has sent in response to an event. A SYN-ACK for a SYN with
    /// another sequence number begins a new connection.
    fn on_syns(&mut self, event: &FuzzEvent, kernel: &EventOutcome) {
        for syn in kernel.segments.iter().filter(|s| s.flags & SYN != 0) {
            if syn.flags & ACK == 0 {
                if matches!(event, FuzzEvent::Call(SocketCall::Connect(_))) {
                    self.begin_again(None);
                }
                self.repeated_syns += usize::from(self.has_sent_syn);
                self.has_sent_syn = true;
                continue;
            }
            let end = Some(syn.ack);
            let is_new = self.syn_end.is_some() && self.syn_end != end;
            self.repeated_syns += usize::from(self.syn_end == end);
            self.syn_end = end;
            if let (true, FuzzEvent::Inject(inject)) = (is_new, event) {
                self.begin_again(Some(inject));
                self.syn_end = end;
            }
        }
    }

    /// Forgets the state of the previous connection. `syn`: the peer's SYN if it begins the new one.
    fn begin_again(&mut self, syn: Option<&InjectedSegment>) {
        let scale = syn.and_then(|syn| syn.options.iter().find_map(scale_of));
        *self = Self {
            states: std::mem::take(&mut self.states),
            urgent: self.urgent,
            had_fins: self.has_fins(),
            latest_tsval: syn.and_then(|syn| syn.timestamp).map(|(val, _)| val),
            max_window: syn.map_or(0, |syn| syn.window.into()),
            window_scale: scale.unwrap_or(0),
            ..Self::default()
        };
    }

    /// Returns whether a FIN was injected that a side may have accepted, on any connection.
    pub(crate) fn has_fins(&self) -> bool {
        self.had_fins || !self.fins.is_empty()
    }

    /// Returns whether a socket is in a state after the handshake, even if the ACK that ends it is
    /// delayed.
    pub(crate) fn is_synchronized(&self) -> bool {
        let states = self.states.0.iter().chain(&self.states.1);
        let opens = [CLOSE, LISTEN, SYN_SENT, SYN_RECEIVED];
        states.into_iter().any(|(_, state)| !opens.contains(state))
    }

    /// Returns whether the kernel has sent a FIN.
    pub(crate) fn has_sent_fin(&self) -> bool {
        self.fin_end.is_some()
    }

    /// Returns whether the connection is in FIN-WAIT-2: the FIN is acknowledged, and no FIN of the
    /// peer was received.
    pub(crate) fn in_fin_wait_2(&self, views: (PeerView, PeerView)) -> bool {
        let received = |fin: &u32| {
            let acks = |view: PeerView| view.acked.is_some_and(|acked| after(acked, *fin));
            acks(views.0) && acks(views.1)
        };
        self.fin_acked && !self.fins.iter().any(received)
    }
}

#[cfg(test)]
mod tests;
