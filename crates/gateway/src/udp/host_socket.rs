//! A UDP socket of the host, with the kernel's segmentation and coalescing if available.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use fullsend::Chain;
use fullsend_device::PortId;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use smallvec::SmallVec;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::task::yield_now;

use super::error_queue::{ReportedError, read_error, report_errors};
use super::guest_ports::{GuestPort, GuestPorts};
use super::local_addr::{LocalAddr, PacketInfo, Peer, socket_addr};
use super::receive_block::{Read, ReceiveBlock, ReceivedDatagrams};
use crate::config::Outbound;
use crate::outbound_socket::bind_outbound;
use crate::payload_memory::PayloadMemory;
use crate::reactor::register;

/// Largest number of datagrams in one `sendmsg`; Linux has 64 before 6.10 and 128 since.
pub(super) const MAX_SEGMENTS: usize = 64;
/// Largest number of bytes in one `sendmsg`: the payload of the longest IPv4 datagram.
pub(super) const MAX_SEND_BYTES: usize = 65_507;

/// Largest number of `recvmsg` calls whose datagrams are sent to the guest together.
const MAX_CALLS: usize = 64;
/// Number of `recvmsg` calls after which other tasks may run.
const CALL_BUDGET: usize = 128;
/// Number of calls that a batch counts as at least: one call may return 64 KiB.
const MIN_BATCH_CALLS: usize = 8;
/// The TTL or hop limit where the kernel does not report its own.
const DEFAULT_TTL: u8 = 64;
/// How often a `sendmsg` is repeated that has reported the error of an earlier datagram.
const MAX_REPEATS: usize = 3;

/// A UDP socket of the host.
pub(crate) struct HostUdp {
    fd: AsyncFd<Socket>,
    is_v6: bool,
    /// The TTL or hop limit of datagrams that set none; `None` if it is unknown.
    default_ttl: Option<u8>,
    /// `recvmsg` calls since other tasks could last run.
    calls: AtomicUsize,
    /// The port of a guest that is not joined with others; empty before the socket has sent.
    guest_port: OnceLock<GuestPort>,
}

/// Datagrams of one flow for one call of `send`.
pub(super) struct Outgoing<'a> {
    pub(super) data: &'a Chain,
    /// The length of each datagram, bytes; the last may be shorter.
    pub(super) size: usize,
    /// The TTL or hop limit.
    pub(super) ttl: u8,
    /// The destination; `None` for a connected socket.
    pub(super) peer: Option<&'a Peer>,
    /// Whether the kernel and the route accept several datagrams in one call.
    pub(super) segmentation: &'a AtomicBool,
}

/// The result of [`HostUdp::receive`].
pub(super) enum Received {
    /// Datagrams were appended.
    Datagrams,
    /// The error of a datagram that was sent.
    Error(ReportedError),
}

