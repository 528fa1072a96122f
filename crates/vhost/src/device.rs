//! The device: its connection, and its two queues.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullsend_device::Device;
use fullsend_offload::{Caps, Link, Packet, Pool};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::Timespec;

use crate::backend::Backend;
use crate::connection::{Connection, End};
use crate::receive::Receiver;
use crate::source::Source;
use crate::stats::{StatsHandle, VhostUserStats};
use crate::transmit::{Progress, Transmitter};

/// Tokens of events; those of the rings are their numbers, 0 and 1.
const CONTROL: u64 = 2;
const SOURCE: u64 = 3;
const RETRY: u64 = 4;
/// Files that can be registered at the same time: the listener and its timer, the connection and its timer,
/// two rings, and `retry`.
const REGISTRATIONS: usize = 7;

/// Bytes of free memory that the device's own pool keeps.
const POOL_BYTES: usize = 16 << 20;

/// The smallest MTU of IPv4 (RFC 791), and the largest IP packet.
const MTU_RANGE: std::ops::RangeInclusive<u32> = 68..=65_535;

/// The place of the monitor's socket.
enum Endpoint {
    Listen(PathBuf),
    Listener(UnixListener),
    Connect(PathBuf),
    Connected { socket: OwnedFd, is_outlived: bool },
}

/// The callback that [`VhostUserBuilder::on_disconnect`] sets.
type Callback = Box<dyn FnMut() + Send>;

/// Builder of a [`VhostUser`] device.
pub struct VhostUserBuilder {
    endpoint: Endpoint,
    mtu: u32,
    pool: Option<Pool>,
    on_disconnect: Option<Callback>,
}

impl VhostUserBuilder {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            mtu: 1500,
            pool: None,
            on_disconnect: None,
        }
    }

    /// Sets the MTU: the size of the largest IP packet, in bytes; 1500 by default. The guest learns it
    /// if the monitor passes it on (QEMU: `host_mtu` of the network card).
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the pool from which memory for received packets is allocated; by default one of its own. A
    /// stack uses its own pool in place of it.
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Calls `callback` when the connection of a monitor has ended. It is called while the stack is locked,
    /// and must not use the stack or block.
    #[must_use]
    pub fn on_disconnect(mut self, callback: impl FnMut() + Send + 'static) -> Self {
        self.on_disconnect = Some(Box::new(callback));
        self
    }

    /// Lets a device that was made with [`VhostUser::from_socket`] continue after the end of its
    /// connection, without a guest, so that its stack can finish what it does.
    #[must_use]
    pub fn outlive_connection(mut self) -> Self {
        if let Endpoint::Connected { is_outlived, .. } = &mut self.endpoint {
            *is_outlived = true;
        }
        self
    }

    /// Opens the socket. Does not wait for a monitor.
    ///
    /// # Errors
    /// `InvalidInput` if the MTU is not between 68 and 65,535 bytes, or the path is too long for a
    /// socket; `AddrInUse` if a process listens at the path, or it is another file; errors of the
    /// operating system.
    pub fn open(self) -> io::Result<VhostUser> {
        if !MTU_RANGE.contains(&self.mtu) {
            let text = format!("{} is not an MTU; choose 68 to 65535 bytes", self.mtu);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let source = match self.endpoint {
            Endpoint::Listen(path) => Source::listen(&path, &epoll, SOURCE)?,
            Endpoint::Connect(path) => Source::connect(&path, &epoll, SOURCE)?,
            Endpoint::Listener(listener) => Source::accept_from(listener, None, &epoll, SOURCE)?,
            Endpoint::Connected {
                socket,
                is_outlived,
            } => Source::Connected {
                socket: Some(UnixStream::from(socket)),
                is_outlived,
            },
        };
        // Registering it again makes the device readable.
        let retry = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &retry, epoll::EventData::new_u64(RETRY), edge())?;
        let backend = Backend::new(epoll.clone());
        let pool = self.pool.unwrap_or_else(|| Pool::new(POOL_BYTES));
        let mut device = VhostUser {
            epoll,
            retry,
            mtu: self.mtu,
            source,
            on_disconnect: self.on_disconnect,
            connection: None,
            backend: Arc::new(Mutex::new(backend)),
            receiver: Receiver::new(pool),
            transmitter: Transmitter::default(),
            has_more: false,
            stats: VhostUserStats::default(),
            stats_handle: StatsHandle::default(),
        };
        device.connect()?;
        Ok(device)
    }
}

fn edge() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ET
}

/// A virtio-net device of one queue pair that serves the guest of a virtual machine monitor.
pub struct VhostUser {
    epoll: Arc<OwnedFd>,
    retry: OwnedFd,
    mtu: u32,
    source: Source,
    on_disconnect: Option<Callback>,
    connection: Option<Connection>,
    /// Also used by the connection's handler of messages.
    backend: Arc<Mutex<Backend>>,
    receiver: Receiver,
    transmitter: Transmitter,
    /// Whether the guest's transmit ring may have more chains, of which no notification was requested.
    has_more: bool,
    stats: VhostUserStats,
    stats_handle: StatsHandle,
}

impl VhostUser {
    /// Returns a builder for a device that listens at `path`. It serves one monitor at a time; others
    /// wait until its connection ends. The socket of a process that has ended is replaced. The file is
    /// removed when the device is dropped.
    pub fn listen(path: impl AsRef<Path>) -> VhostUserBuilder {
        VhostUserBuilder::new(Endpoint::Listen(path.as_ref().to_owned()))
    }

