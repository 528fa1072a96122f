//! The guest's connections, whose SYNs are deferred while the host connects to their destinations.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use fullsend::{PendingConnection, TransparentListener, UnreachableCode};
use nix::errno::Errno;
use tokio::sync::OwnedSemaphorePermit;

use super::HostStream;
use super::flow::Stage;
use super::relay::{count_reset, relay};
use crate::counters::add;
use crate::dns::relay_stream;
use crate::gateway::Shared;
use crate::guests::{Guest, HeldShare, Share};
use crate::policy::{FlowProtocol, is_link_local};
use crate::route::Route;

/// Accepts the guest's connections until the stack stops.
pub(crate) async fn accept_outbound(shared: Arc<Shared>, listener: TransparentListener) {
    while let Ok(pending) = listener.accept().await {
        // A sender whose address belongs to no guest gets no answer.
        let Some(guest) = shared.guests.of(pending.peer_addr().ip()) else {
            add(&shared.counters.tcp_dropped, 1);
            pending.ignore();
            continue;
        };
        let Some(permit) = Permit::try_acquire(&shared, &guest) else {
            add(&shared.counters.tcp_dropped, 1);
            shared.log_tcp_full(&guest);
            pending.ignore();
            continue;
        };
        let task = connect(shared.clone(), pending, (guest, permit));
        shared.spawn(task);
    }
}

/// The permits of a guest's connection: one of the gateway's, and one of the guest's share.
struct Permit {
    _of_all: OwnedSemaphorePermit,
    _of_guest: HeldShare,
}

impl Permit {
    fn try_acquire(shared: &Shared, guest: &Arc<Guest>) -> Option<Self> {
        let (all, limits) = (shared.limits.tcp, &shared.config.limits);
        let max = shared.guests.part_of(all, limits.tcp_connections);
        Some(Self {
            _of_guest: guest.try_hold(Share::Tcp, max)?,
            _of_all: shared.tcp_permits.clone().try_acquire_owned().ok()?,
        })
    }
}

/// Connects to the destination of a deferred SYN, answers the SYN according to the result, and relays.
async fn connect(
    shared: Arc<Shared>,
    pending: PendingConnection,
    (sender, permit): (Arc<Guest>, Permit),
) {
    let route = shared.route(FlowProtocol::Tcp, pending.peer_addr(), pending.local_addr());
    let to = match route {
        Route::Connect(to) => to,
        Route::Reject | Route::Prohibited => return pending.reject(),
        Route::Drop => return pending.ignore(),
        Route::Unreachable => {
            return reject_unreachable(&shared, pending, UnreachableCode::Network);
        }
        Route::Dns => {
            match pending.accept().await {
                // The future is boxed, as it needs more memory than those of other connections.
                Ok(guest) => Box::pin(relay_stream(&shared, &sender, guest)).await,
                Err(error) => count_reset(&shared, &error),
            }
            return;
        }
        Route::DnsOverTls => match shared.resolver_over_tls(pending.local_addr().port()) {
            Some(to) => to,
            None => return pending.reject(),
        },
    };
    let flow = shared
        .tcp_flows
        .add_outbound(pending.peer_addr(), pending.local_addr(), to);
    let connected = tokio::select! {
        biased;
        connected = HostStream::connect(to, &shared.config.outbound) => connected,
        // The guest has reset the connection, or no longer retransmits its SYN.
        _ = pending.cancelled() => {
            add(&shared.counters.tcp_reset, 1);
            return pending.ignore();
        }
    };
    match connected {
        Ok(host) => {
            flow.set_host_socket(host.downgrade());
            flow.set_stage(Stage::Handshake);
            match pending.accept().await {
                Ok(guest) => {
                    add(&shared.counters.tcp_established, 1);
                    relay((&shared, &sender), &flow, guest, host).await;
                }
                // The guest has given up, or its RST arrived together with its ACK.
                Err(error) => count_reset(&shared, &error),
            }
        }
        Err(error) => on_connect_error(&shared, pending, to, &error),
    }
    drop(permit);
}

/// Answers a deferred SYN according to the error of the host's `connect`.
fn on_connect_error(
    shared: &Shared,
    pending: PendingConnection,
    to: SocketAddr,
    error: &io::Error,
) {
    tracing::debug!(%to, %error, "connect failed");
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
    match errno {
        Errno::ECONNREFUSED | Errno::ECONNRESET => {
            add(&shared.counters.tcp_refused, 1);
            pending.reject();
        }
        // No route leads to a link-local address without its interface.
        Errno::EINVAL if is_link_local(to.ip()) => {
            reject_unreachable(shared, pending, UnreachableCode::Network);
        }
        // `EINVAL` is the error of a blackhole route.
        Errno::ETIMEDOUT | Errno::EINVAL => {
            add(&shared.counters.tcp_timed_out, 1);
            pending.ignore();
        }
        // The guest retransmits the SYN, when descriptors or memory may be free again.
        Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM | Errno::EAGAIN => {
            add(&shared.counters.tcp_dropped, 1);
            pending.ignore();
        }
        Errno::EHOSTUNREACH | Errno::EHOSTDOWN => {
            reject_unreachable(shared, pending, UnreachableCode::Host);
        }
        Errno::EACCES | Errno::EPERM => {
            reject_unreachable(shared, pending, UnreachableCode::Prohibited);
        }
        _ => reject_unreachable(shared, pending, UnreachableCode::Network),
    }
}

fn reject_unreachable(shared: &Shared, pending: PendingConnection, code: UnreachableCode) {
    add(&shared.counters.tcp_unreachable, 1);
    // Fails only if the guest has given up.
    if pending.reject_unreachable(code).is_ok() {
        add(&shared.counters.icmp_errors, 1);
    }
}

/// Returns the size of the future of the guest's connection, for tests.
#[cfg(test)]
pub(super) fn connect_size() -> usize {
    fn size_of_output<F: Future>(
        _: impl FnOnce(Arc<Shared>, PendingConnection, (Arc<Guest>, Permit)) -> F,
    ) -> usize {
        size_of::<F>()
    }
    size_of_output(connect)
}
