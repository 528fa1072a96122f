//! Returning free memory to the operating system while little data moves.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::gateway::Shared;
use crate::inspect::resident_memory;

/// Interval at which the traffic is compared with the free memory.
const INTERVAL: Duration = Duration::from_secs(5);
/// Bytes that each datagram counts as.
const DATAGRAM_BYTES: u64 = 1500;
/// Traffic in an interval that always counts as little, bytes.
const LITTLE: u64 = 1 << 20;

/// Free memory for which the pause of returning it is worthwhile, bytes.
const WORTHWHILE_BYTES: u64 = 2 << 20;
/// Connections and flows whose end frees about [`WORTHWHILE_BYTES`].
const WORTHWHILE_FLOWS: u64 = 256;

/// The state of a gateway when memory was given back last.
#[derive(Default)]
struct Released {
    /// Resident memory after the release, bytes.
    resident: u64,
    /// Most connections and flows since then.
    flows: u64,
}

impl Released {
    /// Returns whether much memory may have become free since then. `kept` is the free memory of the pool
    /// in bytes, and `flows` the number of connections and flows now.
    fn is_worthwhile(&mut self, kept: u64, flows: u64) -> bool {
        self.flows = self.flows.max(flows);
        let grown = resident_memory().is_some_and(|now| now >= self.resident + WORTHWHILE_BYTES);
        grown || kept >= WORTHWHILE_BYTES || self.flows - flows >= WORTHWHILE_FLOWS
    }
}

/// Returns free memory after an interval in which less data has moved than the pool keeps, or than
/// [`LITTLE`]: the page faults of later data cost little then.
pub(crate) async fn release_free_memory(shared: Arc<Shared>) {
    let mut ticks = interval_at(Instant::now() + INTERVAL, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = moved_bytes(&shared);
    let mut released = Released::default();
    loop {
        ticks.tick().await;
        let now = moved_bytes(&shared);
        let kept = shared.pool.pool().stats().kept_bytes as u64;
        let is_little = now.saturating_sub(last) <= kept.max(LITTLE);
        last = now;
        let counters = shared.counters();
        let flows = counters.tcp_open + counters.udp_open;
        if is_little {
            // The kernel limits the memory of a user's pipes, including those of other gateways.
            shared.pipes.clear();
        }
        if released.is_worthwhile(kept, flows) && is_little {
            shared.pool.pool().trim();
            release_heap();
            let resident = resident_memory().unwrap_or(0);
            released = Released { resident, flows };
        }
    }
}

/// Returns the payload that has been relayed so far, bytes.
fn moved_bytes(shared: &Shared) -> u64 {
    let counters = shared.counters();
    let datagrams = counters.udp_tx_datagrams + counters.udp_rx_datagrams;
    counters.tcp_tx_bytes + counters.tcp_rx_bytes + DATAGRAM_BYTES * datagrams
}

/// Returns the free pages of the heap to the system, also those between pages in use. Without it, 10,000
/// ended connections leave 85 MiB.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "no safe wrapper of the call exists")]
fn release_heap() {
    // SAFETY: has no preconditions.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing: other C libraries return free pages on their own.
#[cfg(not(target_env = "gnu"))]
const fn release_heap() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_only_where_much_may_be_free() {
        let resident = resident_memory().unwrap() + (1 << 30);
        let flows = 1000;
        let mut released = Released { resident, flows };
        assert!(!released.is_worthwhile(0, 1000));
        assert!(released.is_worthwhile(WORTHWHILE_BYTES, 1000));
        // Those that begin count when they end.
        assert!(!released.is_worthwhile(0, 1100));
        assert!(!released.is_worthwhile(0, 900));
        assert!(released.is_worthwhile(0, 800));
        released.resident = 0;
        assert!(released.is_worthwhile(0, 1000));
    }
}
