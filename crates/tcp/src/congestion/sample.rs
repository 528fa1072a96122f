//! What an algorithm that models the path is told: delivery-rate samples and single losses.

use core::fmt;

use fullsend_units::{Instant, Mss, Nanos, Rate, SeqNum};

/// How a flight got through: from the sending of the newest segment that an ACK delivered (with
/// the ACK before it) to that ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlightSample {
    /// Segments that had been delivered when it was sent.
    pub prior_delivered_segs: u32,
    /// Segments delivered since.
    pub delivered_segs: u32,
    /// In this time; `None` if it cannot be told reliably.
    pub interval: Option<Nanos>,
    /// Segments marked lost since it was sent.
    pub lost_segs: u32,
    /// Segments in flight right after it was sent.
    pub in_flight_segs: u32,
    /// The application, and not the path, was the limit.
    pub app_limited: bool,
}

/// One ACK, as an algorithm sees it that [steers in recovery
/// too](super::CongestionControl::owns_cwnd).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateSample {
    /// When the ACK arrived.
    pub now: Instant,
    /// Segments delivered over the connection's life; wraps.
    pub delivered_segs: u32,
    /// Of these, by this ACK.
    pub newly_delivered_segs: u32,
    /// Segments in flight after this ACK.
    pub in_flight_segs: u32,
    /// Round trip of the newest segment that this ACK delivered, if unambiguous and if it overtook
    /// none.
    pub rtt: Option<Nanos>,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Nanos,
    /// The flight that the newest segment belonged to; `None` if nothing was delivered.
    pub flight: Option<FlightSample>,
    /// The window was what limited sending.
    pub cwnd_limited: bool,
    /// Fast recovery is under way.
    pub in_recovery: bool,
    /// The peer sends SACK, so that more than one loss a round trip is seen.
    pub sack: bool,
    /// The largest transmit unit that goes out now, in segments.
    pub send_quantum_segs: u32,
    /// Segment size.
    pub mss: Mss,
}

/// Segments of one transmit unit that are taken for lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostUnit {
    /// The first one's first byte.
    pub seq: SeqNum,
    /// The first byte behind the last one.
    pub end: SeqNum,
    /// How many.
    pub segs: u32,
    /// Segments lost since these were sent, these included.
    pub lost_segs: u32,
    /// Segments in flight right after these were sent.
    pub in_flight_segs: u32,
    /// They were sent while the application was the limit.
    pub app_limited: bool,
    /// Segments delivered over the connection's life as the loss was found; wraps.
    pub delivered_segs: u32,
    /// The same, as they were sent.
    pub prior_delivered_segs: u32,
}

/// How much of our text arrived marked (CE), as one ACK tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MarkSample {
    /// Bytes that this ACK newly acknowledged, cumulatively or selectively.
    pub acked_bytes: u32,
    /// Of these, marked.
    pub marked_bytes: u32,
    /// First unacknowledged byte after this ACK.
    pub snd_una: SeqNum,
    /// Next byte to be sent.
    pub snd_nxt: SeqNum,
}

/// What an algorithm tells of itself, in the words of `ss -i`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CcInfo {
    /// Nothing beside the window.
    None,
    /// BBR's model of the path.
    Bbr {
        /// Bandwidth that the path is thought to have for this flow.
        bw: Rate,
        /// Round-trip time without queues.
        min_rtt: Nanos,
        /// Paced at so many times the bandwidth.
        pacing_gain: f64,
        /// The window is so many times the bandwidth-delay product.
        cwnd_gain: f64,
    },
    /// DCTCP's estimate of what the path marks.
    Dctcp {
        /// The text that the peer sent last came marked.
        ce_state: bool,
        /// The share of bytes that were marked lately, in 1,024ths.
        alpha: u32,
        /// Bytes marked in the present window.
        ab_ecn: u32,
        /// Bytes acknowledged in the present window.
        ab_tot: u32,
    },
    /// DCTCP with a peer that takes no part in ECN: Reno.
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

    use fullsend_units::{Nanos, Rate};

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
