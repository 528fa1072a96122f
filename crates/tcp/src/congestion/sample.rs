//! The input of algorithms that model the path: delivery-rate samples and single losses.

use core::fmt;

use fullsend_wire::{Instant, Mss, Nanos, Rate, SeqNum};

/// The delivery of one flight, from the transmission of the newest segment that an ACK delivered
/// (and the ACK before it) to that ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlightSample {
    /// Segments delivered before it was sent.
    pub(crate) prior_delivered_segs: u32,
    /// Segments delivered since.
    pub(crate) delivered_segs: u32,
    /// Time in which they were delivered; `None` if it cannot be determined reliably.
    pub(crate) interval: Option<Nanos>,
    /// Segments marked lost since it was sent.
    pub(crate) lost_segs: u32,
    /// Segments in flight right after it was sent.
    pub(crate) in_flight_segs: u32,
    /// Whether the application, not the path, was the limit.
    pub(crate) app_limited: bool,
}

/// The result of one ACK, for an algorithm that [owns the
/// window](super::Algorithm::owns_cwnd).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RateSample {
    /// The time at which the ACK arrived.
    pub(crate) now: Instant,
    /// Segments delivered over the connection's life; wraps.
    pub(crate) delivered_segs: u32,
    /// Segments delivered by this ACK.
    pub(crate) newly_delivered_segs: u32,
    /// Segments in flight after this ACK.
    pub(crate) in_flight_segs: u32,
    /// RTT of the newest segment that this ACK delivered, if it is unambiguous and the segment
    /// overtook no other.
    pub(crate) rtt: Option<Nanos>,
    /// Smoothed round-trip time; zero before the first sample.
    pub(crate) srtt: Nanos,
    /// The flight that the newest segment belonged to; `None` if nothing was delivered.
    pub(crate) flight: Option<FlightSample>,
    /// Whether the window limited sending.
    pub(crate) cwnd_limited: bool,
    /// Whether the window was used so far that it may grow (RFC 7661).
    pub(crate) cwnd_used: bool,
    /// Whether fast recovery is in progress.
    pub(crate) in_recovery: bool,
    /// Whether the peer sends SACK, so that more than one loss per round trip is visible.
    pub(crate) sack: bool,
    /// The largest super-segment that may be sent now, in segments.
    pub(crate) send_quantum_segs: u32,
    /// Payload bytes of a full segment.
    pub(crate) mss: Mss,
}

/// Segments of one transmission that are marked lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LostSegments {
    /// Sequence number of the first byte.
    pub(crate) seq: SeqNum,
    /// Sequence number after the last byte.
    pub(crate) end: SeqNum,
    /// Number of segments.
    pub(crate) segs: u32,
    /// Segments lost since these were sent, including these.
    pub(crate) lost_segs: u32,
    /// Segments in flight right after these were sent.
    pub(crate) in_flight_segs: u32,
    /// Whether they were sent while the application was the limit.
    pub(crate) app_limited: bool,
    /// Segments delivered over the connection's life when the loss was detected; wraps.
    pub(crate) delivered_segs: u32,
    /// Segments delivered over the connection's life when they were sent; wraps.
    pub(crate) prior_delivered_segs: u32,
}

/// The marked (CE) share of our data, as one ACK reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MarkSample {
    /// Bytes that this ACK newly acknowledged, cumulatively or selectively.
    pub(crate) acked_bytes: u32,
    /// Bytes among these that were marked.
    pub(crate) marked_bytes: u32,
    /// First unacknowledged byte after this ACK.
    pub(crate) snd_una: SeqNum,
    /// Next byte to be sent.
    pub(crate) snd_nxt: SeqNum,
}

/// The state of an algorithm, under the names of `ss -i`.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum CcInfo {
    /// No state other than the window.
    None,
    /// BBR's model of the path.
    Bbr {
        /// Estimated bandwidth of the path for this flow.
        bw: Rate,
        /// Round-trip time without queues.
        min_rtt: Nanos,
        /// Pacing rate as a multiple of the bandwidth.
        pacing_gain: f64,
        /// Window as a multiple of the bandwidth-delay product.
        cwnd_gain: f64,
    },
    /// DCTCP's estimate of the marked share.
    Dctcp {
        /// Whether the last data from the peer was marked.
        ce_state: bool,
        /// Average share of marked bytes, in 1,024ths.
        alpha: u32,
        /// Bytes marked in the present window.
        ab_ecn: u32,
        /// Bytes acknowledged in the present window.
        ab_tot: u32,
    },
    /// DCTCP with a peer that does not use ECN: Reno.
    DctcpFallback,
}

impl fmt::Display for CcInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Bbr {
                bw,
                min_rtt,
                pacing_gain,
                cwnd_gain,
            } => {
                let us = min_rtt.as_micros();
                write!(
                    f,
                    "bbr:(bw:{}bps,mrtt:{}.{:03},pacing_gain:{pacing_gain},cwnd_gain:{cwnd_gain})",
                    bw.0.saturating_mul(8),
                    us / 1000,
                    us % 1000,
                )
            }
            Self::Dctcp {
                ce_state,
                alpha,
                ab_ecn,
                ab_tot,
            } => {
                let ce_state = u8::from(*ce_state);
                write!(
                    f,
                    "dctcp:(ce_state:{ce_state},alpha:{alpha},ab_ecn:{ab_ecn},ab_tot:{ab_tot})"
                )
            }
            Self::DctcpFallback => f.write_str("dctcp:fallback_mode"),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use fullsend_wire::{Nanos, Rate};

    use super::CcInfo;

    #[test]
    fn info_reads_like_that_of_ss() {
        let info = CcInfo::Bbr {
            bw: Rate(12_500_000),
            min_rtt: Nanos::from_micros(40_063),
            pacing_gain: 1.25,
            cwnd_gain: 2.0,
        };
        let text = "bbr:(bw:100000000bps,mrtt:40.063,pacing_gain:1.25,cwnd_gain:2)";
        assert_eq!(info.to_string(), text);
        assert_eq!(CcInfo::None.to_string(), "");
        let info = CcInfo::Dctcp {
            ce_state: true,
            alpha: 512,
            ab_ecn: 1460,
            ab_tot: 14_600,
        };
        let text = "dctcp:(ce_state:1,alpha:512,ab_ecn:1460,ab_tot:14600)";
        assert_eq!(info.to_string(), text);
        assert_eq!(CcInfo::DctcpFallback.to_string(), "dctcp:fallback_mode");
    }
}
