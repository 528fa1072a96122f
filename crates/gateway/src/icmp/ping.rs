//! The relay of the guest's echo requests to other hosts through ping sockets of the host.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fullsend::IcmpMessage;
use fullsend_device::PortId;
use nix::errno::Errno;
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::task::AbortHandle;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout};

use super::error::{report_echo_error, report_prohibited_echo};
use crate::counters::add;
use crate::gateway::Shared;
use crate::guests::Guest;
use crate::outbound_socket::bind_outbound;
use crate::policy::FlowProtocol;
use crate::reactor::register;
use crate::route::Route;
use crate::udp::{ReportedError, read_error, report_errors};

/// Idle time after which a sequence of echo requests ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Length of the header of an echo message: type, code, checksum, identifier, sequence number.
const HEADER_LEN: usize = 8;
/// Longest message: the payload of the longest IP packet.
const MAX_MESSAGE: usize = 65_535;
/// Types of echo messages: of ICMP, and of ICMPv6.
const REQUEST: [u8; 2] = [8, 128];
const REPLY: [u8; 2] = [0, 129];

/// A sequence of echo requests: the guest's address, the destination as the guest sees it, and the
/// identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct PingKey {
    guest: IpAddr,
    remote: IpAddr,
    ident: u16,
}

struct PingFlow {
    socket: Arc<AsyncFd<Socket>>,
    /// The TTL or hop limit that the socket has.
    ttl: u8,
    /// The guest that sends the sequence.
    owner: Option<PortId>,
    /// The address that the socket is connected to.
    host: SocketAddr,
    started: Instant,
    last_used: Instant,
    tx_bytes: u64,
    rx_bytes: u64,
    task: AbortHandle,
}

/// A sequence of echo requests, for tools.
pub(crate) struct PingInfo {
    /// The guest's address; the port is the identifier.
    pub(crate) guest: SocketAddr,
    /// The destination as the guest sees it; the port is 0.
    pub(crate) remote: SocketAddr,
    pub(crate) host: SocketAddr,
    pub(crate) socket: Arc<AsyncFd<Socket>>,
    pub(crate) started: Instant,
    pub(crate) last_used: Instant,
    /// The messages of each direction, bytes.
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
}

impl PingKey {
    /// Returns the addresses of the sequence with its identifier as the guest's port.
    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let guest = SocketAddr::new(self.guest, self.ident);
        (guest, SocketAddr::new(self.remote, 0))
    }
}

/// The sequences of echo requests of a gateway.
#[derive(Default)]
pub(crate) struct Pings {
    flows: Mutex<BTreeMap<PingKey, PingFlow>>,
    /// Whether the log has a warning that the user may not open ping sockets.
    warned: AtomicBool,
}

/// Sends an echo request of the guest to its destination.
pub(crate) fn relay_echo_request(shared: &Arc<Shared>, request: &IcmpMessage) {
    if let Err(error) = try_relay(shared, request) {
        add(&shared.counters.ping_dropped, 1);
        tracing::debug!(%error, to = %request.to, "an echo request was not relayed");
    } else {
        add(&shared.counters.ping_requests, 1);
    }
}

