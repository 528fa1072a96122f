//! Comparison of the two sides' responses to one event.

use fullsend_script::WireSegment;

use crate::event::{ACK, FIN, FuzzEvent, InjectedSegment, PSH, RST, SYN, SocketCall, URG, after};
use crate::history::{AcceptedAck, History};
use crate::known::{CLOSE_WAIT, CLOSING, LAST_ACK, SYN_SENT};
use crate::segment::{blocks_of, is_pure_ack, scale_of, with_blocks, without_dsack, without_echo};
use crate::side::EventOutcome;
use crate::view::PeerView;

/// The unit of the kernel's scaled window, in bytes.
pub(crate) const SCALED_UNIT: u32 = 1 << 7;

/// A difference between two responses, and the state before it that may explain it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Difference {
    /// The index of the event.
    pub(crate) step: usize,
    pub(crate) kernel: EventOutcome,
    pub(crate) ours: EventOutcome,
    /// The segments that only one side sent. After an old ACK the timestamps that they echo do not
    /// count, unless nothing else differs.
    pub(crate) kernel_only: Vec<WireSegment>,
    pub(crate) ours_only: Vec<WireSegment>,
    /// The peer's view of the kernel's side and ours before the event.
    pub(crate) before: (PeerView, PeerView),
    /// The history of earlier events.
    pub(crate) history: History,
    /// The acceptable ACKs, including that of the event.
    pub(crate) acks: Vec<AcceptedAck>,
    /// Whether a segment with URG was injected, by this event or an earlier one.
    pub(crate) urgent: bool,
    /// Whether the event is data or a FIN beyond a FIN that had been received.
    pub(crate) beyond_fin: bool,
    /// Whether data or a FIN was injected beyond an acceptable FIN, in any order.
    pub(crate) conflicting_fins: bool,
    /// Whether the event is a segment that is left of one side's window, because the data it repeats
    /// was acknowledged, and inside that of the other side, which had delayed the acknowledgement.
    pub(crate) left_edge: bool,
    /// Whether an earlier event was such a segment.
    pub(crate) left_edge_before: bool,
    /// Whether a segment acknowledged less than an earlier one.
    pub(crate) old_ack: bool,
    /// The latest TSval of such a segment.
    pub(crate) old_ack_tsval: Option<u32>,
    /// Whether a segment reached the right edge of one side's window, give or take two units of the
    /// window scale.
    pub(crate) near_edge: bool,
    /// Whether one side delayed an acknowledgement and the other did not, before the event.
    pub(crate) acks_diverged: bool,
    /// Whether the byte counts of `TCP_INFO` are equal, except for SYN and FIN.
    pub(crate) same_counts: bool,
    /// Whether, after an old ACK, the segments differ only in the timestamps that they echo.
    pub(crate) only_echo: bool,
    /// Whether an earlier segment with URG had only data that had been received, or reached beyond
    /// a FIN.
    pub(crate) old_urgent: bool,
}

impl Difference {
    /// Returns whether another run differed in the same way.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let (a, b) = (&self.kernel, &other.kernel);
        self.step == other.step
            && self.kernel_only == other.kernel_only
            && self.ours_only == other.ours_only
            && (&a.returned, &a.others) == (&b.returned, &b.others)
            && (&a.polls, &a.states, &a.counts) == (&b.polls, &b.states, &b.counts)
    }
}

/// The state of the comparison of a sequence, up to the current event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    /// The findings from the events so far.
    history: History,
    beyond_fin: bool,
    conflicting_fins: bool,
    left_edge: bool,
    left_edge_before: bool,
    /// The highest end of injected data.
    data_end: Option<u32>,
    /// Whether a segment acknowledged less than an earlier one.
    old_ack: bool,
    /// The latest TSval of such a segment.
    old_ack_tsval: Option<u32>,
    highest_ack: u32,
    near_edge: bool,
    /// Whether one side delayed an acknowledgement and the other did not. The timestamp to echo
    /// depends on it (RFC 7323 4.3, Last.ACK.sent).
    acks_diverged: bool,
    kernel: PeerView,
    ours: PeerView,
    /// Whether the peer's SYN has the window scale option.
    scales: bool,
    /// Whether the side under test connects actively.
    active: bool,
    /// Whether a segment with URG had only data that had been received, or reached beyond a FIN.
    old_urgent: bool,
    /// Whether a half-open peer was reset, after which the SYN is retransmitted early.
    early_syn_retransmit: bool,
}

