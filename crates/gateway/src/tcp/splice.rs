//! The relay between two sockets of the kernel, from the loopback of the host to that of the guest or
//! back. `splice` moves the data, which does not enter this process.

use std::io;
use std::pin::pin;
use std::sync::atomic::AtomicU64;

use tokio::task::coop::consume_budget;
use tokio::task::yield_now;

use super::HostStream;
use super::host_stream::Moved;
use super::relay::{count_reset, until_error};
use crate::counters::{Counted, add};
use crate::gateway::Shared;
use crate::rate::RateLimit;

/// Most bytes that one direction of a connection has in its pipe: with fewer, the receiver is woken more
/// often.
const MAX_BYTES: usize = 1 << 20;
/// Bytes after which other tasks may run, even if neither socket makes this task wait.
const MAX_BYTES_AT_ONCE: usize = 4 << 20;
/// Most bytes that are copied at once if `splice` moves none.
const MAX_COPIED_BYTES: usize = 512;

/// Moves data in both directions until both sides have closed theirs. A RST or another error of one side,
/// or the end of the gateway, resets the other side; the kernel still delivers the data of a direction
/// whose FIN has been relayed.
pub(super) async fn splice_both(shared: &Shared, guest: HostStream, host: HostStream) {
    if let Err(error) = both_directions(shared, &guest, &host).await {
        guest.reset_on_drop();
        host.reset_on_drop();
        tracing::debug!(%error, "spliced connection reset");
        count_reset(shared, &error);
    }
}

async fn both_directions(shared: &Shared, guest: &HostStream, host: &HostStream) -> io::Result<()> {
    let counters = &shared.counters;
    // Only a gateway with one guest has sockets in its namespace.
    let owner = shared.guests.only();
    let to_host = (&owner.tx_rate, &counters.tcp_tx_bytes);
    let to_guest = (&owner.rx_rate, &counters.tcp_rx_bytes);
    let mut to_host = pin!(async {
        let _sending = Counted::new(&shared.spliced_tx);
        one_direction(shared, (guest, host), to_host).await
    });
    let mut to_guest = pin!(one_direction(shared, (host, guest), to_guest));
    // The end that has sent its FIN may still send a RST, which no read of the other direction reports.
    tokio::select! {
        done = &mut to_host => {
            done?;
            until_error(to_guest, pin!(guest.failed())).await
        }
        done = &mut to_guest => {
            done?;
            until_error(to_host, pin!(host.failed())).await
        }
    }
}

/// Moves data until the end of the stream, and then shuts down the other socket's direction.
async fn one_direction(
    shared: &Shared,
    (from, to): (&HostStream, &HostStream),
    (rate, counter): (&RateLimit, &AtomicU64),
) -> io::Result<()> {
    let mut copied = [0; MAX_COPIED_BYTES];
    loop {
        // An idle connection has no pipe.
        until_error(pin!(from.readable()), pin!(to.failed())).await?;
        let pipe = shared.pipes.take()?;
        let mut moved_bytes = 0;
        loop {
            if moved_bytes >= MAX_BYTES_AT_ONCE {
                moved_bytes = 0;
                yield_now().await;
            }
            // Reads of few bytes do not reach `MAX_BYTES_AT_ONCE` soon.
            consume_budget().await;
            let max = rate.quantum(shared.relay_memory.allowed(MAX_BYTES));
            let max_copied = max.min(MAX_COPIED_BYTES);
            let moved = from.splice_to(&pipe.write, max, &mut copied[..max_copied])?;
            let (n, is_copied) = match moved {
                Some(Moved::IntoPipe(n)) => (n, false),
                Some(Moved::Copied(n)) => (n, true),
                Some(Moved::End) => {
                    shared.pipes.put(pipe);
                    from.probe_half_closed();
                    return to.shutdown_write();
                }
                None => break,
            };
            let _held = shared.relay_memory.hold(n);
            let pass = pin!(async {
                rate.take(n).await;
                if is_copied {
                    return to.write_all(&copied[..n]).await;
                }
                let mut left = n;
                while left > 0 {
                    left -= to.splice_from(&pipe.read, left).await?;
                }
                Ok(())
            });
            // While `to` is full, only this reports a RST of the other side.
            let from_failed = pin!(from.failed());
            let pass = pin!(until_error(pass, from_failed));
            until_error(pass, pin!(to.failed())).await?;
            add(counter, n as u64);
            moved_bytes += n;
        }
        shared.pipes.put(pipe);
    }
}
