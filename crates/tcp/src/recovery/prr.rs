//! Proportional rate reduction: brings cwnd down to ssthresh over one round trip (RFC 9937).

/// The state of one reduction. All counts are segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prr {
    delivered: u32,
    out: u32,
    recover_fs: u32,
}

impl Prr {
    /// Begins a reduction with `recover_fs` segments in flight (RecoverFS).
    pub(crate) fn begin(recover_fs: u32) -> Self {
        Self {
            delivered: 0,
            out: 0,
            recover_fs: recover_fs.max(1),
        }
    }

    /// Processes an ACK that delivered `delivered` segments, and returns the new cwnd. `in_flight`:
    /// segments in flight after it; `safe`: it moved snd_una and marked no segment lost.
    pub(crate) fn on_ack(
        &mut self,
        delivered: u32,
        in_flight: u32,
        ssthresh: u32,
        safe: bool,
    ) -> u32 {
        self.delivered = self.delivered.saturating_add(delivered);
        let mut send = if in_flight > ssthresh {
            let share = u64::from(self.delivered) * u64::from(ssthresh);
            let share = share.div_ceil(u64::from(self.recover_fs)) as u32;
            share.saturating_sub(self.out)
        } else {
            let bound = self.delivered.saturating_sub(self.out).max(delivered);
            (bound + u32::from(safe)).min(ssthresh - in_flight)
        };
        // The first fast retransmit is always sent.
        if self.out == 0 {
            send = send.max(1);
        }
        in_flight.saturating_add(send)
    }

    /// Counts segments sent during the reduction, retransmissions included.
    pub(crate) fn on_sent(&mut self, segs: u32) {
        self.out = self.out.saturating_add(segs);
    }
}

#[cfg(test)]
mod tests {
    use super::Prr;

    /// RFC 9937 section 9, first example: of 20 segments in flight one is lost, ssthresh is 10, and
    /// one segment is sent for every two delivered.
    #[test]
    fn halves_evenly_over_the_round_trip() {
        let mut prr = Prr::begin(20);
        let (mut in_flight, mut sent) = (20 - 3 - 1, 0);
        let first = prr.on_ack(3, in_flight, 10, false);
        prr.on_sent(first - in_flight);
        sent += first - in_flight;
        in_flight = first;
        for _ in 0..16 {
            in_flight -= 1;
            let cwnd = prr.on_ack(1, in_flight, 10, false);
            sent += cwnd - in_flight;
            prr.on_sent(cwnd - in_flight);
            in_flight = cwnd;
        }
        assert_eq!((sent, in_flight), (10, 10));
    }

    /// Below ssthresh, after many losses: packet conservation, and one segment more while an ACK
    /// shows progress.
    #[test]
    fn grows_back_carefully_after_heavy_loss() {
        let mut prr = Prr::begin(20);
        assert_eq!(prr.on_ack(3, 2, 10, false), 5);
        prr.on_sent(3);
        assert_eq!(prr.on_ack(1, 4, 10, false), 5);
        prr.on_sent(1);
        assert_eq!(prr.on_ack(1, 4, 10, true), 6);
        prr.on_sent(2);
        assert_eq!(prr.on_ack(8, 9, 10, true), 10);
    }

    /// RFC 9937: at ssthresh the number of segments missing in flight counts, and no longer the
    /// share.
    #[test]
    fn nothing_is_missing_at_ssthresh() {
        let mut prr = Prr::begin(20);
        prr.on_sent(1);
        assert_eq!(prr.on_ack(4, 10, 10, false), 10);
    }

    #[test]
    fn the_first_retransmission_is_always_sent() {
        let mut prr = Prr::begin(100);
        assert_eq!(prr.on_ack(0, 99, 50, false), 100);
    }
}
