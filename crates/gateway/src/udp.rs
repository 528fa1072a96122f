//! UDP flows: one socket of the host for each address and port of the guest (RFC 4787).

mod busy;
mod error_queue;
mod flow;
mod forward;
mod guest_ports;
mod host_socket;
mod inbound;
mod local_addr;
mod outbound;
mod receive_block;
mod splice;
mod table;

use std::net::SocketAddr;
use std::sync::Arc;

use fullsend::{Slice, UdpSocket};
use fullsend_device::PortId;
use parking_lot::Mutex;
use socket2::Socket;
use tokio::io::unix::AsyncFd;

pub(crate) use error_queue::{ReportedError, read_error, report_errors};
pub(crate) use flow::{FlowKey, UdpFlow};
use forward::ForwardSocket;
pub(crate) use forward::{ServedForward, receive_forwarded};
use guest_ports::GuestPorts;
pub(crate) use host_socket::HostUdp;
pub(crate) use local_addr::report_local_address;
pub(crate) use outbound::{expire_flows, receive_outbound};
use table::{Bounds, GuestShare, Table};

use crate::counters::add;
use crate::descriptors::SocketLimits;
use crate::forward::{Forward, ForwardId, Side};
use crate::gateway::Shared;
use crate::icmp::report_error;

/// Most memory of the guest's datagrams that wait for the gateway, bytes.
const QUEUE_BYTES: usize = 4 << 20;

/// The UDP flows of a gateway.
pub(crate) struct Udp {
    /// The socket that receives all datagrams of the guest.
    socket: UdpSocket,
    table: Mutex<Table>,
    guest_ports: Arc<GuestPorts>,
}

impl Udp {
    /// Opens the socket for the guest's datagrams. `max_forwarded` is the largest number of flows of
    /// forwards.
    pub(crate) fn new(
        stack: &fullsend::Stack,
        limits: &SocketLimits,
        max_forwarded: usize,
    ) -> std::io::Result<Self> {
        Ok(Self {
            socket: UdpSocket::bind_any(stack, QUEUE_BYTES)?,
            guest_ports: Arc::default(),
            table: Mutex::new(Table::new(Bounds {
                flows: limits.udp_flows,
                sockets: limits.udp,
                forwarded: max_forwarded,
                spliced: limits.spliced_udp,
            })),
        })
    }

    /// Registers the socket of a forward, and returns it for the forward's task.
    pub(crate) fn start_forward(
        &self,
        id: ForwardId,
        forward: &Forward,
        socket: AsyncFd<Socket>,
    ) -> ServedForward {
        let socket = Arc::new(HostUdp::new(socket));
        if forward.from == Side::Host {
            let registered = ForwardSocket::new(forward, &socket);
            self.table.lock().add_forward(id, registered);
        }
        ServedForward::new(id, forward, socket)
    }

    /// Ends the flows of a forward to `guest`, and releases its socket.
    pub(crate) fn end_forward(&self, forward: ForwardId, guest: SocketAddr) {
        self.table.lock().remove_forward(forward, guest);
    }

    /// Ends the flows of guests to `host`, an address of the host, unless `is_allowed` is true of the guest.
    pub(crate) fn end_flows_to(
        &self,
        host: SocketAddr,
        is_allowed: impl Fn(Option<PortId>) -> bool,
    ) {
        let is_refused = |flow: &UdpFlow| {
            flow.host == host && !flow.is_forwarded() && !is_allowed(flow.owner.port)
        };
        self.table.lock().remove_where(is_refused);
    }

    /// Returns the host's ports at which sockets of guests receive.
    pub(crate) fn guest_ports(&self) -> &GuestPorts {
        &self.guest_ports
    }

    /// Returns the socket that sends to the guest, from any address.
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

    /// Returns the number of the host's sockets for flows of guests.
    pub(crate) fn socket_count(&self) -> usize {
        self.table.lock().socket_count()
    }
}

/// Returns the largest numbers of flows and sockets of one guest.
fn guest_share(shared: &Shared) -> GuestShare {
    let of_one = shared.config.limits.udp_flows;
    let part_of = |of_all| shared.guests.part_of(of_all, of_one);
    GuestShare {
        flows: part_of(shared.limits.udp_flows),
        sockets: part_of(shared.limits.udp),
    }
}

/// Sends datagrams that the host's socket has received to the guest. Those beyond the rate limit are
/// dropped.
fn send_to_guest(shared: &Shared, flow: &UdpFlow, datagrams: impl ExactSizeIterator<Item = Slice>) {
    flow.record_rx();
    let FlowKey { guest, remote } = flow.key;
    let count = datagrams.len();
    let mut bytes = 0;
    let allowed = datagrams
        .filter(|datagram| flow.owner.rx_rate.try_take(datagram.len()))
        .inspect(|datagram| bytes += datagram.len())
        .map(|datagram| (datagram, remote, guest));
    // Fails only if the stack has stopped.
    let sent = shared.udp.socket.send_batch(allowed).unwrap_or(0);
    flow.add_rx_bytes(bytes);
    add(&shared.counters.udp_rx_datagrams, sent as u64);
    add(&shared.counters.udp_dropped, (count - sent) as u64);
}

/// Reports an ICMP error about one of the guest's datagrams to the guest.
fn report(shared: &Shared, flow: &UdpFlow, error: &ReportedError) {
    // An error from the destination gets the destination's address as the guest sees it.
    let offender = match error.offender {
        Some(offender) if offender != flow.host.ip() && !offender.is_loopback() => offender,
        _ => flow.key.remote.ip(),
    };
    report_error(shared, flow.key.guest, flow.key.remote, offender, error);
}
