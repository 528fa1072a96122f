//! The last data of a guest whose programs have ended.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::gateway::Shared;

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long the guest may send nothing. A connection that stays open belongs to a program that
/// still runs.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the guest may take in all.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until the guest has closed its direction of each TCP connection, and the host's sockets
/// have its data. Gives up after [`IDLE_TIMEOUT`] and [`TIMEOUT`], and then returns `false`.
pub(crate) async fn drain(shared: &Shared) -> bool {
    let begun = Instant::now();
    let mut moved = (sent_bytes(shared), begun);
    let mut was_sending = true;
    loop {
        // Also before the first poll: packets that the guest has sent may wait in the device.
        sleep(POLL_INTERVAL).await;
        let is_sending = is_sending(shared);
        if !is_sending && !was_sending {
            return true;
        }
        was_sending = is_sending;
        let now = Instant::now();
        let bytes = sent_bytes(shared);
        if bytes != moved.0 {
            moved = (bytes, now);
        }
        if now - moved.1 >= IDLE_TIMEOUT || now - begun >= TIMEOUT {
            return false;
        }
    }
}

fn sent_bytes(shared: &Shared) -> u64 {
    shared.counters.tcp_tx_bytes.load(Ordering::Relaxed)
}

/// Returns whether the guest has not closed its direction of a connection.
fn is_sending(shared: &Shared) -> bool {
    shared.tcp_flows.has_open_tx() || shared.spliced_tx.load(Ordering::Relaxed) > 0
}
