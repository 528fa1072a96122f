//! Why is this flow slow: how large its sends are, how much room they had, and what held it back.

use alloc::boxed::Box;

use fullsend_units::{Instant, Nanos};

use crate::{Connection, Cx};

/// A rule that bounds a send, or holds it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendLimit {
    /// Nothing more was written.
    Application,
    /// Nagle's algorithm holds a partial segment.
    Nagle,
    /// `TCP_CORK` or `MSG_MORE` holds a partial segment.
    Cork,
    /// Small writes gather until the device completes what it has.
    Autocork,
    /// The congestion window (and waiting for it to admit a larger unit).
    Cwnd,
    /// The peer's window (and waiting for it to admit a larger unit).
    Rwnd,
    /// The pacing rate.
    Pacing,
    /// TCP Small Queues: enough of the flow is in the host's queues.
    Tsq,
    /// The largest transmit unit: what the device takes, or one pacing interval.
    Size,
}

impl SendLimit {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 9] = [
        Self::Application,
        Self::Nagle,
        Self::Cork,
        Self::Autocork,
        Self::Cwnd,
        Self::Rwnd,
        Self::Pacing,
        Self::Tsq,
        Self::Size,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Nagle => "nagle",
            Self::Cork => "cork",
            Self::Autocork => "autocork",
            Self::Cwnd => "cwnd",
            Self::Rwnd => "rwnd",
            Self::Pacing => "pacing",
            Self::Tsq => "tsq",
            Self::Size => "size",
        }
    }
}

/// Counts by powers of two: bucket `n` has the values from `2^n` to `2^(n+1) - 1`, and bucket 0
/// zero as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    buckets: [u32; 32],
}

impl Histogram {
    #[inline]
    pub(crate) fn add(&mut self, value: u32) {
        let count = &mut self.buckets[(value | 1).ilog2() as usize & 31];
        *count = count.wrapping_add(1);
    }

    /// All counts, smallest values first.
    pub const fn buckets(&self) -> &[u32; 32] {
        &self.buckets
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|&n| u64::from(n)).sum()
    }

    /// Buckets that are not empty: the least value of each, and its count.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        let counts = self.buckets.iter().enumerate();
        counts
            .filter(|&(_, &count)| count != 0)
            .map(|(n, &count)| (if n == 0 { 0 } else { 1 << n }, count))
    }

    /// Adds the counts of `other`, as for many flows together.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count = count.wrapping_add(more);
        }
    }
}

/// What one flow sent, and what held it back. Only text sent for the first time is counted, one
/// count for each transmit unit; a flow that never sent any has an empty report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowReport {
    /// Bytes of text of each transmit unit.
    pub send_size: Histogram,
    /// Bytes that could still go as each was sent: the smaller of the peer's window and cwnd, less
    /// what is in flight.
    pub headroom: Histogram,
    sends: [u32; 9],
    time: [Nanos; 9],
    /// What holds the flow back now.
    pub now_held_by: Option<SendLimit>,
}

impl FlowReport {
    /// Transmit units whose size this rule determined.
    pub const fn sends(&self, limit: SendLimit) -> u32 {
        self.sends[limit as usize]
    }

    /// How long this rule held the flow back, since it first sent.
    pub const fn time(&self, limit: SendLimit) -> Nanos {
        self.time[limit as usize]
    }

    /// Adds another flow's report, as for many flows together.
    pub fn merge(&mut self, other: &Self) {
        self.send_size.merge(&other.send_size);
        self.headroom.merge(&other.headroom);
        for (count, more) in self.sends.iter_mut().zip(other.sends) {
            *count = count.wrapping_add(more);
        }
        for (span, more) in self.time.iter_mut().zip(other.time) {
            *span = *span + more;
        }
    }
}

/// The report as it is made, in a box that begins with the first text.
#[derive(Debug)]
pub(crate) struct Flow {
    report: FlowReport,
    held_by: SendLimit,
    since: Instant,
}

impl Flow {
    fn new(now: Instant) -> Box<Self> {
        Box::new(Self {
            report: FlowReport::default(),
            held_by: SendLimit::Application,
            since: now,
        })
    }

    /// From now on `limit` is what holds the flow back.
    #[inline]
    pub(crate) fn held(&mut self, now: Instant, limit: SendLimit) {
        if limit != self.held_by {
            self.turn(now, limit);
        }
    }

    fn turn(&mut self, now: Instant, limit: SendLimit) {
        let time = &mut self.report.time[self.held_by as usize];
        *time = *time + now.since(self.since);
        self.since = now;
        self.held_by = limit;
    }
}

impl Connection {
    /// A unit of `len` bytes leaves; `limit` determined its size.
    #[inline]
    pub(crate) fn report_sent(&mut self, cx: &Cx<'_>, len: u32, headroom: u32, limit: SendLimit) {
        let flow = self.snd.flow.get_or_insert_with(|| Flow::new(cx.now));
        flow.report.send_size.add(len);
        flow.report.headroom.add(headroom);
        let sends = &mut flow.report.sends[limit as usize];
        *sends = sends.wrapping_add(1);
    }

    /// What holds the flow back from now on.
    #[inline]
    pub(crate) fn report_held(&mut self, cx: &Cx<'_>, limit: SendLimit) {
        if let Some(flow) = &mut self.snd.flow {
            flow.held(cx.now, limit);
        }
    }

    /// What this flow sent, and what held it back, up to `now`.
    pub fn flow_report(&self, now: Instant) -> FlowReport {
        let Some(flow) = &self.snd.flow else {
            return FlowReport::default();
        };
        let mut report = flow.report;
        let time = &mut report.time[flow.held_by as usize];
        *time = *time + now.since(flow.since);
        report.now_held_by = Some(flow.held_by);
        report
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use fullsend_units::{Instant, Nanos};

    use super::{Flow, Histogram, SendLimit};

    #[test]
    fn buckets_are_powers_of_two() {
        let mut histogram = Histogram::default();
        for value in [0, 1, 2, 3, 4, 1448, 65_160, u32::MAX] {
            histogram.add(value);
        }
        let counts: Vec<_> = histogram.iter().collect();
        let expected = [(0, 2), (2, 2), (4, 1), (1024, 1), (32_768, 1), (1 << 31, 1)];
        assert_eq!(counts, expected);
        assert_eq!(histogram.count(), 8);
    }

    #[test]
    fn limits_are_counted_by_their_place() {
        for (n, limit) in SendLimit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, n);
        }
    }

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
}
