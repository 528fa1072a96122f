//! UDP flows between the loopbacks of host and guest: each client of a forward has a connected socket on
//! the other side, and no packet crosses the link.

use std::iter::Peekable;
use std::net::SocketAddr;
use std::sync::Arc;

use fullsend::{Chain, Slice};

use super::flow::{FlowKey, Opener, PeerKey, UdpFlow};
use super::forward::ServedForward;
use super::guest_share;
use super::host_socket::{HostUdp, MAX_SEGMENTS, MAX_SEND_BYTES, Outgoing, Received};
use super::local_addr::Peer;
use super::receive_block::ReceivedDatagrams;
use crate::counters::add;
use crate::forward::{Protocol, Side};
use crate::gateway::Shared;
use crate::policy::{FlowProtocol, Verdict};

/// The end of a flow that has sent datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sender {
    /// The client of the forward.
    Client,
    /// The server on the other side.
    Server,
}

/// Adds the flow of a client on the host's loopback to a socket of the guest. `None` if the client uses the
/// link.
pub(super) fn open_to_guest(
    shared: &Arc<Shared>,
    served: &ServedForward,
    client: (PeerKey, Peer),
) -> Option<Arc<UdpFlow>> {
    let sockets = shared.guest_sockets.as_ref()?;
    let from = client.1.to;
    let to = shared.config.spliced_target(from.ip(), served.guest)?;
    let socket = sockets.unbound(Protocol::Udp, to);
    let socket = socket.and_then(|socket| HostUdp::connect_socket(socket, to));
    let remote = socket.and_then(|socket| Ok((socket.local_addr()?, socket)));
    let (remote, socket) = match remote {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!(%error, %to, "a UDP client on the loopback uses the link");
            return None;
        }
    };
    // The kernel sends to its own addresses from the same address: otherwise the guest does not have it yet.
    if remote.ip() != to.ip() {
        return None;
    }
    let key = FlowKey { guest: to, remote };
    start(shared, served, client, (key, socket, from))
}

/// Adds the flow of a client in the guest to a socket of the host. `None` if the policy denies it, and if
/// there is no socket.
pub(super) fn open_to_host(
    shared: &Arc<Shared>,
    served: &ServedForward,
    client: (PeerKey, Peer),
) -> Option<Arc<UdpFlow>> {
    let (guest, host) = (client.1.to, served.host);
    let asked = client.0.asked.unwrap_or(served.guest.ip());
    let key = FlowKey {
        guest,
        remote: SocketAddr::new(asked, served.guest.port()),
    };
    // The forward itself is the redirection, so that no other one applies.
    let verdict = shared.verdict(FlowProtocol::Udp, guest, key.remote);
    if matches!(verdict, Verdict::Reject | Verdict::Drop)
        || shared.refuses_service(FlowProtocol::Udp, guest, host)
    {
        return None;
    }
    match HostUdp::connect(host, &shared.config.outbound) {
        Ok(socket) => start(shared, served, client, (key, socket, host)),
        Err(error) => {
            tracing::debug!(%error, %host, "a UDP client in the guest has no socket");
            None
        }
    }
}

/// Adds a flow whose other side has `socket`, and starts to receive the answers. `None` if the gateway has
/// stopped.
fn start(
    shared: &Arc<Shared>,
    served: &ServedForward,
    client: (PeerKey, Peer),
    (key, socket, host): (FlowKey, HostUdp, SocketAddr),
) -> Option<Arc<UdpFlow>> {
    let opener = match served.from {
        Side::Host => Opener::Client,
        Side::Guest => Opener::Guest,
    };
    // Only a gateway with one guest has sockets in its namespace.
    let owner = shared.guests.only().clone();
    let of_client = served.socket.clone();
    let flow = UdpFlow::new((key, owner, opener), of_client, host, Some(client));
    let flow = Arc::new(flow.spliced_to(Arc::new(socket)));
    // The task waits until the table has the flow.
    let mut table = shared.udp.table.lock();
    let task = shared.spawn(receive_answers(shared.clone(), flow.clone()))?;
    let replaced = table.insert(&flow, Some(task), guest_share(shared));
    drop(table);
    add(&shared.counters.udp_flows, 1);
    add(&shared.counters.forwarded, 1);
    add(&shared.counters.udp_replaced, replaced as u64);
    Some(flow)
}

