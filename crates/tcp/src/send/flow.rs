//! The state of a connection that has sent data, in a box that other connections do not have.

use alloc::boxed::Box;

use fullsend_wire::{Instant, Nanos, cold_path, prefetch};

use super::{BlockedBy, FlowReport, Histogram, SendLimit, Sender};

/// [`crate::legacy::Legacy::max_burst`]: most segments sent by one call.
const MAX_BURST_SEGS: u8 = 5;

/// The entries of the report for one super-segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReportEntry {
    size_bucket: u8,
    headroom_bucket: u8,
    limit: SendLimit,
}

/// The state of a flow that sends. The fields that each super-segment touches come first, on one
/// cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FlowState {
    /// The length of the present run of equal super-segments, in `run`. Most flows send equal ones for
    /// long, and then do not touch the report for each.
    run_len: u32,
    run: ReportEntry,
    limited_by: SendLimit,
    limited_since: Instant,
    /// Since when data is in flight or waits, and the sum of earlier times (`tcpi_busy_time`).
    busy_since: Instant,
    busy: Nanos,
    /// The share of `busy` in which the writer waits for room in the send buffer (`tcpi_sndbuf_limited`).
    sndbuf_limited_since: Instant,
    sndbuf_limited: Nanos,
    /// The time at which to try to send again (pacing, the longest time of a cork); `FAR_FUTURE` for
    /// none.
    send_timer: Instant,
    /// Super-segments given to the host, and those that it completed, modulo 2^16. The host's queues
    /// are first in, first out, so a number shows whether its super-segment is still there.
    enqueued: u16,
    completed: u16,
    /// Segments that the present call may still send; `None` before the first retransmission.
    burst_segs: Option<u8>,
    /// The report, without the present run.
    report: FlowReport,
}

const _: () = assert!(core::mem::offset_of!(FlowState, report) <= 64);

impl FlowState {
    pub(super) fn new(now: Instant) -> Box<Self> {
        Box::new(Self {
            report: FlowReport::default(),
            run: ReportEntry {
                size_bucket: 0,
                headroom_bucket: 0,
                limit: SendLimit::Application,
            },
            run_len: 0,
            limited_by: SendLimit::Application,
            limited_since: now,
            busy_since: Instant::FAR_FUTURE,
            busy: Nanos::ZERO,
            sndbuf_limited_since: Instant::FAR_FUTURE,
            sndbuf_limited: Nanos::ZERO,
            send_timer: Instant::FAR_FUTURE,
            enqueued: 0,
            completed: 0,
            burst_segs: None,
        })
    }

