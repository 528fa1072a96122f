//! Congestion control: one trait, its algorithms by name, and the window they steer.
//!
//! The sender owns the [`Cwnd`] and decides *when* something happens (an ACK, a loss event, a
//! timeout, an idle restart); the algorithm decides *how much*.

use alloc::boxed::Box;
use core::fmt;

use fullsend_units::{Instant, Nanos, Rate, Rng, SeqNum};

mod bbr;
mod cubic;
mod cwnd;
mod dctcp;
mod hystart;
mod reno;
mod sample;

pub use bbr::Bbr;
pub use cubic::Cubic;
pub use cwnd::{Cwnd, INITIAL_WINDOW_SEGS};
pub use dctcp::Dctcp;
pub use reno::Reno;
pub use sample::{CcInfo, FlightSample, LostUnit, MarkSample, RateSample};

/// What one cumulative or selective ACK said, as an algorithm sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckSample {
    /// When the ACK arrived.
    pub now: Instant,
    /// When the last one before it moved `snd_una`, or, if that was later, when sending began
    /// again.
    pub prior: Instant,
    /// Segments that this ACK newly acknowledged (each segment of a super-segment counted).
    pub acked_segs: u32,
    /// Round-trip time of this ACK, if it gave an unambiguous one (Karn).
    pub rtt: Option<Nanos>,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Nanos,
    /// First unacknowledged byte after this ACK.
    pub snd_una: SeqNum,
    /// Next byte to be sent, which ends the current round.
    pub snd_nxt: SeqNum,
}

/// Why the window must shrink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CongestionEvent {
    /// Loss found by duplicate or selective ACKs; fast recovery begins.
    Loss,
    /// The peer echoed Congestion Experienced (RFC 3168); at most once per round trip.
    Ecn,
    /// The retransmission timer fired; the sender sets cwnd to one segment itself.
    Rto,
}

/// An algorithm that steers a [`Cwnd`].
///
/// Call [`on_ack`](Self::on_ack) only while the window may grow (not during fast recovery or a
/// window reduction, where proportional rate reduction rules). An algorithm that
/// [owns the window](Self::owns_cwnd) gets [`on_rate_sample`](Self::on_rate_sample) instead, for
/// every ACK, after [`on_lost`](Self::on_lost) for each loss that the ACK uncovered.
pub trait CongestionControl: Send + fmt::Debug {
    /// Its name, as `TCP_CONGESTION` has it.
    fn name(&self) -> &'static str;

    /// Grows the window for newly acknowledged segments. Not called where the application or the
    /// peer was what limited sending (RFC 7661).
    fn on_ack(&mut self, window: &mut Cwnd, ack: &AckSample);

    /// The new ssthresh, in segments (at least 2), as a congestion event begins. The sender
    /// stores it in the window, with what is needed for an undo ([`Cwnd::reduce`]).
    fn ssthresh(&mut self, window: &Cwnd, event: CongestionEvent, now: Instant) -> u32;

    /// A mark brings cwnd to ssthresh at once, not over a round trip.
    fn reduces_at_once(&self) -> bool {
        false
    }

    /// Text is lost while cwnd comes down because of a mark: the new ssthresh. One window is
    /// reduced once, so it differs only where a mark costs less than a loss.
    fn ssthresh_of_loss_after_mark(&self, window: &Cwnd) -> u32 {
        window.ssthresh
    }

    /// Nothing was in flight for `idle` and sending starts again; the sender has already decayed
    /// the window (RFC 2861, [`Cwnd::restart_after_idle`]).
    fn on_idle_restart(&mut self, window: &Cwnd, idle: Nanos) {
        let _ = (window, idle);
    }

    /// The reduction proved unnecessary (Eifel, DSACK): the cwnd to go back to, in segments.
    fn undo(&mut self, window: &Cwnd) -> u32 {
        window.cwnd.max(window.prior_cwnd)
    }

    /// The rate at which it wants to be paced, headers included, if it decides that itself
    /// (BBR).
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// It models the path from delivery-rate samples and sets cwnd itself, in recovery too: no
    /// proportional rate reduction, no window validation after idle time.
    fn owns_cwnd(&self) -> bool {
        false
    }

    /// An ACK arrived, of whatever kind. Only called if it [owns the window](Self::owns_cwnd).
    fn on_rate_sample(&mut self, window: &mut Cwnd, sample: &RateSample, rng: &mut Rng) {
        let _ = (window, sample, rng);
    }

    /// Segments are taken for lost. Only called if it [owns the window](Self::owns_cwnd).
    fn on_lost(&mut self, window: &Cwnd, lost: &LostUnit, now: Instant) {
        let _ = (window, lost, now);
    }

