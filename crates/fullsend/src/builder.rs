//! The builder of a stack.

use std::io::{self, Error, ErrorKind};
use std::net::IpAddr;
#[cfg(unix)]
use std::os::fd::OwnedFd;
#[cfg(feature = "control")]
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use fullsend_device::{
    AsyncDevice, Device, PacketPort, PacketSender, UserDeviceConfig, os_seed, process_memory,
    user_device, user_device_with,
};
#[cfg(unix)]
use fullsend_device::{FdConfig, Tun};
#[cfg(target_os = "linux")]
use fullsend_device::{OffloadSet, PacketSocket, TunBuilder};
use fullsend_driver::{MAX_SHARDS, SteeredDevice};
use fullsend_offload::{Packet, Pool};
use fullsend_stack::{
    Cidr, Host, HostConfig, Mac, NeighbourConfig, NetConfig, ParseCidrError, QdiscConfig, Steering,
};
use fullsend_tcp::Sysctl;
use fullsend_tcp::congestion::{CongestionControl, CongestionFactory};
#[cfg(feature = "vhost-user")]
use fullsend_vhost::{VhostUser, VhostUserBuilder};
use fullsend_wire::{Nanos, Seed};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::driver::Driver;
use crate::driver_timer::DriverTimer;
use crate::engine::{DriverWaker, Engine, Group, ShardQueue, device_waker};
use crate::error::io_error;
use crate::stack::Stack;

/// Default limit of the free payload memory that a stack keeps for reuse, in bytes.
const POOL_BYTES: usize = 64 << 20;

/// Least memory of a stack with a limit, in bytes.
const MIN_MEMORY_BYTES: u64 = 8 << 20;

/// Returns an error for a number of shards that a stack cannot have.
pub(crate) fn check_shards(shards: usize) -> io::Result<()> {
    if (1..=MAX_SHARDS).contains(&shards) {
        return Ok(());
    }
    Err(invalid(&format!(
        "{shards} is not a number of shards; choose 1 to {MAX_SHARDS}"
    )))
}

enum DeviceChoice {
    None,
    #[cfg(target_os = "linux")]
    Tun(TunBuilder),
    #[cfg(target_os = "linux")]
    /// A packet socket on the interface with this name.
    PacketSocket(String),
    #[cfg(feature = "vhost-user")]
    VhostUser(VhostUserBuilder),
    /// A device, or one for each shard.
    Queues(Vec<Box<dyn Device>>),
}

