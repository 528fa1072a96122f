//! A UDP socket of the host, with the kernel's segmentation and coalescing where it has them.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fullsend::{Chain, Pool, Slice};
use nix::cmsg_space;
use nix::libc;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::task::yield_now;

use super::error_queue::{ReportedError, read_error};
use super::receive_block::ReceiveBlock;
use crate::config::Outbound;
use crate::outbound_socket::bind_outbound;
use crate::reactor::register;

/// Largest number of datagrams in one `sendmsg`; Linux has 64 before 6.10 and 128 since.
pub(super) const MAX_SEGMENTS: usize = 64;
/// Largest number of bytes in one `sendmsg`: the payload of the longest IPv4 datagram.
pub(super) const MAX_SEND_BYTES: usize = 65_507;

/// Largest number of `recvmsg` calls whose datagrams are passed to the guest together.
const MAX_CALLS: usize = 64;
/// Number of `recvmsg` calls after which other tasks run.
const CALL_BUDGET: usize = 128;
/// A batch counts as at least this number of calls: one call may return 64 KiB.
const MIN_BATCH_CALLS: usize = 8;

/// A UDP socket of the host.
pub(crate) struct HostUdp {
    fd: AsyncFd<Socket>,
    /// Whether all datagrams come from one sender.
    is_connected: bool,
    /// Whether the kernel and the route accept several datagrams in one call.
    segmentation: AtomicBool,
    /// `recvmsg` calls since other tasks could last run.
    calls: AtomicUsize,
}

/// The other end of an unconnected socket's datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(super) to: SocketAddr,
    /// The host's address that the peer has sent to. Answers come from it.
    pub(super) from: Option<LocalAddr>,
}

/// An address of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LocalAddr {
    pub(super) ip: IpAddr,
    /// The interface of a link-local address, otherwise 0.
    interface: u32,
}

/// What [`HostUdp::receive`] returns.
pub(super) enum Received {
    /// Datagrams, of this peer if the socket is not connected.
    Datagrams(Option<Peer>),
    /// An error about a datagram that was sent.
    Error(ReportedError),
}

