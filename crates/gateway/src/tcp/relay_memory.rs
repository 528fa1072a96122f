//! The memory of the data that relays have taken from one socket and not yet given to the other.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that each relay may take, however much the others hold, so that none waits for them.
const MIN_TAKEN_BYTES: usize = 4 << 10;
/// The share of the free budget that one relay may take.
const SHARE: usize = 8;
/// Size of the page that `tcp_mem` and the memory of sockets are counted in, bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// The budget of all relays of a gateway. A relay takes less from its sockets the more the others
/// hold; the rest stays in the sockets' buffers, and thus in the senders' windows.
pub(crate) struct RelayMemory {
    held: AtomicUsize,
    budget: usize,
}

/// Data that a relay holds. Dropping it returns its bytes to the budget.
pub(crate) struct HeldBytes<'a> {
    memory: &'a RelayMemory,
    bytes: usize,
}

impl RelayMemory {
    /// Returns a budget of a quarter of the memory that a stack's sockets may use, from the value of
    /// its `tcp_mem`.
    pub(crate) fn new(tcp_mem: &str) -> Self {
        let pages = tcp_mem.split_ascii_whitespace().nth(1);
        let pages = pages.and_then(|pages| pages.parse::<usize>().ok());
        Self {
            held: AtomicUsize::new(0),
            budget: pages.unwrap_or(0).saturating_mul(PAGE_BYTES) / 4,
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
        let memory = RelayMemory::new("768 4096 8192");
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