/// Builder of a [`Stack`]. Errors in the arguments are returned by [`build`](Self::build).
///
/// ```no_run
/// # #[tokio::main] async fn main() -> std::io::Result<()> {
/// let stack = fullsend::Stack::builder()
///     .tun("fs0")
///     .address("10.9.0.2/24")
///     .address("fd09::2/64")
///     .gateway([10, 9, 0, 1])
///     .sysctl("tcp_congestion_control", "cubic")
///     .build()?;
/// let listener = fullsend::TcpListener::bind(&stack, "0.0.0.0:80")?;
/// # Ok(()) }
/// ```
pub struct Builder {
    choice: DeviceChoice,
    #[cfg(target_os = "linux")]
    offload: OffloadSet,
    #[cfg(target_os = "linux")]
    kernel_addresses: Vec<Cidr>,
    net: NetConfig,
    sysctl: Sysctl,
    congestion: Option<CongestionFactory>,
    seed: Option<Seed>,
    #[cfg(feature = "control")]
    link_name: String,
    #[cfg(feature = "control")]
    control: Option<PathBuf>,
    pool_bytes: usize,
    /// The limit of the stack's memory, if one was set.
    memory_bytes: Option<u64>,
    busy_poll: Option<Nanos>,
    timer: Option<Box<dyn DriverTimer>>,
    shards: usize,
    /// The runtime of each shard's driver; empty for the current one.
    runtimes: Vec<Handle>,
    /// The first error in an argument.
    error: Option<Error>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            choice: DeviceChoice::None,
            #[cfg(target_os = "linux")]
            offload: OffloadSet::ALL,
            #[cfg(target_os = "linux")]
            kernel_addresses: Vec::new(),
            net: NetConfig::default(),
            sysctl: Sysctl::for_memory_or_default(process_memory()),
            congestion: None,
            seed: None,
            #[cfg(feature = "control")]
            link_name: "link0".to_owned(),
            #[cfg(feature = "control")]
            control: None,
            pool_bytes: POOL_BYTES,
            memory_bytes: None,
            busy_poll: None,
            timer: None,
            shards: 1,
            runtimes: Vec::new(),
            error: None,
        }
    }

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

    /// Uses a device whose packets this program sends and receives itself: returns the port through
    /// which it does so. The stack holds packets back while the port's queue is full, and stops when
    /// the port is dropped.
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

    /// Sets the number of shards, 1 by default: the parts of the stack that run in parallel, each
    /// with its queue of the device, its driver task and its lock (see [`Stack`]). On tokio's
    /// multi-thread runtime, one for each worker thread suits many flows; a single flow is not
    /// faster.
    ///
    /// A TUN or TAP is then opened with as many queues (`IFF_MULTI_QUEUE`). The kernel does not refuse a
    /// second program that does the same, and would divide the packets among both. It knows the queue
    /// of up to 4096 flows; packets of others arrive at any queue, and most of them pass from one
    /// shard to another. A virtual machine's card is offered as many pairs of queues
    /// (`vhost_user`); [`packet_socket`](Self::packet_socket) has one shard.
    ///
    /// The free payload memory ([`pool_bytes`](Self::pool_bytes)) and limits of the whole stack such
    /// as `tcp_mem` are divided among the shards.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> std::io::Result<()> {
    /// let stack = fullsend::Stack::builder()
    ///     .tun("fs0")
    ///     .address("10.9.0.2/24")
    ///     .shards(4)
    ///     .build()?;
    /// // Accepts the connections of all shards.
    /// let listener = fullsend::TcpListener::bind(&stack, "0.0.0.0:80")?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn shards(mut self, count: usize) -> Self {
        self.shards = count;
        self.runtimes.clear();
        self
    }

    /// Sets the number of shards to that of `runtimes`, and runs the driver of each shard on its
    /// runtime, e.g. a current-thread runtime for each processor. The I/O and time drivers of all
    /// must be enabled. The stack stops when any of them ends.
    ///
    /// Use [`Stack::shard`] to open and accept the connections of a shard on its runtime.
    #[must_use]
    pub fn shards_on(mut self, runtimes: Vec<Handle>) -> Self {
        self.shards = runtimes.len();
        self.runtimes = runtimes;
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

    /// Adds an address with its prefix length, e.g. `"10.9.0.2/24"` or `"fd09::2/64"`. Call it once
    /// for each address.
    #[must_use]
    pub fn address(mut self, cidr: &str) -> Self {
        match cidr.parse() {
            Ok(cidr) => self.net.addresses.push(cidr),
            Err(error) => self.record_error(invalid_cidr(&error)),
        }
        self
    }

    #[cfg(target_os = "linux")]
    /// Assigns an address with its on-link route to the kernel's side of a TUN or TAP. Call it once
    /// for each address; [`default_kernel_address`](crate::default_kernel_address) suggests one.
    /// Without a call, configure the kernel's side with `ip`.
    #[must_use]
    pub fn kernel_address(mut self, cidr: &str) -> Self {
        match cidr.parse() {
            Ok(cidr) => self.kernel_addresses.push(cidr),
            Err(error) => self.record_error(invalid_cidr(&error)),
        }
        self
    }

    /// Adds a route: packets to `destination` (an address with a prefix length) are sent to
    /// `gateway`, or directly on the link if it is `None`.
    #[must_use]
    pub fn route(mut self, destination: &str, gateway: Option<IpAddr>) -> Self {
        match destination.parse() {
            Ok(cidr) => self.net.routes.push((cidr, gateway)),
            Err(error) => self.record_error(invalid_cidr(&error)),
        }
        self
    }

    /// Adds a default route via `gateway`, for its address family.
    #[must_use]
    pub fn gateway(mut self, gateway: impl Into<IpAddr>) -> Self {
        let gateway = gateway.into();
        let destination = Cidr::default_route_for(gateway);
        self.net.routes.push((destination, Some(gateway)));
        self
    }

    /// Sets the MTU: the size of the largest IP packet, in bytes. By default that of the device.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.net.mtu = Some(mtu);
        self
    }

    /// Sets the stack's Ethernet address. By default it is derived from the seed, with
    /// [`packet_socket`](Self::packet_socket) and no seed from the interface's name and the addresses.
    #[must_use]
    pub fn mac(mut self, mac: [u8; 6]) -> Self {
        self.net.mac = Some(Mac(mac));
        self
    }

    /// Sets a tunable by its Linux name (`net.ipv4.` may be omitted), with the value as Linux
    /// writes it.
    #[must_use]
    pub fn sysctl(mut self, key: &str, value: &str) -> Self {
        if let Err(error) = self.sysctl.set(key, value) {
            self.record_error(invalid(&error.to_string()));
        }
        self
    }

    /// Sets a congestion control of the program for the stack's connections, in place of
    /// `tcp_congestion_control`: `create` creates one for each. Listeners and streams may select another
    /// one.
    ///
    /// See [`CongestionControl`] for how to write one, and the example `congestion`.
    #[must_use]
    pub fn congestion_with<C, F>(mut self, create: F) -> Self
    where
        C: CongestionControl + 'static,
        F: Fn() -> C + Send + Sync + 'static,
    {
        self.congestion = Some(CongestionFactory::new(create));
        self
    }

    /// Sets the seed from which initial sequence numbers, ports and hash keys are derived. By
    /// default it comes from the operating system's random number generator.
    #[must_use]
    pub fn seed(mut self, seed: Seed) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the memory of the host, in bytes, from which limits are derived: `tcp_mem`, the maximum
    /// numbers of orphans and of connections in TIME-WAIT, and the maximum buffer sizes. The
    /// default is the memory of the machine or the lowest limit of the process's control groups.
    /// Discards tunables that were set before.
    ///
    /// Queued data uses up to 3/32 of it. Above that each connection keeps only its minimum of
    /// 4 KiB in each direction (`tcp_rmem[0]`, `tcp_wmem[0]`), in blocks of up to twice that size.
    ///
    /// All of the stack's memory is less than `bytes` then: also the number of connections is limited
    /// (`tcp_max_sockets`, one for 48 KiB), and the device's queues and buffers, datagrams, fragments,
    /// free payload memory (in place of [`pool_bytes`](Self::pool_bytes)) and tables are.
    /// `docs/memory.md` lists the shares,
    /// the counters of what is dropped, and what is not included: sockets that the application
    /// opens without limit, and packets and `Bytes` that it keeps. At least 8 MiB are needed for each
    /// shard.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use fullsend::{Stack, UserDeviceConfig};
    ///
    /// let (builder, _port) = Stack::builder().user_device(UserDeviceConfig::ip(1420));
    /// let stack = builder.address("10.9.0.2/24").memory_bytes(15 << 20).build()?;
    /// assert_eq!(stack.sysctl("tcp_max_sockets")?, "320");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        if bytes < MIN_MEMORY_BYTES {
            self.record_error(invalid(&format!(
                "{bytes} bytes of memory are not enough for a stack; allow at least \
                 {MIN_MEMORY_BYTES} (8 MiB)"
            )));
        }
        self.sysctl = Sysctl::for_memory(bytes);
        self.memory_bytes = Some(bytes);
        self
    }

    /// Sets the limit of free payload memory kept for reuse, in bytes. The default is 64 MiB.
    #[must_use]
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// Sets whether TCP builds super-segments (the default) or single packets.
    #[must_use]
    pub fn gso(mut self, on: bool) -> Self {
        self.net.gso = on;
        self
    }

    /// Sets whether received packets are coalesced (GRO; the default).
    #[must_use]
    pub fn gro(mut self, on: bool) -> Self {
        self.net.gro = on;
        self
    }

    /// Sets the queueing discipline in front of the device, in the syntax of `tc`: `"fq"`,
    /// `"tbf rate 100mbit burst 64kb"`, `"pfifo limit 1000"`. The default is `"noqueue"`. Each
    /// [shard](Self::shards) has a qdisc of its own, and a token bucket needs a single shard.
    #[must_use]
    pub fn qdisc(mut self, config: &str) -> Self {
        match config.parse() {
            Ok(config) => self.net.qdisc = config,
            Err(error) => self.record_error(invalid(&format!("{error}"))),
        }
        self
    }

    /// Sets for how long the driver polls the device after it received something, before it sleeps
    /// (Linux: `net.core.busy_poll`). This saves the latency of a wake-up and keeps an otherwise
    /// idle processor busy for that time. Other tasks of the runtime run between polls. Zero, the
    /// default, turns it off.
    #[must_use]
    pub fn busy_poll(mut self, span: Duration) -> Self {
        let span = Nanos::from_nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        self.busy_poll = (span != Nanos::ZERO).then_some(span);
        self
    }

    /// Sets the timer of the stack's driver, in place of tokio's with its resolution of 1 ms and the
    /// kernel's for departure times: a simulation in virtual time is then exact to the nanosecond.
    /// The stack reads its time from tokio in any case (`tokio::time::Instant`).
    ///
    /// The device then needs no file descriptor: the timer wakes the driver also when the device has
    /// received packets. The stack has one shard and no [busy polling](Self::busy_poll).
    #[must_use]
    pub fn timer(mut self, timer: Box<dyn DriverTimer>) -> Self {
        self.timer = Some(timer);
        self
    }

    /// Opens a Unix socket at `path`, with mode 0600, through which `fullsend stat` inspects the
    /// stack (see [`control`](crate::control)). It is removed when the stack ends. A socket at
    /// `path` on which no process listens is replaced; any other file makes [`build`](Self::build)
    /// fail.
    #[cfg(feature = "control")]
    #[must_use]
    pub fn control_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.control = Some(path.into());
        self
    }

    /// Makes the stack a router on an Ethernet link: its neighbor advertisements show one, and its
    /// IPv6 addresses are used at once, without duplicate address detection, as the link is the
    /// stack's own. With `proxy`, it also answers for the addresses of other hosts.
    #[must_use]
    pub fn router(mut self, proxy: bool) -> Self {
        self.net.neighbours = NeighbourConfig {
            detect_duplicates: false,
            router: true,
            proxy,
        };
        self
    }

    fn record_error(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// Opens the device and spawns the stack's driver task on the current tokio runtime, or those of
    /// its shards on the runtimes of [`shards_on`](Self::shards_on). The I/O and time drivers of the
    /// runtime must be enabled.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid argument; the message names the value and what to write
    ///   instead.
    /// - The error of the operating system if the device or the control socket cannot be opened.
    /// - `Other` outside of a tokio runtime, unless `shards_on` was called.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(unused_variables, reason = "the devices of Linux need them")
    )]
    pub fn build(mut self) -> io::Result<Stack> {
        #[cfg(target_os = "linux")]
        if let (DeviceChoice::PacketSocket(name), None, None) =
            (&self.choice, self.net.mac, self.seed)
        {
            self.net.mac = Some(stable_mac(name, &self.net.addresses));
        }
        let choice = std::mem::replace(&mut self.choice, DeviceChoice::None);
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        check_shards(self.shards)?;
        let driver_wakers: Vec<Arc<DriverWaker>> =
            (0..self.shards).map(|_| Arc::default()).collect();
        let wakers: Vec<_> = driver_wakers.iter().map(device_waker).collect();
        let has_timer = self.timer.is_some();
        if has_timer && self.shards > 1 {
            return Err(invalid(&format!(
                "a timer wakes the driver of one shard, and the stack has {}; call shards(1)",
                self.shards
            )));
        }
        if has_timer && self.busy_poll.is_some() {
            return Err(invalid(
                "a timer and busy polling exclude each other: time may not pass while the driver \
                 polls; remove busy_poll()",
            ));
        }
        let least = MIN_MEMORY_BYTES * self.shards as u64;
        if let Some(bytes) = self.memory_bytes.filter(|bytes| *bytes < least) {
            return Err(invalid(&format!(
                "{bytes} bytes of memory are not enough for {} shards; allow at least {least} ({} MiB \
                 for each) or use fewer shards",
                self.shards,
                MIN_MEMORY_BYTES >> 20
            )));
        }
        let steering_seed = self.seed.map_or_else(os_seed, Ok)?;
        let clock = Clock::new();
        self.start(clock, driver_wakers, steering_seed, |builder, pools| match choice {
            #[cfg(target_os = "linux")]
            DeviceChoice::Tun(tun) => builder.open(tun, pools),
            #[cfg(target_os = "linux")]
            DeviceChoice::PacketSocket(name) => builder.open_packet_socket(&name, pools),
            #[cfg(feature = "vhost-user")]
            DeviceChoice::VhostUser(mut vhost_user) => {
                if let Some(mtu) = builder.net.mtu {
                    vhost_user = vhost_user.mtu(mtu);
                }
                let queues = vhost_user.open_queues(pools.len())?.into_iter();
                Ok(queues.map(|queue| Box::new(queue) as _).collect())
            }
            DeviceChoice::Queues(mut queues) => {
                let mut pairs = queues.iter_mut().zip(&wakers);
                if pairs.all(|(queue, waker)| can_wait(queue, waker)) || has_timer {
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
                 .user_device(..) or .device(..), or use Stack::pair()",
            )),
        })
    }

    #[cfg(target_os = "linux")]
    fn open(&self, mut tun: TunBuilder, pools: &[Pool]) -> io::Result<Vec<Box<dyn Device>>> {
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

    #[cfg(target_os = "linux")]
    fn open_packet_socket(&self, name: &str, pools: &[Pool]) -> io::Result<Vec<Box<dyn Device>>> {
        let [pool] = pools else {
            return Err(invalid(&format!(
                "the packet socket on interface \"{name}\" has one queue, and {} shards need one each; \
                 use one shard, or a TUN or TAP",
                pools.len()
            )));
        };
        let device = PacketSocket::open_with_pool(name, pool.clone())?;
        let most = device.caps().mtu;
        match self.net.mtu {
            Some(mtu) if mtu > most => Err(invalid(&format!(
                "the MTU {mtu} exceeds that of interface \"{name}\", {most}; choose at most {most}, \
                 or change the interface (ip link set {name} mtu {mtu})"
            ))),
            _ => Ok(vec![Box::new(device)]),
        }
    }

    /// Builds the stack over the queues that `open` returns, one for each waker, and spawns its
    /// drivers. `steering_seed` is the secret by which flows are assigned to shards.
    pub(crate) fn start(
        mut self,
        clock: Clock,
        driver_wakers: Vec<Arc<DriverWaker>>,
        steering_seed: Seed,
        open: impl FnOnce(&Self, &[Pool]) -> io::Result<Vec<Box<dyn Device>>>,
    ) -> io::Result<Stack> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let shards = self.shards;
        if shards > 1 && matches!(self.net.qdisc, QdiscConfig::Tbf(_)) {
            return Err(invalid(
                "a token bucket limits the rate of each of the stack's queues; use one shard with \
                 the qdisc tbf, or set the rate of the sockets with fq",
            ));
        }
        let runtimes = if self.runtimes.is_empty() {
            let current = Handle::try_current().map_err(|_| {
                Error::other(
                    "there is no tokio runtime here; build the stack inside #[tokio::main] or \
                     block_on(..)",
                )
            })?;
            vec![current; shards]
        } else {
            std::mem::take(&mut self.runtimes)
        };
        // Control sockets are served on the runtime of the first shard.
        let _context = runtimes[0].enter();
        let seed = self.seed.map_or_else(os_seed, Ok)?;
        let steering = Steering::new(steering_seed, shards);
        let mut hosts: Vec<_> = (0..shards)
            .map(|index| self.host(seed, steering, index))
            .collect();
        let pools: Vec<_> = hosts.iter().map(|host| host.pool().clone()).collect();
        let queues = open(&self, &pools)?;
        let mut ifaces = Vec::new();
        for (host, queue) in hosts.iter_mut().zip(&queues) {
            let caps = queue.caps();
            let iface = self.net.set_up(host, clock.now(), caps, seed.0[3]);
            ifaces.push(iface.map_err(io_error)?);
        }
        let mut queues = steer(steering, queues)?;
        // The device's share of the memory, of which each shard has its part.
        let device_bytes = self.memory_bytes.map_or(usize::MAX, |bytes| {
            usize::try_from(bytes / 32 * 3).unwrap_or(usize::MAX)
        });
        for ((queue, _), pool) in queues.iter_mut().zip(&pools) {
            queue.limit_memory(pool, device_bytes / shards);
        }
        let handover = queues[0].1.clone();
        let sysctl = self.sysctl.clone();
        let group = Arc::new(Group::new(sysctl, driver_wakers.clone(), handover));
        let engines: Vec<_> = driver_wakers
            .into_iter()
            .enumerate()
            .zip(hosts.into_iter().zip(ifaces))
            .zip(queues)
            .map(|(((index, driver_waker), host), queue)| {
                let place = (group.clone(), index);
                Arc::new(Engine::new(clock, driver_waker, place, host, queue))
            })
            .collect();
        group.set_engines(&engines);
        #[cfg(feature = "control")]
        {
            group.name_link(&self.link_name);
            if let Some(path) = &self.control {
                group.open_control_socket(path)?;
            }
        }
        let stack = Stack::new(engines);
        let mut drivers = Vec::new();
        for (engine, runtime) in stack.engines().iter().zip(&runtimes) {
            let _context = runtime.enter();
            let timer = self.timer.take();
            drivers.push(Driver::new(engine.clone(), self.busy_poll, timer)?);
        }
        for (driver, runtime) in drivers.into_iter().zip(&runtimes) {
            runtime.spawn(driver);
        }
        Ok(stack)
    }

    /// Returns the host of a shard, with its share of the stack's limits. All hosts have the same
    /// keys, so that a Fast Open cookie of one is valid on each.
    fn host(&self, seed: Seed, steering: Steering, index: usize) -> Host {
        let shards = steering.shards();
        let mut host = Host::new(HostConfig {
            seed,
            sysctl: self.sysctl.share(shards as u32),
            pool_bytes: self.pool_bytes / shards,
        });
        host.set_shard(steering, index);
        if let Some(bytes) = self.memory_bytes {
            host.limit_memory(bytes / shards as u64);
        }
        host.set_congestion_with(self.congestion.clone());
        host
    }
}

/// Returns whether the driver that `waker` wakes can wait for the device.
fn can_wait(queue: &mut Box<dyn Device>, waker: &Waker) -> bool {
    let wakes = queue.set_waker(waker);
    #[cfg(unix)]
    let wakes = wakes || queue.fd().is_some();
    wakes
}

/// Returns the device of each shard. A single shard has the queue itself.
fn steer(steering: Steering, queues: Vec<Box<dyn Device>>) -> io::Result<Vec<ShardQueue>> {
    if steering.shards() == 1 && queues.len() == 1 {
        return Ok(queues.into_iter().map(|queue| (queue, None)).collect());
    }
    let steered = SteeredDevice::for_shards(steering, queues)?.into_iter();
    let with_handover = steered.map(|queue| {
        let handover = queue.handover();
        (Box::new(queue) as Box<dyn Device>, Some(handover))
    });
    Ok(with_handover.collect())
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

fn invalid_cidr(error: &ParseCidrError) -> Error {
    invalid(&error.to_string())
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
