//! Limits shared by all connections of a host on the segments that an unauthenticated peer can
//! draw.

use fullsend_wire::{Instant, Rng};

/// The state of these limits; one for each host.
#[derive(Debug, Default)]
pub struct HostLimits {
    challenge_second: u64,
    challenges_left: u32,
}

impl HostLimits {
    /// Returns whether one more challenge ACK may be sent, about `per_second` at most (RFC 5961 7).
    ///
    /// The limit of each second is drawn anew, from half to one and a half of `per_second`: an
    /// attacker who counts challenge ACKs learns nothing about other connections.
    pub(crate) fn may_challenge(&mut self, now: Instant, rng: &mut Rng, per_second: u32) -> bool {
        if per_second == UNLIMITED {
            return true;
        }
        let second = 1 + now.as_millis() / 1000;
        if second != self.challenge_second {
            self.challenge_second = second;
            self.challenges_left =
                per_second.div_ceil(2) + rng.below(per_second.max(1).into()) as u32;
        }
        let may = self.challenges_left > 0;
        self.challenges_left -= u32::from(may);
        may
    }
}

/// The value of `tcp_challenge_ack_limit` that means no limit.
pub(crate) const UNLIMITED: u32 = 0x7fff_ffff;

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos, Rng, Seed};

    use super::{HostLimits, UNLIMITED};

    #[test]
    fn the_limit_of_each_second_is_random() {
        let mut rng = Rng::new(Seed::from_u64(3));
        let mut limits = HostLimits::default();
        let mut counts = alloc::vec::Vec::new();
        for second in 0..200 {
            let now = Instant::ZERO + Nanos::from_millis(1000 * second + 7);
            let sent = (0..1000).filter(|_| limits.may_challenge(now, &mut rng, 100));
            counts.push(sent.count());
        }
        assert!(counts.iter().all(|n| (50..150).contains(n)), "{counts:?}");
        let sum: usize = counts.iter().sum();
        assert!((90..110).contains(&(sum / counts.len())), "{sum}");
        counts.sort_unstable();
        counts.dedup();
        assert!(counts.len() > 50);
    }

    #[test]
    fn unlimited_allows_all_and_zero_allows_none() {
        let mut rng = Rng::new(Seed::from_u64(3));
        let mut limits = HostLimits::default();
        assert!((0..10_000).all(|_| limits.may_challenge(Instant::ZERO, &mut rng, UNLIMITED)));
        assert!(!limits.may_challenge(Instant::ZERO, &mut rng, 0));
    }
}
