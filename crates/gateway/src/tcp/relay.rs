//! The relay between a connection of the guest and a socket of the host.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use fullsend::{Slice, SocketOption, TcpStream};

use super::HostStream;
use super::flow::{Direction, Stage, TcpFlow};
use super::host_stream::ReadSize;
use crate::counters::add;
use crate::gateway::Shared;
use crate::guests::{Guest, HeldBuffers};
use crate::rate::RateLimit;

/// Idle time after which an end that has sent its FIN is probed. Linux drops a closed connection whose
/// peer does not close within 60 s (`tcp_fin_timeout`), and then answers a probe with a RST; it
/// acknowledges the probe if only one direction was closed (`shutdown`).
pub(super) const HALF_CLOSED_PROBE: Duration = Duration::from_secs(65);

/// The guest's socket of a connection, reset on drop, e.g. when the gateway stops.
struct GuestSocket(Option<TcpStream>);

impl GuestSocket {
    /// Closes the socket with a FIN, which the stack delivers after the queued data.
    fn close(mut self) {
        self.0.take();
    }
}

impl Drop for GuestSocket {
    fn drop(&mut self) {
        if let Some(guest) = self.0.take() {
            guest.abort();
        }
    }
}

/// Copies data in both directions until both sides have closed theirs. Each side's FIN follows its data
/// to the other side; a RST or another error of one side, or the end of the gateway, resets the other
/// side. The kernel still delivers the guest's data to the host if the guest's FIN has been relayed.
pub(super) async fn relay(
    (shared, owner): (&Shared, &Guest),
    flow: &TcpFlow,
    guest: TcpStream,
    host: HostStream,
) {
    flow.set_stage(Stage::Data);
    // Fails only if the stack has stopped.
    let _ = guest.set_keepalive(true);
    shared.guests.share_relays(owner);
    let buffers = shared.guests.hold_buffers(owner);
    if let Some(buffers) = &buffers {
        // The stack doubles the values, as Linux does.
        let bytes = buffers.of_direction() / 2;
        for option in [
            SocketOption::SoSndbufforce(bytes),
            SocketOption::SoRcvbufforce(bytes),
        ] {
            let _ = guest.set_option(option);
        }
    }
    let socket = GuestSocket(Some(guest));
    let Some(guest) = &socket.0 else {
        return;
    };
    let max_read = buffers
        .as_ref()
        .map_or(ReadSize::MAX, HeldBuffers::max_read);
    match both_directions((shared, owner), flow, (guest, &host), max_read).await {
        Ok(()) => socket.close(),
        Err(error) => {
            host.reset_on_drop();
            tracing::debug!(%error, ?guest, "connection reset");
            count_reset(shared, &error);
        }
    }
}

/// Counts a failed connection if one side has reset it.
pub(super) fn count_reset(shared: &Shared, error: &io::Error) {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    let is_reset = matches!(error.kind(), ConnectionReset | BrokenPipe);
    add(&shared.counters.tcp_reset, u64::from(is_reset));
}