    /// Prefetches the fields that each super-segment touches.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.run_len);
        prefetch(&self.send_timer);
        prefetch(&self.busy_since);
    }

    #[inline]
    fn record_sent(&mut self, entry: ReportEntry) {
        if entry != self.run {
            self.report.add_run(self.run, self.run_len);
            self.run = entry;
            self.run_len = 0;
        }
        self.run_len = self.run_len.wrapping_add(1);
    }

    /// Records that `limit` holds the flow back from `now` on.
    #[inline]
    fn on_limited(&mut self, now: Instant, limit: SendLimit) {
        if limit != self.limited_by {
            self.change_limit(now, limit);
        }
    }

    #[inline(never)]
    fn change_limit(&mut self, now: Instant, limit: SendLimit) {
        self.report.time[self.limited_by as usize] += now.since(self.limited_since);
        self.limited_since = now;
        self.limited_by = limit;
    }

    /// Records that the flow is busy: data is in flight or waits.
    #[inline]
    pub(crate) fn begin_busy(&mut self, now: Instant) {
        self.busy_since = self.busy_since.min(now);
    }

    /// Records that all data is acknowledged.
    #[inline]
    pub(crate) fn end_busy(&mut self, now: Instant) {
        self.busy += now.since(self.busy_since);
        self.busy_since = Instant::FAR_FUTURE;
        self.end_sndbuf_limited(now);
    }

    /// Records that all data is sent and the writer waits for room in the send buffer.
    pub(crate) fn begin_sndbuf_limited(&mut self, now: Instant) {
        self.sndbuf_limited_since = self.sndbuf_limited_since.min(now);
    }

    /// Records that the send buffer has room again.
    #[inline]
    pub(crate) fn end_sndbuf_limited(&mut self, now: Instant) {
        self.sndbuf_limited += now.since(self.sndbuf_limited_since);
        self.sndbuf_limited_since = Instant::FAR_FUTURE;
    }

    /// Returns `tcpi_busy_time` and `tcpi_sndbuf_limited`.
    pub(crate) fn busy_times(&self, now: Instant) -> (Nanos, Nanos) {
        (
            self.busy + now.since(self.busy_since),
            self.sndbuf_limited + now.since(self.sndbuf_limited_since),
        )
    }

    /// Returns the number of the next super-segment that the host gets.
    #[inline]
    pub(super) fn next_number(&self) -> u16 {
        self.enqueued.wrapping_add(1)
    }

    /// Counts a super-segment that the host got.
    #[inline]
    pub(super) fn on_enqueued(&mut self) {
        self.enqueued = self.next_number();
    }

    #[inline]
    pub(super) fn on_completed(&mut self) {
        self.completed = self.completed.wrapping_add(1);
    }

    /// Returns whether the host has not yet completed the super-segment of this number.
    pub(crate) fn is_in_host_queue(&self, number: u16) -> bool {
        (number.wrapping_sub(self.completed) as i16) > 0
    }

    /// Returns the segments that the present call may still send.
    pub(super) fn burst_segs(&self) -> u32 {
        self.burst_segs.map_or(u32::MAX, u32::from)
    }

    fn consume_burst(&mut self, segs: u32) {
        if cfg!(feature = "legacy")
            && let Some(left) = &mut self.burst_segs
        {
            *left = (*left).saturating_sub(segs.min(255) as u8);
        }
    }

    pub(super) fn send_timer(&self) -> Instant {
        self.send_timer
    }

    pub(super) fn set_send_timer(&mut self, at: Instant) {
        self.send_timer = at;
    }

    /// Begins a new call, with a new burst.
    fn reset_burst(&mut self) {
        if let Some(left) = &mut self.burst_segs {
            *left = MAX_BURST_SEGS;
        }
    }

    /// Bounds bursts from the first retransmission on. Returns the most segments that it may send.
    pub(super) fn limit_burst(&mut self) -> u32 {
        self.burst_segs.get_or_insert(MAX_BURST_SEGS);
        MAX_BURST_SEGS.into()
    }
}

impl FlowReport {
    fn add_run(&mut self, entry: ReportEntry, count: u32) {
        self.send_size.add(entry.size_bucket, count);
        self.headroom.add(entry.headroom_bucket, count);
        let sends = &mut self.sends[entry.limit as usize];
        *sends = sends.wrapping_add(count);
    }
}

impl Sender {
    /// Returns when to try to send again; `FAR_FUTURE` for never.
    #[inline]
    pub(crate) fn send_timer(&self) -> Instant {
        let flow = self.flow.as_deref();
        flow.map_or(Instant::FAR_FUTURE, |flow| flow.send_timer)
    }

    /// Returns until when pacing defers data.
    #[inline]
    pub(crate) fn paced_until(&self) -> Option<Instant> {
        match self.blocked_by {
            BlockedBy::Pacing => self.flow.as_ref().map(|flow| flow.send_timer),
            _ => None,
        }
    }

    /// Requests the data that waited for the send timer, if it is due: for the departure time of
    /// pacing, or for the end of a cork's limit. `cork` is `TCP_CORK`.
    pub(crate) fn on_timer(&mut self, now: Instant, cork: bool) {
        let Some(flow) = self.flow.as_mut().filter(|flow| flow.send_timer <= now) else {
            return;
        };
        flow.send_timer = Instant::FAR_FUTURE;
        if self.blocked_by == BlockedBy::Nagle && (cork || self.msg_more) {
            // The writer has paused, so the data ends a burst.
            let end = self.write_seq();
            self.pushed_seq = end;
            self.pending.request_push(end);
        }
        self.pending.retry();
    }

