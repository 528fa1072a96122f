//! What queues count, in the words of `tc -s qdisc`.

use core::fmt;

use crate::QdiscConfig;

/// What a queueing discipline has done, and what waits in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QdiscStats {
    /// What it is.
    pub config: QdiscConfig,
    /// Bytes that left, as on the wire.
    pub sent_bytes: u64,
    /// Packets that left, as on the wire.
    pub sent_packets: u64,
    /// Packets (a super-segment is one) that it did not take.
    pub dropped: u64,
    /// Times that a packet had to wait for its time or for tokens.
    pub overlimits: u64,
    /// Bytes that wait, as on the wire.
    pub backlog_bytes: u64,
    /// Packets (a super-segment is one) that wait.
    pub backlog_packets: u32,
    /// What only `fq` counts.
    pub fq: Option<FqStats>,
}

/// What `fq` counts besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FqStats {
    /// Flows it knows.
    pub flows: u32,
    /// Of those, without a packet.
    pub inactive: u32,
    /// Of those, waiting for a departure time.
    pub throttled_flows: u32,
    /// Idle flows it forgot.
    pub gc: u64,
    /// Packets without a flow, which went first.
    pub highprio: u64,
    /// Times that a flow began to wait for a departure time.
    pub throttled: u64,
    /// Packets marked Congestion Experienced.
    pub ce_mark: u64,
    /// Packets dropped because their flow had too many.
    pub flows_plimit: u64,
    /// Packets whose departure was moved to the horizon.
    pub horizon_caps: u64,
    /// Packets dropped because their departure was beyond the horizon.
    pub horizon_drops: u64,
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

/// The counters that every queue keeps as it works.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    sent_bytes: u64,
    sent_packets: u64,
    pub(crate) dropped: u64,
    pub(crate) overlimits: u64,
    pub(crate) backlog_bytes: u64,
}

impl Counters {
    #[inline]
    pub(crate) const fn count_sent(&mut self, bytes: u32, segments: u32) {
        self.backlog_bytes -= bytes as u64;
        self.sent_bytes += bytes as u64;
        self.sent_packets += segments as u64;
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
    /// The statistics of a queue that has done nothing; all that `noqueue` has.
    pub const fn no_stats(self) -> QdiscStats {
        QdiscStats::new(self)
    }
}

impl fmt::Display for QdiscStats {
    /// The lines of `tc -s qdisc`.
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
