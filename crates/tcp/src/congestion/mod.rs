//! Congestion control: the algorithms by name, and the trait of those that a program brings along.
//!
//! A connection owns the window and decides *when* an event happens (an ACK, a loss, a timeout, an
//! idle restart); the algorithm decides *by how much* the window changes. The built-in algorithms
//! count in segments. Those of a program implement [`CongestionControl`], which counts in bytes.

use alloc::boxed::Box;
use core::fmt;

use fullsend_wire::{Instant, Mss, Nanos, Rate, Rng, SeqNum};

mod adapter;
mod bbr;
mod control;
mod cubic;
mod custom;
mod cwnd;
mod dctcp;
mod hystart;
mod reno;
mod sample;
mod usage;

pub use crate::congestion_set::{AVAILABLE, CongestionSet};
pub(crate) use bbr::Bbr;
pub(crate) use control::Congestion;
pub(crate) use cubic::Cubic;
pub use custom::{Ack, CongestionControl, CongestionFactory, Loss};
pub(crate) use cwnd::{Cwnd, INITIAL_WINDOW_SEGS};
pub(crate) use dctcp::Dctcp;
pub(crate) use reno::Reno;
pub use sample::CcInfo;
pub(crate) use sample::{FlightSample, LostSegments, MarkSample, RateSample};
use usage::CwndUsage;

/// Approximate header bytes of a segment, which count in pacing rates.
pub(crate) const HEADERS_BYTES: u32 = 60;

/// The result of one cumulative or selective ACK, as an algorithm receives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AckSample {
    /// The time at which the ACK arrived.
    pub(crate) now: Instant,
    /// The time at which the previous ACK advanced `snd_una`, or at which sending began again, if later.
    pub(crate) prior: Instant,
    /// Segments newly acknowledged by this ACK (each segment of a super-segment counts).
    pub(crate) acked_segs: u32,
    /// RTT sample of this ACK, if it gave an unambiguous one (Karn).
    pub(crate) rtt: Option<Nanos>,
    /// Smoothed round-trip time; zero before the first sample.
    pub(crate) srtt: Nanos,
    /// First unacknowledged byte after this ACK.
    pub(crate) snd_una: SeqNum,
    /// Next byte to be sent; its acknowledgement ends the current round.
    pub(crate) snd_nxt: SeqNum,
}

/// The reason for a reduction of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CongestionEvent {
    /// Loss detected by duplicate or selective ACKs; fast recovery begins.
    Loss,
    /// The peer echoed Congestion Experienced (RFC 3168); at most once per round trip.
    Ecn,
    /// The retransmission timer fired; the sender itself sets cwnd to one segment.
    Rto,
}

/// A congestion control algorithm, which controls a [`Cwnd`]. That of a program is behind an
/// [`Adapter`](adapter::Adapter).
///
/// Call [`on_ack`](Self::on_ack) only while the window may grow (not during fast recovery or a
/// window reduction, which proportional rate reduction governs). An algorithm that [owns the
/// window](Self::owns_cwnd) gets [`on_rate_sample`](Self::on_rate_sample) instead, for every ACK,
/// after [`on_lost`](Self::on_lost) for each loss that the ACK revealed.
pub(crate) trait Algorithm: Send + fmt::Debug {
    /// Returns the name for `TCP_CONGESTION`.
    fn name(&self) -> &'static str;

    /// Grows the window for newly acknowledged segments. Not called while the application or the
    /// peer's window limits sending (RFC 7661).
    fn on_ack(&mut self, window: &mut Cwnd, ack: &AckSample);

    /// Returns the new ssthresh, in segments (at least 2), when a congestion event begins. The
    /// sender stores it in the window, together with the state for an undo ([`Cwnd::reduce`]).
    fn ssthresh(&mut self, window: &Cwnd, event: CongestionEvent, now: Instant) -> u32;

    /// Returns whether a mark reduces cwnd to ssthresh immediately rather than over a round trip.
    fn reduces_at_once(&self) -> bool {
        false
    }

    /// Returns the new ssthresh after a loss during the reduction caused by a mark. A window is
    /// reduced once, so it differs only for algorithms that reduce less for a mark than for a loss.
    fn ssthresh_of_loss_after_mark(&self, window: &Cwnd) -> u32 {
        window.ssthresh
    }

    /// Adapts to a restart after nothing was in flight for `idle`; the sender has already decayed
    /// the window (RFC 2861, [`Cwnd::restart_after_idle`]).
    fn on_idle_restart(&mut self, window: &Cwnd, idle: Nanos) {
        let _ = (window, idle);
    }

    /// Returns the cwnd to restore, in segments, after a reduction proved unnecessary (Eifel,
    /// DSACK).
    fn undo(&mut self, window: &Cwnd) -> u32 {
        window.cwnd.max(window.prior_cwnd)
    }

    /// Returns the pacing rate, headers included, if the algorithm determines it (BBR).
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// Returns whether the algorithm models the path from delivery-rate samples and sets cwnd
    /// itself, also in recovery: no proportional rate reduction, no window validation after idle
    /// time.
    fn owns_cwnd(&self) -> bool {
        false
    }

