//! UDP forwards: clients of the host reach a port of the guest.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fullsend_device::LogLimit;
use tokio::task::yield_now;

use super::flow::{Opener, PeerKey, SharedSocket, UdpFlow};
use super::host_socket::{HostUdp, Received};
use super::local_addr::{LocalAddr, Peer};
use super::receive_block::ReceivedDatagrams;
use super::splice::{self, Sender};
use super::table::GuestShare;
use super::{report, send_to_guest};
use crate::config::Outbound;
use crate::counters::add;
use crate::forward::{Forward, ForwardId, Side};
use crate::gateway::Shared;

/// Pause after a failed `recvmsg`, e.g. for lack of memory.
const RECEIVE_RETRY: Duration = Duration::from_millis(100);
/// The limit of the log lines about failed calls of `recvmsg`.
static NOT_RECEIVED: LogLimit = LogLimit::new();

/// The socket of a forward, which also sends the guest's own datagrams.
pub(super) struct ForwardSocket {
    guest: SocketAddr,
    /// The address that the socket is bound to.
    host: SocketAddr,
    interface: Option<String>,
    /// The socket, owned by the forward's task.
    socket: Weak<HostUdp>,
}

impl ForwardSocket {
    pub(super) fn new(forward: &Forward, socket: &Arc<HostUdp>) -> Self {
        Self {
            guest: forward.guest,
            host: forward.host,
            interface: forward.interface.clone(),
            socket: Arc::downgrade(socket),
        }
    }

    /// Returns the guest's address.
    pub(super) const fn guest(&self) -> SocketAddr {
        self.guest
    }

    /// Returns the socket with the source address of datagrams to `to`, or `None` if it cannot send there
    /// as `outbound` requires.
    pub(super) fn socket_to(
        &self,
        to: SocketAddr,
        outbound: &Outbound,
    ) -> Option<(Arc<HostUdp>, Option<LocalAddr>)> {
        let (own, is_loopback) = (self.host.ip(), to.ip().is_loopback());
        if own.is_ipv4() != to.is_ipv4() {
            return None;
        }
        let (address, interface) = outbound.settings_for(to.ip());
        let is_on_interface = match (&self.interface, interface) {
            (Some(own), Some(required)) => own == required,
            (None, required) => required.is_none(),
            // A socket that is bound to an interface reaches no other interface.
            (Some(own), None) => !is_loopback || own == "lo",
        };
        if !is_on_interface {
            return None;
        }
        let from = if own.is_unspecified() {
            address.map(LocalAddr::new)
        } else if own.is_loopback() == is_loopback
            && !is_link_local(own)
            && address.is_none_or(|address| address == own)
        {
            None
        } else {
            return None;
        };
        Some((self.socket.upgrade()?, from))
    }
}

const fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// A forward whose clients a task serves.
pub(crate) struct ServedForward {
    pub(super) id: ForwardId,
    /// The side of the clients.
    pub(super) from: Side,
    pub(super) guest: SocketAddr,
    pub(super) host: SocketAddr,
    /// The socket of the clients.
    pub(super) socket: Arc<HostUdp>,
}

impl ServedForward {
    pub(super) const fn new(id: ForwardId, forward: &Forward, socket: Arc<HostUdp>) -> Self {
        Self {
            id,
            from: forward.from,
            guest: forward.guest,
            host: forward.host,
            socket,
        }
    }
}