    /// Returns a builder for a device that serves the connections of a socket that listens, one at a time.
    /// If the socket has a file, the caller removes it.
    pub fn from_listener(listener: UnixListener) -> VhostUserBuilder {
        VhostUserBuilder::new(Endpoint::Listener(listener))
    }

    /// Returns a builder for a device that connects to the socket on which a monitor listens, and
    /// connects again, five times a second, while there is no connection.
    pub fn connect_to(path: impl AsRef<Path>) -> VhostUserBuilder {
        VhostUserBuilder::new(Endpoint::Connect(path.as_ref().to_owned()))
    }

    /// Returns a builder for a device that uses a connected Unix stream socket. The device fails when
    /// this connection ends, unless it [outlives](VhostUserBuilder::outlive_connection) it.
    pub fn from_socket(socket: OwnedFd) -> VhostUserBuilder {
        VhostUserBuilder::new(Endpoint::Connected {
            socket,
            is_outlived: false,
        })
    }

    /// Returns the counters.
    pub fn stats(&self) -> VhostUserStats {
        self.stats
    }

    /// Returns access to the counters that stays valid when a stack owns the device.
    pub fn stats_handle(&self) -> StatsHandle {
        self.stats_handle.clone()
    }

    fn backend(&self) -> MutexGuard<'_, Backend> {
        self.backend.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles what has happened at the sockets.
    fn handle_events(&mut self) -> io::Result<()> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; REGISTRATIONS];
        let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()))?;
        let has = |token| events.iter().any(|event| event.data.u64() == token);
        // Notifications of the rings need no action: both are processed in any case.
        let (control, source) = (has(CONTROL), has(SOURCE));
        if control {
            self.process_messages()?;
        }
        if source && self.connection.is_none() {
            self.connect()?;
        }
        Ok(())
    }

    fn process_messages(&mut self) -> io::Result<()> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        let Err(end) = connection.process() else {
            return Ok(());
        };
        match end {
            End::Closed => tracing::info!("the virtual machine monitor has closed its connection"),
            End::Violation(error) => {
                self.stats.protocol_errors += 1;
                tracing::warn!(%error, "closed the connection of a virtual machine monitor");
            }
        }
        self.connection = None;
        self.backend().reset();
        self.stats.tx_no_guest += self.transmitter.clear() as u64;
        if let Some(callback) = &mut self.on_disconnect {
            callback();
        }
        // A monitor that ends each connection at once must not keep this process busy.
        if self.source.connects() && self.source.retry_later()? {
            return Ok(());
        }
        self.connect()
    }

    /// Begins the next connection, if there is one.
    fn connect(&mut self) -> io::Result<()> {
        let Some(socket) = self.source.next()? else {
            return Ok(());
        };
        let (backend, epoll) = (self.backend.clone(), self.epoll.clone());
        match Connection::new(socket, backend, epoll, CONTROL) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.stats.connections += 1;
            }
            // E.g. no descriptor is left now.
            Err(error) if self.source.retry_later()? => {
                tracing::warn!(%error, "cannot use a vhost-user connection");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sends `batch` and what waits before it.
    fn send(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
        let active = backend.has_guest();
        let Some(mut queues) = backend.queues().filter(|_| active) else {
            drop(backend);
            self.drop_packets(batch);
            return Ok(());
        };
        match self
            .transmitter
            .transmit(&mut queues, batch, &mut self.stats)
        {
            Ok(Progress::Done | Progress::Waiting) => {}
            Ok(Progress::Retry) => {
                let data = epoll::EventData::new_u64(RETRY);
                epoll::modify(&self.epoll, &self.retry, data, edge())?;
            }
            Err(_) => {
                queues.to_guest.break_down();
                self.stats.ring_errors += 1;
                tracing::warn!("the guest's receive ring is invalid; restart its driver");
                drop(backend);
                self.drop_packets(batch);
            }
        }
        Ok(())
    }

    /// Drops packets that no guest will receive.
    fn drop_packets(&mut self, batch: &mut VecDeque<Packet>) {
        self.stats.tx_no_guest += (batch.len() + self.transmitter.clear()) as u64;
        batch.clear();
    }

    /// Receives up to `max` packets. The ring's last notification has been consumed, so whether there is
    /// more is stored.
    fn read(&mut self, batch: &mut Vec<Packet>, max: usize) -> usize {
        self.has_more = false;
        let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut queues) = backend.queues().filter(|q| q.from_guest.is_started()) else {
            return 0;
        };
        let received = self
            .receiver
            .receive(&mut queues, batch, max, &mut self.stats);
        let Ok(received) = received else {
            queues.from_guest.break_down();
            self.stats.ring_errors += 1;
            tracing::warn!("the guest's transmit ring is invalid; restart its driver");
            return 0;
        };
        self.has_more = received >= max;
        received
    }
}

impl Device for VhostUser {
    fn caps(&self) -> Caps {
        // A guest with fewer features gets what it accepts: `Transmitter` does the rest in software.
        Caps::offloading(Link::Ethernet, self.mtu)
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let sent = self.send(batch);
        self.stats_handle.publish(&self.stats);
        sent
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let handled = self.handle_events();
        let received = self.read(batch, max);
        if self.transmitter.has_pending() {
            self.send(&mut VecDeque::new())?;
        }
        self.stats_handle.publish(&self.stats);
        handled.map(|()| received)
    }

    fn has_received(&self) -> bool {
        self.has_more
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        // Packets to the guest that wait are those of one super-segment.
        self.receiver.limit_memory(pool, max_bytes);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}
