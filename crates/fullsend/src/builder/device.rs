//! The choice of a stack's device, and its opening.

use std::io;
#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::task::Waker;

use fullsend_device::{
    AsyncDevice, Device, PacketPort, PacketSender, UserDeviceConfig, user_device, user_device_with,
};
#[cfg(unix)]
use fullsend_device::{FdConfig, Tun};
#[cfg(target_os = "linux")]
use fullsend_device::{OffloadSet, PacketSocket, TunBuilder, XdpSocket};
use fullsend_offload::{Packet, Pool};
#[cfg(target_os = "linux")]
use fullsend_stack::{Cidr, Mac};
#[cfg(feature = "vhost-user")]
use fullsend_vhost::{VhostUser, VhostUserBuilder};
use tokio::io::{AsyncRead, AsyncWrite};

use super::Builder;
use super::check::invalid;

/// The device that the builder's caller has chosen.
pub(super) enum DeviceChoice {
    None,
    #[cfg(target_os = "linux")]
    Tun(TunBuilder),
    #[cfg(target_os = "linux")]
    /// A packet socket on the interface with this name.
    PacketSocket(String),
    #[cfg(target_os = "linux")]
    /// An `AF_XDP` socket on the interface with this name.
    Xdp(String),
    #[cfg(feature = "vhost-user")]
    VhostUser(VhostUserBuilder),
    /// A device, or one for each shard.
    Queues(Vec<Box<dyn Device>>),
}

impl Builder {
    #[cfg(target_os = "linux")]
    /// Uses the TUN device `name` (IP packets). Creates it if it does not exist.
    #[must_use]
    pub fn tun(self, name: &str) -> Self {
        self.named_device(name, DeviceChoice::Tun(Tun::tun(name)))
    }

    #[cfg(target_os = "linux")]
    /// Uses the TAP device `name` (Ethernet frames). Creates it if it does not exist.
    #[must_use]
    pub fn tap(self, name: &str) -> Self {
        self.named_device(name, DeviceChoice::Tun(Tun::tap(name)))
    }

    #[cfg(target_os = "linux")]
    /// Uses the Ethernet interface `name` of the kernel through a packet socket (`AF_PACKET`), e.g. one
    /// end of a veth pair, a macvlan or a network card. Requires `CAP_NET_RAW`; the interface must
    /// exist, and no TUN or TAP driver is needed. See [`PacketSocket`](fullsend_device::PacketSocket)
    /// for how the stack and the kernel share the interface.
    #[must_use]
    pub fn packet_socket(self, name: &str) -> Self {
        self.named_device(name, DeviceChoice::PacketSocket(name.to_owned()))
    }

    #[cfg(target_os = "linux")]
    /// Uses the Ethernet interface `name` of the kernel through an `AF_XDP` socket, for many small
    /// packets. Requires `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF`; the interface must exist and have
    /// one receive queue.
    ///
    /// The stack takes every frame that the interface receives: the kernel's own addresses on it cannot
    /// be reached. See [`XdpSocket`](fullsend_device::XdpSocket), and `docs/tuning.md` for when it is
    /// faster than a [packet socket](Self::packet_socket).
    #[must_use]
    pub fn xdp(self, name: &str) -> Self {
        self.named_device(name, DeviceChoice::Xdp(name.to_owned()))
    }

    #[cfg_attr(not(feature = "control"), allow(unused_variables))]
    #[cfg(target_os = "linux")]
    fn named_device(mut self, name: &str, choice: DeviceChoice) -> Self {
        self.choice = choice;
        #[cfg(feature = "control")]
        name.clone_into(&mut self.link_name);
        self
    }