impl HostUdp {
    /// Opens a socket that is connected to `to`.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn connect(to: SocketAddr, outbound: &Outbound) -> io::Result<Self> {
        let kind = Type::DGRAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::UDP))?;
        bind_outbound(&socket, to, outbound)?;
        if to.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
        }
        socket.connect(&to.into())?;
        Ok(Self {
            is_connected: true,
            ..Self::new(register(socket)?)
        })
    }

    /// Uses a non-blocking socket that is not connected.
    pub(super) fn new(fd: AsyncFd<Socket>) -> Self {
        // Without coalescing, each datagram takes a call.
        let _ = setsockopt(fd.get_ref(), sockopt::UdpGroSegment, &true);
        Self {
            fd,
            is_connected: false,
            segmentation: AtomicBool::new(true),
            calls: AtomicUsize::new(0),
        }
    }

    /// Returns the socket for tools.
    pub(crate) fn socket(&self) -> &Socket {
        self.fd.get_ref()
    }

    /// Sends the datagrams in `data`, of `size` bytes each, the last one possibly shorter. To
    /// `to`, or to the connected address.
    ///
    /// # Errors
    /// The error of the operating system; datagrams may have been sent before.
    pub(super) fn send(&self, data: &Chain, size: usize, to: Option<&Peer>) -> io::Result<()> {
        if data.len() > size && self.segmentation.load(Ordering::Relaxed) {
            match self.send_one(data, Some(size as u16), to) {
                Err(error) if is_no_segmentation(&error) => {
                    self.segmentation.store(false, Ordering::Relaxed);
                }
                sent => return sent,
            }
        }
        let mut start = 0;
        while start == 0 || start < data.len() {
            let len = size.min(data.len() - start);
            self.send_one(&data.range(start, len), None, to)?;
            start += size.max(1);
        }
        Ok(())
    }

    fn send_one(&self, data: &Chain, size: Option<u16>, peer: Option<&Peer>) -> io::Result<()> {
        let vectors: Vec<_> = data.slices().iter().map(|s| IoSlice::new(s)).collect();
        let to = peer.map(|peer| SockaddrStorage::from(peer.to));
        let fd = self.fd.get_ref().as_raw_fd();
        let source = peer.and_then(|peer| peer.from).map(PacketInfo::new);
        let segments = size.as_ref().map(ControlMessage::UdpGsoSegments);
        let source = source.as_ref().map(PacketInfo::message);
        let control: Vec<_> = segments.into_iter().chain(source).collect();
        let send = || sendmsg(fd, &vectors, &control, MsgFlags::MSG_DONTWAIT, to.as_ref());
        // The error of an earlier datagram is reported once, in place of sending; the error queue
        // has it, too.
        let sent = send().or_else(|error| match error {
            nix::errno::Errno::ECONNREFUSED
            | nix::errno::Errno::EHOSTUNREACH
            | nix::errno::Errno::ENETUNREACH => send(),
            error => Err(error),
        });
        sent.map(drop).map_err(io::Error::from)
    }

    /// Waits for datagrams or for an error about a datagram that was sent. Datagrams are appended
    /// to `data`. Lets other tasks run from time to time, even if the queue never becomes empty.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) async fn receive(
        &self,
        pool: &Pool,
        data: &mut VecDeque<Slice>,
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
            let mut block = ReceiveBlock::new(pool);
            match self.receive_now(&mut block) {
                Ok(from) => {
                    if self.is_connected && self.receive_waiting(&mut block) {
                        ready.clear_ready_matching(Ready::READABLE);
                    }
                    block.append_to(data);
                    return Ok(Received::Datagrams(from));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                // A pending error that the error queue has reported.
                Err(error) if is_reported_error(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts a batch, and lets other tasks run if the budget is used up. The readiness of an
    /// `AsyncFd` does not count towards tokio's own budget of a task.
    async fn yield_when_due(&self) {
        if self.calls.fetch_add(MIN_BATCH_CALLS, Ordering::Relaxed) >= CALL_BUDGET {
            self.calls.store(0, Ordering::Relaxed);
            yield_now().await;
        }
    }

    /// Reads the datagrams that wait in a connected socket while `block` has room for them. Returns
    /// whether there are no more. An error is reported by the next call.
    fn receive_waiting(&self, block: &mut ReceiveBlock) -> bool {
        for call in 1..MAX_CALLS {
            if !block.has_room() {
                return false;
            }
            if call >= MIN_BATCH_CALLS {
                self.calls.fetch_add(1, Ordering::Relaxed);
            }
            match self.receive_now(block) {
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        false
    }

    fn receive_now(&self, block: &mut ReceiveBlock) -> io::Result<Option<Peer>> {
        let fd = self.fd.get_ref().as_raw_fd();
        let (len, size, peer) = block.read(|vectors| receive(fd, vectors))?;
        block.advance(len, size);
        Ok(peer)
    }
}

/// Reads datagrams of one size. Returns their total length, their size, and their sender.
fn receive(fd: RawFd, vectors: &mut [IoSliceMut<'_>]) -> io::Result<(usize, usize, Option<Peer>)> {
    // The sizes of coalesced datagrams, and the larger address.
    let mut control = cmsg_space!(i32, libc::in6_pktinfo);
    let flags = MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<SockaddrStorage>(fd, vectors, Some(&mut control), flags)?;
    let (mut size, mut asked) = (None, None);
    for message in received.cmsgs()? {
        match message {
            ControlMessageOwned::UdpGroSegments(bytes) => size = usize::try_from(bytes).ok(),
            ControlMessageOwned::Ipv4PacketInfo(info) => asked = local_v4(info),
            ControlMessageOwned::Ipv6PacketInfo(info) => asked = local_v6(info),
            _ => {}
        }
    }
    let peer = received.address.as_ref().and_then(socket_addr);
    let peer = peer.map(|to| Peer { to, from: asked });
    Ok((received.bytes, size.unwrap_or(received.bytes), peer))
}

/// Makes the kernel report the addresses that datagrams to a socket were sent to. Must be called before
/// the socket is bound: it applies to datagrams that are received later.
///
/// # Errors
/// The error of the operating system.
pub(crate) fn report_local_address(socket: &Socket, v6: bool) -> io::Result<()> {
    if v6 {
        setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?;
    }
    Ok(())
}

/// The source address of a datagram as the kernel reads it.
enum PacketInfo {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

impl PacketInfo {
    fn new(local: LocalAddr) -> Self {
        match local.ip {
            IpAddr::V4(ip) => Self::V4(libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from_ne_bytes(ip.octets()),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            }),
            IpAddr::V6(ip) => Self::V6(libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                ipi6_ifindex: local.interface,
            }),
        }
    }

    const fn message(&self) -> ControlMessage<'_> {
        match self {
            Self::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Self::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}

/// Returns the host's address that a datagram was sent to. For a broadcast, that is the address of
/// the interface.
fn local_v4(info: libc::in_pktinfo) -> Option<LocalAddr> {
    let ip = Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes());
    (!ip.is_unspecified()).then_some(LocalAddr {
        ip: ip.into(),
        interface: 0,
    })
}

/// Returns the host's address that a datagram was sent to, unless it is a group.
fn local_v6(info: libc::in6_pktinfo) -> Option<LocalAddr> {
    let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
    (!ip.is_multicast()).then_some(LocalAddr {
        ip: ip.into(),
        interface: if ip.is_unicast_link_local() {
            info.ipi6_ifindex
        } else {
            0
        },
    })
}

fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::from((v4.ip(), v4.port())));
    }
    let v6 = address.as_sockaddr_in6()?;
    // The scope of a link-local address is a part of it.
    Some(SocketAddrV6::new(v6.ip(), v6.port(), 0, v6.scope_id()).into())
}

/// Returns whether `error` means that the kernel or the device cannot segment, or that a segment
/// is longer than the path's MTU.
fn is_no_segmentation(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
    matches!(
        errno,
        Errno::EINVAL | Errno::EIO | Errno::EMSGSIZE | Errno::EOPNOTSUPP | Errno::ENOPROTOOPT
    )
}

fn is_reported_error(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
    matches!(
        errno,
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

    use super::*;

    /// Returns the number of datagrams that one task receives before another one runs. The queue of
    /// its socket never becomes empty.
    async fn received_before_other_tasks(socket: HostUdp, sender: std::net::UdpSocket) -> usize {
        let send = |count: usize| {
            for _ in 0..count {
                sender.send(b"flood").unwrap();
            }
        };
        let pool = Pool::new(1 << 20);
        let mut data = VecDeque::new();
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
        assert!(received <= CALL_BUDGET, "{received} datagrams to a forward");

        let (sender, from) = bind();
        let socket = HostUdp::connect(from, &Outbound::default()).unwrap();
        let to = socket.fd.get_ref().local_addr().unwrap();
        sender.connect(to.as_socket().unwrap()).unwrap();
        let received = received_before_other_tasks(socket, sender).await;
        let limit = CALL_BUDGET + MAX_CALLS;
        assert!(received <= limit, "{received} datagrams to a flow");
    }
}
