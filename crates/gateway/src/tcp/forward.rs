//! Forwarded connections: a client on one side reaches a port on the other.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fullsend::TcpStream;
use fullsend_device::LogLimit;
use socket2::Socket;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::HostStream;
use super::flow::TcpFlowEntry;
use super::relay::relay;
use super::splice::splice_both;
use crate::counters::{Counted, add};
use crate::descriptors::SPLICED_DESCRIPTORS;
use crate::forward::Protocol;
use crate::gateway::Shared;
use crate::guests::HeldShare;
use crate::policy::{FlowProtocol, Verdict};

/// Pause after a failed `accept`, e.g. for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The limit of the log lines about failed calls of `accept`.
static NOT_ACCEPTED: LogLimit = LogLimit::new();

/// Time for which a client that has sent only its FIN waits for the other side. It may still wait for an
/// answer, but most such clients are gone.
const CLOSED_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a client that has sent data before its FIN waits for the other side.
const CLOSED_WITH_DATA_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for the connection to the other side, but not much longer than the client does.
async fn until_client_ends<T>(
    client: &HostStream,
    connect: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::select! {
        biased;
        connected = connect => connected,
        error = client.failed() => Err(error),
        () = closed_for_long(client) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Waits until a client has closed its direction, and then for the time that it may wait for the other
/// side.
async fn closed_for_long(client: &HostStream) {
    client.closed_by_peer().await;
    let has_data = client.received_bytes().is_ok_and(|n| n > 0);
    let timeout = if has_data {
        CLOSED_WITH_DATA_TIMEOUT
    } else {
        CLOSED_TIMEOUT
    };
    tokio::time::sleep(timeout).await;
}

/// The permits of a client: the same number of all connections and of the forwards' part.
struct Permits {
    /// The unit of the guest's share; `None` for clients in the guest, which is then the only one.
    _guest_share: Option<HeldShare>,
    _forwards: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Permits {
    /// Waits for `n` permits of a client of a forward to `guest`. Only clients within the guest's share wait
    /// for the permits of the forwards, and only those within the forwards' part for the permits of all
    /// connections: waiting clients get each permit that becomes free.
    async fn acquire(shared: &Shared, guest: Option<IpAddr>, n: u32) -> io::Result<Self> {
        let mut of_guest = None;
        if let Some(address) = guest {
            let all = shared.limits.tcp_of_forwards();
            of_guest = Some(shared.guests.hold_forwarded(address, all).await);
        }
        let acquire = async |all: &Arc<Semaphore>| {
            let permits = all.clone().acquire_many_owned(n).await;
            permits.map_err(io::Error::other)
        };
        Ok(Self {
            _guest_share: of_guest,
            _forwards: acquire(&shared.forward_permits).await?,
            _all: acquire(&shared.tcp_permits).await?,
        })
    }

    /// Returns `n` further permits of a client that has some, or `None` if they are not free.
    fn try_acquire(shared: &Shared, n: u32) -> Option<Self> {
        let acquire = |all: &Arc<Semaphore>| all.clone().try_acquire_many_owned(n).ok();
        Some(Self {
            _guest_share: None,
            _forwards: acquire(&shared.forward_permits)?,
            _all: acquire(&shared.tcp_permits)?,
        })
    }
}

/// Accepts the clients of a forward to `guest` until the task is aborted.
pub(crate) async fn accept_forwarded(
    shared: Arc<Shared>,
    listener: Arc<AsyncFd<Socket>>,
    guest: SocketAddr,
) {
    loop {
        let (client, from, permit) = accept(&shared, &listener, (guest, Some(guest.ip())), 1).await;
        let shared_by_task = shared.clone();
        shared.spawn(async move {
            let shared = &*shared_by_task;
            if let Some((socket, to, _permits)) = spliced_route(shared, from, guest) {
                splice_to_guest(shared, client, socket, to).await;
            } else {
                connect(shared, client, from, guest).await;
            }
            drop(permit);
        });
    }
}

/// Accepts clients in the guest at `guest` and leads them to `host`, until the task is aborted.
pub(crate) async fn accept_in_guest(
    shared: Arc<Shared>,
    listener: Arc<AsyncFd<Socket>>,
    (guest, host): (SocketAddr, SocketAddr),
) {
    // At most all permits are acquired, as the clients would otherwise wait for ever.
    let all = shared.limits.tcp_of_forwards();
    let permits = SPLICED_DESCRIPTORS.min(all.try_into().unwrap_or(u32::MAX));
    loop {
        let (client, from, permits) = accept(&shared, &listener, (host, None), permits).await;
        if !is_allowed(&shared, from, guest) {
            continue;
        }
        let shared_by_task = shared.clone();
        shared.spawn(async move {
            splice_to_host(&shared_by_task, client, from, host).await;
            drop(permits);
        });
    }
}

/// Returns whether the policy lets a client at `from` in the guest connect to the forward at `guest`. A
/// redirection of the policy does not apply, as the forward itself redirects.
fn is_allowed(shared: &Shared, from: SocketAddr, guest: SocketAddr) -> bool {
    let verdict = shared.verdict(FlowProtocol::Tcp, from, guest);
    !matches!(verdict, Verdict::Reject | Verdict::Drop)
}

/// Waits for a client of the forward to `to`, and for its `permits`, which count against the share of
/// `guest`. Retries after failures.
async fn accept(
    shared: &Shared,
    listener: &AsyncFd<Socket>,
    (to, guest): (SocketAddr, Option<IpAddr>),
    permits: u32,
) -> (HostStream, SocketAddr, Permits) {
    loop {
        match try_accept(shared, listener, guest, permits).await {
            Ok(accepted) => return accepted,
            Err(error) => {
                NOT_ACCEPTED.warn((to, error.kind()), || {
                    format!("a client of the forward to {to} was not accepted: {error}")
                });
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Waits for a client, which stays in the listener's queue until its connection has permits. A forward
/// without clients holds no permit.
async fn try_accept(
    shared: &Shared,
    listener: &AsyncFd<Socket>,
    guest: Option<IpAddr>,
    permits: u32,
) -> io::Result<(HostStream, SocketAddr, Permits)> {
    loop {
        let mut ready = listener.readable().await?;
        let permits = Permits::acquire(shared, guest, permits).await?;
        let Ok(accepted) = ready.try_io(|fd| fd.get_ref().accept()) else {
            continue;
        };
        let (socket, from) = accepted?;
        socket.set_nonblocking(true)?;
        let from = from.as_socket().ok_or(io::ErrorKind::InvalidData)?;
        let client = HostStream::new(socket)?;
        return Ok((client, from, permits));
    }
}

/// Returns the route of a client at `from` to the guest without the link: a socket in the guest's
/// namespace, the address to connect to, and the permits in addition to those of a connection over the
/// link. `None` if the client uses the link.
fn spliced_route(
    shared: &Shared,
    from: SocketAddr,
    guest: SocketAddr,
) -> Option<(Socket, SocketAddr, Permits)> {
    let sockets = shared.guest_sockets.as_ref()?;
    let to = shared.config.spliced_target(from.ip(), guest)?;
    // Without the permits or a socket, the client uses the link.
    let permits = Permits::try_acquire(shared, SPLICED_DESCRIPTORS - 1)?;
    Some((sockets.unbound(Protocol::Tcp, to).ok()?, to, permits))
}

/// Returns the loopback address of the other family with the same port.
fn other_loopback(to: SocketAddr) -> Option<SocketAddr> {
    let ip: IpAddr = match to.ip() {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv4Addr::LOCALHOST.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, to.port()))
}

/// Connects to `to`, or if it refuses to the loopback address of the other family: the client is already
/// connected, and does not try its server's other address.
async fn connect_loopback<F>(
    to: SocketAddr,
    mut connect: impl FnMut(SocketAddr) -> F,
) -> io::Result<HostStream>
where
    F: Future<Output = io::Result<HostStream>>,
{
    match (connect(to).await, other_loopback(to)) {
        (Err(error), Some(other)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            connect(other).await.map_err(|_| error)
        }
        (connected, _) => connected,
    }
}

/// Connects a socket in the guest's namespace to `to`, and splices.
async fn splice_to_guest(shared: &Shared, client: HostStream, socket: Socket, to: SocketAddr) {
    let mut first = Some(socket);
    let connected = connect_loopback(to, |to| {
        let socket = match (first.take(), &shared.guest_sockets) {
            (Some(socket), _) => Ok(socket),
            (None, Some(sockets)) => sockets.unbound(Protocol::Tcp, to),
            (None, None) => Err(io::ErrorKind::Unsupported.into()),
        };
        async move { HostStream::connect_socket(socket?, to).await }
    });
    match until_client_ends(&client, connected).await {
        Ok(guest) => splice(shared, guest, client).await,
        Err(error) => {
            tracing::debug!(%error, %to, "the guest did not accept a spliced client");
        }
    }
}

/// Connects a client in the guest to `host`, and splices.
async fn splice_to_host(shared: &Shared, client: HostStream, from: SocketAddr, host: SocketAddr) {
    let outbound = &shared.config.outbound;
    let connected = connect_loopback(host, |host| async move {
        // Forwards may lead to any port on which the host listens.
        if shared.refuses_service(FlowProtocol::Tcp, from, host) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        HostStream::connect(host, outbound).await
    });
    // The guest's kernel has accepted the client, which may already have sent data and ended.
    let sending = Counted::new(&shared.spliced_tx);
    match until_client_ends(&client, connected).await {
        Ok(stream) => {
            // The splice counts the connection from now on.
            drop(sending);
            splice(shared, client, stream).await;
        }
        Err(error) => {
            tracing::debug!(%error, %from, %host, "the host did not accept a client in the guest");
        }
    }
}

/// Counts and splices a connection.
async fn splice(shared: &Shared, guest: HostStream, host: HostStream) {
    add(&shared.counters.forwarded, 1);
    add(&shared.counters.spliced, 1);
    let _open = Counted::new(&shared.spliced_open);
    splice_both(shared, guest, host).await;
}

/// Connects a client to the guest and relays.
async fn connect(shared: &Shared, client: HostStream, from: SocketAddr, guest: SocketAddr) {
    let socket = client.downgrade();
    let connected = connect_to_guest(shared, &socket, from, guest);
    match until_client_ends(&client, connected).await {
        Ok((flow, stream)) => {
            add(&shared.counters.forwarded, 1);
            let owner = shared.guests.of_or_unknown(guest.ip());
            relay((shared, &owner), &flow, stream, client).await;
        }
        Err(error) => {
            tracing::debug!(%error, %from, %guest, "the guest did not accept a forwarded client");
        }
    }
}

async fn connect_to_guest<'a>(
    shared: &'a Shared,
    client: &Weak<AsyncFd<Socket>>,
    from: SocketAddr,
    guest: SocketAddr,
) -> io::Result<(TcpFlowEntry<'a>, TcpStream)> {
    let source = shared.forward_source(from, guest)?;
    let add_flow = |remote| {
        let flow = shared.tcp_flows.add_forwarded(guest, remote, from);
        flow.set_host_socket(client.clone());
        flow
    };
    let connect = |source| TcpStream::connect_transparent(&shared.stack, source, guest);
    let flow = add_flow(source);
    match connect(source).await {
        // The client's port is in use at this address, e.g. by a client with the same port and another
        // loopback address.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // The addresses in the table belong to the other flow.
            drop(flow);
            let stream = connect(SocketAddr::new(source.ip(), 0)).await?;
            Ok((add_flow(stream.local_addr()?), stream))
        }
        connected => Ok((flow, connected?)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener};

    use tokio::time::Instant;

    use super::*;

    /// Returns how long a client that has sent `data` and its FIN may wait for the other side.
    async fn patience_for(data: &[u8]) -> Duration {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut sender = std::net::TcpStream::connect(to).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let client = HostStream::new(socket.into()).unwrap();
        sender.write_all(data).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
        client.closed_by_peer().await;
        let start = Instant::now();
        let never = std::future::pending::<io::Result<()>>();
        let error = until_client_ends(&client, never).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_sent_data_before_its_fin_has_longer() {
        let second = Duration::from_secs(1);
        let time = patience_for(b"").await;
        assert!(
            (CLOSED_TIMEOUT..CLOSED_TIMEOUT + second).contains(&time),
            "{time:?}"
        );
        let time = patience_for(b"data").await;
        assert!((60 * second..61 * second).contains(&time), "{time:?}");
    }
}
