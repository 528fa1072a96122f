//! Frames as datagrams of a Unix socket: vfkit and krunkit.
//!
//! The socket is not connected, because the kernel would then refuse datagrams of other senders, even
//! after the peer has ended. Therefore the kernel does not report when a peer has room again, and a timer
//! repeats packets that did not fit. Unread data of all peers occupies the send buffer of the one socket,
//! so a peer that sends nothing, e.g. a stopped virtual machine, may use only half of it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fullsend_offload::{Link, Packet, Pool};
use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendFlags, SocketAddrUnix};

use super::events::{Events, RoomEvents, Timer, wake, wake_file};
use super::{FRAME_MAX, FRAME_MIN, POOL_BYTES};
use crate::tun::TunStats;
use crate::tun::transmit::{self, LinkLog};
use crate::{Caps, Device, DeviceCounters, FrameHeader, sys};

/// The first datagram of vfkit, which makes its address known.
const GREETING: &[u8] = b"VFKT";
/// Socket buffers, in bytes: the default holds few frames.
const SOCKET_BUFFER: usize = 4 << 20;
/// Most peers of a socket.
const PEERS_MAX: usize = 64;
/// Most datagrams that one call reads.
const BUDGET: usize = 64;
/// Most frames of a peer that wait for its device.
const INBOX_MAX: usize = 1024;
/// Bytes sent to a peer since its last frame from which on its use of the send buffer is checked.
const UNANSWERED: usize = 256 << 10;
/// Time after which packets that did not fit are sent again.
const RETRY: Duration = Duration::from_micros(500);

/// The state of a peer that the listener and the peer's device share.
struct Peer {
    address: SocketAddr,
    inbox: Mutex<VecDeque<Packet>>,
    /// Frames of the peer that were dropped for lack of memory or room.
    dropped: AtomicU64,
    wake: OwnedFd,
    /// Whether the peer has closed its socket.
    is_gone: AtomicBool,
    /// Bytes that were sent to the peer since its last frame.
    unanswered: AtomicUsize,
}

impl Peer {
    fn push(&self, packet: Packet) -> bool {
        let mut inbox = self.inbox.lock();
        let has_room = inbox.len() < INBOX_MAX;
        if has_room {
            inbox.push_back(packet);
        }
        let is_first = inbox.len() == 1;
        drop(inbox);
        if is_first {
            wake(self.wake.as_fd());
        }
        has_room
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
        wake(self.wake.as_fd());
    }

    /// Returns whether no process has the peer's socket. Sends nothing.
    fn has_closed(&self, probe: &UnixDatagram) -> bool {
        // `PermissionDenied` means that the socket is connected to this process.
        let error = probe.connect_addr(&self.address).err();
        // The probe must not stay connected to a peer.
        let _ = rustix::net::connect_unspec(probe);
        error.is_some_and(|error| is_end(&error))
    }
}

/// Returns whether an error of a send means that no process has the peer's socket.
fn is_end(error: &io::Error) -> bool {
    let ends = [
        libc::ECONNREFUSED,
        libc::ENOENT,
        libc::ECONNRESET,
        libc::EPIPE,
    ];
    error.raw_os_error().is_some_and(|n| ends.contains(&n))
}

fn is_same(one: &SocketAddr, other: &SocketAddr) -> bool {
    one.as_pathname() == other.as_pathname() && one.as_abstract_name() == other.as_abstract_name()
}

/// A bound `SOCK_DGRAM` Unix socket on which each datagram is an Ethernet frame of one of up to 64 peers.
///
/// Each sender with an address is a peer; a datagram `VFKT` is not a frame. When a new peer appears, the
/// devices of peers that have closed their sockets end. Senders without an address are ignored.
pub struct DatagramListener {
    socket: Arc<UnixDatagram>,
    /// A socket that probes whether peers have closed theirs, opened before a system call filter forbids
    /// it.
    probe: UnixDatagram,
    mtu: u32,
    pool: Pool,
    buffer: Vec<u8>,
    peers: Vec<Arc<Peer>>,
    max_peers: usize,
    stats: TunStats,
    unnamed: u64,
}

