//! Frames as datagrams of a Unix socket: vfkit and krunkit.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use fullsend_offload::{Link, Packet, Pool, Slice};

use super::{FRAME_MAX, POOL_BYTES};
use crate::tun::TunStats;
use crate::tun::receive::FrameReader;
use crate::tun::transmit::{self, LinkLog};
use crate::{Caps, Device, FrameHeader};

/// The first datagram of vfkit, which makes its address known.
const GREETING: &[u8] = b"VFKT";
/// Socket buffers, in bytes: the default holds few frames.
const SOCKET_BUFFER: usize = 4 << 20;

/// A bound `SOCK_DGRAM` Unix socket on which each datagram is an Ethernet frame.
///
/// The first sender is the peer; a first datagram `VFKT` is not a frame. A peer that has closed its
/// socket is noticed only when the next packet is sent to it; until then the kernel refuses datagrams
/// of other senders, and after it the next sender takes over. While there is no peer, packets are
/// dropped.
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
    socket: UnixDatagram,
    mtu: u32,
    has_peer: bool,
    reader: FrameReader,
    stats: TunStats,
    link_log: LinkLog,
    /// Datagrams of senders without an address.
    unnamed: u64,
}

impl FrameDatagrams {
    /// Uses a bound socket, which becomes non-blocking. `mtu` is the size of the largest IP packet in
    /// bytes.
    ///
    /// # Errors
    /// The error of making it non-blocking.
    pub fn new(socket: OwnedFd, mtu: u32) -> io::Result<Self> {
        let socket = UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        // The kernel limits the sizes; the defaults are enough to work.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER);
        Ok(Self {
            socket,
            mtu,
            has_peer: false,
            reader: FrameReader::new(Pool::new(POOL_BYTES), FrameHeader::None),
            stats: TunStats::default(),
            link_log: LinkLog::default(),
            unnamed: 0,
        })
    }

    /// Returns the counters of frames and calls.
    pub fn stats(&self) -> TunStats {
        self.stats
    }

    /// Returns the number of ignored datagrams whose senders had no address to answer to.
    pub fn unnamed_senders(&self) -> u64 {
        self.unnamed
    }
}

impl FrameDatagrams {
    /// Waits for the first datagram of a peer, and connects the socket to its sender: the kernel then
    /// reports when the peer has room. Returns whether there is a peer.
    fn find_peer(&mut self, batch: &mut Vec<Packet>) -> io::Result<bool> {
        if self.has_peer {
            return Ok(true);
        }
        let mut frame = vec![0; FRAME_MAX];
        while !self.has_peer {
            self.stats.rx_calls += 1;
            let (len, sender) = match self.socket.recv_from(&mut frame) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if is_transient(&e) => continue,
                Err(e) => return Err(e),
            };
            if sender.is_unnamed() {
                self.unnamed += 1;
                continue;
            }
            // Fails if the sender has closed its socket already.
            self.has_peer = self.socket.connect_addr(&sender).is_ok();
            if self.has_peer && &frame[..len] != GREETING {
                self.stats.rx_packets += 1;
                batch.push(Packet::from_frame(Slice::copied_from(&frame[..len])));
            }
        }
        Ok(true)
    }

    /// Lets the next sender take over.
    fn lose_peer(&mut self) {
        self.has_peer = false;
        if let Err(error) = rustix::net::connect_unspec(&self.socket) {
            tracing::warn!("cannot disconnect the socket of a guest: {error}");
        }
    }
}

/// Returns whether an error of a read concerns the peer or a signal, and not the socket.
fn is_transient(error: &io::Error) -> bool {
    let of_peer = [libc::ECONNRESET, libc::ECONNREFUSED, libc::EINTR];
    error.raw_os_error().is_some_and(|n| of_peer.contains(&n))
}

impl Device for FrameDatagrams {
    fn caps(&self) -> Caps {
        Caps::plain(Link::Ethernet, self.mtu)
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let mut is_lost = false;
        if self.has_peer {
            let mut send = |pieces: &[IoSlice<'_>]| {
                let flags = rustix::net::SendFlags::NOSIGNAL;
                let mut none = rustix::net::SendAncillaryBuffer::default();
                let sent = rustix::net::sendmsg(&self.socket, pieces, &mut none, flags);
                is_lost |= sent.is_err_and(|e| {
                    [
                        libc::ECONNREFUSED,
                        libc::ENOTCONN,
                        libc::EPIPE,
                        libc::ECONNRESET,
                    ]
                    .contains(&e.raw_os_error())
                });
                Ok(sent?)
            };
            let counters = (&mut self.stats, &mut self.link_log);
            transmit::transmit_with((&mut send, "socket"), FrameHeader::None, batch, counters)?;
        } else {
            self.stats.tx_dropped += batch.len() as u64;
            batch.clear();
        }
        if is_lost {
            self.lose_peer();
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let before = batch.len();
        if !self.find_peer(batch)? {
            return Ok(0);
        }
        let first = batch.len() - before;
        let read = |buf: &mut [u8]| {
            loop {
                match self.socket.recv(buf) {
                    // The greeting of a peer that has begun anew is a frame that the parser drops, so that
                    // it counts.
                    Err(e) if is_transient(&e) => {}
                    other => return other,
                }
            }
        };
        let rest = max.saturating_sub(first);
        Ok(first
            + self
                .reader
                .receive_with(read, batch, rest, &mut self.stats)?)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
