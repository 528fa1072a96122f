//! The builder of a device.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

use fullsend_offload::Pool;

use crate::control::{Callback, Control, SOURCE};
use crate::device::VhostUser;
use crate::fault;
use crate::pair::Pairs;
use crate::source::Source;

/// Bytes of free memory that the device's own pool keeps.
const POOL_BYTES: usize = 16 << 20;

/// The smallest MTU of IPv4 (RFC 791), and the largest IP packet.
const MTU_RANGE: std::ops::RangeInclusive<u32> = 68..=65_535;

/// Most pairs of queues: the number of shards that a stack can have.
const MAX_PAIRS: usize = 64;

/// The socket of the monitor, and the side that connects.
pub(crate) enum Endpoint {
    Listen(PathBuf),
    Listener(UnixListener),
    Connect(PathBuf),
    Connected { socket: OwnedFd, is_outlived: bool },
}

/// Builder of a [`VhostUser`] device.
pub struct VhostUserBuilder {
    endpoint: Endpoint,
    mtu: u32,
    pool: Option<Pool>,
    on_disconnect: Option<Callback>,
    handles_sigbus: bool,
}

impl VhostUserBuilder {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            mtu: 1500,
            pool: None,
            on_disconnect: None,
            handles_sigbus: false,
        }
    }

    /// Sets the MTU, the size of the largest IP packet in bytes; 1500 by default. The guest gets it if
    /// the monitor passes it on (QEMU: `host_mtu` of the network card).
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the pool for received packets, by default a pool of the device's own. A stack replaces it
    /// with its own pool.
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Calls `callback` when the connection of a monitor has ended. The callback runs while the stack is
    /// locked, and must not use the stack or block.
    #[must_use]
    pub fn on_disconnect(mut self, callback: impl FnMut() + Send + 'static) -> Self {
        self.on_disconnect = Some(Box::new(callback));
        self
    }

    /// Permits the device to install a handler of `SIGBUS`, **for the whole process**, when it is opened; and to
    /// accept memory in files that the monitor can shorten.
    ///
    /// Without it, the process installs none, and the device closes the connection of a monitor whose memory
    /// cannot be sealed: a memfd without `MFD_ALLOW_SEALING`, and each other file. Such memory would let the
    /// monitor end the process, as an access to a page that is gone is a `SIGBUS`. Sealed memory still has
    /// this effect if the system has no page left, e.g. where `vm.overcommit_memory` is 2, or a page is damaged.
    ///
    /// With it, such an access ends that guest alone (`memory_faults`). The handler keeps 16 MiB of address
    /// space, which count as promised memory, for that. It passes any other `SIGBUS` on to the handler that was there when
    /// it was installed, with that one's mask and flags. It stays until the process ends. Therefore a program
    ///
    /// - installs handlers of its own before it opens the first such device, or passes the signal on in the
    ///   same way in those that it installs later;
    /// - blocks the signal in no thread that drives such a device: the kernel would end the process.
    #[must_use]
    pub fn handle_sigbus(mut self) -> Self {
        self.handles_sigbus = true;
        self
    }

    /// Makes a device that was made with [`VhostUser::from_socket`] continue without a guest after the
    /// end of its connection, so that its stack can finish its work.
    #[must_use]
    pub fn outlive_connection(mut self) -> Self {
        if let Endpoint::Connected { is_outlived, .. } = &mut self.endpoint {
            *is_outlived = true;
        }
        self
    }

    /// Opens the socket for a card with one pair of queues. Does not wait for a monitor.
    ///
    /// # Errors
    /// The errors of [`open_queues`](Self::open_queues).
    pub fn open(self) -> io::Result<VhostUser> {
        let mut devices = self.open_queues(1)?;
        Ok(devices.remove(0))
    }

    /// Opens the socket for a card with `pairs` pairs of queues, and returns a device for each pair, for
    /// a stack with this number of shards. Does not wait for a monitor.
    ///
    /// The monitor may use fewer pairs (QEMU: `queues=2` of the network back end and `mq=on` of the
    /// card), and the guest fewer than the monitor. The devices of unused pairs then send through the
    /// used ones. The first device handles the monitor's messages for all; when it is dropped, the others
    /// lose their guest.
    ///
    /// ```no_run
    /// use fullsend_vhost::{Device, VhostUser};
    ///
    /// let devices = VhostUser::listen("/run/vm0.sock").open_queues(2)?;
    /// let queues: Vec<Box<dyn Device>> = devices.into_iter().map(|d| Box::new(d) as _).collect();
    /// // Then pass them to a stack: `Stack::builder().device_queues(queues).shards(2)`.
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the MTU is not between 68 and 65,535 bytes, the number of pairs is not between 1
    /// and 64, or the path is too long for a socket; `AddrInUse` if a process listens at the path, or it is
    /// another file; errors of the operating system, also of the handler of
    /// [`handle_sigbus`](Self::handle_sigbus).
    pub fn open_queues(self, pairs: usize) -> io::Result<Vec<VhostUser>> {
        let invalid = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        if !MTU_RANGE.contains(&self.mtu) {
            return invalid(format!(
                "{} is not an MTU; choose 68 to 65535 bytes",
                self.mtu
            ));
        }
        if !(1..=MAX_PAIRS).contains(&pairs) {
            return invalid(format!(
                "{pairs} is not a number of pairs of queues; choose 1 to {MAX_PAIRS}"
            ));
        }
        if self.handles_sigbus {
            fault::install()?;
        }
        let pairs = Arc::new(Pairs::new(pairs)?);
        // The first pair's epoll is used.
        let epoll = pairs.first().epoll();
        let source = match self.endpoint {
            Endpoint::Listen(path) => Source::listen(&path, epoll, SOURCE)?,
            Endpoint::Connect(path) => Source::connect(&path, epoll, SOURCE)?,
            Endpoint::Listener(listener) => Source::accept_from(listener, None, epoll, SOURCE)?,
            Endpoint::Connected {
                socket,
                is_outlived,
            } => Source::Connected {
                socket: Some(UnixStream::from(socket)),
                is_outlived,
            },
        };
        let mut control = Control::new(
            pairs.clone(),
            source,
            self.on_disconnect,
            self.handles_sigbus,
        );
        control.connect()?;
        let mut control = Some(control);
        let pool = self.pool.unwrap_or_else(|| Pool::new(POOL_BYTES));
        let device = |index| {
            VhostUser::new(
                (pairs.clone(), index),
                control.take(),
                self.mtu,
                pool.clone(),
            )
        };
        Ok((0..pairs.len()).map(device).collect())
    }
}