    /// Serves the virtio-net card of a virtual machine (Ethernet frames) over vhost-user: listens for its
    /// monitor, e.g. QEMU, on a Unix socket at `path`. The connections of the stack continue when the
    /// monitor or the guest restarts. The card has a pair of queues for each [shard](Self::shards).
    ///
    /// The stack is the only other host on the link: the guest uses its address as the gateway, or
    /// connects to it. For other kinds of sockets, and for counters, pass a
    /// [`VhostUser`] to [`device`](Self::device).
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> std::io::Result<()> {
    /// let stack = fullsend::Stack::builder()
    ///     .vhost_user("/tmp/vm0.sock")
    ///     .address("10.9.0.2/24")
    ///     .address("fd09::2/64")
    ///     .build()?;
    /// // qemu-system-x86_64 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on
    /// //   -machine memory-backend=mem -chardev socket,id=vm0,path=/tmp/vm0.sock
    /// //   -netdev vhost-user,id=net0,chardev=vm0 -device virtio-net-pci,netdev=net0 ...
    /// let listener = fullsend::TcpListener::bind(&stack, "10.9.0.2:80")?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "vhost-user")]
    #[must_use]
    pub fn vhost_user(mut self, path: impl AsRef<std::path::Path>) -> Self {
        self.choice = DeviceChoice::VhostUser(VhostUser::listen(path));
        self
    }

    /// Uses another device, which must have a file descriptor to poll (`Device::fd`) or wake the
    /// stack itself (`Device::set_waker`), unless [`timer`](Self::timer) is set.
    #[must_use]
    pub fn device(self, device: Box<dyn Device>) -> Self {
        self.device_queues(vec![device])
    }

    #[cfg(unix)]
    /// Uses a descriptor that another program or system has opened, of which each read returns one
    /// packet: Android's `VpnService`, a utun, a TAP that another process has passed, with or
    /// without a `virtio_net_hdr`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use std::os::unix::net::UnixDatagram;
    ///
    /// use fullsend::{FdConfig, Stack};
    ///
    /// let (ours, _theirs) = UnixDatagram::pair()?;
    /// let stack = Stack::builder()
    ///     .fd(ours.into(), FdConfig::ip(1500))
    ///     .address("10.9.0.2/24")
    ///     .build()?;
    /// # drop(stack);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fd(mut self, fd: OwnedFd, config: FdConfig) -> Self {
        match Tun::from_fd(fd, config) {
            Ok(device) => self.device(Box::new(device)),
            Err(error) => {
                self.record_error(error);
                self
            }
        }
    }

    /// Creates the interface `utunN` of macOS with the number `unit`. `mtu` is the size of the largest
    /// IP packet in bytes. Requires root; a program such as `ifconfig` sets the addresses of the
    /// interface. For the first free number pass `Tun::utun(None, mtu)` of `fullsend-device`, whose
    /// `name` returns the number, to [`device`](Self::device). Type-checked, and not tested.
    #[cfg(target_os = "macos")]
    #[must_use]
    pub fn utun(mut self, unit: u32, mtu: u32) -> Self {
        match Tun::utun(Some(unit), mtu) {
            Ok(device) => self.device(Box::new(device)),
            Err(error) => {
                self.record_error(error);
                self
            }
        }
    }

