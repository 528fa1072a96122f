//! UDP forwards: clients of the host reach a port of the guest.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fullsend_device::LogLimit;
use socket2::Socket;
use tokio::io::unix::AsyncFd;

use super::host_socket::{HostUdp, Peer, Received};
use super::send_to_guest;
use super::table::{ClientKey, UdpFlow};
use crate::counters::add;
use crate::forward::ForwardId;
use crate::gateway::Shared;

/// Pause after a failed `recvmsg`, e.g. for lack of memory.
const RECEIVE_RETRY: Duration = Duration::from_millis(100);
/// The log lines about that.
static NOT_RECEIVED: LogLimit = LogLimit::new();

/// Sends the datagrams of a forward's clients to the guest until the task is aborted. The guest's
/// answers go through the table of flows.
pub(crate) async fn receive_forwarded(
    shared: Arc<Shared>,
    socket: AsyncFd<Socket>,
    forward: ForwardId,
    guest: SocketAddr,
) {
    let socket = Arc::new(HostUdp::new(socket));
    let mut datagrams = VecDeque::new();
    loop {
        match socket.receive(&shared.pool, &mut datagrams).await {
            Ok(Received::Datagrams(Some(peer))) => {
                let client = ClientKey {
                    forward,
                    client: peer.to,
                    asked: peer.from.map(|local| local.ip),
                };
                if let Some(flow) = flow_of(&shared, &socket, (client, peer), guest) {
                    flow.record_use(false);
                    let bytes = send_to_guest(&shared, &flow, &mut datagrams);
                    flow.add_rx_bytes(bytes);
                } else {
                    add(&shared.counters.udp_dropped, datagrams.len() as u64);
                    datagrams.clear();
                }
            }
            Ok(_) => datagrams.clear(),
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

/// Returns the flow of a client, which is added if there is none. `None` if the guest cannot be
/// reached from the gateway, or if all ports are in use.
fn flow_of(
    shared: &Arc<Shared>,
    socket: &Arc<HostUdp>,
    (client, peer): (ClientKey, Peer),
    guest: SocketAddr,
) -> Option<Arc<UdpFlow>> {
    let mut table = shared.udp.table.lock();
    if let Some(flow) = table.of_client(&client) {
        return Some(flow.clone());
    }
    let remote = shared.forward_source(client.client, guest).ok()?;
    let key = table.free_key(guest, remote)?;
    let flow = Arc::new(UdpFlow::new(
        (key, shared.guests.of_or_unknown(guest.ip())),
        socket.clone(),
        client.client,
        Some((client, peer)),
    ));
    let replaced = table.insert(flow.clone(), None, usize::MAX);
    add(&shared.counters.udp_flows, 1);
    add(&shared.counters.forwarded, 1);
    add(&shared.counters.udp_replaced, u64::from(replaced));
    Some(flow)
}
