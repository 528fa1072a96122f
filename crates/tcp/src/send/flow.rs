//! What a connection keeps from its first text on, in a box that idle connections do not have.

use alloc::boxed::Box;

use fullsend_units::{Instant, Nanos};

use super::{FlowReport, Histogram, SendLimit};
use crate::{Connection, Cx};

/// [`crate::legacy::Legacy::max_burst`]: segments that one call might send.
const MAX_BURST_SEGS: u8 = 5;

/// What the report tells of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sent {
    size_bucket: u8,
    headroom_bucket: u8,
    limit: SendLimit,
}

/// The state of a flow that sends. What each unit touches comes first and lies on one cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Flow {
    /// The last unit, and how many in a row looked like it: most flows send alike all the time,
    /// and need not touch the report for each unit.
    run_units: u32,
    run: Sent,
    held_by: SendLimit,
    since: Instant,
    /// Something is in flight or waits (`tcpi_busy_time`): since when, and the times before.
    busy_since: Instant,
    busy: Nanos,
    /// Of that, the user waits for room in the send buffer (`tcpi_sndbuf_limited`).
    sndbuf_since: Instant,
    sndbuf: Nanos,
    /// When to try again (pacing, a cork's ceiling); `FAR_FUTURE` when nothing waits for a time.
    pub(crate) wake_at: Instant,
    /// Units handed to the host, and units that it completed, modulo 2^16. Its queues are first in,
    /// first out, so that a unit's number tells whether it is still there.
    sent_units: u16,
    completed_units: u16,
    /// Since the first retransmission: segments that this event may still send.
    burst_segs: Option<u8>,
    /// Without the units of the present run.
    report: FlowReport,
}

const _: () = assert!(core::mem::offset_of!(Flow, report) <= 64);

impl Flow {
    pub(super) fn new(now: Instant) -> Box<Self> {
        Box::new(Self {
            report: FlowReport::default(),
            run: Sent {
                size_bucket: 0,
                headroom_bucket: 0,
                limit: SendLimit::Application,
            },
            run_units: 0,
            held_by: SendLimit::Application,
            since: now,
            busy_since: Instant::FAR_FUTURE,
            busy: Nanos::ZERO,
            sndbuf_since: Instant::FAR_FUTURE,
            sndbuf: Nanos::ZERO,
            wake_at: Instant::FAR_FUTURE,
            sent_units: 0,
            completed_units: 0,
            burst_segs: None,
        })
    }

    /// Reads what each unit wants of it.
    #[inline]
    pub(crate) fn fetch(&self) -> u64 {
        u64::from(self.run_units) ^ self.wake_at.as_nanos() ^ self.busy_since.as_nanos()
    }

    #[inline]
    fn sent(&mut self, unit: Sent) {
        if unit != self.run {
            self.report.add_run(self.run, self.run_units);
            self.run = unit;
            self.run_units = 0;
        }
        self.run_units = self.run_units.wrapping_add(1);
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

    /// Something was sent while nothing was in flight, or waits.
    #[inline]
    pub(crate) fn begin_busy(&mut self, now: Instant) {
        self.busy_since = self.busy_since.min(now);
    }

    /// All is acknowledged.
    #[inline]
    pub(crate) fn end_busy(&mut self, now: Instant) {
        self.busy += now.since(self.busy_since);
        self.busy_since = Instant::FAR_FUTURE;
        self.end_sndbuf(now);
    }

    /// All is sent, and the user would write more if there were room.
    pub(crate) fn begin_sndbuf(&mut self, now: Instant) {
        self.sndbuf_since = self.sndbuf_since.min(now);
    }

    /// There is room again.
    #[inline]
    pub(crate) fn end_sndbuf(&mut self, now: Instant) {
        self.sndbuf += now.since(self.sndbuf_since);
        self.sndbuf_since = Instant::FAR_FUTURE;
    }

    /// `tcpi_busy_time` and `tcpi_sndbuf_limited`.
    pub(crate) fn times(&self, now: Instant) -> (Nanos, Nanos) {
        (
            self.busy + now.since(self.busy_since),
            self.sndbuf + now.since(self.sndbuf_since),
        )
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
    pub(crate) fn is_in_host(&self, number: u16) -> bool {
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

    /// The first retransmission: from here on, bursts are bounded. Segments it may have itself.
    pub(super) fn latch_burst(&mut self) -> u32 {
        self.burst_segs.get_or_insert(MAX_BURST_SEGS);
        MAX_BURST_SEGS.into()
    }
}

impl FlowReport {
    #[inline(never)]
    fn add_run(&mut self, unit: Sent, units: u32) {
        self.send_size.add(unit.size_bucket, units);
        self.headroom.add(unit.headroom_bucket, units);
        let sends = &mut self.sends[unit.limit as usize];
        *sends = sends.wrapping_add(units);
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
        flow.sent(Sent {
            size_bucket: Histogram::bucket(len),
            headroom_bucket: Histogram::bucket(headroom),
            limit,
        });
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
        report.add_run(flow.run, flow.run_units);
        report.time[flow.held_by as usize] += now.since(flow.since);
        report.now_held_by = Some(flow.held_by);
        report
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::{Instant, Nanos};

    use super::{Flow, Histogram, SendLimit};

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
    fn units_that_look_alike_are_counted_together() {
        let mut lengths = [0; 3];
        let mut flow = Flow::new(Instant::ZERO);
        for (n, len) in [5000, 6000, 100, 7000, 7000, 7000].into_iter().enumerate() {
            flow.sent(super::Sent {
                size_bucket: Histogram::bucket(len),
                headroom_bucket: 16,
                limit: SendLimit::Size,
            });
            let mut report = flow.report;
            report.add_run(flow.run, flow.run_units);
            let buckets = report.send_size.buckets();
            lengths = [buckets[12], buckets[6], report.headroom.buckets()[16]];
            assert_eq!(report.send_size.count(), n as u64 + 1);
            assert_eq!(report.sends(SendLimit::Size), n as u32 + 1);
        }
        assert_eq!(lengths, [5, 1, 6]);
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
