//! The relay between a connection of the guest and a socket of the host.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;

use fullsend::TcpStream;

use super::HostStream;
use super::host_stream::ReadSize;
use crate::counters::add;
use crate::gateway::Shared;

/// Most bytes that are taken from the guest's receive buffer at once. While the host's socket does
/// not accept them, the rest stays in the guest's window.
const MAX_TAKEN_BYTES: usize = 256 << 10;

/// Copies data in both directions until both sides have closed theirs. Each side's FIN is passed on
/// when its data has been; a RST or another error of one side resets the other.
pub(super) async fn relay(shared: &Shared, guest: TcpStream, host: HostStream) {
    if let Err(error) = both_directions(shared, &guest, &host).await {
        tracing::debug!(%error, ?guest, "connection reset");
        add(&shared.counters.tcp_reset, 1);
        guest.abort();
        host.reset();
    }
    // Otherwise both FINs are queued, and the stack and the kernel deliver them.
}

async fn both_directions(shared: &Shared, guest: &TcpStream, host: &HostStream) -> io::Result<()> {
    let mut to_host = pin!(guest_to_host(shared, guest, host));
    let mut to_guest = pin!(host_to_guest(shared, guest, host));
    // The end that has sent its FIN may still send a RST, which no read of the other direction
    // reports.
    tokio::select! {
        done = &mut to_host => {
            done?;
            until_error(to_guest, guest_reset(guest)).await
        }
        done = &mut to_guest => {
            done?;
            until_error(to_host, async { host.failed().await }).await
        }
    }
}

/// Waits for `direction`, but no longer than until `failed` returns an error.
async fn until_error(
    direction: impl Future<Output = io::Result<()>>,
    failed: impl Future<Output = io::Error>,
) -> io::Result<()> {
    tokio::select! {
        biased;
        done = direction => done,
        error = failed => Err(error),
    }
}

/// Waits until the guest's connection has failed, e.g. by a RST. Never returns for one that ends with
/// the FINs of both sides: received data may still wait for the host's socket.
async fn guest_reset(guest: &TcpStream) -> io::Error {
    let closed = guest.closed().await;
    match closed.and_then(|()| guest.take_error()) {
        Ok(Some(error)) | Err(error) => error,
        Ok(None) => std::future::pending().await,
    }
}

async fn guest_to_host(shared: &Shared, guest: &TcpStream, host: &HostStream) -> io::Result<()> {
    loop {
        let mut data = guest.read_chain(MAX_TAKEN_BYTES).await?;
        if data.is_empty() {
            return host.shutdown_write();
        }
        let len = data.len();
        shared.tx_rate.take(len).await;
        while !data.is_empty() {
            // While the host's socket is full, a RST of the guest is reported here only.
            until_error(host.write(&mut data), guest_reset(guest)).await?;
        }
        shared
            .counters
            .tcp_tx_bytes
            .fetch_add(len as u64, Ordering::Relaxed);
    }
}

async fn host_to_guest(shared: &Shared, guest: &TcpStream, host: &HostStream) -> io::Result<()> {
    let mut data = VecDeque::new();
    let mut size = ReadSize::new();
    loop {
        // Room first: data stays in the host's socket, and thus in the sender's window, until the
        // guest has room for it.
        until_error(guest.writable(), host.failed()).await?;
        let n = host.read(&shared.pool, size.get(), &mut data).await?;
        if n == 0 {
            return guest.shutdown_write();
        }
        size.adapt(n);
        shared.rx_rate.take(n).await;
        while !data.is_empty() {
            until_error(
                async { guest.write_slices(&mut data).await.map(drop) },
                host.failed(),
            )
            .await?;
        }
        shared
            .counters
            .tcp_rx_bytes
            .fetch_add(n as u64, Ordering::Relaxed);
    }
}
