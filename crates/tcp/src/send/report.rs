//! The report that shows why a flow is slow: the sizes of its sends, their headroom, and what held
//! the flow back.

use fullsend_wire::Nanos;

/// A rule that bounds a send, or holds it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SendLimit {
    /// The application wrote no more data.
    Application,
    /// Nagle's algorithm holds a partial segment.
    Nagle,
    /// `TCP_CORK` or `MSG_MORE` holds a partial segment.
    Cork,
    /// Autocorking: small writes gather until the device completes earlier data.
    Autocork,
    /// The congestion window (and waiting for it to admit a larger super-segment).
    Cwnd,
    /// The peer's window (and waiting for it to admit a larger super-segment).
    Rwnd,
    /// The pacing rate.
    Pacing,
    /// TCP Small Queues: enough of the flow is in the host's queues.
    Tsq,
    /// The largest super-segment: of the device, or of one pacing interval.
    Size,
}

impl SendLimit {
    /// All limits, in the order of their declaration.
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

    /// Returns the limit's name in reports.
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

/// A histogram by powers of two: bucket `n` counts the values from `2^n` to `2^(n+1) - 1`, and bucket
/// 0 also zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    buckets: [u32; 32],
}

impl Histogram {
    /// Returns the bucket of `value`.
    #[inline]
    pub(super) fn bucket(value: u32) -> u8 {
        (value | 1).ilog2() as u8
    }

    #[inline]
    pub(super) fn add(&mut self, bucket: u8, values: u32) {
        let count = &mut self.buckets[usize::from(bucket) & 31];
        *count = count.wrapping_add(values);
    }

    /// Returns all counts, smallest values first.
    pub const fn buckets(&self) -> &[u32; 32] {
        &self.buckets
    }

    /// Returns the number of values counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|&n| u64::from(n)).sum()
    }

    /// Returns the least value and the count of each bucket that is not empty.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        let counts = self.buckets.iter().enumerate();
        counts
            .filter(|&(_, &count)| count != 0)
            .map(|(n, &count)| (if n == 0 { 0 } else { 1 << n }, count))
    }

    /// Adds the counts of `other`, for a sum over flows.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count = count.wrapping_add(more);
        }
    }
}

/// The sends of one flow, and the limits that held it back. Each super-segment of new data counts
/// once; retransmissions do not count. The report of a flow that never sent data is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FlowReport {
    /// Payload bytes of each super-segment.
    pub send_size: Histogram,
    /// Bytes that could be sent at each send: the smaller of the peer's window and cwnd, less the data
    /// in flight.
    pub headroom: Histogram,
    pub(super) sends: [u32; 9],
    pub(super) time: [Nanos; 9],
    /// The limit that holds the flow back now.
    pub limited_by: Option<SendLimit>,
}

impl FlowReport {
    /// Returns the number of super-segments whose size this limit determined.
    pub const fn sends(&self, limit: SendLimit) -> u32 {
        self.sends[limit as usize]
    }

    /// Returns how long this limit has held the flow back since its first send.
    pub const fn time(&self, limit: SendLimit) -> Nanos {
        self.time[limit as usize]
    }

    /// Adds another flow's report, for a sum over flows.
    pub fn merge(&mut self, other: &Self) {
        self.send_size.merge(&other.send_size);
        self.headroom.merge(&other.headroom);
        for (count, more) in self.sends.iter_mut().zip(other.sends) {
            *count = count.wrapping_add(more);
        }
        for (span, more) in self.time.iter_mut().zip(other.time) {
            *span += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use fullsend_wire::Nanos;

    use super::{FlowReport, Histogram, SendLimit};

    #[test]
    fn buckets_are_powers_of_two() {
        let mut histogram = Histogram::default();
        for value in [0, 1, 2, 3, 4, 1448, 65_160, u32::MAX] {
            histogram.add(Histogram::bucket(value), 1);
        }
        let counts: Vec<_> = histogram.iter().collect();
        let expected = [(0, 2), (2, 2), (4, 1), (1024, 1), (32_768, 1), (1 << 31, 1)];
        assert_eq!(counts, expected);
        assert_eq!(histogram.count(), 8);
    }

    #[test]
    fn limits_are_indexed_in_declaration_order() {
        for (n, limit) in SendLimit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, n);
        }
    }

    /// The reports of many flows are added, each count and each time by itself.
    #[test]
    fn reports_of_many_flows_add_up() {
        let flow = |n: u32| {
            let mut report = FlowReport::default();
            report.send_size.add(3, n);
            report.headroom.add(4, 2 * n);
            for (i, count) in report.sends.iter_mut().enumerate() {
                *count = n * i as u32;
            }
            for (i, span) in report.time.iter_mut().enumerate() {
                *span = Nanos::from_millis(u64::from(n) * i as u64);
            }
            report
        };
        let mut sum = flow(3);
        sum.merge(&flow(5));
        assert_eq!(sum, flow(8));
        assert_eq!(sum.sends(SendLimit::Cwnd), 8 * 4);
        assert_eq!(sum.time(SendLimit::Tsq), Nanos::from_millis(8 * 7));
        assert_eq!((sum.send_size.count(), sum.headroom.count()), (8, 16));
    }

    #[test]
    fn limit_names_are_unique() {
        let names: Vec<_> = SendLimit::ALL.map(SendLimit::name).into();
        let expected = "application nagle cork autocork cwnd rwnd pacing tsq size";
        assert_eq!(names.join(" "), expected);
    }
}
