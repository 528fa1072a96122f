//! Datagrams of other hosts to the sockets of the guest's ports.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::flow::{FlowKey, MappingKey, Opener, PeerKey, SharedSocket, UdpFlow};
use super::host_socket::{HostUdp, Received};
use super::local_addr::Peer;
use super::receive_block::ReceivedDatagrams;
use super::{guest_share, report, send_to_guest};
use crate::config::UdpFiltering;
use crate::counters::add;
use crate::gateway::Shared;
use crate::guests::Guest;

/// Most refused senders that are remembered, so that the policy decides once about many datagrams.
const REFUSED_MAX: usize = 8;
/// Time for which a refused sender is remembered; the policy's verdict may change.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// An address and port of a guest, and its socket.
pub(super) struct Mapping {
    pub(super) key: MappingKey,
    pub(super) owner: Arc<Guest>,
    /// The socket that all flows of the port share.
    pub(super) socket: Arc<HostUdp>,
}

/// Senders that were refused recently.
#[derive(Default)]
struct Refused {
    senders: [Option<(SocketAddr, Instant)>; REFUSED_MAX],
    next: usize,
}

impl Refused {
    fn has(&self, sender: SocketAddr, now: Instant) -> bool {
        let mut recent = self.senders.iter().flatten();
        recent.any(|(refused, at)| *refused == sender && now - *at < REFUSED_FOR)
    }

    fn add(&mut self, sender: SocketAddr, now: Instant) {
        self.senders[self.next] = Some((sender, now));
        self.next = (self.next + 1) % REFUSED_MAX;
    }
}

/// Sends the datagrams that `socket` receives to the guest until the task is aborted. `socket` is that of
/// the mapping, or a connected one with the same port.
pub(super) async fn receive_mapped(shared: Arc<Shared>, mapping: Mapping, socket: Arc<HostUdp>) {
    let mut datagrams = ReceivedDatagrams::default();
    let mut last: Option<Arc<UdpFlow>> = None;
    let mut refused = Refused::default();
    loop {
        match socket.receive(&shared.pool, &mut datagrams).await {
            Ok(Received::Datagrams) => {
                while let Some((peer, run)) = datagrams.pop() {
                    // The kernel always reports the sender.
                    let Some(peer) = peer else { continue };
                    let found = last
                        .take()
                        .filter(|flow| !flow.is_ended() && flow.host == peer.to);
                    last = found.or_else(|| flow_of(&shared, &mapping, (peer, &mut refused)));
                    match &last {
                        Some(flow) => send_to_guest(&shared, flow, run),
                        None => add(&shared.counters.udp_filtered, run.len() as u64),
                    }
                }
            }
            Ok(Received::Error(error)) => {
                let key = SharedSocket::Mapping(mapping.key);
                let flow = error.to.and_then(|to| {
                    let table = shared.udp.table.lock();
                    table.any_of_peer(key, to).cloned()
                });
                if let Some(flow) = flow {
                    report(&shared, &flow, &error);
                }
            }
            Err(error) => {
                let guest = mapping.key.guest;
                tracing::debug!(%error, %guest, "the socket of a guest's UDP port failed");
                return shared.udp.table.lock().end_mapping(&mapping.key);
            }
        }
    }
}

/// Returns the flow of a sender. Adds one if there is none and the filter and the policy admit the
/// sender.
fn flow_of(
    shared: &Arc<Shared>,
    mapping: &Mapping,
    (peer, refused): (Peer, &mut Refused),
) -> Option<Arc<UdpFlow>> {
    let key = PeerKey {
        socket: SharedSocket::Mapping(mapping.key),
        peer: peer.to,
        asked: None,
    };
    let found = shared.udp.table.lock().of_peer(&key).cloned();
    if found.is_some() {
        return found;
    }
    let now = Instant::now();
    if refused.has(peer.to, now) {
        return None;
    }
    let admitted = admit(shared, mapping, peer.to).and_then(|remote| {
        let guest = mapping.key.guest;
        add_flow(shared, mapping, (key, peer), FlowKey { guest, remote })
    });
    if admitted.is_none() {
        refused.add(peer.to, now);
    }
    admitted
}

/// Returns the address of a sender without a flow as the guest sees it, or `None` if its datagrams may
/// not reach the guest (RFC 4787 5). A sender is admitted only if the guest could send to it.
fn admit(shared: &Shared, mapping: &Mapping, sender: SocketAddr) -> Option<SocketAddr> {
    let guest = mapping.key.guest;
    // The sender may be the socket of another guest, which must not reach this one.
    if sender.ip().is_loopback() && shared.guests.are_apart() {
        return None;
    }
    let contact = shared.udp.table.lock().contact(&mapping.key, sender.ip());
    let visible = match shared.config.udp_filtering {
        UdpFiltering::AddressAndPortDependent => return None,
        UdpFiltering::AddressDependent => contact?,
        UdpFiltering::EndpointIndependent => {
            contact.or_else(|| visible(shared, guest, sender.ip()))?
        }
    };
    let remote = SocketAddr::new(visible, sender.port());
    shared.admits(guest, remote, sender).then_some(remote)
}

/// Returns the address under which the guest sees a sender that it has not sent to. `None` if it would be
/// the address of the guest itself, or of another host on the guest's link, where the sender is not.
fn visible(shared: &Shared, guest: SocketAddr, sender: IpAddr) -> Option<IpAddr> {
    let config = &shared.config;
    let visible = config.visible_to_guest(sender);
    let stands_for_itself = visible == sender;
    if visible == guest.ip()
        || stands_for_itself && config.is_on_link(sender) && !config.proxy_neighbors
    {
        return None;
    }
    Some(match (visible, guest.ip()) {
        // An IPv4 socket can serve an IPv6 address of the guest.
        (IpAddr::V4(ip), IpAddr::V6(_)) => ip.to_ipv6_mapped().into(),
        _ => visible,
    })
}

/// Adds the flow of a sender, unless the guest has a flow with this address through another socket.
fn add_flow(
    shared: &Arc<Shared>,
    mapping: &Mapping,
    (peer_key, peer): (PeerKey, Peer),
    key: FlowKey,
) -> Option<Arc<UdpFlow>> {
    let mut table = shared.udp.table.lock();
    if table.get(&key).is_some() || !table.has_mapping(&mapping.key) {
        return None;
    }
    let flow = Arc::new(UdpFlow::new(
        (key, mapping.owner.clone(), Opener::Remote),
        mapping.socket.clone(),
        peer.to,
        Some((peer_key, peer)),
    ));
    let replaced = table.insert(&flow, None, guest_share(shared));
    drop(table);
    add(&shared.counters.udp_flows, 1);
    add(&shared.counters.udp_replaced, replaced as u64);
    Some(flow)
}