fn try_relay(shared: &Arc<Shared>, request: &IcmpMessage) -> io::Result<()> {
    let mut message = vec![0; request.message.len()];
    request.message.copy_to(&mut message);
    let ident = match message.get(4..6) {
        Some(&[a, b]) => u16::from_be_bytes([a, b]),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let key = PingKey {
        guest: request.from,
        remote: request.to,
        ident,
    };
    // A sender whose address belongs to no guest gets no answer.
    let owner = shared.guests.of(key.guest);
    let owner = owner.ok_or(io::ErrorKind::AddrNotAvailable)?;
    // A packet whose TTL is zero is not sent (RFC 1122 3.2.1.7).
    if request.ttl == 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let socket = if let Some(socket) = shared.pings.find(&key) {
        socket
    } else {
        let (guest, remote) = key.addresses();
        match shared.route(FlowProtocol::Ping, guest, remote) {
            Route::Connect(to) => open(shared, (key, &owner), SocketAddr::new(to.ip(), 0))?,
            Route::Prohibited => {
                report_prohibited_echo(shared, key.guest, key.remote, &message);
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            _ => return Err(io::ErrorKind::HostUnreachable.into()),
        }
    };
    if !owner.tx_rate.try_take(message.len()) {
        return Err(io::ErrorKind::QuotaExceeded.into());
    }
    if shared.pings.change_ttl(&key, request.ttl) {
        set_ttl(socket.get_ref(), request.ttl)?;
    }
    // The kernel replaces the identifier and the checksum.
    send(socket.get_ref(), &message)?;
    shared.pings.count(&key, message.len(), 0);
    Ok(())
}

/// Sends a message, and tries again after a failure: the first call may report the error of an earlier
/// message, which is also in the error queue.
fn send(socket: &Socket, message: &[u8]) -> io::Result<usize> {
    socket.send(message).or_else(|_| socket.send(message))
}

/// Sets the TTL or hop limit of a ping socket.
fn set_ttl(socket: &Socket, ttl: u8) -> io::Result<()> {
    if socket.domain()? == Domain::IPV6 {
        socket.set_unicast_hops_v6(ttl.into())
    } else {
        socket.set_ttl_v4(ttl.into())
    }
}

impl Pings {
    /// Records the TTL or hop limit of the next request. Returns whether it differs from the last one.
    fn change_ttl(&self, key: &PingKey, ttl: u8) -> bool {
        let mut flows = self.flows.lock();
        let flow = flows.get_mut(key);
        flow.is_some_and(|flow| std::mem::replace(&mut flow.ttl, ttl) != ttl)
    }

    fn find(&self, key: &PingKey) -> Option<Arc<AsyncFd<Socket>>> {
        let mut flows = self.flows.lock();
        let flow = flows.get_mut(key)?;
        flow.last_used = Instant::now();
        Some(flow.socket.clone())
    }

    /// Returns the address that the socket of a sequence sends to.
    fn host_of(&self, key: &PingKey) -> Option<IpAddr> {
        let flows = self.flows.lock();
        flows.get(key).map(|flow| flow.host.ip())
    }

    /// Adds to the bytes that a sequence has sent and received.
    fn count(&self, key: &PingKey, tx: usize, rx: usize) {
        if let Some(flow) = self.flows.lock().get_mut(key) {
            flow.tx_bytes += tx as u64;
            flow.rx_bytes += rx as u64;
        }
    }

    /// Returns the first sequences after these addresses in the table's order, at most `max`.
    pub(crate) fn after(
        &self,
        addresses: Option<(SocketAddr, SocketAddr)>,
        max: usize,
    ) -> Vec<PingInfo> {
        let from = addresses.map_or(Bound::Unbounded, |(guest, remote)| {
            Bound::Excluded(PingKey {
                guest: guest.ip(),
                remote: remote.ip(),
                ident: guest.port(),
            })
        });
        let flows = self.flows.lock();
        let rest = flows.range((from, Bound::Unbounded));
        rest.take(max).map(|(key, flow)| flow.info(key)).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.lock().len()
    }

    /// Adds a sequence. If the guest has `max_of_guest`, the guest's longest idle sequence is replaced;
    /// if all guests have `max`, the longest idle of all. Returns whether one was replaced.
    fn insert(&self, key: PingKey, flow: PingFlow, (max, max_of_guest): (usize, usize)) -> bool {
        let mut flows = self.flows.lock();
        let mut replaced = false;
        let is_own = |other: &PingFlow| other.owner == flow.owner;
        // Counting takes time, and is needed only if all guests together have that many.
        let has_own_max = flows.len() >= max_of_guest
            && flows.values().filter(|other| is_own(other)).count() >= max_of_guest;
        if has_own_max || flows.len() >= max {
            let candidates = flows
                .iter()
                .filter(|(_, other)| !has_own_max || is_own(other));
            let oldest = candidates.min_by_key(|(_, flow)| flow.last_used);
            if let Some((&oldest, _)) = oldest
                && let Some(oldest) = flows.remove(&oldest)
            {
                oldest.task.abort();
                replaced = true;
            }
        }
        flows.insert(key, flow);
        replaced
    }

    /// Ends the sequences of guests that have ended.
    pub(crate) fn remove_of(&self, ended: &[PortId]) {
        self.flows.lock().retain(|_, flow| {
            let stays = !flow.owner.is_some_and(|port| ended.contains(&port));
            if !stays {
                flow.task.abort();
            }
            stays
        });
    }

    /// Removes a sequence if it is idle. Returns whether it was.
    fn remove_idle(&self, key: &PingKey) -> bool {
        let mut flows = self.flows.lock();
        let idle = flows
            .get(key)
            .is_none_or(|flow| flow.last_used.elapsed() >= IDLE_TIMEOUT);
        if idle {
            flows.remove(key);
        }
        idle
    }
}

impl PingFlow {
    fn info(&self, key: &PingKey) -> PingInfo {
        let (guest, remote) = key.addresses();
        PingInfo {
            guest,
            remote,
            host: self.host,
            socket: self.socket.clone(),
            started: self.started,
            last_used: self.last_used,
            tx_bytes: self.tx_bytes,
            rx_bytes: self.rx_bytes,
        }
    }
}

/// Opens the socket of a sequence, whose echo requests go to `to`.
fn open(
    shared: &Arc<Shared>,
    (key, owner): (PingKey, &Arc<Guest>),
    to: SocketAddr,
) -> io::Result<Arc<AsyncFd<Socket>>> {
    let protocol = match to {
        SocketAddr::V4(_) => Protocol::ICMPV4,
        SocketAddr::V6(_) => Protocol::ICMPV6,
    };
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(to), kind, Some(protocol)).inspect_err(|error| {
        let denied = error.raw_os_error() == Some(Errno::EACCES as i32);
        if denied && !shared.pings.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the guest's pings are answered for the gateway only, as this user may not open \
                 ping sockets; set e.g. net.ipv4.ping_group_range=\"0 2147483647\""
            );
        }
    })?;
    bind_outbound(&socket, to, &shared.config.outbound)?;
    report_errors(&socket, to.is_ipv6())?;
    socket.connect(&to.into())?;
    let socket = Arc::new(register(socket)?);
    let task = shared.spawn(receive_replies(
        shared.clone(),
        (key, owner.clone()),
        socket.clone(),
    ));
    let task = task.ok_or(io::ErrorKind::NotConnected)?;
    let flow = PingFlow {
        socket: socket.clone(),
        // The TTL of the first request is set before it is sent.
        ttl: 0,
        owner: owner.port,
        host: to,
        started: Instant::now(),
        last_used: Instant::now(),
        tx_bytes: 0,
        rx_bytes: 0,
        task,
    };
    let (all, limits) = (shared.limits.ping, &shared.config.limits);
    let max = shared.guests.part_of(all, limits.ping_flows);
    let replaced = shared.pings.insert(key, flow, (shared.limits.ping, max));
    add(&shared.counters.ping_replaced, u64::from(replaced));
    Ok(socket)
}