impl HostUdp {
    /// Opens a socket that is connected to `to`.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn connect(to: SocketAddr, outbound: &Outbound) -> io::Result<Self> {
        let socket = Self::new_socket(to)?;
        bind_outbound(&socket, to, outbound)?;
        Self::connect_socket(socket, to)
    }

    /// Connects a non-blocking socket to `to`.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn connect_socket(socket: Socket, to: SocketAddr) -> io::Result<Self> {
        report_errors(&socket, to.is_ipv6())?;
        socket.connect(&to.into())?;
        Ok(Self::new(register(socket)?))
    }

    /// Opens a socket that can send to `to` and to all destinations of its address family with the same
    /// settings.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn open(to: SocketAddr, outbound: &Outbound) -> io::Result<Self> {
        let socket = Self::new_socket(to)?;
        bind_outbound(&socket, to, outbound)?;
        report_errors(&socket, to.is_ipv6())?;
        Ok(Self::new(register(socket)?))
    }

    /// Opens a second socket with the port of this one, connected to `to`, from which it then receives
    /// instead of this one.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn connect_beside(&self, to: SocketAddr, outbound: &Outbound) -> io::Result<Self> {
        let first = self.fd.get_ref();
        let second = Self::new_socket(to)?;
        let (_, interface) = outbound.settings_for(to.ip());
        if let Some(interface) = interface {
            second.bind_device(Some(interface.as_bytes()))?;
        }
        report_errors(&second, to.is_ipv6())?;
        // The option is set only during the bind: other programs of this user could use the port, too.
        first.set_reuse_port(true)?;
        second.set_reuse_port(true)?;
        let bound = second.bind(&first.local_addr()?);
        first.set_reuse_port(false)?;
        second.set_reuse_port(false)?;
        bound?;
        second.connect(&to.into())?;
        Ok(Self::new(register(second)?))
    }

    fn new_socket(to: SocketAddr) -> io::Result<Socket> {
        let kind = Type::DGRAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::UDP))?;
        if to.is_ipv6() {
            // An IPv6 mapping has no IPv4 peers.
            socket.set_only_v6(true)?;
        }
        Ok(socket)
    }

    /// Registers the port as one of a guest, once the socket has it: the kernel chooses it when the socket sends
    /// first.
    pub(super) fn register_port(&self, ports: &Arc<GuestPorts>, owner: Option<PortId>) {
        let register = || {
            let local = self.fd.get_ref().local_addr().ok()?.as_socket()?;
            Some(ports.register(local, owner))
        };
        if self.guest_port.get().is_none()
            && let Some(port) = register()
        {
            // Another thread may have done so.
            let _ = self.guest_port.set(port);
        }
    }

    /// Configures a non-blocking socket.
    pub(super) fn new(fd: AsyncFd<Socket>) -> Self {
        let socket = fd.get_ref();
        // If it fails, each datagram needs a call.
        let _ = setsockopt(socket, sockopt::UdpGroSegment, &true);
        let is_v6 = socket.domain().is_ok_and(|domain| domain == Domain::IPV6);
        let default_ttl = if is_v6 {
            socket.unicast_hops_v6()
        } else {
            socket.ttl_v4()
        };
        let default_ttl = default_ttl.ok();
        Self {
            is_v6,
            guest_port: OnceLock::new(),
            default_ttl: default_ttl.and_then(|ttl| u8::try_from(ttl).ok()),
            fd,
            calls: AtomicUsize::new(0),
        }
    }

    /// Returns the socket for tools.
    pub(crate) fn socket(&self) -> &Socket {
        self.fd.get_ref()
    }

    /// Returns the socket's own address.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.fd.get_ref().local_addr()?.as_socket();
        local.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Returns the TTL or hop limit of datagrams without one of their own.
    pub(super) fn ttl(&self) -> u8 {
        self.default_ttl.unwrap_or(DEFAULT_TTL)
    }

    /// Sends datagrams.
    ///
    /// # Errors
    /// The error of the operating system; datagrams may have been sent before.
    pub(super) fn send(&self, outgoing: &Outgoing<'_>) -> io::Result<()> {
        let Outgoing { data, size, .. } = *outgoing;
        if data.len() > size && outgoing.segmentation.load(Ordering::Relaxed) {
            match self.send_one(data, Some(size as u16), outgoing) {
                Err(error) if is_no_segmentation(&error) => {
                    outgoing.segmentation.store(false, Ordering::Relaxed);
                }
                sent => return sent,
            }
        }
        let mut start = 0;
        while start == 0 || start < data.len() {
            let len = size.min(data.len() - start);
            self.send_one(&data.range(start, len), None, outgoing)?;
            start += size.max(1);
        }
        Ok(())
    }

    fn send_one(
        &self,
        data: &Chain,
        segment: Option<u16>,
        outgoing: &Outgoing<'_>,
    ) -> io::Result<()> {
        let vectors: SmallVec<[_; 4]> = data.slices().iter().map(|s| IoSlice::new(s)).collect();
        let to = outgoing.peer.map(|peer| SockaddrStorage::from(peer.to));
        let fd = self.fd.get_ref().as_raw_fd();
        let source = outgoing.peer.and_then(|peer| peer.from);
        let source = source.map(PacketInfo::new);
        let ttl = libc::c_int::from(outgoing.ttl);
        let mut control: SmallVec<[ControlMessage<'_>; 3]> = SmallVec::new();
        control.extend(segment.as_ref().map(ControlMessage::UdpGsoSegments));
        control.extend(source.as_ref().map(PacketInfo::message));
        if self.default_ttl != Some(outgoing.ttl) {
            control.push(if self.is_v6 {
                ControlMessage::Ipv6HopLimit(&ttl)
            } else {
                ControlMessage::Ipv4Ttl(&ttl)
            });
        }
        let mut last = Errno::ECONNREFUSED;
        for _ in 0..MAX_REPEATS {
            let sent = sendmsg(fd, &vectors, &control, MsgFlags::MSG_DONTWAIT, to.as_ref());
            match sent {
                Ok(_) => return Ok(()),
                // The error of an earlier datagram, perhaps of another flow, is reported once instead of
                // sending; it is also in the error queue.
                Err(error) if may_be_pending(error) => last = error,
                Err(error) => return Err(error.into()),
            }
        }
        Err(last.into())
    }

    /// Waits for datagrams, which are appended to `data`, or for an error about a datagram that was sent.
    /// Lets other tasks run regularly, even if the queue never becomes empty.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) async fn receive(
        &self,
        pool: &PayloadMemory,
        data: &mut ReceivedDatagrams,
    ) -> io::Result<Received> {
        loop {
            self.yield_when_due().await;
            let mut ready = self.fd.ready(Interest::READABLE | Interest::ERROR).await?;
            if ready.ready().is_error() {
                if let Some(error) = read_error(self.fd.get_ref())? {
                    return Ok(Received::Error(error));
                }
                ready.clear_ready_matching(Ready::ERROR);
            }
            let Some(mut block) = ReceiveBlock::new(pool) else {
                // The kernel drops datagrams beyond the socket's queue meanwhile.
                pool.wait().await;
                continue;
            };
            match self.receive_now(&mut block) {
                Ok(()) => {
                    if self.receive_waiting(&mut block) {
                        ready.clear_ready_matching(Ready::READABLE);
                    }
                    block.append_to(data);
                    return Ok(Received::Datagrams);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                // The error queue has already reported a pending error.
                Err(error) if may_be_pending(errno_of(&error)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts a batch, and lets other tasks run if the budget is used up. The readiness of an `AsyncFd`
    /// does not use tokio's own budget of a task.
    async fn yield_when_due(&self) {
        if self.calls.fetch_add(MIN_BATCH_CALLS, Ordering::Relaxed) >= CALL_BUDGET {
            self.calls.store(0, Ordering::Relaxed);
            yield_now().await;
        }
    }

    /// Reads datagrams that wait in the socket while `block` has room. Returns whether there are no more.
    /// Leaves an error to the next call.
    fn receive_waiting(&self, block: &mut ReceiveBlock) -> bool {
        for call in 1..MAX_CALLS {
            if !block.has_room() {
                return false;
            }
            if call >= MIN_BATCH_CALLS {
                self.calls.fetch_add(1, Ordering::Relaxed);
            }
            match self.receive_now(block) {
                Ok(()) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        false
    }

    fn receive_now(&self, block: &mut ReceiveBlock) -> io::Result<()> {
        let fd = self.fd.get_ref().as_raw_fd();
        let read = block.read(|vectors| receive(fd, vectors))?;
        block.advance(read);
        Ok(())
    }
}

/// Reads one or several datagrams of one size from one sender.
fn receive(fd: RawFd, vectors: &mut [IoSliceMut<'_>]) -> io::Result<Read> {
    // Holds the size of coalesced datagrams, and the larger address.
    let mut control = cmsg_space!(i32, libc::in6_pktinfo);
    let flags = MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<SockaddrStorage>(fd, vectors, Some(&mut control), flags)?;
    let (mut size, mut asked) = (None, None);
    for message in received.cmsgs()? {
        match message {
            ControlMessageOwned::UdpGroSegments(bytes) => size = usize::try_from(bytes).ok(),
            other => asked = LocalAddr::of(&other).or(asked),
        }
    }
    let from = received.address.as_ref().and_then(socket_addr);
    Ok(Read {
        len: received.bytes,
        size: size.unwrap_or(received.bytes),
        peer: from.map(|to| Peer { to, from: asked }),
    })
}

/// Returns whether `error` means that the kernel or the device cannot segment, or that a segment exceeds
/// the path's MTU.
fn is_no_segmentation(error: &io::Error) -> bool {
    matches!(
        errno_of(error),
        Errno::EINVAL | Errno::EIO | Errno::EMSGSIZE | Errno::EOPNOTSUPP | Errno::ENOPROTOOPT
    )
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

/// Returns whether `error` may belong to an earlier datagram, and is then also in the error queue.
const fn may_be_pending(error: Errno) -> bool {
    matches!(
        error,
        Errno::ECONNREFUSED
            | Errno::EHOSTUNREACH
            | Errno::ENETUNREACH
            | Errno::EACCES
            | Errno::EMSGSIZE
            | Errno::EPROTO
            | Errno::ENOPROTOOPT
            | Errno::EHOSTDOWN
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fullsend::Pool;

    use super::*;

    /// Returns the number of datagrams that one task receives before another one runs. The queue of
    /// its socket never becomes empty.
    async fn received_before_other_tasks(socket: HostUdp, sender: std::net::UdpSocket) -> usize {
        let send = |count: usize| {
            for _ in 0..count {
                sender.send(b"flood").unwrap();
            }
        };
        let pool = PayloadMemory::new(Pool::new(1 << 20));
        let mut data = ReceivedDatagrams::default();
        send(256);
        // The first call waits for the reactor.
        socket.receive(&pool, &mut data).await.unwrap();
        send(data.len());
        data.clear();
        let other_has_run = Arc::new(AtomicBool::new(false));
        let by_other = other_has_run.clone();
        let other = tokio::spawn(async move { by_other.store(true, Ordering::Relaxed) });
        let mut received = 0;
        while !other_has_run.load(Ordering::Relaxed) && received < 10_000 {
            socket.receive(&pool, &mut data).await.unwrap();
            received += data.len();
            send(data.len());
            data.clear();
        }
        other.await.unwrap();
        received
    }

    fn bind() -> (std::net::UdpSocket, SocketAddr) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    #[tokio::test]
    async fn other_tasks_run_during_a_flood_of_datagrams() {
        let (sender, _) = bind();
        let (socket, to) = bind();
        sender.connect(to).unwrap();
        let forward = HostUdp::new(register(socket.into()).unwrap());
        let received = received_before_other_tasks(forward, sender).await;
        let limit = CALL_BUDGET + MAX_CALLS;
        assert!(received <= limit, "{received} datagrams to a forward");

        let (sender, from) = bind();
        let socket = HostUdp::connect(from, &Outbound::default()).unwrap();
        let to = socket.fd.get_ref().local_addr().unwrap();
        sender.connect(to.as_socket().unwrap()).unwrap();
        let received = received_before_other_tasks(socket, sender).await;
        assert!(received <= limit, "{received} datagrams to a flow");
    }
}