impl DatagramListener {
    /// Uses a bound socket, which becomes non-blocking. `mtu` is the size of the largest IP packet in
    /// bytes.
    ///
    /// # Errors
    /// The error of making the socket non-blocking, or of opening another socket.
    pub fn new(socket: OwnedFd, mtu: u32) -> io::Result<Self> {
        let socket = UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        // The kernel limits the sizes; the defaults suffice.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER);
        Ok(Self {
            socket: Arc::new(socket),
            probe: UnixDatagram::unbound()?,
            mtu,
            pool: Pool::new(POOL_BYTES),
            buffer: vec![0; FRAME_MAX],
            peers: Vec::new(),
            max_peers: PEERS_MAX,
            stats: TunStats::default(),
            unnamed: 0,
        })
    }

    /// Returns the number of ignored datagrams whose senders have no address.
    pub fn unnamed_senders(&self) -> u64 {
        self.unnamed
    }

    /// Reads datagrams, and passes frames to the devices of their peers. Returns the device of a new
    /// peer, or `None` after a number of datagrams, so that the caller can do other work before the next
    /// call.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram; wait until the socket is readable. Other errors mean that
    /// the socket is no longer usable, or that there is no free descriptor now.
    pub fn accept(&mut self) -> io::Result<Option<DatagramPeer>> {
        for _ in 0..BUDGET {
            self.stats.rx_calls += 1;
            let (len, sender) = match self.socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(e) if is_end(&e) || e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if sender.is_unnamed() {
                self.unnamed += 1;
                continue;
            }
            let known = self
                .peers
                .iter()
                .position(|peer| is_same(&peer.address, &sender));
            if let Some(index) = known
                && !self.peers[index].is_gone()
            {
                // The peer that sends most is moved to the front, where it is found first.
                self.peers.swap(0, index);
                self.deliver(len);
                continue;
            }
            if let Some(device) = self.add_peer(sender)? {
                self.deliver(len);
                return Ok(Some(device));
            }
            self.stats.rx_dropped += 1;
        }
        Ok(None)
    }

    /// Passes the datagram in the buffer to the first peer.
    fn deliver(&mut self, len: usize) {
        let frame = &self.buffer[..len];
        self.peers[0].unanswered.store(0, Ordering::Relaxed);
        if frame == GREETING {
            return;
        }
        self.stats.rx_packets += 1;
        let memory = self.pool.try_alloc(len).filter(|_| len >= FRAME_MIN);
        let memory = memory.filter(|memory| memory.capacity() >= len);
        let is_delivered = memory.is_some_and(|mut memory| {
            memory.write(frame);
            self.peers[0].push(Packet::from_frame(memory.freeze()))
        });
        let dropped = u64::from(!is_delivered);
        self.stats.rx_dropped += dropped;
        self.peers[0].dropped.fetch_add(dropped, Ordering::Relaxed);
    }

    /// Adds a peer as the first one if there is room, after removing peers that have ended.
    fn add_peer(&mut self, address: SocketAddr) -> io::Result<Option<DatagramPeer>> {
        let probe = &self.probe;
        self.peers.retain(|peer| {
            let is_unused = Arc::strong_count(peer) == 1;
            let has_ended = is_unused || peer.is_gone() || peer.has_closed(probe);
            if has_ended {
                peer.set_gone();
            }
            !has_ended
        });
        if self.peers.len() >= self.max_peers {
            return Ok(None);
        }
        let peer = Arc::new(Peer {
            address,
            inbox: Mutex::default(),
            dropped: AtomicU64::new(0),
            wake: wake_file()?,
            is_gone: AtomicBool::new(false),
            unanswered: AtomicUsize::new(0),
        });
        let device = DatagramPeer::new(self.socket.clone(), peer.clone(), self.mtu)?;
        self.peers.insert(0, peer);
        Ok(device)
    }
}

