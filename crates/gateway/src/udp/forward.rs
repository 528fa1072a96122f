//! UDP forwards: clients of the host reach a port of the guest.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fullsend_device::LogLimit;

use super::flow::{Opener, PeerKey, SharedSocket, UdpFlow};
use super::host_socket::{HostUdp, Received};
use super::local_addr::{LocalAddr, Peer};
use super::receive_block::ReceivedDatagrams;
use super::table::GuestShare;
use super::{report, send_to_guest};
use crate::config::Outbound;
use crate::counters::add;
use crate::forward::{Forward, ForwardId};
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

/// Sends the datagrams of a forward's clients to the guest until the task is aborted. The guest's answers
/// use the flow table.
pub(crate) async fn receive_forwarded(
    shared: Arc<Shared>,
    socket: Arc<HostUdp>,
    forward: ForwardId,
    guest: SocketAddr,
) {
    let mut datagrams = ReceivedDatagrams::default();
    let mut last: Option<Arc<UdpFlow>> = None;
    loop {
        match socket.receive(&shared.pool, &mut datagrams).await {
            Ok(Received::Datagrams) => {
                while let Some((peer, run)) = datagrams.pop() {
                    // The kernel always reports the sender.
                    let Some(peer) = peer else { continue };
                    let found = last.take().filter(|flow| is_of(flow, &peer));
                    last = found.or_else(|| flow_of(&shared, &socket, (forward, peer), guest));
                    match &last {
                        Some(flow) => send_to_guest(&shared, flow, run),
                        None => add(&shared.counters.udp_dropped, run.len() as u64),
                    }
                }
            }
            Ok(Received::Error(error)) => {
                let key = SharedSocket::Forward(forward);
                let flow = error.to.and_then(|to| {
                    let table = shared.udp.table.lock();
                    table.any_of_peer(key, to).cloned()
                });
                if let Some(flow) = flow {
                    report(&shared, &flow, &error);
                }
            }
            Err(error) => {
                NOT_RECEIVED.warn((guest, error.kind()), || {
                    format!("the UDP forward to {guest} did not receive: {error}")
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

/// Returns the flow of a client, and adds it if there is none. `None` if the guest cannot be reached from
/// the gateway, or if all ports are in use.
fn flow_of(
    shared: &Arc<Shared>,
    socket: &Arc<HostUdp>,
    (forward, peer): (ForwardId, Peer),
    guest: SocketAddr,
) -> Option<Arc<UdpFlow>> {
    let client = PeerKey {
        socket: SharedSocket::Forward(forward),
        peer: peer.to,
        asked: peer.from.map(|local| local.ip),
    };
    let of_guest = PeerKey {
        asked: None,
        ..client
    };
    let mut table = shared.udp.table.lock();
    // The guest may have sent first.
    let found = table.of_peer(&client).or_else(|| table.of_peer(&of_guest));
    if let Some(flow) = found {
        return Some(flow.clone());
    }
    let remote = shared.forward_source(peer.to, guest).ok()?;
    let key = table.free_key(guest, remote)?;
    let owner = shared.guests.of_or_unknown(guest.ip());
    let flow = Arc::new(UdpFlow::new(
        (key, owner, Opener::Client),
        socket.clone(),
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
