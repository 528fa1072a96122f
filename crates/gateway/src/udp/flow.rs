//! A UDP flow and the keys of the flow tables.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::host_socket::HostUdp;
use super::local_addr::Peer;
use crate::forward::ForwardId;
use crate::guests::Guest;

/// The addresses of a flow as the guest sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FlowKey {
    pub(crate) guest: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// An address and port of the guest, with one socket of the host (endpoint-independent mapping, RFC 4787
/// 4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct MappingKey {
    pub(super) guest: SocketAddr,
    /// Whether the socket is an IPv6 socket: a guest's IPv6 address may lead to IPv4.
    pub(super) v6: bool,
    /// Whether the socket is only for the host's loopback, because [`Outbound`](crate::Outbound) binds
    /// the others to an address or an interface.
    pub(super) loopback: bool,
}

/// A socket of the host that several flows share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum SharedSocket {
    /// The socket of a forward.
    Forward(ForwardId),
    /// The socket of an address and port of the guest.
    Mapping(MappingKey),
}

/// The key of a flow of a shared socket, with the peer as the host sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PeerKey {
    pub(super) socket: SharedSocket,
    pub(super) peer: SocketAddr,
    /// The host's address that a client of a forward has sent to, if the kernel has reported it. `None`
    /// for flows that the guest has opened, whose source address the kernel chooses.
    pub(super) asked: Option<IpAddr>,
}

/// The side that has sent the first datagram of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opener {
    Guest,
    /// A client of a forward on the host.
    Client,
    /// Another host, to a port that the guest has sent from.
    Remote,
}

/// A UDP flow.
pub(crate) struct UdpFlow {
    pub(crate) key: FlowKey,
    /// The guest that the flow belongs to.
    pub(super) owner: Arc<Guest>,
    pub(super) opener: Opener,
    pub(crate) socket: Arc<HostUdp>,
    /// The connected socket on the other side, if the flow is one between loopbacks: `socket` is then that
    /// of the forward.
    spliced: Option<Arc<HostUdp>>,
    /// A connected socket with the port of `socket`, if the flow is busy.
    connected: Mutex<Option<Arc<HostUdp>>>,
    /// The number of `sendmsg` calls.
    calls: AtomicU32,
    /// The peer of a shared socket; `None` for a connected one.
    pub(super) peer: Option<(PeerKey, Peer)>,
    /// The peer's address as the host sees it.
    pub(crate) host: SocketAddr,
    pub(crate) started: Instant,
    /// Whether the kernel and the route accept several datagrams in one call.
    pub(super) segmentation: AtomicBool,
    tx_bytes: AtomicU64,
    rx_bytes: AtomicU64,
    /// Whether datagrams have passed in both directions.
    answered: AtomicBool,
    /// Whether the table has removed the flow.
    ended: AtomicBool,
    last_used: Mutex<Instant>,
}

impl UdpFlow {
    pub(super) fn new(
        (key, owner, opener): (FlowKey, Arc<Guest>, Opener),
        socket: Arc<HostUdp>,
        host: SocketAddr,
        peer: Option<(PeerKey, Peer)>,
    ) -> Self {
        Self {
            key,
            owner,
            opener,
            socket,
            spliced: None,
            connected: Mutex::new(None),
            calls: AtomicU32::new(0),
            peer,
            host,
            started: Instant::now(),
            segmentation: AtomicBool::new(true),
            tx_bytes: AtomicU64::new(0),
            rx_bytes: AtomicU64::new(0),
            answered: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            last_used: Mutex::new(Instant::now()),
        }
    }

    /// Makes it a flow between loopbacks, with this connected socket on the other side.
    pub(super) fn spliced_to(self, socket: Arc<HostUdp>) -> Self {
        Self {
            spliced: Some(socket),
            ..self
        }
    }

    /// Returns the connected socket of a flow between loopbacks.
    pub(super) const fn spliced(&self) -> Option<&Arc<HostUdp>> {
        self.spliced.as_ref()
    }

    /// Returns the socket whose other end is [`host`](Self::host).
    pub(crate) const fn host_socket(&self) -> &Arc<HostUdp> {
        match (&self.spliced, self.opener) {
            (Some(spliced), Opener::Guest) => spliced,
            _ => &self.socket,
        }
    }

    /// Records a datagram of the guest.
    pub(super) fn record_tx(&self) {
        self.record_use(self.opener != Opener::Guest);
    }

    /// Records that a datagram was sent to the guest.
    pub(super) fn record_rx(&self) {
        self.record_use(self.opener == Opener::Guest);
    }

    fn record_use(&self, is_answer: bool) {
        *self.last_used.lock() = Instant::now();
        if is_answer {
            self.answered.store(true, Ordering::Relaxed);
        }
    }

    /// Counts payload from the guest, bytes.
    pub(super) fn add_tx_bytes(&self, n: usize) {
        self.tx_bytes.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts payload to the guest, bytes.
    pub(super) fn add_rx_bytes(&self, n: usize) {
        self.rx_bytes.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn tx_bytes(&self) -> u64 {
        self.tx_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn rx_bytes(&self) -> u64 {
        self.rx_bytes.load(Ordering::Relaxed)
    }

    /// Returns the peer to which a shared socket sends; `None` for a connected socket.
    pub(super) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref().map(|(_, peer)| peer)
    }

    /// Counts a `sendmsg` call, and returns the number of calls so far.
    pub(super) fn count_call(&self) -> u32 {
        self.calls.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Returns the connected socket of a busy flow.
    pub(super) fn connected(&self) -> Option<Arc<HostUdp>> {
        self.connected.lock().clone()
    }

    pub(super) fn set_connected(&self, socket: Option<Arc<HostUdp>>) {
        *self.connected.lock() = socket;
    }

    /// Returns whether a client of a forward has opened the flow.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.opener == Opener::Client
    }

    /// Returns whether the guest has sent the flow's first datagram.
    pub(crate) fn is_opened_by_guest(&self) -> bool {
        self.opener == Opener::Guest
    }

    pub(crate) fn last_used(&self) -> Instant {
        *self.last_used.lock()
    }

    /// Returns whether datagrams have passed in both directions.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    pub(super) fn mark_ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Returns whether the table has removed the flow.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}