impl AsFd for DatagramListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The device of one peer of a [`DatagramListener`]. It ends when the peer has closed its socket, which
/// is detected when a packet is sent to it or another peer appears.
pub struct DatagramPeer {
    socket: Arc<UnixDatagram>,
    peer: Arc<Peer>,
    address: SocketAddrUnix,
    mtu: u32,
    events: Events,
    retry: Timer,
    stats: TunStats,
    link_log: LinkLog,
}

impl DatagramPeer {
    /// Returns a device, or `None` if the operating system does not accept the peer's address as a
    /// destination.
    fn new(socket: Arc<UnixDatagram>, peer: Arc<Peer>, mtu: u32) -> io::Result<Option<Self>> {
        let address = match (peer.address.as_pathname(), peer.address.as_abstract_name()) {
            (Some(path), _) => SocketAddrUnix::new(path),
            (None, Some(name)) => SocketAddrUnix::new_abstract_name(name),
            (None, None) => return Ok(None),
        };
        let Ok(address) = address else {
            return Ok(None);
        };
        let (events, retry) = (Events::new()?, Timer::new()?);
        events.add(peer.wake.as_fd())?;
        events.add(retry.as_fd())?;
        Ok(Some(Self {
            socket,
            peer,
            address,
            mtu,
            events,
            retry,
            stats: TunStats::default(),
            link_log: LinkLog::default(),
        }))
    }

    /// Returns whether the peer has sent nothing for some time and the send buffer is half full.
    fn is_stalled(&self) -> bool {
        if self.peer.unanswered.load(Ordering::Relaxed) < UNANSWERED {
            return false;
        }
        let unsent = sys::unix_unsent(self.socket.as_fd()).unwrap_or(0);
        let size = rustix::net::sockopt::socket_send_buffer_size(&*self.socket).unwrap_or(0);
        unsent > size / 2
    }
}