    /// Processes an ACK of any kind. Only called if it [owns the window](Self::owns_cwnd).
    fn on_rate_sample(&mut self, window: &mut Cwnd, sample: &RateSample, rng: &mut Rng) {
        let _ = (window, sample, rng);
    }

    /// Processes segments marked lost. Only called if it [owns the window](Self::owns_cwnd).
    fn on_lost(&mut self, window: &Cwnd, lost: &LostSegments, now: Instant) {
        let _ = (window, lost, now);
    }

    /// Ends recovery once all lost segments were delivered.
    fn on_recovered(&mut self, window: &mut Cwnd) {
        let _ = window;
    }

    /// Processes the detection that nothing was lost; [`undo`](Self::undo) has restored the window.
    fn on_spurious_loss(&mut self, now: Instant) {
        let _ = now;
    }

    /// Sets the window after SYNs were lost, before the first data is sent (RFC 5681 3.1).
    fn on_syn_lost(&mut self, window: &mut Cwnd, now: Instant) {
        let _ = now;
        window.cwnd = 1;
    }

    /// Adapts to the payload size of a full segment, now or after a change.
    fn on_mss(&mut self, window: &mut Cwnd, mss: Mss) {
        let _ = (window, mss);
    }

    /// Sets the window after [`ssthresh`](Self::ssthresh),
    /// [`ssthresh_of_loss_after_mark`](Self::ssthresh_of_loss_after_mark), [`on_lost`](Self::on_lost) or
    /// [`on_spurious_loss`](Self::on_spurious_loss), if the algorithm keeps one of its own.
    fn sync(&mut self, window: &mut Cwnd) {
        let _ = window;
    }

    /// Adapts to a restart of sending with nothing in flight, after the application was the limit.
    fn on_tx_start(&mut self, window: &mut Cwnd, now: Instant) {
        let _ = (window, now);
    }

    /// Returns whether the algorithm deliberately keeps less in flight than the path could carry
    /// (BBR's `ProbeRTT`), so that rate samples of data sent now do not count.
    fn is_self_limited(&self) -> bool {
        false
    }

    /// Returns the least segments in a super-segment, if it replaces `tcp_min_tso_segs`.
    fn min_tso_segs(&self) -> Option<u32> {
        None
    }

    /// Returns the size to which the send buffer grows, in windows.
    fn sndbuf_expand(&self) -> u32 {
        2
    }

    /// Returns whether the algorithm requires ECN: the connection requests it whatever `tcp_ecn`
    /// is, all its segments are ECN-capable, and it reports marks to the peer according to RFC 8257
    /// 3.2.
    fn needs_ecn(&self) -> bool {
        false
    }

    /// Adapts to a peer without ECN. Only called if it [needs ECN](Self::needs_ecn).
    fn disable_ecn(&mut self) {}

    /// Processes the marked share of acknowledged data, before [`ssthresh`](Self::ssthresh) if that
    /// has the window reduced. Only called if it [needs ECN](Self::needs_ecn).
    fn on_marks(&mut self, sample: &MarkSample) {
        let _ = sample;
    }

    /// Returns the state that `ss -i` shows.
    fn info(&self) -> CcInfo {
        CcInfo::None
    }
}

/// Returns a new instance of the algorithm called `name`.
///
/// # Errors
///
/// [`UnknownCongestion`] if there is none of that name; its message lists the available ones.
pub(crate) fn by_name(name: &str) -> Result<Box<dyn Algorithm>, UnknownCongestion> {
    match name {
        "cubic" => Ok(Box::new(Cubic::new())),
        "reno" => Ok(Box::new(Reno::new())),
        "bbr" => Ok(Box::new(Bbr::new())),
        "dctcp" => Ok(Box::new(Dctcp::new())),
        _ => Err(UnknownCongestion),
    }
}

/// The error for an unknown congestion control name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnknownCongestion;

impl fmt::Display for UnknownCongestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown congestion control; available: ")?;
        for (i, name) in AVAILABLE.iter().enumerate() {
            let sep = if i == 0 { "" } else { ", " };
            write!(f, "{sep}{name}")?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownCongestion {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::{AVAILABLE, Bbr, Cubic, Dctcp, Reno, by_name};

    #[test]
    fn every_available_name_gives_an_instance_of_that_name() {
        for name in AVAILABLE {
            assert_eq!(by_name(name).expect("available").name(), name);
        }
    }

    #[test]
    fn an_unknown_name_gets_the_available_ones() {
        let error = by_name("vegas").expect_err("not there");
        assert_eq!(
            error.to_string(),
            "unknown congestion control; available: cubic, reno, bbr, dctcp"
        );
    }

    #[test]
    fn instances_are_small() {
        assert!(size_of::<Cubic>() <= 96);
        assert!(size_of::<Reno>() <= 96);
        assert!(size_of::<Dctcp>() <= 32);
        let bbr = size_of::<Bbr>();
        assert!(bbr <= 392, "{bbr}");
    }
}