thread_local! {
    /// The memory that a message is read into, as its length is not known before.
    static LONGEST: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_MESSAGE]);
}

/// A message or an error that a ping socket has received.
#[derive(Debug)]
enum Received {
    Message(Vec<u8>),
    Error(ReportedError),
}

/// Sends the replies and errors to the guest until the sequence has been idle.
async fn receive_replies(
    shared: Arc<Shared>,
    (key, owner): (PingKey, Arc<Guest>),
    socket: Arc<AsyncFd<Socket>>,
) {
    loop {
        match timeout(IDLE_TIMEOUT, receive(&socket)).await {
            Ok(Ok(Received::Error(error))) => report(&shared, &key, error),
            Ok(Ok(Received::Message(mut message))) => {
                if message.len() < HEADER_LEN || !REPLY.contains(&message[0]) {
                    continue;
                }
                if !owner.rx_rate.try_take(message.len()) {
                    continue;
                }
                message[4..6].copy_from_slice(&key.ident.to_be_bytes());
                let len = message.len();
                if shared
                    .icmp
                    .send(key.remote, key.guest, message, None)
                    .is_ok()
                {
                    shared.pings.count(&key, 0, len);
                    add(&shared.counters.ping_replies, 1);
                }
            }
            // The error queue has already reported a pending error.
            Ok(Err(error)) => tracing::debug!(%error, to = %key.remote, "a ping failed"),
            Err(_idle) if shared.pings.remove_idle(&key) => return,
            Err(_idle) => {}
        }
    }
}

