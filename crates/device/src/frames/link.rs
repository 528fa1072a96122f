//! A device whose peer is the monitor of a virtual machine.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fullsend_offload::{Link, Packet, Pool};
use parking_lot::Mutex;
use rustix::net::{SocketFlags, accept_with};

use super::connection::Connection;
use super::events::{Events, RoomEvents, Timer, wake, wake_file};
use super::{FrameStats, Framing, POOL_BYTES};
use crate::{Caps, Device, DeviceCounters, LogLimit};

/// Most connections that wait in a [`FrameAttachment`].
const WAITING_MAX: usize = 16;
/// Pause after a failed `accept`, e.g. for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The limit of the log lines about connections that have failed, for all links.
static CLOSED: LogLimit = LogLimit::new();
/// The limit of the log lines about connections that cannot be accepted or used.
static UNUSABLE: LogLimit = LogLimit::new();

/// A notification that a virtual machine starts or stops using a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerEvent {
    /// The virtual machine has sent its first frame.
    Connected {
        /// The Ethernet address from which the frame came.
        mac: [u8; 6],
    },
    /// The connection of the virtual machine has ended.
    Disconnected {
        /// The Ethernet address of its first frame, if it sent any.
        mac: Option<[u8; 6]>,
    },
}

/// A link to one virtual machine at a time.
///
/// While no virtual machine is connected, packets to it are dropped, as on a link without a carrier. The
/// next connection continues the link: TCP connections of the stack continue with the virtual machine
/// that has their address. A frame of impossible length ends its connection.
///
/// ```no_run
/// use std::os::unix::net::UnixListener;
/// use fullsend_device::{FrameLink, Framing};
///
/// // qemu-system-x86_64 -netdev stream,id=n0,server=off,addr.type=unix,addr.path=/tmp/vm.socket
/// let mut link = FrameLink::new(1500)?;
/// link.listen(UnixListener::bind("/tmp/vm.socket")?.into(), Framing::Qemu)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct FrameLink {
    mtu: u32,
    /// The memory pool of all connections.
    pool: Pool,
    /// The limit of a connection's own buffers, bytes.
    max_bytes: usize,
    /// `None` for a link over one connection, whose own socket is polled.
    events: Option<Events>,
    listeners: Vec<(OwnedFd, Framing)>,
    /// A timer that is created with the first listener: later there may be no descriptor for it.
    accept_retry: Option<Timer>,
    attachments: Option<Arc<Attachments>>,
    connection: Option<Connection>,
    /// The room events of the connection in `events`.
    room: RoomEvents,
    /// Whether `events` have reported the end of the connection, before which frames may be unread.
    has_ended: bool,
    /// The Ethernet address of the connection's first frame.
    peer_mac: Option<[u8; 6]>,
    ends_with_peer: bool,
    /// The reason why the device has ended.
    ended: Option<io::Error>,
    stats: FrameStats,
    on_peer: Option<Box<dyn FnMut(PeerEvent) + Send>>,
}

/// Connections that were made elsewhere and wait to become the link's connection.
struct Attachments {
    waiting: Mutex<VecDeque<(OwnedFd, Framing)>>,
    wake: OwnedFd,
}

/// A handle that passes connections accepted elsewhere to a [`FrameLink`]. Clones refer to the same link.
#[derive(Clone)]
pub struct FrameAttachment(Arc<Attachments>);

impl FrameAttachment {
    /// Passes a connected socket to the link. It becomes the link's connection when the earlier ones have
    /// ended.
    ///
    /// # Errors
    /// `QuotaExceeded` if 16 connections are already waiting.
    pub fn attach(&self, socket: OwnedFd, framing: Framing) -> io::Result<()> {
        let mut waiting = self.0.waiting.lock();
        if waiting.len() >= WAITING_MAX {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("{WAITING_MAX} virtual machines wait already; stop one first"),
            ));
        }
        waiting.push_back((socket, framing));
        drop(waiting);
        wake(self.0.wake.as_fd());
        Ok(())
    }
}

impl FrameLink {
    /// Returns a link without a connection. `mtu` is the size of the largest IP packet in bytes.
    ///
    /// # Errors
    /// The error of the operating system, e.g. too many open files.
    pub fn new(mtu: u32) -> io::Result<Self> {
        Ok(Self::with(
            (mtu, Pool::new(POOL_BYTES)),
            Some(Events::new()?),
            None,
        ))
    }