    /// Returns whether the host has not yet completed the super-segment of this number.
    pub(crate) fn is_in_host_queue(&self, number: u16) -> bool {
        let flow = self.flow.as_ref();
        flow.is_some_and(|flow| flow.is_in_host_queue(number))
    }

    /// Prefetches the fields that each super-segment touches.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Some(flow) = &self.flow {
            flow.prefetch();
        }
    }

    /// Begins a new call, with a new burst.
    #[inline]
    pub(super) fn reset_burst(&mut self) {
        if let Some(flow) = &mut self.flow {
            flow.reset_burst();
        }
    }

    /// Limits the burst of the present call. Returns the segments that are left of it.
    pub(crate) fn limit_burst(&mut self, now: Instant) -> u32 {
        self.flow(now).limit_burst()
    }

    /// Records that data is in flight.
    #[inline]
    pub(crate) fn begin_busy(&mut self, now: Instant) {
        if let Some(flow) = &mut self.flow {
            flow.begin_busy(now);
        }
    }

    /// Records that all data is acknowledged.
    #[inline]
    pub(crate) fn end_busy(&mut self, now: Instant) {
        if let Some(flow) = &mut self.flow {
            flow.end_busy(now);
        }
    }

    /// Records that all data is sent and the writer waits for room in the send buffer.
    pub(crate) fn begin_sndbuf_limited(&mut self, now: Instant) {
        // A connection that has sent data in its SYN only has no report.
        if let Some(flow) = &mut self.flow {
            flow.begin_sndbuf_limited(now);
        }
    }

    /// Records that the send buffer has room again.
    #[inline]
    pub(crate) fn end_sndbuf_limited(&mut self, now: Instant) {
        if let Some(flow) = &mut self.flow {
            flow.end_sndbuf_limited(now);
        }
    }

    /// Returns `tcpi_busy_time` and `tcpi_sndbuf_limited`.
    pub(crate) fn busy_times(&self, now: Instant) -> (Nanos, Nanos) {
        let flow = self.flow.as_ref();
        flow.map_or((Nanos::ZERO, Nanos::ZERO), |flow| flow.busy_times(now))
    }

    /// Ends autocorking of the last super-segment.
    #[inline]
    pub(super) fn end_autocork(&mut self) {
        if self.blocked_by == BlockedBy::Autocork {
            self.blocked_by = BlockedBy::Nothing;
        }
    }

    /// Returns the flow's state, and creates it if need be.
    #[inline]
    pub(super) fn flow(&mut self, now: Instant) -> &mut FlowState {
        self.flow.get_or_insert_with(|| {
            cold_path();
            FlowState::new(now)
        })
    }

    /// Records that a super-segment of `len` bytes in `segs` segments is sent, whose size `limit`
    /// determined. Returns its number.
    #[inline]
    pub(super) fn report_sent(
        &mut self,
        now: Instant,
        (len, segs): (u32, u32),
        headroom: u32,
        limit: SendLimit,
    ) -> u16 {
        let flow = self.flow(now);
        flow.record_sent(ReportEntry {
            size_bucket: Histogram::bucket(len),
            headroom_bucket: Histogram::bucket(headroom),
            limit,
        });
        flow.consume_burst(segs);
        let number = flow.next_number();
        flow.on_enqueued();
        number
    }

    /// Records the limit that holds the flow back from now on.
    #[inline]
    pub(crate) fn report_limit(&mut self, now: Instant, limit: SendLimit) {
        if let Some(flow) = &mut self.flow {
            flow.on_limited(now, limit);
        }
    }

    /// Returns the report of this flow up to `now`.
    pub(crate) fn flow_report(&self, now: Instant) -> FlowReport {
        let Some(flow) = &self.flow else {
            return FlowReport::default();
        };
        let mut report = flow.report;
        report.add_run(flow.run, flow.run_len);
        report.time[flow.limited_by as usize] += now.since(flow.limited_since);
        report.limited_by = Some(flow.limited_by);
        report
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos};

    use super::{FlowState, Histogram, SendLimit};

    #[test]
    fn limit_time_is_counted_between_changes() {
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let mut flow = FlowState::new(at(5));
        flow.on_limited(at(6), SendLimit::Application);
        flow.on_limited(at(8), SendLimit::Cwnd);
        flow.on_limited(at(9), SendLimit::Cwnd);
        flow.on_limited(at(15), SendLimit::Pacing);
        let time = |limit| flow.report.time(limit).as_millis();
        assert_eq!(time(SendLimit::Application), 3);
        assert_eq!(time(SendLimit::Cwnd), 7);
        assert_eq!(time(SendLimit::Pacing), 0);
    }

    #[test]
    fn equal_super_segments_are_counted_as_a_run() {
        let mut lengths = [0; 3];
        let mut flow = FlowState::new(Instant::ZERO);
        for (n, len) in [5000, 6000, 100, 7000, 7000, 7000].into_iter().enumerate() {
            flow.record_sent(super::ReportEntry {
                size_bucket: Histogram::bucket(len),
                headroom_bucket: 16,
                limit: SendLimit::Size,
            });
            let mut report = flow.report;
            report.add_run(flow.run, flow.run_len);
            let buckets = report.send_size.buckets();
            lengths = [buckets[12], buckets[6], report.headroom.buckets()[16]];
            assert_eq!(report.send_size.count(), n as u64 + 1);
            assert_eq!(report.sends(SendLimit::Size), n as u32 + 1);
        }
        assert_eq!(lengths, [5, 1, 6]);
    }

    #[test]
    fn super_segment_is_in_host_queue_until_completed() {
        let mut flow = FlowState::new(Instant::ZERO);
        flow.enqueued = u16::MAX - 1;
        flow.completed = u16::MAX - 1;
        let numbers = [(); 3].map(|()| {
            flow.on_enqueued();
            flow.enqueued
        });
        assert_eq!(numbers, [u16::MAX, 0, 1]);
        for n in 0..=3 {
            let in_host_queue = numbers.map(|number| flow.is_in_host_queue(number));
            assert_eq!(in_host_queue, [n < 1, n < 2, n < 3]);
            flow.on_completed();
        }
    }

    /// illumos before the fix of bug 5295: from the first retransmission on each event sends five
    /// segments at most.
    #[test]
    fn bursts_are_limited_after_the_first_retransmission() {
        let mut flow = FlowState::new(Instant::ZERO);
        flow.consume_burst(100);
        flow.reset_burst();
        assert_eq!(flow.burst_segs(), u32::MAX);
        assert_eq!((flow.limit_burst(), flow.burst_segs()), (5, 5));
        flow.consume_burst(2);
        assert_eq!((flow.limit_burst(), flow.burst_segs()), (5, 3));
        flow.consume_burst(256);
        assert_eq!(flow.burst_segs(), 0);
        flow.reset_burst();
        assert_eq!(flow.burst_segs(), 5);
    }

    /// `tcpi_busy_time` and `tcpi_sndbuf_limited`: each span counts from its first beginning to its
    /// end, and a span that has not ended counts up to now.
    #[test]
    fn busy_and_sndbuf_limited_times_add_up() {
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let mut flow = FlowState::new(at(1));
        let times = |flow: &FlowState, ms| {
            let (busy, sndbuf_limited) = flow.busy_times(at(ms));
            (busy.as_millis(), sndbuf_limited.as_millis())
        };
        assert_eq!(times(&flow, 9), (0, 0));
        flow.begin_busy(at(10));
        flow.begin_busy(at(12));
        flow.begin_sndbuf_limited(at(13));
        flow.begin_sndbuf_limited(at(14));
        assert_eq!(times(&flow, 15), (5, 2));
        flow.end_sndbuf_limited(at(16));
        assert_eq!(times(&flow, 20), (10, 3));
        flow.begin_sndbuf_limited(at(20));
        flow.end_busy(at(22));
        assert_eq!(times(&flow, 30), (12, 5));
        flow.begin_busy(at(40));
        flow.end_busy(at(47));
        assert_eq!(times(&flow, 50), (19, 5));
    }
}
