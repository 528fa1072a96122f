//! The sockets to which virtual machines connect; each connection is a guest of the gateway.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use fullsend::VhostUser;
use fullsend_device::{
    CaptureInterface, CapturedDevice, DatagramListener, Device, FrameLink, Framing, LogLimit,
};
use fullsend_gateway::{Handle, PortEvent, PortId};
use rustix::net::AddressFamily;
use tokio::io::Interest;
use tokio::net::{TcpListener, UnixDatagram, UnixListener};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::listen::{Bound, SocketPath};
use super::notifications::{Notification, Sender};
use super::options::{GUEST_MAC, Options};

/// Pause after a failed `accept`, e.g. for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The limit of the log lines about connections that cannot be used.
static LOG: LogLimit = LogLimit::new();

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocol {
    Frames(Framing),
    VhostUser,
}

/// The bound sockets, before the gateway exists.
pub(super) struct Links {
    /// The sockets, each with the protocol of its connections.
    sockets: Vec<(OwnedFd, Protocol)>,
    /// The listeners for datagrams, created early because each opens another socket, which the sandbox
    /// forbids.
    datagrams: Vec<DatagramListener>,
    /// The link over standard input and output.
    stdio: Option<FrameLink>,
    /// The files of the sockets, removed at the end.
    files: Vec<SocketPath>,
    /// The addresses of the TCP sockets.
    addresses: Vec<SocketAddr>,
}

/// The means to add connections as guests of a gateway.
#[derive(Clone)]
pub(super) struct GuestLinks {
    handle: Handle,
    mtu: u32,
    capture: Option<CaptureInterface>,
}

/// The notifications about guests that begin and end. The program ends with the guest on standard input.
#[derive(Clone)]
pub(super) struct GuestEvents {
    sender: Sender,
    stdio_port: Arc<OnceLock<PortId>>,
    ended: Arc<Notify>,
}

impl GuestEvents {
    pub(super) fn new(sender: Sender) -> Self {
        Self {
            sender,
            stdio_port: Arc::default(),
            ended: Arc::default(),
        }
    }

    pub(super) fn on_event(&self, event: PortEvent) {
        match event {
            PortEvent::Connected { mac, .. } => self.sender.send(Notification::Connected(mac)),
            PortEvent::Disconnected { port, mac } => {
                if let Some(mac) = mac {
                    self.sender.send(Notification::Disconnected(mac));
                }
                if self.stdio_port.get() == Some(&port) {
                    self.ended.notify_one();
                }
            }
        }
    }

    /// Waits for the end of the guest on standard input.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }
}

impl Links {
    /// Binds the sockets.
    pub(super) fn bind(options: &Options) -> Result<Self> {
        let guest_mac = GUEST_MAC;
        let hyperkit = Framing::Hyperkit { guest_mac };
        let endpoints = [
            (&options.qemu, Some(Protocol::Frames(Framing::Qemu))),
            (&options.bess, Some(Protocol::Frames(Framing::Messages))),
            (&options.vpnkit, Some(Protocol::Frames(hyperkit))),
            (&options.vfkit, None),
            (&options.vhost_user, Some(Protocol::VhostUser)),
        ];
        let (mut sockets, mut datagrams) = (Vec::new(), Vec::new());
        let (mut files, mut addresses) = (Vec::new(), Vec::new());
        for (endpoint, protocol) in endpoints {
            if let Some(endpoint) = endpoint {
                let Bound {
                    socket,
                    file,
                    address,
                } = Bound::new(endpoint)?;
                rustix::io::ioctl_fionbio(&socket, true)?;
                match protocol {
                    Some(protocol) => sockets.push((socket, protocol)),
                    None => datagrams.push(DatagramListener::new(socket, options.config.mtu)?),
                }
                files.extend(file);
                addresses.extend(address);
            }
        }
        let stdio = options.stdio.then(|| {
            let (input, output) = (io::stdin(), io::stdout());
            let input = input.as_fd().try_clone_to_owned()?;
            let output = output.as_fd().try_clone_to_owned()?;
            FrameLink::pipes(input, output, Framing::Plain, options.config.mtu)
        });
        Ok(Self {
            sockets,
            datagrams,
            stdio: stdio.transpose()?,
            files,
            addresses,
        })
    }