/// Returns the size of the future of an idle connection, for tests.
#[cfg(test)]
pub(super) fn relay_size() -> usize {
    fn size_of_output<F: Future>(
        _: impl FnOnce((&'static Shared, &'static Guest), &'static TcpFlow, TcpStream, HostStream) -> F,
    ) -> usize {
        size_of::<F>()
    }
    size_of_output(relay)
}

async fn both_directions(
    parts: (&Shared, &Guest),
    flow: &TcpFlow,
    (guest, host): (&TcpStream, &HostStream),
    max_read: usize,
) -> io::Result<()> {
    let mut to_host = pin!(guest_to_host(parts, &flow.tx, (guest, host)));
    let mut to_guest = pin!(host_to_guest(parts, &flow.rx, (guest, host), max_read));
    // The end that has sent its FIN may still send a RST, which no read of the other direction reports.
    tokio::select! {
        done = &mut to_host => {
            done?;
            // A guest that has closed its whole socket resets the connection after its kernel has dropped
            // it. Fails only if the connection has failed.
            let _ = guest.set_keepidle(HALF_CLOSED_PROBE);
            until_error(to_guest, pin!(guest_reset(guest))).await
        }
        done = &mut to_guest => {
            done?;
            if flow.forwarded {
                host.probe_half_closed();
            }
            until_error(to_host, pin!(host.failed())).await
        }
    }
}

/// Waits for `direction`, until `failed` returns an error. Futures are borrowed: if a function takes them
/// by value, they are stored twice at each level of calls, and each connection needs several times its
/// memory.
pub(super) async fn until_error<T>(
    mut direction: Pin<&mut impl Future<Output = io::Result<T>>>,
    mut failed: Pin<&mut impl Future<Output = io::Error>>,
) -> io::Result<T> {
    poll_fn(|cx| match direction.as_mut().poll(cx) {
        Poll::Pending => failed.as_mut().poll(cx).map(Err),
        done @ Poll::Ready(_) => done,
    })
    .await
}

/// Waits until the guest's connection has failed, e.g. by a RST. Never returns if it ends with the FINs
/// of both sides: received data may still wait for the host's socket.
async fn guest_reset(guest: &TcpStream) -> io::Error {
    let closed = guest.closed().await;
    match closed.and_then(|()| guest.take_error()) {
        Ok(Some(error)) | Err(error) => error,
        Ok(None) => std::future::pending().await,
    }
}

/// Waits until `n` bytes may pass, or fails if one of the sockets has failed.
async fn pass_rate_limit(
    limit: &RateLimit,
    n: usize,
    (guest, host): (&TcpStream, &HostStream),
) -> io::Result<()> {
    if !limit.is_limited() {
        return Ok(());
    }
    // The future is boxed: few gateways have a limit, and each connection would need memory for it.
    Box::pin(async move {
        let taken = pin!(async {
            limit.take(n).await;
            Ok(())
        });
        let guest_failed = pin!(guest_reset(guest));
        let taken = pin!(until_error(taken, guest_failed));
        until_error(taken, pin!(host.failed())).await
    })
    .await
}

/// Waits until the host's socket has room, or fails if one of the sockets has failed.
async fn wait_for_room(guest: &TcpStream, host: &HostStream) -> io::Result<()> {
    // The future is boxed: few connections need it, and each would need memory for it.
    Box::pin(async move { until_error(pin!(host.writable()), pin!(guest_reset(guest))).await })
        .await
}

async fn guest_to_host(
    (shared, owner): (&Shared, &Guest),
    direction: &Direction,
    (guest, host): (&TcpStream, &HostStream),
) -> io::Result<()> {
    loop {
        if owner.relays.is_exhausted() {
            // Data is read only when it can be written at once, so that none is held.
            direction.set_stage(Stage::Room);
            wait_for_room(guest, host).await?;
        }
        direction.set_stage(Stage::Data);
        // While the host's socket accepts no more data, the rest stays in the guest's window.
        let max = owner.tx_rate.quantum(owner.relays.allowed(ReadSize::MAX));
        let mut data = guest.read_chain(max).await?;
        if data.is_empty() {
            direction.set_stage(Stage::Ended);
            return host.shutdown_write();
        }
        let len = data.len();
        let _held = owner.relays.hold(data.pinned());
        direction.set_stage(Stage::RateLimit);
        pass_rate_limit(&owner.tx_rate, len, (guest, host)).await?;
        direction.set_stage(Stage::Room);
        while !data.is_empty() {
            // While the host's socket is full, only this reports a RST of the guest.
            until_error(pin!(host.write(&mut data)), pin!(guest_reset(guest))).await?;
        }
        shared
            .counters
            .tcp_tx_bytes
            .fetch_add(len as u64, Ordering::Relaxed);
        direction.add_bytes(len);
    }
}

async fn host_to_guest(
    (shared, owner): (&Shared, &Guest),
    direction: &Direction,
    (guest, host): (&TcpStream, &HostStream),
    max_read: usize,
) -> io::Result<()> {
    let mut data = VecDeque::new();
    let mut size = ReadSize::new();
    loop {
        // Waits for room first: until the guest has room, data stays in the host's socket, and thus in
        // the sender's window.
        direction.set_stage(Stage::Room);
        until_error(pin!(guest.has_room()), pin!(host.failed())).await?;
        direction.set_stage(Stage::Data);
        let allowed = owner.relays.allowed(size.get().min(max_read));
        let want = owner.rx_rate.quantum(allowed);
        let n = host.read(&shared.pool, want, &mut data).await?;
        if n == 0 {
            direction.set_stage(Stage::Ended);
            return guest.shutdown_write();
        }
        size.adapt(n);
        let _held = owner.relays.hold(pinned(&data));
        direction.set_stage(Stage::RateLimit);
        pass_rate_limit(&owner.rx_rate, n, (guest, host)).await?;
        direction.set_stage(Stage::Room);
        while !data.is_empty() {
            until_error(pin!(guest.write_slices(&mut data)), pin!(host.failed())).await?;
        }
        shared
            .counters
            .tcp_rx_bytes
            .fetch_add(n as u64, Ordering::Relaxed);
        direction.add_bytes(n);
    }
}

/// Returns the bytes of memory that `data` keeps allocated.
fn pinned(data: &VecDeque<Slice>) -> usize {
    data.iter().map(Slice::pinned).sum()
}

#[cfg(test)]
mod tests {
    use super::relay_size;
    use crate::tcp::outbound::connect_size;

    #[test]
    fn the_tasks_of_connections_are_small() {
        let (relay, connect) = (relay_size(), connect_size());
        assert!(relay <= 2400, "{relay} bytes");
        assert!(connect <= 2720, "{connect} bytes");
    }
}