    /// Uses any `AsyncRead + AsyncWrite` of which each read returns one IP packet and each write
    /// sends one, such as the asynchronous devices of the crates `tun` and `tun-rs`. `mtu` is the
    /// size of the largest packet in bytes. An empty read stops the stack.
    ///
    /// Both traits are called with the stack's lock held, so they must not use sockets of this
    /// stack.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> std::io::Result<()> {
    /// # fn open_tun() -> std::io::Result<tokio::io::DuplexStream> { todo!() }
    /// use fullsend::Stack;
    ///
    /// let tun = open_tun()?; // e.g. tun::create_as_async(..)
    /// let stack = Stack::builder().packet_io(tun, 1500).address("10.9.0.2/24").build()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn packet_io<T>(self, io: T, mtu: u32) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.device(Box::new(AsyncDevice::new(io, mtu)))
    }

    /// Uses a device whose packets this program sends and receives itself, and returns the port for that.
    /// While the port's queue is full, packets wait in the stack. The stack stops when the port is
    /// dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use fullsend::{Stack, UdpSocket, UserDeviceConfig};
    ///
    /// let (builder, mut port) = Stack::builder().user_device(UserDeviceConfig::ip(1420));
    /// let stack = builder.address("10.9.0.2/24").build()?;
    /// let socket = UdpSocket::bind(&stack, "10.9.0.2:0")?;
    /// socket.send_to(b"query", "10.9.0.1:53").await?;
    ///
    /// let mut packet = [0; 1420];
    /// let len = port.recv(&mut packet).await?;
    /// assert_eq!(&packet[len - 5..len], b"query");
    /// // A VPN encrypts it here, and passes what it decrypts to `port.send(..)`.
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn user_device(self, config: UserDeviceConfig) -> (Self, PacketPort) {
        let (device, port) = user_device(config);
        (self.device(Box::new(device)), port)
    }

    /// Uses a device that calls `on_packet` with each packet that the stack sends, and returns the
    /// sender that passes packets to the stack.
    ///
    /// The closure is called on the thread of a socket call or of the driver, without the stack's
    /// lock. It may use sockets, but must not block. The stack stops when the sender is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use fullsend::{Stack, UdpSocket, UserDeviceConfig};
    ///
    /// let (out, mut sent) = tokio::sync::mpsc::channel(64);
    /// let (builder, mut incoming) =
    ///     Stack::builder().user_device_with(UserDeviceConfig::ip(1420), move |packet| {
    ///         let _ = out.try_send(packet.to_bytes());
    ///     });
    /// let stack = builder.address("10.9.0.2/24").build()?;
    /// let socket = UdpSocket::bind(&stack, "10.9.0.2:0")?;
    /// socket.send_to(b"query", "10.9.0.1:53").await?;
    /// assert!(sent.recv().await.unwrap().ends_with(b"query"));
    /// // Counted and dropped by the stack, as it is no packet.
    /// assert!(incoming.inject(&[0; 20]));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn user_device_with(
        self,
        config: UserDeviceConfig,
        on_packet: impl FnMut(Packet) + Send + 'static,
    ) -> (Self, PacketSender) {
        let (device, sender) = user_device_with(config, on_packet);
        (self.device(Box::new(device)), sender)
    }

    /// Uses another device that has several queues: one for each shard (see
    /// [`shards`](Self::shards)), in their order. Each must have a file descriptor to poll. The
    /// packets of a flow may arrive at any queue, but those that arrive at the queue by which the
    /// flow's own packets leave are the fastest.
    #[must_use]
    pub fn device_queues(mut self, queues: Vec<Box<dyn Device>>) -> Self {
        self.choice = DeviceChoice::Queues(queues);
        self
    }

    #[cfg(target_os = "linux")]
    /// Sets the offloads to request from a TUN or TAP; by default all. An offload that the kernel
    /// refuses is done in software and logged once.
    #[must_use]
    pub fn offload(mut self, offload: OffloadSet) -> Self {
        self.offload = offload;
        self
    }
}

