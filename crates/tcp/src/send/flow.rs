//! What a connection keeps from its first text on, in a box that idle connections do not have.

use alloc::boxed::Box;

use fullsend_units::Instant;

use super::{FlowReport, SendLimit};
use crate::{Connection, Cx};

/// [`crate::legacy::Legacy::max_burst`]: segments that one call might send.
const MAX_BURST_SEGS: u8 = 5;

/// The state of a flow that sends.
#[derive(Debug)]
pub(crate) struct Flow {
    report: FlowReport,
    held_by: SendLimit,
    since: Instant,
    /// When to try again (pacing, a cork's ceiling); `FAR_FUTURE` when nothing waits for a time.
    pub(crate) wake_at: Instant,
    /// Units handed to the host, and units that it completed, modulo 2^16. Its queues are first in,
    /// first out, so that a unit's number tells whether it is still there.
    sent_units: u16,
    completed_units: u16,
    /// Since the first retransmission: segments that this event may still send.
    burst_segs: Option<u8>,
}

impl Flow {
    pub(super) fn new(now: Instant) -> Box<Self> {
        Box::new(Self {
            report: FlowReport::default(),
            held_by: SendLimit::Application,
            since: now,
            wake_at: Instant::FAR_FUTURE,
            sent_units: 0,
            completed_units: 0,
            burst_segs: None,
        })
    }

    /// From now on `limit` is what holds the flow back.
    #[inline]
    fn held(&mut self, now: Instant, limit: SendLimit) {
        if limit != self.held_by {
            self.turn(now, limit);
        }
    }

    fn turn(&mut self, now: Instant, limit: SendLimit) {
        self.report.time[self.held_by as usize] += now.since(self.since);
        self.since = now;
        self.held_by = limit;
    }

    /// The number of the next unit that goes to the host.
    #[inline]
    pub(super) fn next_number(&self) -> u16 {
        self.sent_units.wrapping_add(1)
    }

    /// It went.
    #[inline]
    pub(super) fn on_handed_out(&mut self) {
        self.sent_units = self.next_number();
    }

    #[inline]
    pub(super) fn on_completed(&mut self) {
        self.completed_units = self.completed_units.wrapping_add(1);
    }

    /// The host has not completed the unit of this number yet.
    pub(super) fn is_in_host(&self, number: u16) -> bool {
        (number.wrapping_sub(self.completed_units) as i16) > 0
    }

    /// Segments that may still go now.
    pub(super) fn burst_segs(&self) -> u32 {
        self.burst_segs.map_or(u32::MAX, u32::from)
    }

    fn spend_burst(&mut self, segs: u32) {
        if let Some(left) = &mut self.burst_segs {
            *left = (*left).saturating_sub(segs.min(255) as u8);
        }
    }

    /// Something happened: a new call.
    pub(crate) fn renew_burst(&mut self) {
        if let Some(left) = &mut self.burst_segs {
            *left = MAX_BURST_SEGS;
        }
    }

    /// The first retransmission: from here on, bursts are bounded.
    /// Segments it may have itself.
    pub(super) fn latch_burst(&mut self) -> u32 {
        self.burst_segs.get_or_insert(MAX_BURST_SEGS);
        MAX_BURST_SEGS.into()
    }
}

impl Connection {
    /// The box; begins it.
    #[inline]
    pub(super) fn flow(&mut self, now: Instant) -> &mut Flow {
        self.snd.flow.get_or_insert_with(|| Flow::new(now))
    }

    /// A unit of `len` bytes in `segs` segments leaves; `limit` determined its size. Its number.
    #[inline]
    pub(super) fn report_sent(
        &mut self,
        cx: &Cx<'_>,
        (len, segs): (u32, u32),
        headroom: u32,
        limit: SendLimit,
    ) -> u16 {
        let flow = self.flow(cx.now);
        flow.report.send_size.add(len);
        flow.report.headroom.add(headroom);
        let sends = &mut flow.report.sends[limit as usize];
        *sends = sends.wrapping_add(1);
        flow.spend_burst(segs);
        let number = flow.next_number();
        flow.on_handed_out();
        number
    }

    /// What holds the flow back from now on.
    #[inline]
    pub(super) fn report_held(&mut self, now: Instant, limit: SendLimit) {
        if let Some(flow) = &mut self.snd.flow {
            flow.held(now, limit);
        }
    }

    /// What this flow sent, and what held it back, up to `now`.
    pub fn flow_report(&self, now: Instant) -> FlowReport {
        let Some(flow) = &self.snd.flow else {
            return FlowReport::default();
        };
        let mut report = flow.report;
        report.time[flow.held_by as usize] += now.since(flow.since);
        report.now_held_by = Some(flow.held_by);
        report
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::{Instant, Nanos};

    use super::{Flow, SendLimit};

    #[test]
    fn time_is_counted_from_turn_to_turn() {
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let mut flow = Flow::new(at(5));
        flow.held(at(6), SendLimit::Application);
        flow.held(at(8), SendLimit::Cwnd);
        flow.held(at(9), SendLimit::Cwnd);
        flow.held(at(15), SendLimit::Pacing);
        let time = |limit| flow.report.time(limit).as_millis();
        assert_eq!(time(SendLimit::Application), 3);
        assert_eq!(time(SendLimit::Cwnd), 7);
        assert_eq!(time(SendLimit::Pacing), 0);
    }

    #[test]
    fn a_unit_is_in_the_host_until_as_many_are_completed() {
        let mut flow = Flow::new(Instant::ZERO);
        flow.sent_units = u16::MAX - 1;
        flow.completed_units = u16::MAX - 1;
        let numbers = [(); 3].map(|()| {
            flow.on_handed_out();
            flow.sent_units
        });
        assert_eq!(numbers, [u16::MAX, 0, 1]);
        for n in 0..=3 {
            let in_host = numbers.map(|number| flow.is_in_host(number));
            assert_eq!(in_host, [n < 1, n < 2, n < 3]);
            flow.on_completed();
        }
    }
}