/// Passes the answers to the client until the flow ends.
async fn receive_answers(shared: Arc<Shared>, flow: Arc<UdpFlow>) {
    let Some(socket) = flow.spliced() else { return };
    let mut datagrams = ReceivedDatagrams::default();
    loop {
        match socket.receive(&shared.pool, &mut datagrams).await {
            Ok(Received::Datagrams) => {
                while let Some((_, run)) = datagrams.pop() {
                    pass(&shared, &flow, Sender::Server, run);
                }
            }
            // The kernel reports errors to the sockets of programs only, and the server may listen later.
            Ok(Received::Error(_)) => {}
            Err(error) => {
                let key = flow.key;
                tracing::debug!(%error, ?key, "the socket of a UDP flow between loopbacks failed");
                return shared.udp.table.lock().remove(&key);
            }
        }
    }
}

/// Passes datagrams to the other side of a flow between loopbacks, as far as the rate limit allows.
pub(super) fn pass(
    shared: &Shared,
    flow: &UdpFlow,
    sender: Sender,
    datagrams: impl ExactSizeIterator<Item = Slice>,
) {
    let is_to_guest = (sender == Sender::Client) == flow.is_forwarded();
    let counters = &shared.counters;
    let (rate, counter) = if is_to_guest {
        flow.record_rx();
        (&flow.owner.rx_rate, &counters.udp_rx_datagrams)
    } else {
        flow.record_tx();
        (&flow.owner.tx_rate, &counters.udp_tx_datagrams)
    };
    let (socket, peer) = match (sender, flow.spliced()) {
        (Sender::Client, Some(spliced)) => (spliced, None),
        _ => (&flow.socket, flow.peer()),
    };
    let (count, mut sent, mut bytes) = (datagrams.len(), 0, 0);
    let mut allowed = datagrams
        .filter(|datagram| rate.try_take(datagram.len()))
        .peekable();
    while let Some(train) = Train::take(&mut allowed) {
        let outgoing = Outgoing {
            data: &train.data,
            size: train.size,
            ttl: socket.ttl(),
            peer,
            segmentation: &flow.segmentation,
        };
        // A full queue loses datagrams, as one of the kernel does.
        if socket.send(&outgoing).is_ok() {
            sent += train.count;
            bytes += train.data.len();
        }
    }
    if is_to_guest {
        flow.add_rx_bytes(bytes);
    } else {
        flow.add_tx_bytes(bytes);
    }
    add(counter, sent as u64);
    add(&counters.udp_dropped, (count - sent) as u64);
}

/// Datagrams of one size, except for the last, which leave together.
struct Train {
    data: Chain,
    size: usize,
    count: usize,
}

impl Train {
    /// Takes the first datagrams that can leave together.
    fn take(datagrams: &mut Peekable<impl Iterator<Item = Slice>>) -> Option<Self> {
        let first = datagrams.next()?;
        let size = first.len();
        let mut train = Self {
            data: first.into(),
            size,
            count: 1,
        };
        let mut last = size;
        while last == size
            && train.count < MAX_SEGMENTS
            && let Some(next) = datagrams.next_if(|next| {
                (1..=size).contains(&next.len()) && train.data.len() + next.len() <= MAX_SEND_BYTES
            })
        {
            last = next.len();
            train.data.append(next.into());
            train.count += 1;
        }
        Some(train)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trains(lengths: &[usize]) -> Vec<(usize, usize, usize)> {
        let datagrams = lengths.iter().map(|&len| Slice::copied_from(&vec![7; len]));
        let mut datagrams = datagrams.peekable();
        let trains = std::iter::from_fn(|| Train::take(&mut datagrams));
        let shape = |train: Train| (train.count, train.size, train.data.len());
        trains.map(shape).collect()
    }

    #[test]
    fn datagrams_of_one_size_leave_together_and_empty_ones_alone() {
        assert_eq!(trains(&[100, 100, 40, 100]), [(3, 100, 240), (1, 100, 100)]);
        assert_eq!(
            trains(&[5, 0, 0, 6]),
            [(1, 5, 5), (1, 0, 0), (1, 0, 0), (1, 6, 6)]
        );
        assert_eq!(
            trains(&[30_000; 3]),
            [(2, 30_000, 60_000), (1, 30_000, 30_000)]
        );
        assert_eq!(trains(&[1; 65]), [(64, 1, 64), (1, 1, 1)]);
        assert!(trains(&[]).is_empty());
    }
}