impl Comparison {
    /// Compares the responses to event `step`, and returns the difference if there is one.
    pub(crate) fn step(
        &mut self,
        step: usize,
        event: &FuzzEvent,
        kernel: &EventOutcome,
        ours: &EventOutcome,
    ) -> Option<Difference> {
        let history = self.history.clone();
        self.left_edge_before |= self.left_edge;
        (self.left_edge, self.beyond_fin) = (false, false);
        if let FuzzEvent::Inject(inject) = event {
            self.history.on_inject(inject, [&self.kernel, &self.ours]);
        }
        if let FuzzEvent::Inject(inject) = event
            && inject.flags & (SYN | RST) == SYN
            && !self.history.is_synchronized()
            && (self.kernel.acked.is_none() || self.ours.acked.is_none())
        {
            self.scales = inject
                .options
                .iter()
                .any(|option| scale_of(option).is_some());
        }
        if let FuzzEvent::Inject(inject) = event {
            self.track_unusual_segment(inject);
        }
        let before = (self.kernel, self.ours);
        let acks_diverged = self.acks_diverged;
        self.active |= matches!(event, FuzzEvent::Call(SocketCall::Connect(_)));
        let (mut kernel_only, mut ours_only) = self.differing(&kernel.segments, &ours.segments);
        let mut only_echo = false;
        if self.old_ack && !(kernel_only.is_empty() && ours_only.is_empty()) {
            let blank = self.differing(&without_echoes(kernel), &without_echoes(ours));
            only_echo = blank == (Vec::new(), Vec::new());
            if !only_echo {
                (kernel_only, ours_only) = blank;
            }
        }
        let kernel_only = self.without_early_syn(event, kernel_only);
        self.kernel.record(&kernel.segments, self.scales);
        self.ours.record(&ours.segments, self.scales);
        self.history.on_responses(event, kernel, ours);
        self.acks_diverged |= self.kernel.acked != self.ours.acked;
        let opens = ours.states.iter().any(|(_, state)| *state == SYN_SENT);
        self.early_syn_retransmit |= opens && ours.segments.iter().any(|s| s.flags & RST != 0);
        let has_ended = |(_, state): &(usize, u8)| [CLOSE_WAIT, LAST_ACK, CLOSING].contains(state);
        let fins = u64::from(self.history.has_fins() || ours.states.iter().any(has_ended));
        let same_counts = same_counts(kernel, ours, fins);
        let same = kernel_only.is_empty()
            && ours_only.is_empty()
            && kernel.returned == ours.returned
            && kernel.others == ours.others
            && self.same_polls(&kernel.polls, &ours.polls)
            && kernel.states == ours.states
            && same_counts;
        (!same).then(|| Difference {
            step,
            kernel: kernel.clone(),
            ours: ours.clone(),
            kernel_only,
            ours_only,
            before,
            history,
            urgent: self.history.urgent,
            beyond_fin: self.beyond_fin,
            conflicting_fins: self.conflicting_fins,
            left_edge: self.left_edge,
            left_edge_before: self.left_edge_before,
            old_ack: self.old_ack,
            old_ack_tsval: self.old_ack_tsval,
            near_edge: self.near_edge,
            acks_diverged,
            same_counts,
            acks: self.history.acks.clone(),
            only_echo,
            old_urgent: self.old_urgent,
        })
    }

