//! UDP forwards: clients of the host reach a port of the guest.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use socket2::Socket;
use tokio::io::unix::AsyncFd;

use super::host_socket::{HostUdp, Received};
use super::send_to_guest;
use super::table::{FlowKey, UdpFlow};
use crate::counters::add;
use crate::gateway::Shared;

/// Ports that stand for clients whose own address and port are in use by another flow.
const SUBSTITUTE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Sends the datagrams of a forward's clients to the guest until the task is aborted. The guest's
/// answers go through the table of flows.
pub(crate) async fn receive_forwarded(
    shared: Arc<Shared>,
    socket: AsyncFd<Socket>,
    guest: SocketAddr,
) {
    let socket = Arc::new(HostUdp::new(socket));
    let mut datagrams = VecDeque::new();
    loop {
        match socket.receive(&shared.pool, &mut datagrams).await {
            Ok(Received::Datagrams(Some(client))) => {
                match flow_of(&shared, &socket, client, guest) {
                    Some(flow) => {
                        flow.record_use(false);
                        send_to_guest(&shared, &mut datagrams, flow.key.remote, guest);
                    }
                    None => datagrams.clear(),
                }
            }
            Ok(_) => datagrams.clear(),
            Err(error) => {
                tracing::warn!(%error, %guest, "a UDP forward failed");
                return;
            }
        }
    }
}

/// Returns the flow of a client, which is added if there is none. `None` if the guest cannot be
/// reached from the gateway, or if all ports are in use.
fn flow_of(
    shared: &Arc<Shared>,
    socket: &Arc<HostUdp>,
    client: SocketAddr,
    guest: SocketAddr,
) -> Option<Arc<UdpFlow>> {
    let mut remote = shared.forward_source(client, guest).ok()?;
    let mut table = shared.udp.table.lock();
    let mut ports = SUBSTITUTE_PORTS;
    loop {
        let key = FlowKey { guest, remote };
        match table.get(&key) {
            Some(flow) if flow.client == Some(client) && Arc::ptr_eq(&flow.socket, socket) => {
                return Some(flow.clone());
            }
            // Another client that the guest sees with the same address.
            Some(_) => remote.set_port(ports.next()?),
            None => {
                let flow = Arc::new(UdpFlow::new(key, socket.clone(), client, Some(client)));
                let replaced = table.insert(flow.clone(), None);
                add(&shared.counters.udp_flows, 1);
                add(&shared.counters.forwarded, 1);
                add(&shared.counters.udp_replaced, u64::from(replaced));
                return Some(flow);
            }
        }
    }
}