impl Device for DatagramPeer {
    fn caps(&self) -> Caps {
        Caps::plain(Link::Ethernet, self.mtu)
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        if self.peer.is_gone() || self.is_stalled() {
            self.stats.tx_dropped += batch.len() as u64;
            batch.clear();
            return Ok(());
        }
        let (mut has_ended, mut sent_bytes) = (false, 0);
        let mut send = |pieces: &[IoSlice<'_>]| {
            let (socket, mut none) = (&*self.socket, SendAncillaryBuffer::default());
            let flags = SendFlags::NOSIGNAL;
            let sent = rustix::net::sendmsg_addr(socket, &self.address, pieces, &mut none, flags);
            let sent = sent.map_err(io::Error::from);
            has_ended |= sent.as_ref().is_err_and(is_end);
            sent_bytes += sent.as_ref().unwrap_or(&0);
            sent
        };
        let counters = (&mut self.stats, &mut self.link_log);
        transmit::transmit_with((&mut send, "socket"), FrameHeader::None, batch, counters)?;
        self.peer
            .unanswered
            .fetch_add(sent_bytes, Ordering::Relaxed);
        if has_ended {
            self.peer.set_gone();
        } else if !batch.is_empty() {
            self.retry.set(RETRY);
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.events.clear();
        let mut inbox = self.peer.inbox.lock();
        let count = inbox.len().min(max);
        batch.extend(inbox.drain(..count));
        let is_empty = inbox.is_empty();
        drop(inbox);
        match count {
            0 if self.peer.is_gone() => Err(io::ErrorKind::UnexpectedEof.into()),
            // Requests another call, which returns the error.
            _ if is_empty && self.peer.is_gone() => Ok(max),
            _ => Ok(count),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn counters(&mut self) -> DeviceCounters {
        DeviceCounters {
            rx_dropped: self.peer.dropped.load(Ordering::Relaxed),
            ..self.stats.into()
        }
    }
}

/// A bound `SOCK_DGRAM` Unix socket on which each datagram is an Ethernet frame of one peer.
///
/// The first sender is the peer; a datagram `VFKT` is not a frame. While the peer's socket is open,
/// datagrams of other senders are dropped; after it is closed, the next sender becomes the peer. Without
/// a peer, packets are dropped. [`DatagramListener`] has several peers.
///
/// ```no_run
/// use std::os::unix::net::UnixDatagram;
/// use fullsend_device::FrameDatagrams;
///
/// // vfkit --device virtio-net,unixSocketPath=/tmp/vm.socket
/// let device = FrameDatagrams::new(UnixDatagram::bind("/tmp/vm.socket")?.into(), 1500)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct FrameDatagrams {
    listener: DatagramListener,
    peer: Option<DatagramPeer>,
    events: Events,
    /// The room events of the socket in `events`.
    room: RoomEvents,
    /// The counters of earlier peers, and of packets without a peer.
    tx_stats: TunStats,
}

impl FrameDatagrams {
    /// Uses a bound socket, which becomes non-blocking. `mtu` is the size of the largest IP packet in
    /// bytes.
    ///
    /// # Errors
    /// The error of making the socket non-blocking, or of opening another descriptor.
    pub fn new(socket: OwnedFd, mtu: u32) -> io::Result<Self> {
        let mut listener = DatagramListener::new(socket, mtu)?;
        listener.max_peers = 1;
        let events = Events::new()?;
        events.add(listener.as_fd())?;
        Ok(Self {
            listener,
            peer: None,
            events,
            room: RoomEvents::default(),
            tx_stats: TunStats::default(),
        })
    }

    /// Returns the counters of frames and calls.
    pub fn stats(&self) -> TunStats {
        let of_peer = self.peer.as_ref().map(|peer| peer.stats);
        let of_peer = of_peer.unwrap_or_default();
        TunStats {
            tx_packets: self.tx_stats.tx_packets + of_peer.tx_packets,
            tx_dropped: self.tx_stats.tx_dropped + of_peer.tx_dropped,
            tx_calls: self.tx_stats.tx_calls + of_peer.tx_calls,
            ..self.listener.stats
        }
    }

    /// Returns the number of ignored datagrams whose senders have no address.
    pub fn unnamed_senders(&self) -> u64 {
        self.listener.unnamed_senders()
    }

    fn set_peer(&mut self, peer: Option<DatagramPeer>) {
        self.tx_stats = self.stats();
        self.peer = peer;
    }

    /// Reads datagrams. Returns whether there may be more.
    fn read(&mut self) -> io::Result<bool> {
        match self.listener.accept() {
            Ok(Some(peer)) => {
                self.events.add(peer.events.as_fd())?;
                self.set_peer(Some(peer));
                Ok(true)
            }
            Ok(None) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl Device for FrameDatagrams {
    fn caps(&self) -> Caps {
        Caps::plain(Link::Ethernet, self.listener.mtu)
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        if let Some(peer) = &mut self.peer {
            let sent = peer.transmit(batch);
            let socket = (&self.events, self.listener.as_fd(), 0);
            self.room.update(socket, !batch.is_empty());
            return sent;
        }
        self.tx_stats.tx_dropped += batch.len() as u64;
        batch.clear();
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.events.clear();
        let has_more = self.read()?;
        let mut count = 0;
        if let Some(peer) = &mut self.peer {
            match peer.receive(batch, max) {
                Ok(received) => count = received,
                Err(_) => self.set_peer(None),
            }
        }
        Ok(if has_more { count.max(max) } else { count })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn counters(&mut self) -> DeviceCounters {
        DeviceCounters {
            rx_malformed: self.unnamed_senders(),
            ..self.stats().into()
        }
    }
}
