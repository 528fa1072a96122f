//! Forwarded connections: a client of the host reaches a port of the guest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fullsend::TcpStream;
use socket2::Socket;
use tokio::io::unix::AsyncFd;
use tokio::sync::OwnedSemaphorePermit;

use super::HostStream;
use super::relay::relay;
use crate::counters::add;
use crate::gateway::Shared;

/// Pause after a failed `accept`, e.g. for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Accepts the clients of a forward to `guest` until the task is aborted.
pub(crate) async fn accept_forwarded(
    shared: Arc<Shared>,
    listener: Arc<AsyncFd<Socket>>,
    guest: SocketAddr,
) {
    loop {
        match accept(&shared, &listener).await {
            Ok((client, from, permit)) => {
                let shared_by_task = shared.clone();
                shared.spawn(async move {
                    connect(&shared_by_task, client, from, guest).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, %guest, "a client of a forward was not accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Waits for a client. It stays in the listener's queue until there is room for its connection; a
/// forward without clients keeps no permit.
async fn accept(
    shared: &Shared,
    listener: &AsyncFd<Socket>,
) -> io::Result<(HostStream, SocketAddr, OwnedSemaphorePermit)> {
    loop {
        let mut ready = listener.readable().await?;
        let permit = shared.tcp_permits.clone().acquire_owned().await;
        let permit = permit.map_err(io::Error::other)?;
        let Ok(accepted) = ready.try_io(|fd| fd.get_ref().accept()) else {
            continue;
        };
        let (socket, from) = accepted?;
        socket.set_nonblocking(true)?;
        let from = from.as_socket().ok_or(io::ErrorKind::InvalidData)?;
        return Ok((HostStream::new(socket)?, from, permit));
    }
}

/// Connects to the guest and relays. The client gets a RST if the guest refuses.
async fn connect(shared: &Shared, client: HostStream, from: SocketAddr, guest: SocketAddr) {
    match connect_to_guest(shared, from, guest).await {
        Ok(stream) => {
            add(&shared.counters.forwarded, 1);
            relay(shared, stream, client).await;
        }
        Err(error) => {
            tracing::debug!(%error, %from, %guest, "the guest did not accept a forwarded client");
            client.reset();
        }
    }
}

async fn connect_to_guest(
    shared: &Shared,
    from: SocketAddr,
    guest: SocketAddr,
) -> io::Result<TcpStream> {
    let source = shared.forward_source(from, guest)?;
    let connected = TcpStream::connect_transparent(&shared.stack, source, guest).await;
    match connected {
        // The client's port is in use at this address, e.g. by a client with the same port at
        // another address of the loopback network.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let source = SocketAddr::new(source.ip(), 0);
            TcpStream::connect_transparent(&shared.stack, source, guest).await
        }
        connected => connected,
    }
}
