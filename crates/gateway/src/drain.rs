//! Waiting for the last data of a guest whose programs have ended.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::gateway::Shared;

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Polls, about 1 s, in which no relay has data and the guest sends none; a connection that stays open
/// then belongs to a program that still runs. Polls are counted rather than time, because a pause of the
/// machine delays the guest's data as well.
const MAX_IDLE_POLLS: u32 = 200;

/// Waits until the guest has closed its direction of each TCP connection and the host's sockets have its
/// data. Returns `false` after [`MAX_IDLE_POLLS`] idle polls, or after `limit`.
pub(crate) async fn drain(shared: &Shared, limit: Duration) -> bool {
    timeout(limit, wait_for_end(shared)).await.unwrap_or(false)
}

async fn wait_for_end(shared: &Shared) -> bool {
    let mut sent = sent_bytes(shared);
    let mut was_sending = true;
    let mut idle_polls = 0;
    loop {
        // Packets that the guest has sent may wait in the device, also before the first poll.
        sleep(POLL_INTERVAL).await;
        let is_sending = is_sending(shared);
        if !is_sending && !was_sending {
            return true;
        }
        was_sending = is_sending;
        let now = sent_bytes(shared);
        let is_idle = now == sent && shared.relay_memory.held() == 0;
        idle_polls = if is_idle { idle_polls + 1 } else { 0 };
        if idle_polls == MAX_IDLE_POLLS {
            return false;
        }
        sent = now;
    }
}

fn sent_bytes(shared: &Shared) -> u64 {
    shared.counters.tcp_tx_bytes.load(Ordering::Relaxed)
}

/// Returns whether the guest has not closed its direction of some connection.
fn is_sending(shared: &Shared) -> bool {
    shared.tcp_flows.has_open_tx() || shared.spliced_tx.load(Ordering::Relaxed) > 0
}
