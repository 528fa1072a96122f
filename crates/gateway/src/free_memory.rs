//! Free memory goes back to the operating system while little data moves.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::gateway::Shared;

/// Time over which the traffic is compared with the free memory.
const INTERVAL: Duration = Duration::from_secs(5);
/// Bytes that a datagram counts.
const DATAGRAM_BYTES: u64 = 1500;
/// Traffic of an interval that is always little, bytes.
const LITTLE: u64 = 1 << 20;

/// The traffic of a gateway so far, and its connections and flows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Activity {
    bytes: u64,
    connections: u64,
    flows: u64,
}

impl Activity {
    fn of(shared: &Shared) -> Self {
        let counters = shared.counters();
        let datagrams = counters.udp_tx_datagrams + counters.udp_rx_datagrams;
        Self {
            bytes: counters.tcp_tx_bytes + counters.tcp_rx_bytes + DATAGRAM_BYTES * datagrams,
            connections: counters.tcp_open,
            flows: counters.udp_open,
        }
    }
}

/// Gives free memory back after each interval in which no more data has moved than the pool keeps, or
/// than [`LITTLE`]: the page faults of later data cost little beside that. An idle gateway gives
/// memory back once.
pub(crate) async fn release_free_memory(shared: Arc<Shared>) {
    let mut ticks = interval_at(Instant::now() + INTERVAL, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Activity::of(&shared);
    let mut released = last;
    loop {
        ticks.tick().await;
        let now = Activity::of(&shared);
        let kept = shared.pool.stats().kept_bytes as u64;
        let is_little = now.bytes.saturating_sub(last.bytes) <= kept.max(LITTLE);
        if is_little && released != now {
            shared.pool.trim();
            release_heap();
            released = now;
        }
        last = now;
    }
}

/// Gives the free pages of the heap back, also those between pages in use. Without it, 10,000
/// connections that have ended leave 85 MiB.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "no safe wrapper of the call exists")]
fn release_heap() {
    // SAFETY: has no preconditions.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries give free pages back by themselves.
#[cfg(not(target_env = "gnu"))]
const fn release_heap() {}