/// Sends the datagrams of a forward's clients to the other side until the task is aborted. The guest's
/// answers over the link go through the table of flows.
pub(crate) async fn receive_forwarded(shared: Arc<Shared>, served: ServedForward) {
    let mut datagrams = ReceivedDatagrams::default();
    let mut last: Option<Arc<UdpFlow>> = None;
    loop {
        match served.socket.receive(&shared.pool, &mut datagrams).await {
            Ok(Received::Datagrams) => {
                let flows = shared.counters.udp_flows.load(Ordering::Relaxed);
                while let Some((peer, run)) = datagrams.pop() {
                    // The kernel always reports the sender.
                    let Some(peer) = peer else { continue };
                    let found = last.take().filter(|flow| is_of(flow, &peer));
                    last = found.or_else(|| flow_of(&shared, &served, peer));
                    match &last {
                        Some(flow) if flow.spliced().is_some() => {
                            splice::pass(&shared, flow, Sender::Client, run);
                        }
                        Some(flow) => send_to_guest(&shared, flow, run),
                        None => add(&shared.counters.udp_dropped, run.len() as u64),
                    }
                }
                if flows != shared.counters.udp_flows.load(Ordering::Relaxed) {
                    // The socket of a replaced flow is closed when its task runs.
                    yield_now().await;
                }
            }
            Ok(Received::Error(error)) => {
                let key = SharedSocket::Forward(served.id);
                let flow = error.to.and_then(|to| {
                    let table = shared.udp.table.lock();
                    table.any_of_peer(key, to).cloned()
                });
                // No socket of the guest has sent over the link if the flow is one between loopbacks.
                if let Some(flow) = flow.filter(|flow| flow.spliced().is_none()) {
                    report(&shared, &flow, &error);
                }
            }
            Err(error) => {
                let (guest, host) = (served.guest, served.host);
                NOT_RECEIVED.warn((guest, error.kind()), || {
                    format!("the UDP forward between {host} and {guest} of the guest did not receive: {error}")
                });
                datagrams.clear();
                tokio::time::sleep(RECEIVE_RETRY).await;
            }
        }
    }
}

/// Returns whether a flow exists and belongs to `client`.
fn is_of(flow: &UdpFlow, client: &Peer) -> bool {
    !flow.is_ended() && flow.peer() == Some(client)
}

/// Returns the flow of a client, which is added if there is none. `None` if the other side cannot be
/// reached from the gateway, if all ports are in use, or if the policy denies it.
fn flow_of(shared: &Arc<Shared>, served: &ServedForward, peer: Peer) -> Option<Arc<UdpFlow>> {
    let client = PeerKey {
        socket: SharedSocket::Forward(served.id),
        peer: peer.to,
        asked: peer.from.map(|local| local.ip),
    };
    let of_guest = PeerKey {
        asked: None,
        ..client
    };
    {
        let table = shared.udp.table.lock();
        // The guest may have sent first.
        let found = table.of_peer(&client).or_else(|| table.of_peer(&of_guest));
        if let Some(flow) = found {
            return Some(flow.clone());
        }
    }
    match served.from {
        Side::Guest => splice::open_to_host(shared, served, (client, peer)),
        Side::Host => splice::open_to_guest(shared, served, (client, peer))
            .or_else(|| open_over_link(shared, served, (client, peer))),
    }
}

/// Adds the flow of a client of the host over the link.
fn open_over_link(
    shared: &Arc<Shared>,
    served: &ServedForward,
    (client, peer): (PeerKey, Peer),
) -> Option<Arc<UdpFlow>> {
    let remote = shared.forward_source(peer.to, served.guest).ok()?;
    let guest = shared.datagram_target(remote.ip(), served.guest);
    let owner = shared.guests.of_or_unknown(served.guest.ip());
    let mut table = shared.udp.table.lock();
    let key = table.free_key(guest, remote)?;
    let flow = Arc::new(UdpFlow::new(
        (key, owner, Opener::Client),
        served.socket.clone(),
        peer.to,
        Some((client, peer)),
    ));
    let unlimited = GuestShare {
        flows: usize::MAX,
        sockets: usize::MAX,
    };
    let replaced = table.insert(&flow, None, unlimited);
    drop(table);
    add(&shared.counters.udp_flows, 1);
    add(&shared.counters.forwarded, 1);
    add(&shared.counters.udp_replaced, replaced as u64);
    Some(flow)
}
