//! The memory of data that relays have read from one socket and not yet written to the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes that each relay may read even if the budget is used up, so that none waits for the others.
const MIN_TAKEN_BYTES: usize = 1 << 10;
/// Divisor of the free budget that gives the bytes that one relay may read.
const SHARE: usize = 8;
/// Size of the page in which `tcp_mem` and the memory of sockets are counted, bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// The budget of all relays of a gateway, or of one guest's relays. The more data relays hold, the less
/// each reads; the rest stays in the sockets' buffers, and thus in the senders' windows.
pub(crate) struct RelayMemory {
    held: AtomicUsize,
    budget: AtomicUsize,
    refused: AtomicU64,
    /// The budget of all guests, of which this one is a part.
    of_all: Option<Arc<Self>>,
}

/// Data that a relay holds, whose bytes return to the budget on drop.
pub(crate) struct HeldBytes<'a> {
    memory: &'a RelayMemory,
    bytes: usize,
}

impl RelayMemory {
    /// Returns a budget of `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            held: AtomicUsize::new(0),
            budget: AtomicUsize::new(usize::try_from(bytes).unwrap_or(usize::MAX)),
            refused: AtomicU64::new(0),
            of_all: None,
        }
    }

    /// Returns the budget of a guest, which is limited only by `of_all` until
    /// [`set_budget`](Self::set_budget) is called.
    pub(crate) const fn of_guest(of_all: Arc<Self>) -> Self {
        Self {
            held: AtomicUsize::new(0),
            budget: AtomicUsize::new(usize::MAX),
            refused: AtomicU64::new(0),
            of_all: Some(of_all),
        }
    }

    /// Sets the budget, bytes.
    pub(crate) fn set_budget(&self, bytes: usize) {
        self.budget.store(bytes, Ordering::Relaxed);
    }

    /// Returns the number of bytes that a relay may read now, at most `max`.
    pub(crate) fn allowed(&self, max: usize) -> usize {
        (self.free() / SHARE).max(MIN_TAKEN_BYTES).min(max)
    }

    fn free(&self) -> usize {
        let own = self.budget().saturating_sub(self.held());
        self.of_all.as_ref().map_or(own, |all| own.min(all.free()))
    }

    /// Returns the number of bytes that relays hold.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the budget, bytes.
    pub(crate) fn budget(&self) -> usize {
        self.budget.load(Ordering::Relaxed)
    }

    /// Returns whether relays hold the whole budget. Then a relay reads only data that it can write at
    /// once.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.free() == 0
    }

    /// Reserves memory for data that must be held as a whole. Returns `None` if the budget does not
    /// suffice.
    pub(crate) fn try_hold(&self, bytes: usize) -> Option<HeldBytes<'_>> {
        if bytes > self.free() {
            let all = self.of_all.as_deref().unwrap_or(self);
            all.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.hold(bytes))
    }

    /// Returns the number of refusals of [`try_hold`](Self::try_hold).
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts data that a relay has read.
    pub(crate) fn hold(&self, bytes: usize) -> HeldBytes<'_> {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        if let Some(all) = &self.of_all {
            all.held.fetch_add(bytes, Ordering::Relaxed);
        }
        HeldBytes {
            memory: self,
            bytes,
        }
    }
}

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        self.memory.held.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(all) = &self.memory.of_all {
            all.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
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

    #[test]
    fn a_guest_whose_servers_read_nothing_leaves_the_others_their_part() {
        const MAX: usize = 64 << 10;
        let all = Arc::new(RelayMemory::new(4 << 20));
        let [first, other] = [(); 2].map(|()| {
            let guest = RelayMemory::of_guest(all.clone());
            assert_eq!(guest.allowed(usize::MAX), (4 << 20) / SHARE);
            guest.set_budget((4 << 20) / 3);
            guest
        });
        let mut held = Vec::new();
        while !first.is_exhausted() {
            held.push(first.hold(first.allowed(MAX)));
        }
        for _ in 0..1000 {
            held.push(first.hold(first.allowed(MAX)));
        }
        assert!(first.try_hold(1).is_none() && all.refused() == 1);
        assert!(!other.is_exhausted());
        assert_eq!(other.allowed(MAX), MAX);
        assert!(other.try_hold(128 << 10).is_some());
        drop(held);
        assert_eq!((all.held(), first.allowed(MAX)), (0, MAX));
    }
}
