#![allow(unused_variables, clippy::unused_self, clippy::needless_pass_by_value)]
//! The host's public face. Split into one file per mechanism as it is built.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::task::Waker;

use fullsend_buf::{Chain, Pool, Slice};
use fullsend_offload::{Link, Packet, TxToken};
use fullsend_tcp::{SocketOption, State, Sysctl, TcpError, TcpInfo};
use fullsend_units::{Instant, Seed};

/// How to build a [`Host`].
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// All ISNs, ports, keys and IDs derive from it.
    pub seed: Seed,
    /// TCP tunables.
    pub sysctl: Sysctl,
    /// Most bytes of free payload memory kept for reuse.
    pub pool_bytes: usize,
}

/// An interface's number on its host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IfaceId(pub u16);

pub use fullsend_wire::ethernet::Mac;

/// How to build an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IfaceConfig {
    /// IP frames (TUN) or Ethernet frames (TAP).
    pub link: Link,
    /// Our hardware address; used with Ethernet only.
    pub mac: Mac,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// The device cuts TCP/IPv4 super-segments (else software GSO does, in `transmit`).
    pub tso4: bool,
    /// The same for IPv6.
    pub tso6: bool,
    /// The same for UDP.
    pub uso: bool,
    /// The device completes checksums (else software does, in `transmit`).
    pub tx_checksum: bool,
    /// Largest super-segment TCP builds, IP header included, bytes.
    pub gso_max_size: u32,
    /// Build super-segments at all; off cuts in TCP.
    pub gso: bool,
    /// Coalesce what is received.
    pub gro: bool,
}

/// An address with its prefix length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    /// Address.
    pub addr: IpAddr,
    /// Leading bits that are the network.
    pub prefix: u8,
}

/// A TCP connection's handle; never reused for another connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpId(pub u64);

/// A TCP listener's handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(pub u64);

/// A UDP socket's handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpId(pub u64);

/// Why a call on the host failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StackError {
    /// The connection's own error.
    Tcp(TcpError),
    /// Nothing there by that handle.
    NoSuchSocket,
    /// The address is taken (EADDRINUSE).
    AddressInUse(SocketAddr),
    /// The address is not ours (EADDRNOTAVAIL).
    AddressNotAvailable(SocketAddr),
    /// No route to the destination (ENETUNREACH).
    NoRoute(IpAddr),
    /// All ephemeral ports towards that destination are taken (EADDRNOTAVAIL).
    NoPorts,
    /// The datagram is larger than can be sent (EMSGSIZE).
    MessageTooLong {
        /// Bytes asked for.
        len: usize,
        /// Bytes possible.
        max: usize,
    },
    /// A setting's value makes no sense; the text names it and the mend.
    Config(String),
}

/// How a listener treats new connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenConfig {
    /// Most established connections waiting to be accepted (`listen(2)`'s backlog).
    pub backlog: usize,
    /// Yield a pending connection at its SYN, before the handshake is answered; the user accepts
    /// or rejects it (transparent gateways).
    pub hold: bool,
    /// Take SYNs for any destination address and port, ours or not (transparent gateways).
    pub any_destination: bool,
}

/// A connection that a listener gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// Its handle.
    pub id: TcpId,
    /// The destination the peer asked for.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
}

/// What to wait for on a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Something to read, or an accept.
    Read,
    /// Room to write, or a connect's end.
    Write,
}

/// A host.
pub struct Host {}

impl Host {
    /// A host without interfaces.
    pub fn new(config: HostConfig) -> Self {
        todo!()
    }

    /// The pool payload is taken from.
    pub fn pool(&self) -> &Pool {
        todo!()
    }

    /// TCP tunables, live.
    pub fn sysctl_mut(&mut self) -> &mut Sysctl {
        todo!()
    }

