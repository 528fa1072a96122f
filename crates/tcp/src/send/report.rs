//! Why is this flow slow: how large its sends are, how much room they had, and what held it back.

use fullsend_units::Nanos;

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
    /// Where `value` belongs.
    #[inline]
    pub(super) fn bucket(value: u32) -> u8 {
        (value | 1).ilog2() as u8
    }

    #[inline]
    pub(super) fn add(&mut self, bucket: u8, values: u32) {
        let count = &mut self.buckets[usize::from(bucket) & 31];
        *count = count.wrapping_add(values);
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
    pub(super) sends: [u32; 9],
    pub(super) time: [Nanos; 9],
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
            *span += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{Histogram, SendLimit};

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
    fn limits_are_counted_by_their_place() {
        for (n, limit) in SendLimit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, n);
        }
    }
}
