//! A record of dropped SYNs, of fixed size, that recognizes their retransmissions.
//!
//! It is a table of 16-bit entries: 12 bits of a keyed hash of the SYN, and the time at which it
//! was dropped in units of half a second, modulo 6.5 seconds. An entry belongs to one set of 16,
//! which is half a cache line, so a dropped SYN touches one cache line. In a set, a new entry
//! replaces the oldest.

use alloc::vec::Vec;

use fullsend_wire::{Instant, Nanos};

/// 2 MiB of entries: the SYNs of 4.5 seconds of a flood of 230,000 a second.
const SETS: usize = 1 << 16;
const WAYS: usize = 16;
const TICK: Nanos = Nanos::from_millis(500);
/// The low bits of an entry, which hold its time.
const TIME_MASK: u16 = (1 << 4) - 1;
/// The number of units after which times repeat: 6.5 s. Clients retransmit after 1, 3, 7, 15, ...
/// seconds (RFC 6298 5.5), so any two SYNs of a client are `2^i * (2^k - 1)` seconds apart. None of
/// these is a multiple of 6.5 s while `k < 12`, so no such retransmission is mistaken for a
/// duplicate.
const PERIOD: u64 = 13;
const _: () = assert!(PERIOD <= TIME_MASK as u64 + 1);
const _: () = assert!(size_of::<Set>() == 2 * WAYS);

/// A set of entries, aligned so that it does not cross a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Set([u16; WAYS]);

/// The SYNs dropped most recently.
#[derive(Debug)]
pub(super) struct DroppedSyns {
    /// Empty until the first SYN is dropped.
    sets: Vec<Set>,
    /// The number of sets once there are any.
    max_sets: usize,
}

impl Default for DroppedSyns {
    fn default() -> Self {
        Self {
            sets: Vec::new(),
            max_sets: SETS,
        }
    }
}

impl DroppedSyns {
    /// Limits the record to about `bytes` of memory, before the first SYN is dropped.
    pub(super) fn limit_memory(&mut self, bytes: usize) {
        self.max_sets = (bytes / size_of::<Set>()).clamp(1, SETS);
    }

    /// Records the dropped SYN of this hash. Returns whether it was recorded before, but not in the
    /// same half second: no client retransmits that early (RFC 6298 2.1), so such a SYN is a
    /// duplicate.
    pub(super) fn record(&mut self, now: Instant, hash: u64) -> bool {
        let max_sets = self.max_sets;
        if self.sets.is_empty() && self.sets.try_reserve_exact(max_sets).is_ok() {
            self.sets.resize(max_sets, Set([0; WAYS]));
        }
        let Some(Set(set)) = self.sets.get_mut(hash as usize % max_sets) else {
            return false;
        };
        let time = (now.as_nanos() / TICK.as_nanos() % PERIOD) as u16;
        // Not 0, which marks an empty entry.
        let fingerprint = ((hash >> 48) as u16 & !TIME_MASK).max(TIME_MASK + 1);
        let found = set
            .iter()
            .position(|entry| entry & !TIME_MASK == fingerprint);
        let is_retransmission = found.is_some_and(|at| set[at] & TIME_MASK != time);
        set.copy_within(..found.unwrap_or(WAYS - 1), 1);
        set[0] = fingerprint | time;
        is_retransmission
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use fullsend_wire::{Instant, Nanos, Rng, Seed};

    use super::DroppedSyns;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    /// Drops 230 SYNs in each millisecond. Returns how many are mistaken for retransmissions.
    fn flood(syns: &mut DroppedSyns, rng: &mut Rng, ms: core::ops::Range<u64>) -> usize {
        ms.flat_map(|ms| (0..230).map(move |_| ms))
            .filter(|&ms| syns.record(at(ms), rng.next_u64()))
            .count()
    }

    /// When a client sends its SYNs, in milliseconds (RFC 6298 5.5).
    const TRIES: [u64; 7] = [0, 1000, 3000, 7000, 15_000, 31_000, 63_000];

    #[test]
    fn retransmissions_are_recognized() {
        // At any offset from the half seconds.
        for start in (0..7000).step_by(111).chain([499, 500]) {
            let mut syns = DroppedSyns::default();
            for ms in TRIES {
                let is_retransmission = syns.record(at(start + ms), 7 << 52);
                assert_eq!(is_retransmission, ms > 0, "{start} {ms}");
            }
        }
    }

    #[test]
    fn retransmissions_are_recognized_when_earlier_ones_were_lost() {
        for (n, earlier) in TRIES.into_iter().enumerate() {
            for later in &TRIES[n + 1..] {
                let mut syns = DroppedSyns::default();
                assert!(!syns.record(at(earlier), 7 << 52));
                let is_retransmission = syns.record(at(*later), 7 << 52);
                assert!(is_retransmission, "{earlier} {later}");
            }
        }
    }

    #[test]
    fn a_duplicate_becomes_the_newest_entry_of_its_set() {
        let mut syns = DroppedSyns::default();
        syns.record(at(100), 99 << 52);
        for other in 1..super::WAYS as u64 {
            syns.record(at(100), other << 52);
        }
        syns.record(at(100), 99 << 52);
        syns.record(at(100), 100 << 52);
        assert!(syns.record(at(1100), 99 << 52));
    }

    #[test]
    fn a_duplicate_is_not_a_retransmission() {
        let mut syns = DroppedSyns::default();
        for _ in 0..3 {
            assert!(!syns.record(at(100), 7 << 52));
        }
        assert!(!syns.record(at(100), 8 << 52));
    }

    #[test]
    fn a_flood_evicts_slowly_and_causes_few_false_positives() {
        let (mut syns, mut rng) = (DroppedSyns::default(), Rng::new(Seed::from_u64(1)));
        flood(&mut syns, &mut rng, 0..8000);
        let clients: Vec<u64> = (0..1000).map(|_| rng.next_u64()).collect();
        let mut now = 8000;
        for hash in &clients {
            syns.record(at(now), *hash);
        }
        // Gaps of one, two and four seconds.
        for (gap, least) in [(1000, 990), (2000, 985), (4000, 500)] {
            let false_positives = flood(&mut syns, &mut rng, now..now + gap);
            assert!(
                false_positives < 230 * gap as usize / 200,
                "{false_positives}"
            );
            now += gap;
            let recognized = clients.iter().filter(|h| syns.record(at(now), **h));
            let recognized = recognized.count();
            assert!(recognized >= least, "{recognized} after {gap} ms");
        }
    }
}