    /// Every counter by its `nstat` name, absolute.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        todo!()
    }

    /// Adds an interface.
    pub fn add_interface(&mut self, config: IfaceConfig) -> IfaceId {
        todo!()
    }

    /// Adds an address (with its on-link route; on Ethernet IPv6, after DAD).
    pub fn add_address(
        &mut self,
        now: Instant,
        iface: IfaceId,
        cidr: Cidr,
    ) -> Result<(), StackError> {
        todo!()
    }

    /// Adds a route; without a gateway the destination is on-link.
    pub fn add_route(
        &mut self,
        destination: Cidr,
        gateway: Option<IpAddr>,
        iface: IfaceId,
    ) -> Result<(), StackError> {
        todo!()
    }

    /// Takes frames fresh from an interface's device (drained) through GRO to the sockets.
    pub fn receive(&mut self, now: Instant, iface: IfaceId, frames: &mut Vec<Packet>) {
        todo!()
    }

    /// Runs timers that are due.
    pub fn poll(&mut self, now: Instant) {
        todo!()
    }

    /// Appends what the interface should send now, about `max` super-segments at most (software
    /// GSO makes more packets of them). Complete each with [`complete`](Self::complete).
    pub fn transmit(&mut self, now: Instant, iface: IfaceId, out: &mut Vec<Packet>, max: usize) {
        todo!()
    }

    /// `transmit` has something to give for this interface (cheap).
    pub fn wants_transmit(&self, iface: IfaceId) -> bool {
        todo!()
    }

    /// The device is done with a packet that carried `token`.
    pub fn complete(&mut self, now: Instant, token: TxToken) {
        todo!()
    }

    /// When `poll` must be called at the latest.
    pub fn poll_deadline(&self) -> Option<Instant> {
        todo!()
    }

    /// Wakers of users whose sockets became ready. Wake them after letting go of any lock.
    pub fn take_wakers(&mut self, out: &mut Vec<Waker>) {
        todo!()
    }

    // --- TCP ---

    /// Listens.
    pub fn tcp_listen(
        &mut self,
        local: SocketAddr,
        config: ListenConfig,
    ) -> Result<ListenerId, StackError> {
        todo!()
    }

    /// Where the listener listens.
    pub fn listener_addr(&self, id: ListenerId) -> Result<SocketAddr, StackError> {
        todo!()
    }

    /// Takes the next established connection (or, with `hold`, the next pending one, which must
    /// then be accepted or rejected).
    pub fn tcp_accept(&mut self, id: ListenerId) -> Result<Option<Incoming>, StackError> {
        todo!()
    }

    /// Wakes `waker` when `tcp_accept` will give something; true if it would now.
    pub fn listener_ready(&mut self, id: ListenerId, waker: &Waker) -> Result<bool, StackError> {
        todo!()
    }

    /// Stops listening; connections not accepted are reset.
    pub fn close_listener(&mut self, now: Instant, id: ListenerId) {
        todo!()
    }

    /// Answers a held connection's SYN; it becomes established like any other.
    pub fn pending_accept(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        todo!()
    }

    /// Refuses a held connection with a RST.
    pub fn pending_reject(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        todo!()
    }

    /// Connects; `local` port 0 and an unspecified address mean "choose".
    pub fn tcp_connect(
        &mut self,
        now: Instant,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<TcpId, StackError> {
        todo!()
    }

    /// State of the connection.
    pub fn tcp_state(&self, id: TcpId) -> Result<State, StackError> {
        todo!()
    }

    /// Both addresses: local, remote.
    pub fn tcp_addrs(&self, id: TcpId) -> Result<(SocketAddr, SocketAddr), StackError> {
        todo!()
    }

    /// Writes a copy of `data`; how much was taken. `more` is `MSG_MORE`.
    pub fn tcp_write(
        &mut self,
        now: Instant,
        id: TcpId,
        data: &[u8],
        more: bool,
    ) -> Result<usize, StackError> {
        todo!()
    }

    /// Writes without copying; on `WouldBlock` the slice comes back.
    pub fn tcp_write_slice(
        &mut self,
        now: Instant,
        id: TcpId,
        data: Slice,
    ) -> Result<(), (StackError, Slice)> {
        todo!()
    }

    /// Reads; 0 is the end of the stream.
    pub fn tcp_read(
        &mut self,
        now: Instant,
        id: TcpId,
        out: &mut [u8],
    ) -> Result<usize, StackError> {
        todo!()
    }

    /// Reads without copying.
    pub fn tcp_read_chain(
        &mut self,
        now: Instant,
        id: TcpId,
        max: usize,
    ) -> Result<Chain, StackError> {
        todo!()
    }

    /// Reads without copying, one piece of memory; empty is the end of the stream.
    pub fn tcp_read_slice(
        &mut self,
        now: Instant,
        id: TcpId,
        max: usize,
    ) -> Result<Slice, StackError> {
        todo!()
    }

    /// Reads and leaves.
    pub fn tcp_peek(&mut self, id: TcpId, out: &mut [u8]) -> Result<usize, StackError> {
        todo!()
    }

    /// True if ready now; else wakes `waker` once when it becomes so.
    pub fn tcp_ready(
        &mut self,
        now: Instant,
        id: TcpId,
        interest: Interest,
        waker: &Waker,
    ) -> Result<bool, StackError> {
        todo!()
    }

    /// FIN after what is queued.
    pub fn tcp_shutdown_write(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        todo!()
    }

    /// No more reading.
    pub fn tcp_shutdown_read(&mut self, id: TcpId) -> Result<(), StackError> {
        todo!()
    }

    /// All written data (and the FIN, if shut down) is acknowledged; registers `waker` if not.
    pub fn tcp_flushed(&mut self, id: TcpId, waker: &Waker) -> Result<bool, StackError> {
        todo!()
    }

    /// Lets go of the connection; it finishes by itself, and the handle is no longer valid.
    pub fn tcp_close(&mut self, now: Instant, id: TcpId) {
        todo!()
    }

    /// Resets it, and lets go.
    pub fn tcp_abort(&mut self, now: Instant, id: TcpId) {
        todo!()
    }

    /// Sets an option.
    pub fn tcp_set_option(
        &mut self,
        now: Instant,
        id: TcpId,
        option: SocketOption,
    ) -> Result<(), StackError> {
        todo!()
    }

    /// `TCP_CONGESTION`.
    pub fn tcp_set_congestion(
        &mut self,
        now: Instant,
        id: TcpId,
        name: &str,
    ) -> Result<(), StackError> {
        todo!()
    }

    /// `SO_ERROR`.
    pub fn tcp_take_error(&mut self, id: TcpId) -> Result<Option<TcpError>, StackError> {
        todo!()
    }

    /// `TCP_INFO`.
    pub fn tcp_info(&mut self, now: Instant, id: TcpId) -> Result<TcpInfo, StackError> {
        todo!()
    }

    /// Connections (in a state other than TIME-WAIT), those that finish by themselves included.
    pub fn tcp_connections(&self) -> usize {
        todo!()
    }

    /// Connections with data or a FIN that is not acknowledged yet.
    pub fn tcp_unflushed(&self) -> usize {
        todo!()
    }

    /// Resets every connection and closes every listener: the process ends. Waiting users are
    /// woken.
    pub fn abort_all(&mut self, now: Instant) {
        todo!()
    }

    // --- UDP ---

    /// Binds; port 0 means "choose".
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, StackError> {
        todo!()
    }

    /// The bound address.
    pub fn udp_addr(&self, id: UdpId) -> Result<SocketAddr, StackError> {
        todo!()
    }

    /// Sends one datagram; `source` overrides the source address (gateways).
    pub fn udp_send(
        &mut self,
        now: Instant,
        id: UdpId,
        data: Slice,
        to: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), StackError> {
        todo!()
    }

    /// The next datagram with where it came from and the address it was sent to.
    pub fn udp_recv(
        &mut self,
        id: UdpId,
    ) -> Result<Option<(Chain, SocketAddr, SocketAddr)>, StackError> {
        todo!()
    }

    /// True if ready now; else wakes `waker` once when it becomes so.
    pub fn udp_ready(
        &mut self,
        id: UdpId,
        interest: Interest,
        waker: &Waker,
    ) -> Result<bool, StackError> {
        todo!()
    }

    /// Closes.
    pub fn udp_close(&mut self, id: UdpId) {
        todo!()
    }
}