    /// All that was lost has been repaired.
    fn on_repaired(&mut self, window: &mut Cwnd) {
        let _ = window;
    }

    /// Nothing was lost after all; [`undo`](Self::undo) has restored the window.
    fn on_spurious(&mut self, now: Instant) {
        let _ = now;
    }

    /// Nothing is in flight after a time in which the application was the limit, and sending
    /// starts again.
    fn on_restart(&mut self, window: &mut Cwnd, now: Instant) {
        let _ = (window, now);
    }

    /// It keeps less in flight than the path could carry on purpose (BBR's `ProbeRTT`): what is
    /// sent now tells no rate.
    fn holds_back(&self) -> bool {
        false
    }

    /// The least segments of a transmit unit, instead of `tcp_min_tso_segs`.
    fn min_tso_segs(&self) -> Option<u32> {
        None
    }

    /// The send buffer grows to so many windows.
    fn sndbuf_expand(&self) -> u32 {
        2
    }

    /// It lives on marks: the connection asks for ECN whatever `tcp_ecn` says, all that it sends is
    /// ECN-capable, and it tells the peer of marks as RFC 8257 3.2 has it.
    fn needs_ecn(&self) -> bool {
        false
    }

    /// The peer takes no part in ECN. Only called if it [needs that](Self::needs_ecn).
    fn go_without_ecn(&mut self) {}

    /// An ACK tells how much of what arrived was marked: before [`ssthresh`](Self::ssthresh), if
    /// it has the window reduced. Only called if it [needs ECN](Self::needs_ecn).
    fn on_marks(&mut self, sample: &MarkSample) {
        let _ = sample;
    }

    /// What `ss -i` would show of it.
    fn info(&self) -> CcInfo {
        CcInfo::None
    }
}

/// The names that [`by_name`] knows.
pub const AVAILABLE: [&str; 4] = ["cubic", "reno", "bbr", "dctcp"];

/// A fresh instance of the algorithm called `name`.
///
/// # Errors
/// If there is none of that name; the error lists those there are.
pub fn by_name(name: &str) -> Result<Box<dyn CongestionControl>, UnknownCongestion> {
    match name {
        "cubic" => Ok(Box::new(Cubic::new())),
        "reno" => Ok(Box::new(Reno::new())),
        "bbr" => Ok(Box::new(Bbr::new())),
        "dctcp" => Ok(Box::new(Dctcp::new())),
        _ => Err(UnknownCongestion),
    }
}

/// Some of the algorithms, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionSet(u8);

impl CongestionSet {
    /// Every one that there is.
    pub const ALL: Self = Self((1 << AVAILABLE.len()) - 1);

    /// The one called `name` is among them.
    pub fn has(self, name: &str) -> bool {
        let place = AVAILABLE.iter().position(|known| *known == name);
        place.is_some_and(|place| self.0 >> place & 1 != 0)
    }

    /// From names with spaces between; `None` if one of them is not known, or there is none.
    pub fn parse(text: &str) -> Option<Self> {
        let place = |name| AVAILABLE.iter().position(|known| *known == name);
        let mut names = text.split_whitespace();
        let set = names.try_fold(0, |set, name| Some(set | 1 << place(name)?));
        set.filter(|set| *set != 0).map(Self)
    }
}

impl fmt::Display for CongestionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = AVAILABLE.iter().filter(|name| self.has(name));
        for (i, name) in names.enumerate() {
            let sep = if i == 0 { "" } else { " " };
            write!(f, "{sep}{name}")?;
        }
        Ok(())
    }
}

/// There is no congestion control of that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownCongestion;

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

    use super::{AVAILABLE, Bbr, CongestionSet, Cubic, Dctcp, Reno, by_name};

    #[test]
    fn every_available_name_gives_an_instance_of_that_name() {
        for name in AVAILABLE {
            assert_eq!(by_name(name).expect("available").name(), name);
        }
    }

    #[test]
    fn an_unknown_name_is_told_what_there_is() {
        let error = by_name("vegas").expect_err("not there");
        assert_eq!(
            error.to_string(),
            "unknown congestion control; available: cubic, reno, bbr, dctcp"
        );
    }

    #[test]
    fn sets_are_read_and_shown_by_name() {
        let set = CongestionSet::parse(" bbr  cubic").expect("known");
        assert!(set.has("bbr") && set.has("cubic") && !set.has("reno"));
        assert_eq!(set.to_string(), "cubic bbr");
        assert_eq!(CongestionSet::ALL.to_string(), "cubic reno bbr dctcp");
        assert_eq!(CongestionSet::parse("vegas"), None);
        assert_eq!(CongestionSet::parse(""), None);
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