    /// Returns a link over one connected socket, which ends with the connection.
    ///
    /// # Errors
    /// The error of making the socket non-blocking.
    pub fn connected(socket: OwnedFd, framing: Framing, mtu: u32) -> io::Result<Self> {
        let pool = Pool::new(POOL_BYTES);
        let connection = Connection::new(socket, framing, (mtu, &pool))?;
        let mut link = Self::with((mtu, pool), None, Some(connection));
        link.ends_with_peer = true;
        Ok(link)
    }

    /// Returns a link over two pipes, e.g. standard input and output, which ends with `input`.
    ///
    /// # Errors
    /// `InvalidInput` for a framing that is not [`Framing::Plain`] or [`Framing::Qemu`], or the error
    /// of the operating system.
    pub fn pipes(input: OwnedFd, output: OwnedFd, framing: Framing, mtu: u32) -> io::Result<Self> {
        let pool = Pool::new(POOL_BYTES);
        let connection = Connection::of_pipes((input, output), framing, (mtu, &pool))?;
        let events = Events::new()?;
        add_connection(&events, &connection)?;
        let mut link = Self::with((mtu, pool), Some(events), Some(connection));
        link.ends_with_peer = true;
        Ok(link)
    }

    fn with(
        (mtu, pool): (u32, Pool),
        events: Option<Events>,
        connection: Option<Connection>,
    ) -> Self {
        Self {
            mtu,
            pool,
            max_bytes: usize::MAX,
            has_ended: events.is_some() && connection.is_some(),
            events,
            listeners: Vec::new(),
            accept_retry: None,
            attachments: None,
            stats: FrameStats {
                connections: connection.is_some().into(),
                ..FrameStats::default()
            },
            connection,
            room: RoomEvents::default(),
            peer_mac: None,
            ends_with_peer: false,
            ended: None,
            on_peer: None,
        }
    }

    /// Accepts connections of a listening socket, one after another: the next connection waits until the
    /// previous one has ended.
    ///
    /// # Errors
    /// `InvalidInput` for a link over one connection, or the error of the operating system.
    pub fn listen(&mut self, listener: OwnedFd, framing: Framing) -> io::Result<()> {
        crate::sys::set_nonblocking(listener.as_fd())?;
        if self.accept_retry.is_none() {
            let timer = Timer::new()?;
            self.events()?.add(timer.as_fd())?;
            self.accept_retry = Some(timer);
        }
        self.events()?.add(listener.as_fd())?;
        self.listeners.push((listener, framing));
        Ok(())
    }

    /// Returns a handle that passes connections to this link.
    ///
    /// # Errors
    /// `InvalidInput` for a link over one connection, or the error of the operating system.
    pub fn attachment(&mut self) -> io::Result<FrameAttachment> {
        if let Some(attachments) = &self.attachments {
            return Ok(FrameAttachment(attachments.clone()));
        }
        let attachments = Arc::new(Attachments {
            waiting: Mutex::default(),
            wake: wake_file()?,
        });
        self.events()?.add(attachments.wake.as_fd())?;
        self.attachments = Some(attachments.clone());
        Ok(FrameAttachment(attachments))
    }