impl Builder {
    /// Opens the chosen device, with one queue for each shard.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(unused_variables, reason = "the devices of Linux need them")
    )]
    pub(super) fn open_device(
        &self,
        choice: DeviceChoice,
        pools: &[Pool],
        wakers: &[Waker],
    ) -> io::Result<Vec<Box<dyn Device>>> {
        match choice {
            #[cfg(target_os = "linux")]
            DeviceChoice::Tun(tun) => self.open_tun(tun, pools),
            #[cfg(target_os = "linux")]
            DeviceChoice::PacketSocket(name) => {
                let open = PacketSocket::open_with_pool;
                self.open_interface("packet socket", &name, pools, open)
            }
            #[cfg(target_os = "linux")]
            DeviceChoice::Xdp(name) => {
                self.open_interface("AF_XDP socket", &name, pools, XdpSocket::open_with_pool)
            }
            #[cfg(feature = "vhost-user")]
            DeviceChoice::VhostUser(mut vhost_user) => {
                if let Some(mtu) = self.net.mtu {
                    vhost_user = vhost_user.mtu(mtu);
                }
                let queues = vhost_user.open_queues(pools.len())?.into_iter();
                Ok(queues.map(|queue| Box::new(queue) as _).collect())
            }
            DeviceChoice::Queues(mut queues) => {
                let mut pairs = queues.iter_mut().zip(wakers);
                if pairs.all(|(queue, waker)| can_wait(queue, waker)) || self.timer.is_some() {
                    return Ok(queues);
                }
                Err(invalid(
                    "the device has no file descriptor to wait on and wakes no waker; choose a \
                     device whose fd() returns a descriptor or whose set_waker() returns true, set a \
                     timer that wakes the driver with Builder::timer(), or use Stack::pair()",
                ))
            }
            DeviceChoice::None => Err(invalid(
                "the stack has no device; choose one with .tun(..), .tap(..), .packet_socket(..), \
                 .xdp(..), .user_device(..) or .device(..), or use Stack::pair()",
            )),
        }
    }

    #[cfg(target_os = "linux")]
    fn open_tun(&self, mut tun: TunBuilder, pools: &[Pool]) -> io::Result<Vec<Box<dyn Device>>> {
        tun = tun.offload(self.offload);
        if let Some(mtu) = self.net.mtu {
            tun = tun.mtu(mtu);
        }
        for cidr in &self.kernel_addresses {
            tun = tun.kernel_address(cidr.addr, cidr.prefix);
        }
        if let [pool] = pools {
            return Ok(vec![Box::new(tun.pool(pool.clone()).open()?)]);
        }
        let queues = tun.open_queues(pools)?.into_iter();
        Ok(queues.map(|queue| Box::new(queue) as _).collect())
    }

    /// Opens a device of one queue on an Ethernet interface of the kernel.
    #[cfg(target_os = "linux")]
    fn open_interface<D: Device + 'static>(
        &self,
        kind: &str,
        name: &str,
        pools: &[Pool],
        open: impl FnOnce(&str, Pool) -> io::Result<D>,
    ) -> io::Result<Vec<Box<dyn Device>>> {
        let [pool] = pools else {
            return Err(invalid(&format!(
                "the {kind} on interface \"{name}\" has one queue, and {} shards need one each; use one \
                 shard, or a TUN or TAP",
                pools.len()
            )));
        };
        let device = open(name, pool.clone())?;
        let most = device.caps().mtu;
        match self.net.mtu {
            Some(mtu) if mtu > most => Err(invalid(&format!(
                "the MTU {mtu} exceeds that of interface \"{name}\", {most}; choose at most {most}, \
                 or change the interface (ip link set {name} mtu {mtu})"
            ))),
            _ => Ok(vec![Box::new(device)]),
        }
    }

    /// Sets the Ethernet address of a stack on a kernel's interface, unless it has an address or a seed.
    #[cfg(target_os = "linux")]
    pub(super) fn choose_mac(&mut self) {
        if let (DeviceChoice::PacketSocket(name) | DeviceChoice::Xdp(name), None, None) =
            (&self.choice, self.net.mac, self.seed)
        {
            self.net.mac = Some(stable_mac(name, &self.net.addresses));
        }
    }
}

/// Returns whether the driver that `waker` wakes can wait for the device.
fn can_wait(queue: &mut Box<dyn Device>, waker: &Waker) -> bool {
    let wakes = queue.set_waker(waker);
    #[cfg(unix)]
    let wakes = wakes || queue.fd().is_some();
    wakes
}

/// Returns an Ethernet address that is the same whenever a program starts: other hosts on the link of
/// an interface keep it in their neighbour tables.
#[cfg(target_os = "linux")]
fn stable_mac(interface: &str, addresses: &[Cidr]) -> Mac {
    use std::hash::{DefaultHasher, Hash, Hasher};

    let mut hasher = DefaultHasher::new();
    interface.hash(&mut hasher);
    for address in addresses {
        address.to_string().hash(&mut hasher);
    }
    Mac::local(hasher.finish())
}
