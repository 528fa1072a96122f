//! The relay between two sockets of the kernel: between the loopback of the host and that of the
//! guest. `splice` moves the data, which never enters this process.

use std::io;
use std::pin::pin;
use std::sync::atomic::AtomicU64;

use super::HostStream;
use super::relay::{count_reset, until_error};
use crate::counters::add;
use crate::gateway::Shared;
use crate::rate::RateLimit;

/// Most bytes that one direction of a connection moves at once, and thus has in its pipe.
const MAX_BYTES: usize = 256 << 10;

/// The two sockets of a connection. Dropping them, e.g. when the gateway stops, resets both sides.
struct Sockets(Option<(HostStream, HostStream)>);

impl Drop for Sockets {
    fn drop(&mut self) {
        if let Some((guest, host)) = self.0.take() {
            guest.reset();
            host.reset();
        }
    }
}

/// Moves data in both directions until both sides have closed theirs. A RST or another error of one
/// side resets the other, and so does the end of the gateway.
pub(super) async fn splice_both(shared: &Shared, guest: HostStream, host: HostStream) {
    let mut sockets = Sockets(Some((guest, host)));
    let Some((guest, host)) = &sockets.0 else {
        return;
    };
    match both_directions(shared, guest, host).await {
        // Their FINs are queued.
        Ok(()) => drop(sockets.0.take()),
        Err(error) => {
            tracing::debug!(%error, "spliced connection reset");
            count_reset(shared, &error);
        }
    }
}

async fn both_directions(shared: &Shared, guest: &HostStream, host: &HostStream) -> io::Result<()> {
    let counters = &shared.counters;
    let to_host = (&shared.tx_rate, &counters.tcp_tx_bytes);
    let to_guest = (&shared.rx_rate, &counters.tcp_rx_bytes);
    let mut to_host = pin!(one_direction(shared, (guest, host), to_host));
    let mut to_guest = pin!(one_direction(shared, (host, guest), to_guest));
    // The end that has sent its FIN may still send a RST, which no read of the other direction
    // reports.
    tokio::select! {
        done = &mut to_host => {
            done?;
            until_error(to_guest, guest.failed()).await
        }
        done = &mut to_guest => {
            done?;
            until_error(to_host, host.failed()).await
        }
    }
}

/// Moves data until the end of the stream, and passes that on.
async fn one_direction(
    shared: &Shared,
    (from, to): (&HostStream, &HostStream),
    (rate, counter): (&RateLimit, &AtomicU64),
) -> io::Result<()> {
    loop {
        // An idle connection has no pipe.
        until_error(from.readable(), to.failed()).await?;
        let pipe = shared.pipes.take()?;
        while let Some(n) = from.splice_to(&pipe.write, rate.quantum(MAX_BYTES))? {
            if n == 0 {
                shared.pipes.put(pipe);
                return to.shutdown_write();
            }
            until_error(
                async {
                    rate.take(n).await;
                    Ok(())
                },
                to.failed(),
            )
            .await?;
            let mut left = n;
            while left > 0 {
                // While `to` is full, a RST of the other side is reported here only.
                left -= until_error(to.splice_from(&pipe.read, left), from.failed()).await?;
            }
            add(counter, n as u64);
        }
        shared.pipes.put(pipe);
    }
}
