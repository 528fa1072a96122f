//! UDP flows: each has a socket of the host that is connected to its destination.

mod error_queue;
mod forward;
mod host_socket;
mod outbound;
mod receive_block;
mod table;

use std::collections::VecDeque;
use std::sync::Arc;

use fullsend::{Slice, UdpSocket};
use parking_lot::Mutex;

pub(crate) use error_queue::ReportedError;
pub(crate) use forward::receive_forwarded;
pub(crate) use host_socket::report_local_address;
pub(crate) use outbound::{expire_flows, receive_outbound};
use table::Table;
pub(crate) use table::{FlowKey, UdpFlow};

use crate::counters::add;
use crate::forward::ForwardId;
use crate::gateway::Shared;

/// Limit of the memory of the guest's datagrams that wait for the gateway, bytes.
const QUEUE_BYTES: usize = 4 << 20;

/// The UDP flows of a gateway.
pub(crate) struct Udp {
    /// The socket for all datagrams of the guest.
    socket: UdpSocket,
    table: Mutex<Table>,
}

impl Udp {
    /// Opens the socket for the guest's datagrams. At most `max_flows` flows of the guest and
    /// `max_forwarded` of forwards exist at once.
    pub(crate) fn new(
        stack: &fullsend::Stack,
        max_flows: usize,
        max_forwarded: usize,
    ) -> std::io::Result<Self> {
        Ok(Self {
            socket: UdpSocket::bind_any(stack, QUEUE_BYTES)?,
            table: Mutex::new(Table::new(max_flows, max_forwarded)),
        })
    }

    /// Ends the flows of a forward, and thus releases its socket.
    pub(crate) fn end_forward(&self, forward: ForwardId) {
        self.table.lock().remove_forward(forward);
    }

    /// Returns the socket that sends to the guest from any address.
    pub(crate) const fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Returns the first flows after `key` in the order of their addresses, at most `max`.
    pub(crate) fn after(&self, key: Option<FlowKey>, max: usize) -> Vec<Arc<UdpFlow>> {
        self.table.lock().after(key, max)
    }

    pub(crate) fn flow_count(&self) -> usize {
        self.table.lock().len()
    }
}

/// Sends datagrams that the host's socket of a flow has received to the guest. Returns the bytes that the
/// rate limit allows.
fn send_to_guest(shared: &Shared, flow: &UdpFlow, datagrams: &mut VecDeque<Slice>) -> usize {
    let FlowKey { guest, remote } = flow.key;
    let count = datagrams.len();
    let mut bytes = 0;
    let allowed = datagrams
        .drain(..)
        .filter(|datagram| flow.owner.rx_rate.try_take(datagram.len()))
        .inspect(|datagram| bytes += datagram.len())
        .map(|datagram| (datagram, remote, guest));
    // Fails only if the stack has stopped.
    let sent = shared.udp.socket.send_batch(allowed).unwrap_or(0);
    add(&shared.counters.udp_rx_datagrams, sent as u64);
    add(&shared.counters.udp_dropped, (count - sent) as u64);
    bytes
}
