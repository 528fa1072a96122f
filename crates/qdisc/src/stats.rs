//! Counters of queues, as in the output of `tc -s qdisc`.

use core::fmt;
use core::ops::AddAssign;

use crate::QdiscConfig;

/// The counters and the backlog of a queueing discipline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QdiscStats {
    /// The queueing discipline and its parameters.
    pub config: QdiscConfig,
    /// Bytes that left, as on the wire.
    pub sent_bytes: u64,
    /// Packets that left, as on the wire.
    pub sent_packets: u64,
    /// Packets that were not accepted, as they would have been on the wire.
    pub dropped: u64,
    /// Times that a packet had to wait for its departure time or for tokens.
    pub overlimits: u64,
    /// Queued bytes, as on the wire.
    pub backlog_bytes: u64,
    /// Queued packets (a super-segment is one).
    pub backlog_packets: u32,
    /// Additional counters of `fq`.
    pub fq: Option<FqStats>,
}

/// The additional counters of `fq`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FqStats {
    /// Flows in the table.
    pub flows: u32,
    /// Flows without packets.
    pub inactive: u32,
    /// Flows that wait for a departure time.
    pub throttled_flows: u32,
    /// Idle flows that were evicted.
    pub gc: u64,
    /// Packets without a flow, which are sent first.
    pub highprio: u64,
    /// Times that a flow began to wait for a departure time.
    pub throttled: u64,
    /// Packets marked Congestion Experienced.
    pub ce_mark: u64,
    /// Segments dropped because their flow was at its limit: of a super-segment all, as in
    /// [`QdiscStats::dropped`].
    pub flows_plimit: u64,
    /// Packets whose departure time was moved to the horizon: a super-segment is one.
    pub horizon_caps: u64,
    /// Segments dropped because their departure time was beyond the horizon, counted as
    /// [`flows_plimit`](Self::flows_plimit).
    pub horizon_drops: u64,
}

impl AddAssign for FqStats {
    fn add_assign(&mut self, other: Self) {
        self.flows += other.flows;
        self.inactive += other.inactive;
        self.throttled_flows += other.throttled_flows;
        self.gc += other.gc;
        self.highprio += other.highprio;
        self.throttled += other.throttled;
        self.ce_mark += other.ce_mark;
        self.flows_plimit += other.flows_plimit;
        self.horizon_caps += other.horizon_caps;
        self.horizon_drops += other.horizon_drops;
    }
}

/// Adds the counters and the backlog of another queue of the same device.
impl AddAssign for QdiscStats {
    fn add_assign(&mut self, other: Self) {
        self.sent_bytes += other.sent_bytes;
        self.sent_packets += other.sent_packets;
        self.dropped += other.dropped;
        self.overlimits += other.overlimits;
        self.backlog_bytes += other.backlog_bytes;
        self.backlog_packets += other.backlog_packets;
        if let (Some(fq), Some(other)) = (&mut self.fq, other.fq) {
            *fq += other;
        }
    }
}

impl QdiscStats {
    pub(crate) const fn new(config: QdiscConfig) -> Self {
        Self {
            config,
            sent_bytes: 0,
            sent_packets: 0,
            dropped: 0,
            overlimits: 0,
            backlog_bytes: 0,
            backlog_packets: 0,
            fq: None,
        }
    }
}

/// The counters that every queue maintains.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommonCounters {
    sent_bytes: u64,
    sent_packets: u64,
    dropped: u64,
    pub(crate) overlimits: u64,
    pub(crate) backlog_bytes: u64,
}

impl CommonCounters {
    #[inline]
    pub(crate) const fn count_sent(&mut self, bytes: u32, segments: u32) {
        self.backlog_bytes -= bytes as u64;
        self.sent_bytes += bytes as u64;
        self.sent_packets += segments as u64;
    }

    /// Counts a packet that is dropped in the unit of those sent: a super-segment as the packets that it
    /// would have been.
    #[inline]
    pub(crate) const fn count_dropped(&mut self, segments: u32) {
        self.dropped += segments as u64;
    }

    pub(crate) const fn stats(&self, config: QdiscConfig, backlog_packets: u32) -> QdiscStats {
        QdiscStats {
            sent_bytes: self.sent_bytes,
            sent_packets: self.sent_packets,
            dropped: self.dropped,
            overlimits: self.overlimits,
            backlog_bytes: self.backlog_bytes,
            backlog_packets,
            ..QdiscStats::new(config)
        }
    }
}

impl QdiscConfig {
    /// Returns the statistics of an unused queue, which are also those of `noqueue`.
    pub const fn empty_stats(self) -> QdiscStats {
        QdiscStats::new(self)
    }
}

impl fmt::Display for QdiscStats {
    /// Writes the lines of `tc -s qdisc`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "qdisc {}", self.config)?;
        writeln!(
            f,
            " Sent {} bytes {} pkt (dropped {}, overlimits {} requeues 0)",
            self.sent_bytes, self.sent_packets, self.dropped, self.overlimits
        )?;
        write!(
            f,
            " backlog {}b {}p requeues 0",
            self.backlog_bytes, self.backlog_packets
        )?;
        match &self.fq {
            Some(fq) => write!(f, "\n{fq}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FqStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  flows {} (inactive {} throttled {})",
            self.flows, self.inactive, self.throttled_flows
        )?;
        write!(
            f,
            "  gc {} highprio {} throttled {} ce_mark {} flows_plimit {} horizon_caps {} \
             horizon_drops {}",
            self.gc,
            self.highprio,
            self.throttled,
            self.ce_mark,
            self.flows_plimit,
            self.horizon_caps,
            self.horizon_drops
        )
    }
}
