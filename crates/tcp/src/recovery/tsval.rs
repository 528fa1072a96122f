//! The timestamps of retransmissions on paths that reorder.

use fullsend_wire::Nanos;

use super::{CaState, Recovery};

/// The timestamps of the retransmissions that are in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetransTsval {
    /// TSval of the last one.
    last: u32,
    /// The most ticks by which one of them was behind the clock, since there was none in flight or
    /// since a timeout.
    lag: u32,
}

impl RetransTsval {
    /// Records the TSval of a retransmission, which is `lag` ticks behind the clock. `others`:
    /// earlier ones are in flight, and an echo may be theirs.
    pub(super) fn on_retransmit(&mut self, tsval: u32, lag: u32, others: bool) {
        self.last = tsval;
        self.lag = if others { self.lag.max(lag) } else { lag };
    }

    /// Returns how many ticks a TSval may be behind the `clock`: at most `most`, and it is not
    /// older than that of the last retransmission.
    fn bound(self, clock: u32, most: u32) -> u32 {
        most.min(clock.wrapping_sub(self.last))
    }
}

impl Recovery {
    /// Returns how many ticks the TSval of a retransmission that leaves now is behind the `clock`.
    /// `age`: the time since the data was first sent; `srtt`: the smoothed round-trip time.
    ///
    /// A retransmission fills the peer's first hole, so its TSval becomes TS.Recent. The originals
    /// that it overtakes have older ones, and the peer drops them (RFC 7323 5.3): each loss would
    /// cause others. Once the path is known to reorder, the TSval is half a round trip old. It is
    /// still at least that of all data before the hole, so the peer accepts it, and as a rule
    /// larger than the original's, which is about a round trip old, so an echo shows which of them
    /// arrived (RFC 3522 3.2). After a timeout the echo has to give a round trip, and the TSval is
    /// the clock's.
    pub(crate) fn tsval_lag(&self, clock: u32, srtt: Option<Nanos>, age: Nanos) -> u32 {
        let (reorders, _) = self.reordering_stats();
        let applies = reorders > 0 && self.ca_state != CaState::Loss;
        let Some(cold) = self.cold().filter(|_| applies) else {
            return 0;
        };
        let half = srtt.unwrap_or(Nanos::ZERO) / 2;
        cold.retrans_tsval
            .bound(clock, half.min(age).as_millis() as u32)
    }

    /// Returns how far the TSval of a retransmission in flight may be behind the time at which it
    /// left.
    pub(crate) fn max_tsval_lag(&self) -> Nanos {
        let lag = self.cold().map_or(0, |cold| cold.retrans_tsval.lag);
        Nanos::from_millis(lag.into())
    }
}

#[cfg(test)]
mod tests {
    use super::RetransTsval;

    #[test]
    fn a_retransmission_is_not_older_than_the_last_one() {
        let mut tsval = RetransTsval::default();
        tsval.on_retransmit(1000, 0, false);
        assert_eq!(tsval.bound(1003, 5), 3);
        assert_eq!(tsval.bound(1007, 5), 5);
        // A clock before the last TSval has wrapped, after 49.7 days.
        assert_eq!(tsval.bound(999, 5), 5);
    }

    /// An echo does not identify its retransmission, so the largest lag in flight applies to all.
    #[test]
    fn the_lag_is_the_largest_of_those_in_flight() {
        let mut tsval = RetransTsval::default();
        tsval.on_retransmit(1000, 5, false);
        tsval.on_retransmit(1007, 0, true);
        assert_eq!(tsval.lag, 5);
        tsval.on_retransmit(1008, 6, true);
        assert_eq!(tsval.lag, 6);
        tsval.on_retransmit(1020, 0, false);
        assert_eq!(tsval.lag, 0);
    }
}
