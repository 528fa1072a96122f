//! The interface of a gateway to its stack's control socket, and what it reports.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A gateway whose flows, forwards and leases a control socket can list.
///
/// The lists are read in parts, so that no lock is held for long: each call appends the entries after
/// a position and returns the next position, or `None` at the end. Entries that are added or removed
/// in between may be missed.
pub trait Gateway: Send + Sync {
    /// Returns the settings, the numbers of flows and forwards, the memory, and the leases.
    fn summary(&self) -> GatewayView;

    /// Returns the counters with their names.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Appends flows.
    fn flows(&self, from: FlowCursor, out: &mut Vec<GatewayFlowView>) -> Option<FlowCursor>;

    /// Appends the forwards with numbers greater than `after`.
    fn forwards(&self, after: u64, out: &mut Vec<ForwardView>) -> Option<u64>;
}

/// The position at which a listing of a gateway's flows continues. The default is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowCursor {
    /// The table: 0 for TCP, 1 for UDP, 2 for echo requests.
    pub table: u8,
    /// The number of the last flow that was listed, in a table with numbers.
    pub id: u64,
    /// The guest's address and the remote one of the last flow that was listed, in other tables.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
}

/// A flow of a gateway's guest: its side and the host's.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GatewayFlowView {
    /// `tcp`, `udp` or `icmp` (echo requests).
    pub netid: String,
    /// Whether a client of a forward opened the flow, and not the guest.
    pub forwarded: bool,
    /// The guest's address and port. The port of echo requests is their identifier.
    pub guest: String,
    /// The other end's address and port as the guest sees it.
    pub remote: String,
    /// The state of the guest's connection, with the names of `ss`; of a UDP flow `ESTAB` after
    /// datagrams in both directions, otherwise `UNCONN`.
    pub state: String,
    /// The direction from the guest to the host.
    pub tx: FlowDirectionView,
    /// The direction from the host to the guest.
    pub rx: FlowDirectionView,
    /// The reason why the flow waits: the word of a direction that waits for something other than data.
    /// If there is none, the word of a direction that is not closed. If there are two, the word of the
    /// direction with more bytes.
    pub held_by: String,
    /// The guest's side.
    pub guest_socket: GuestSocketView,
    /// The host's side.
    pub host_socket: HostSocketView,
    /// Time since the flow began, in ms.
    pub age_ms: u64,
    /// Time since the last datagram, in ms; for TCP, since the last data in the guest's connection.
    pub idle_ms: u64,
}

/// One direction of a [`GatewayFlowView`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FlowDirectionView {
    /// Payload passed on, in bytes; for echo requests, with the ICMP header.
    pub bytes: u64,
    /// The event or limit that this direction waits for:
    ///
    /// | word | meaning |
    /// |---|---|
    /// | `connecting` | the host's socket connects, and the guest's SYN waits |
    /// | `handshake` | the handshake with the guest is not complete |
    /// | `guest-idle`, `host-idle` | the gateway waits for data of this end |
    /// | `host-full` | the host's socket accepts no more data |
    /// | `guest-window` | the guest's receive window is full |
    /// | `cwnd`, `pacing` | the congestion window or the pacing rate towards the guest |
    /// | `device` | the guest's device has enough of the flow in its queue |
    /// | `sndbuf` | data waits in the send buffer towards the guest |
    /// | `rate-limit` | the guest's rate limit |
    /// | `no-answer` | a UDP flow or echo request without an answer so far |
    /// | `-` | nothing: datagrams do not wait |
    /// | `closed` | the direction has ended |
    pub held_by: String,
}

/// The guest's side of a flow: a connection of the stack.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GuestSocketView {
    /// The id for `stat set`; empty for flows without a connection.
    pub id: String,
    /// Bytes received from the guest and not yet passed on.
    pub recv_q: u64,
    /// Bytes that the guest has not acknowledged.
    pub send_q: u64,
    /// Smoothed round-trip time to the guest, in µs.
    pub rtt_us: u64,
    /// Segments retransmitted to the guest.
    pub retrans: u64,
    /// The congestion window, in segments.
    pub cwnd: u64,
}

/// The host's side of a flow: a socket of the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostSocketView {
    /// The descriptor.
    pub fd: Option<i32>,
    /// The host's address.
    pub local: Option<String>,
    /// The address that the socket is connected to, or that sends to a forward.
    pub peer: String,
    /// The state of a TCP socket, with the names of `ss`.
    pub state: Option<String>,
    /// Bytes that the kernel has received and the gateway has not read (`SIOCINQ`).
    pub recv_q: Option<u64>,
    /// Bytes that the peer has not acknowledged (`SIOCOUTQ`); for UDP, bytes in the device's queue.
    pub send_q: Option<u64>,
    /// Smoothed round-trip time of a TCP socket, in µs.
    pub rtt_us: Option<u64>,
    /// Segments that a TCP socket has retransmitted.
    pub retrans: Option<u64>,
}

/// The settings, tables and memory of a gateway.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GatewayView {
    /// Largest IP packet of the guest's link, in bytes.
    pub mtu: u32,
    /// The gateway's Ethernet address.
    pub mac: String,
    /// The guest's networks.
    pub networks: Vec<GuestNetworkView>,
    /// The addresses that DHCP has given to clients.
    pub leases: Vec<LeaseView>,
    /// The numbers of flows.
    pub flows: Vec<FlowCountView>,
    /// The number of forwards.
    pub forwards: u64,
    /// Bytes per second that the guest may send, and receive.
    pub rate: Option<u64>,
    /// Memory of the data in the stack's sockets, in bytes.
    pub socket_memory: u64,
    /// The limit of `socket_memory`, apart from the minimum of each connection.
    pub socket_memory_max: u64,
    /// Data that the relays hold between the sockets, in bytes.
    pub relay_memory: u64,
    /// The budget of `relay_memory`.
    pub relay_memory_max: u64,
    /// Resident memory of the process, in bytes.
    pub resident_memory: Option<u64>,
    /// The memory that the gateway may take in addition to the program itself, in bytes.
    pub memory_max: u64,
}

/// A network of a gateway's guest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GuestNetworkView {
    /// The guest's address with the prefix length; `None` if the guest chooses it.
    pub guest: Option<String>,
    /// The gateway's address with the prefix length.
    pub gateway: String,
    /// The address of the DNS relay.
    pub dns: Option<String>,
}

/// An address that DHCP has given to a client.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LeaseView {
    /// The address.
    pub address: String,
    /// The client's identifier in hexadecimal digits; empty if another host uses the address.
    pub client: String,
    /// Seconds until the lease ends.
    pub expires_s: u64,
}

/// The number of flows of one protocol.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FlowCountView {
    /// `tcp`, `udp` or `icmp`.
    pub netid: String,
    /// Flows that exist now.
    pub open: u64,
    /// Largest number of flows that the guest may open; for TCP, of all flows.
    pub max: u64,
}

/// A forward of a gateway.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ForwardView {
    /// The number of the forward.
    pub id: u64,
    /// `tcp` or `udp`.
    pub netid: String,
    /// The side of the clients: `host` or `guest`.
    pub clients: String,
    /// The host's address and port.
    pub host: String,
    /// The guest's address and port.
    pub guest: String,
    /// The interface of the host that clients must use.
    pub interface: Option<String>,
}
