//! Entropy as an argument: a host gets a [`Seed`] and derives all random numbers from it.

/// The entropy from which a host's ISNs, ports, hash keys and IDs derive.
///
/// Real hosts get it from the operating system; simulations get it from the test, which prints it
/// on failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seed(pub [u64; 4]);

impl Seed {
    /// Returns a seed derived from `n`, for simulations and tests.
    pub const fn from_u64(n: u64) -> Self {
        let mut state = n;
        let mut out = [0; 4];
        let mut i = 0;
        while i < 4 {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            out[i] = z ^ (z >> 31);
            i += 1;
        }
        Self(out)
    }
}

/// A small deterministic generator (xoshiro256++).
///
/// It is not for secrets: keys that an unauthenticated peer may attack are computed by `SipHash`
/// with a key from the [`Seed`].
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Returns a generator; the same seed gives the same numbers.
    pub const fn new(seed: Seed) -> Self {
        let Seed(s) = seed;
        // An all-zero state would stay zero.
        let first = if s[0] | s[1] | s[2] | s[3] == 0 {
            1
        } else {
            s[0]
        };
        Self {
            state: [first, s[1], s[2], s[3]],
        }
    }

    /// Returns the next 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Returns the next 32 random bits.
    pub const fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Returns a number below `bound`, with a bias below `bound` / 2^64; zero if `bound` is zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// Returns `true` with probability `p` (0.0 to 1.0).
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// Returns a new seed, for a component with its own generator.
    pub const fn fork(&mut self) -> Seed {
        Seed([
            self.next_u64(),
            self.next_u64(),
            self.next_u64(),
            self.next_u64(),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::{Rng, Seed};

    #[test]
    fn same_seed_same_numbers() {
        let mut a = Rng::new(Seed::from_u64(7));
        let mut b = Rng::new(Seed::from_u64(7));
        let mut c = Rng::new(Seed::from_u64(8));
        let from_a: [u64; 4] = core::array::from_fn(|_| a.next_u64());
        assert_eq!(from_a, core::array::from_fn(|_| b.next_u64()));
        assert_ne!(from_a, core::array::from_fn(|_| c.next_u64()));
    }

    #[test]
    fn below_stays_below_and_chance_is_fair() {
        let mut rng = Rng::new(Seed::from_u64(1));
        assert!((0..10_000).all(|_| rng.below(7) < 7));
        let hits = (0..100_000).filter(|_| rng.chance(0.02)).count();
        assert!((1_700..2_300).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !rng.chance(0.0)));
        assert!((0..1000).all(|_| rng.chance(1.0)));
    }
}
