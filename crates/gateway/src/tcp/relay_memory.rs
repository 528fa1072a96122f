//! The memory of the data that relays have taken from one socket and not yet given to the other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes that each relay may take, however much the others hold, so that none waits for them.
const MIN_TAKEN_BYTES: usize = 1 << 10;
/// The share of the free budget that one relay may take.
const SHARE: usize = 8;
/// Size of the page that `tcp_mem` and the memory of sockets are counted in, bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// The budget of all relays of a gateway. A relay takes less from its sockets the more the others
/// hold; the rest stays in the sockets' buffers, and thus in the senders' windows.
pub(crate) struct RelayMemory {
    held: AtomicUsize,
    budget: usize,
    refused: AtomicU64,
}

/// Data that a relay holds. Dropping it returns its bytes to the budget.
pub(crate) struct HeldBytes<'a> {
    memory: &'a RelayMemory,
    bytes: usize,
}

impl RelayMemory {
    /// Returns a budget of `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            held: AtomicUsize::new(0),
            budget: usize::try_from(bytes).unwrap_or(usize::MAX),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns the number of bytes that a relay may take now, at most `max`.
    pub(crate) fn allowed(&self, max: usize) -> usize {
        let free = self.budget.saturating_sub(self.held());
        (free / SHARE).max(MIN_TAKEN_BYTES).min(max)
    }

    /// Returns the number of bytes that relays hold.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the budget of all relays, bytes.
    pub(crate) const fn budget(&self) -> usize {
        self.budget
    }

    /// Returns whether relays hold the whole budget. Then a relay takes only what it can pass on at once.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.held() >= self.budget
    }

    /// Counts data that must be held as a whole. `None` if the budget does not suffice.
    pub(crate) fn try_hold(&self, bytes: usize) -> Option<HeldBytes<'_>> {
        if self.held() + bytes > self.budget {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.hold(bytes))
    }

    /// Returns how often [`try_hold`](Self::try_hold) has refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts data that a relay has taken.
    pub(crate) fn hold(&self, bytes: usize) -> HeldBytes<'_> {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        HeldBytes {
            memory: self,
            bytes,
        }
    }
}

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        self.memory.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_hold_little_beyond_the_budget() {
        const MAX: usize = 256 << 10;
        let memory = RelayMemory::new(4 << 20);
        assert_eq!(memory.allowed(MAX), MAX);
        let mut held = Vec::new();
        for _ in 0..1000 {
            held.push(memory.hold(memory.allowed(MAX)));
        }
        let total: usize = held.iter().map(|held| held.bytes).sum();
        assert!(total <= (4 << 20) + 1000 * MIN_TAKEN_BYTES, "{total} bytes");
        held.clear();
        assert_eq!(memory.allowed(MAX), MAX);
    }
}