    fn track_unusual_segment(&mut self, inject: &InjectedSegment) {
        let end = inject.end();
        // The latest windows of both sides, within two units of the scale.
        let (kernel, ours) = (self.kernel.edge, self.ours.edge);
        let (first, last) = if after(kernel, ours) {
            (ours, kernel)
        } else {
            (kernel, ours)
        };
        self.near_edge |= self.ours.acked.is_some()
            && after(end, first.wrapping_sub(2 * SCALED_UNIT))
            && !after(inject.seq, last.wrapping_add(2 * SCALED_UNIT));
        self.beyond_fin = self.history.fins.iter().any(|fin| {
            let fin_end = fin.wrapping_add(1);
            self.ours.acked == Some(fin_end) && end != inject.seq && after(end, fin_end)
        });
        let data_end = inject.seq.wrapping_add(inject.len);
        let is_old = |data: u32| !after(inject.end(), data);
        let repeats = [self.ours.acked, self.data_end]
            .into_iter()
            .flatten()
            .any(is_old);
        let mut fins = self.history.fins.iter();
        let past_fin = fins.any(|fin| after(inject.end(), *fin));
        self.old_urgent |= inject.flags & URG != 0 && (repeats || past_fin);
        if inject.len > 0 && self.data_end.is_none_or(|old| after(data_end, old)) {
            self.data_end = Some(data_end);
        }
        let differs = |fin: &u32| {
            let elsewhere = inject.flags & FIN != 0 && data_end != *fin;
            elsewhere || self.data_end.is_some_and(|data| after(data, *fin))
        };
        self.conflicting_fins |= self.history.fins.iter().any(differs);
        let acked = (self.kernel.acked, self.ours.acked);
        if let (Some(kernel), Some(ours)) = acked {
            let (least, most) = if after(kernel, ours) {
                (ours, kernel)
            } else {
                (kernel, ours)
            };
            self.left_edge = !after(least, end) && after(most, end);
        }
        if inject.flags & ACK != 0 {
            let is_old = after(self.highest_ack, inject.ack);
            self.old_ack |= is_old;
            if let (true, Some((val, _))) = (is_old, inject.timestamp) {
                let latest = self.old_ack_tsval.filter(|latest| after(*latest, val));
                self.old_ack_tsval = Some(latest.unwrap_or(val));
            }
            // Ignores acknowledgements far above the data sent.
            if self.highest_ack.wrapping_add(1 << 16) > inject.ack {
                self.highest_ack = self.highest_ack.max(inject.ack);
            }
        }
    }

    /// Returns the segments that only one side sent, without those that [`without_delayed`] removes.
    ///
    /// [`without_delayed`]: Self::without_delayed
    fn differing(
        &self,
        kernel: &[WireSegment],
        ours: &[WireSegment],
    ) -> (Vec<WireSegment>, Vec<WireSegment>) {
        let (kernel, ours) = self.unmatched(kernel, ours);
        let kernel = self.without_delayed(self.kernel.acked, kernel);
        (kernel, self.without_delayed(self.ours.acked, ours))
    }

    /// Removes pure acknowledgements of new data: each side may delay them differently, and on a
    /// busy machine the kernel's timer may send one at any event.
    fn without_delayed(&self, acked: Option<u32>, segments: Vec<WireSegment>) -> Vec<WireSegment> {
        let is_delayed = |segment: &WireSegment| {
            is_pure_ack(segment)
                && blocks_of(&self.without_fins(&without_dsack(segment))).is_empty()
                && acked.is_none_or(|acked| after(segment.ack, acked))
        };
        segments.into_iter().filter(|s| !is_delayed(s)).collect()
    }

    /// Removes the SYN that is retransmitted 2 ms after a RST to a half-open peer, unless the event
    /// may cause a SYN.
    fn without_early_syn(&self, event: &FuzzEvent, segments: Vec<WireSegment>) -> Vec<WireSegment> {
        let may_cause_syn = matches!(event, FuzzEvent::Inject(inject) if inject.flags & SYN != 0);
        let is_excluded =
            |s: &WireSegment| self.early_syn_retransmit && !may_cause_syn && s.flags & SYN != 0;
        segments.into_iter().filter(|s| !is_excluded(s)).collect()
    }

    /// Removes, in order, the segments that both sides sent.
    fn unmatched(
        &self,
        kernel: &[WireSegment],
        ours: &[WireSegment],
    ) -> (Vec<WireSegment>, Vec<WireSegment>) {
        let mut kernel_only = Vec::new();
        let mut rest = ours;
        for segment in kernel {
            match rest.first() {
                Some(first) if self.is_equivalent(segment, first) => rest = &rest[1..],
                _ => kernel_only.push(segment.clone()),
            }
        }
        (kernel_only, rest.to_vec())
    }