async fn receive(socket: &AsyncFd<Socket>) -> io::Result<Received> {
    loop {
        // Lets other tasks run during a flood of replies: the readiness of an `AsyncFd` uses no budget.
        consume_budget().await;
        // An ICMP error alone does not make the socket readable.
        let mut ready = socket.ready(Interest::READABLE | Interest::ERROR).await?;
        if ready.ready().is_error() {
            if let Some(error) = read_error(socket.get_ref())? {
                return Ok(Received::Error(error));
            }
            ready.clear_ready_matching(Ready::ERROR);
        }
        let message = LONGEST.with_borrow_mut(|longest| {
            let len = socket.get_ref().read(longest)?;
            Ok::<_, io::Error>(longest[..len].to_vec())
        });
        match message {
            Ok(message) => return Ok(Received::Message(message)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => return Err(error),
        }
    }
}

/// Reports an ICMP error about one of the guest's echo requests, with the guest's identifier instead of
/// the socket's.
fn report(shared: &Shared, key: &PingKey, mut error: ReportedError) {
    let Some(header) = error.payload.first_chunk_mut::<HEADER_LEN>() else {
        return;
    };
    let ident = key.ident.to_be_bytes();
    // The checksum is updated incrementally (RFC 1624), as the quoted message may be truncated. The one
    // of ICMPv6 also covers the socket's addresses and becomes wrong, but receivers do not verify it.
    let sum = !u16::from_be_bytes([header[2], header[3]]);
    let changed = [sum, !u16::from_be_bytes([header[4], header[5]]), key.ident];
    let total: u32 = changed.into_iter().map(u32::from).sum();
    let folded = (total & 0xffff) + (total >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    header[2..4].copy_from_slice(&checksum.to_be_bytes());
    header[4..6].copy_from_slice(&ident);
    let offender = match error.offender {
        Some(offender) if !offender.is_loopback() && !offender.is_unspecified() => offender,
        _ => key.remote,
    };
    // An error from the destination gets the destination's address as the guest sees it.
    let host = shared.pings.host_of(key);
    let offender = if host == Some(offender) {
        key.remote
    } else {
        offender
    };
    report_echo_error(shared, (key.guest, key.remote), offender, &error);
}

/// Returns whether a message is an echo request.
pub(crate) fn is_echo_request(message: &IcmpMessage) -> bool {
    let mut kind = [0xff];
    message.message.copy_to(&mut kind);
    kind[0] == REQUEST[usize::from(message.from.is_ipv6())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_error_alone_wakes_the_task() {
        // A UDP socket reports ICMP errors as a ping socket does, which not each user may open.
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = closed.local_addr().unwrap();
        drop(closed);
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None).unwrap();
        socket.connect(&to.into()).unwrap();
        let socket = register(socket).unwrap();
        socket.get_ref().send(b"request").unwrap();
        // The time is virtual: it passes only if nothing wakes the task.
        let received = timeout(IDLE_TIMEOUT, receive(&socket)).await;
        let error = received.expect("the error wakes the task").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_message_takes_no_more_memory_than_its_length() {
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let to = receiver.local_addr().unwrap();
        let socket = register(receiver.into()).unwrap();
        for len in [64, 60_000, 8] {
            sender.send_to(&vec![7; len], to).unwrap();
            let Received::Message(message) = receive(&socket).await.unwrap() else {
                panic!("no message");
            };
            assert_eq!(message, vec![7; len]);
            assert_eq!(message.capacity(), len);
        }
    }
}
