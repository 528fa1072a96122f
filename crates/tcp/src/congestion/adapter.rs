//! A program's congestion control behind the interface of the built-in ones.

use alloc::boxed::Box;

use fullsend_wire::{Instant, Mss, Nanos, Rate, Rng};

use super::{
    Ack, AckSample, Algorithm, CongestionControl, CongestionEvent, Cwnd, HEADERS_BYTES, Loss,
    LostSegments, RateSample,
};

/// The largest window in segments. It is far above any send buffer, and sums and products of windows
/// do not overflow.
const MAX_SEGS: u32 = 1 << 24;

/// Converts between the segments of a connection and the bytes of a [`CongestionControl`], and
/// limits what the latter returns to values that the connection can use.
#[derive(Debug)]
pub(super) struct Adapter {
    control: Box<dyn CongestionControl>,
    /// Payload bytes of a full segment; `None` before the first call of `on_mss`.
    mss: Option<Mss>,
    pacing_rate: Option<Rate>,
    /// Segments delivered over the connection's life at the begin of the present round trip.
    round_begin: u32,
}

impl Adapter {
    pub(super) fn new(control: Box<dyn CongestionControl>) -> Self {
        Self {
            control,
            mss: None,
            pacing_rate: None,
            round_begin: 0,
        }
    }

    fn mss_bytes(&self) -> u64 {
        self.mss.unwrap_or(Mss::DEFAULT_V4).bytes().into()
    }

    fn bytes(&self, segs: u32) -> u64 {
        u64::from(segs) * self.mss_bytes()
    }

    fn segs(&self, bytes: u64, least: u32) -> u32 {
        let segs = bytes / self.mss_bytes();
        segs.clamp(least.into(), MAX_SEGS.into()) as u32
    }

    fn ssthresh_segs(&self) -> u32 {
        let bytes = self.control.ssthresh_bytes();
        bytes.map_or(u32::MAX, |bytes| self.segs(bytes, 2))
    }

    /// Returns whether the newest data of `sample` was sent in the present round trip, and then begins
    /// the next one.
    fn starts_round(&mut self, sample: &RateSample) -> bool {
        let starts = sample.flight.is_some_and(|flight| {
            flight.prior_delivered_segs.wrapping_sub(self.round_begin) as i32 >= 0
        });
        if starts {
            self.round_begin = sample.delivered_segs;
        }
        starts
    }
}

impl Algorithm for Adapter {
    fn name(&self) -> &'static str {
        self.control.name()
    }

    fn owns_cwnd(&self) -> bool {
        true
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.pacing_rate
    }

    /// Does nothing: [`on_rate_sample`](Algorithm::on_rate_sample) reports ACKs.
    fn on_ack(&mut self, _: &mut Cwnd, _: &AckSample) {}

    fn on_rate_sample(&mut self, window: &mut Cwnd, sample: &RateSample, _: &mut Rng) {
        let flight = sample.flight;
        let rate = flight.and_then(|flight| {
            let delivered = u128::from(self.bytes(flight.delivered_segs)) * 1_000_000_000;
            let interval = flight.interval.filter(|interval| *interval > Nanos::ZERO)?;
            let rate = delivered / u128::from(interval.as_nanos());
            Some(Rate(u64::try_from(rate).unwrap_or(u64::MAX)))
        });
        let ack = Ack {
            now: sample.now,
            delivered_bytes: self.bytes(sample.newly_delivered_segs),
            in_flight_bytes: self.bytes(sample.in_flight_segs),
            rtt: sample.rtt,
            srtt: sample.srtt,
            delivery_rate: rate,
            app_limited: flight.is_some_and(|flight| flight.app_limited),
            window_used: sample.cwnd_used,
            in_recovery: sample.in_recovery,
            starts_round: self.starts_round(sample),
        };
        self.control.on_ack(&ack);
        self.sync(window);
    }

    fn on_lost(&mut self, _: &Cwnd, lost: &LostSegments, now: Instant) {
        self.control.on_lost(&Loss {
            now,
            lost_bytes: self.bytes(lost.segs),
            in_flight_bytes: self.bytes(lost.in_flight_segs),
        });
    }

    fn ssthresh(&mut self, _: &Cwnd, event: CongestionEvent, now: Instant) -> u32 {
        self.control.on_congestion(event, now);
        self.ssthresh_segs()
    }

    /// Returns the present window: the control restores its own.
    fn undo(&mut self, window: &Cwnd) -> u32 {
        window.cwnd
    }

    fn on_spurious_loss(&mut self, now: Instant) {
        self.control.on_spurious(now);
    }

    fn on_tx_start(&mut self, window: &mut Cwnd, now: Instant) {
        self.control.on_restart(now);
        self.sync(window);
    }

    fn on_syn_lost(&mut self, window: &mut Cwnd, now: Instant) {
        self.control.on_congestion(CongestionEvent::Rto, now);
        self.sync(window);
    }

    fn on_mss(&mut self, window: &mut Cwnd, mss: Mss) {
        self.mss = Some(mss);
        self.control.on_mss(mss.bytes());
        self.sync(window);
    }

    fn sync(&mut self, window: &mut Cwnd) {
        window.cwnd = self.segs(self.control.window_bytes(), 1);
        window.ssthresh = self.ssthresh_segs();
        let least = self.mss_bytes() + u64::from(HEADERS_BYTES);
        let rate = self.control.pacing_rate();
        self.pacing_rate = rate.map(|rate| Rate(rate.0.max(least)));
    }
}

#[cfg(test)]
mod tests;