    /// Returns whether a segment of the kernel's and one of ours are equal, except for the
    /// differences that [`known::TOLERATED`](crate::known::TOLERATED) lists.
    fn is_equivalent(&self, kernel: &WireSegment, ours: &WireSegment) -> bool {
        let (mut kernel, ours) = (self.blank(kernel), self.blank(ours));
        let ahead = kernel.seq.wrapping_sub(ours.seq);
        let bare = kernel.data.is_empty() && kernel.flags & !RST == ACK;
        if bare && ahead < SCALED_UNIT {
            kernel.seq = ours.seq;
        }
        if kernel == ours {
            return true;
        }
        let sacks = [
            self.without_fins(&kernel),
            without_dsack(&kernel),
            without_dsack(&self.without_fins(&kernel)),
        ];
        if sacks.contains(&ours)
            || sacks.contains(&without_dsack(&ours))
            || kernel == without_dsack(&ours)
        {
            return true;
        }
        // A DSACK block, or a block that includes a FIN, left no space for the last block.
        let fewer = |segment: &WireSegment| {
            with_blocks(segment, |blocks| {
                blocks.pop();
            })
        };
        let bare = without_dsack(&ours);
        if sacks.iter().any(|without| *without != kernel) && sacks.contains(&fewer(&ours))
            || bare != ours && bare == fewer(&kernel)
        {
            return true;
        }
        let takes_room = !kernel.data.is_empty() || kernel.flags & (FIN | RST) != 0;
        takes_room && with_blocks(&kernel, Vec::clear) == with_blocks(&ours, Vec::clear)
    }

    /// Returns a segment without the fields that are not compared.
    fn blank(&self, segment: &WireSegment) -> WireSegment {
        let mut blank = segment.clone();
        blank.window = u16::from(segment.window != 0);
        if !segment.data.is_empty() {
            blank.flags &= !PSH;
        }
        if self.acks_diverged {
            blank = without_echo(&blank);
        }
        if self.active && segment.flags & (SYN | ACK) == SYN | ACK {
            blank.options.clear();
        }
        blank
    }

    /// Returns a segment whose SACK blocks end before a FIN.
    fn without_fins(&self, segment: &WireSegment) -> WireSegment {
        with_blocks(segment, |blocks| {
            for (_, right) in blocks.iter_mut() {
                let mut fins = self.history.fins.iter();
                if fins.any(|fin| fin.wrapping_add(1) == *right) {
                    *right = right.wrapping_sub(1);
                }
            }
            blocks.retain(|(left, right)| left != right);
        })
    }

    /// Returns whether poll bits are equal, except `POLLPRI` once urgent data was injected.
    fn same_polls(&self, kernel: &[(usize, i32)], ours: &[(usize, i32)]) -> bool {
        let urgent = if self.history.urgent {
            libc::POLLPRI.into()
        } else {
            0
        };
        let mask = |polls: &[(usize, i32)]| -> Vec<_> {
            polls
                .iter()
                .map(|(fd, bits)| (*fd, bits & !urgent))
                .collect()
        };
        mask(kernel) == mask(ours)
    }
}

fn without_echoes(outcome: &EventOutcome) -> Vec<WireSegment> {
    outcome.segments.iter().map(without_echo).collect()
}

/// Returns whether byte counts of `TCP_INFO` are equal. The kernel also counts SYN and FIN; `fins`
/// is the number of FINs that the peer may have sent.
fn same_counts(kernel: &EventOutcome, ours: &EventOutcome, fins: u64) -> bool {
    let near = |kernel: u64, ours: u64, most| kernel >= ours && kernel - ours <= most;
    kernel.counts.len() == ours.counts.len()
        && kernel
            .counts
            .iter()
            .zip(&ours.counts)
            .all(|(k, o)| k.0 == o.0 && near(k.1, o.1, 2) && near(k.2, o.2, fins))
}