    /// Returns the files of the Unix sockets.
    pub(super) fn files(&self) -> &[SocketPath] {
        &self.files
    }

    /// Returns whether frames to some guests are sent to the paths of their own sockets.
    pub(super) const fn has_datagrams(&self) -> bool {
        !self.datagrams.is_empty()
    }

    /// Returns the addresses of the TCP sockets.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Starts to accept virtual machines. Returns the files of the sockets, which are removed when the
    /// value is dropped.
    pub(super) fn start(
        self,
        guests: &GuestLinks,
        events: &GuestEvents,
    ) -> Result<Vec<SocketPath>> {
        if let Some(link) = self.stdio {
            let port = guests.add(link)?;
            // The port is set only once.
            let _ = events.stdio_port.set(port);
        }
        for (socket, protocol) in self.sockets {
            let listener = Listener::new(socket)?;
            tokio::spawn(accept(guests.clone(), listener, protocol));
        }
        for listener in self.datagrams {
            let ready = UnixDatagram::from_std(listener.as_fd().try_clone_to_owned()?.into())?;
            tokio::spawn(accept_datagrams(guests.clone(), listener, ready));
        }
        Ok(self.files)
    }
}

impl GuestLinks {
    pub(super) fn new(handle: Handle, mtu: u32, capture: Option<CaptureInterface>) -> Self {
        Self {
            handle,
            mtu,
            capture,
        }
    }

    fn add(&self, device: impl Device + 'static) -> io::Result<PortId> {
        self.handle.add_guest(match &self.capture {
            Some(capture) => Box::new(CapturedDevice::new(device, capture.clone())),
            None => Box::new(device),
        })
    }

    /// Adds the guest behind a connection that carries frames.
    pub(super) fn add_frames(&self, socket: OwnedFd, framing: Framing) -> io::Result<PortId> {
        self.add(FrameLink::connected(socket, framing, self.mtu)?)
    }

    fn add_connection(&self, socket: OwnedFd, protocol: Protocol) -> io::Result<PortId> {
        match protocol {
            Protocol::Frames(framing) => self.add_frames(socket, framing),
            Protocol::VhostUser => {
                let device = VhostUser::from_socket(socket).mtu(self.mtu);
                // A monitor must not end the other guests.
                self.add(device.handle_sigbus().open()?)
            }
        }
    }
}

/// A listener that is registered with a runtime.
enum Listener {
    /// A stream socket, or a `SOCK_SEQPACKET` socket, which accepts in the same way.
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        let address = rustix::net::getsockname(&socket)?;
        Ok(if address.address_family() == AddressFamily::UNIX {
            Self::Unix(UnixListener::from_std(socket.into())?)
        } else {
            Self::Tcp(TcpListener::from_std(socket.into())?)
        })
    }

    async fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Unix(listener) => listener.accept().await?.0.into_std()?.into(),
            Self::Tcp(listener) => listener.accept().await?.0.into_std()?.into(),
        })
    }
}

/// Accepts the virtual machines of a listener.
async fn accept(guests: GuestLinks, listener: Listener, protocol: Protocol) {
    loop {
        match listener.accept().await {
            Ok(socket) => {
                if let Err(error) = guests.add_connection(socket, protocol) {
                    LOG.warn(("use", error.kind()), || {
                        format!("cannot use the connection of a guest: {error}")
                    });
                }
            }
            Err(error) => {
                LOG.warn(("accept", error.kind()), || {
                    format!("cannot accept the connection of a guest: {error}")
                });
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Accepts the virtual machines of a datagram socket, and passes their frames to their devices.
async fn accept_datagrams(guests: GuestLinks, mut listener: DatagramListener, ready: UnixDatagram) {
    loop {
        // Fails only if the runtime ends.
        if ready.readable().await.is_err() {
            return;
        }
        match ready.try_io(Interest::READABLE, || listener.accept()) {
            Ok(Some(device)) => {
                if let Err(error) = guests.add(device) {
                    LOG.warn(("socket", error.kind()), || {
                        format!("cannot use the socket of a guest: {error}")
                    });
                }
            }
            // Lets the stack process these frames before more are received.
            Ok(None) => yield_now().await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                LOG.warn(("receive", error.kind()), || {
                    format!("cannot receive the frames of guests: {error}")
                });
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}