    fn events(&self) -> io::Result<&Events> {
        self.events.as_ref().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the link ends with its only connection; make it with FrameLink::new",
            )
        })
    }

    /// Makes the device end with its first connection.
    #[must_use]
    pub fn end_with_peer(mut self) -> Self {
        self.ends_with_peer = true;
        self
    }

    /// Calls `callback` at each [`PeerEvent`]. The callback runs while the stack is locked, and must not
    /// use the stack or block.
    #[must_use]
    pub fn on_peer(mut self, callback: impl FnMut(PeerEvent) + Send + 'static) -> Self {
        self.on_peer = Some(Box::new(callback));
        self
    }

    /// Returns the counters.
    pub fn stats(&self) -> FrameStats {
        self.stats
    }

    fn report(&mut self, event: PeerEvent) {
        if let Some(callback) = &mut self.on_peer {
            callback(event);
        }
    }

    /// Makes the next connection the current one. Returns `false` if none waits.
    fn accept(&mut self) -> bool {
        while let Some((socket, framing)) = self.next_socket() {
            let parts = (self.mtu, &self.pool);
            let made = Connection::new(socket, framing, parts).and_then(|mut connection| {
                connection.limit_memory(&self.pool, self.max_bytes);
                if let Some(events) = &self.events {
                    add_connection(events, &connection)?;
                }
                Ok(connection)
            });
            match made {
                Ok(connection) => {
                    self.stats.connections += 1;
                    self.connection = Some(connection);
                    self.room = RoomEvents::default();
                    // The connection is read completely now, as it may have ended before.
                    self.has_ended = true;
                    self.peer_mac = None;
                    return true;
                }
                Err(error) => {
                    UNUSABLE.warn(error.kind(), || {
                        format!("cannot use the connection of a guest: {error}")
                    });
                }
            }
        }
        false
    }

    fn next_socket(&mut self) -> Option<(OwnedFd, Framing)> {
        if let Some(attachments) = &self.attachments
            && let Some(next) = attachments.waiting.lock().pop_front()
        {
            return Some(next);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        self.listeners.iter().find_map(|(listener, framing)| {
            loop {
                match accept_with(listener, flags) {
                    Ok(socket) => return Some((socket, *framing)),
                    // The client has already closed its connection.
                    Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::AGAIN) => return None,
                    Err(error) => {
                        UNUSABLE.warn(error, || {
                            format!(
                                "cannot accept the connection of a guest: {error}; it is tried again"
                            )
                        });
                        // The listener reports no further event for a client that still waits.
                        if let Some(timer) = &self.accept_retry {
                            timer.set(ACCEPT_RETRY);
                        }
                        return None;
                    }
                }
            }
        })
    }

    /// Closes the connection because of `reason`.
    fn close(&mut self, reason: io::Error) {
        self.connection = None;
        if reason.kind() == io::ErrorKind::InvalidData {
            self.stats.malformed += 1;
            CLOSED.warn(reason.to_string(), || {
                format!("the connection of a guest is closed: {reason}")
            });
        }
        let mac = self.peer_mac.take();
        self.report(PeerEvent::Disconnected { mac });
        if self.ends_with_peer {
            self.ended = Some(reason);
        }
    }
}

fn add_connection(events: &Events, connection: &Connection) -> io::Result<()> {
    events.add(connection.input())?;
    if let Some(output) = connection.output() {
        events.add(output)?;
    }
    // The new connection is writable, and its received data is read next.
    events.clear();
    Ok(())
}

/// Returns the source Ethernet address of an unparsed frame.
fn source(packet: &Packet) -> Option<[u8; 6]> {
    let frame = packet.payload.slices().first()?;
    frame.as_slice().get(6..12)?.try_into().ok()
}

impl Device for FrameLink {
    fn caps(&self) -> Caps {
        Caps {
            // The writer segments super-segments for peers that do not accept them.
            uso: false,
            ..Caps::offloading(Link::Ethernet, self.mtu)
        }
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        if let Some(connection) = &mut self.connection {
            connection.transmit(batch, &mut self.stats);
            if let Some(events) = &self.events {
                let file = connection.output().unwrap_or_else(|| connection.input());
                self.room.update((events, file, 0), !batch.is_empty());
            }
        } else {
            self.stats.tx_dropped += batch.len() as u64;
            batch.clear();
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        if let Some(events) = &self.events {
            self.has_ended |= events.clear();
        }
        let mut count = 0;
        loop {
            if let Some(reason) = &self.ended {
                if count == 0 {
                    return Err(io::Error::new(reason.kind(), reason.to_string()));
                }
                // A full result makes the caller call again, which then returns the error.
                return Ok(max);
            }
            if self.connection.is_none() && !self.accept() {
                return Ok(count);
            }
            let Some(connection) = &mut self.connection else {
                return Ok(count);
            };
            let before = batch.len();
            let (received, end) = connection.receive(batch, max - count, &mut self.stats);
            count += received;
            if self.peer_mac.is_none()
                && let Some(mac) = batch.get(before).and_then(source)
            {
                self.peer_mac = Some(mac);
                self.report(PeerEvent::Connected { mac });
            }
            match end {
                Some(reason) => self.close(reason),
                None if self.has_ended && received > 0 => {}
                None => {
                    self.has_ended = false;
                    return Ok(count);
                }
            }
            if count >= max {
                return Ok(count);
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.events {
            Some(events) => Some(events.as_fd()),
            None => self.connection.as_ref().map(Connection::input),
        }
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.pool = pool.clone();
        self.max_bytes = max_bytes;
        if let Some(connection) = &mut self.connection {
            connection.limit_memory(pool, max_bytes);
        }
    }

    fn counters(&mut self) -> DeviceCounters {
        DeviceCounters {
            rx_dropped: self.stats.rx_dropped,
            tx_dropped: self.stats.tx_dropped,
            connections: self.stats.connections,
            protocol_errors: self.stats.malformed,
            ..DeviceCounters::default()
        }
    }
}
