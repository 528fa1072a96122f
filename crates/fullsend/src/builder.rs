//! The builder of a stack.

use std::io::{self, Error, ErrorKind};
use std::net::IpAddr;
#[cfg(feature = "control")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fullsend_device::{Device, OffloadSet, Tun, TunBuilder, os_seed, process_memory};
use fullsend_stack::{Cidr, Host, HostConfig, Mac, NeighbourConfig, NetConfig, ParseCidrError};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Nanos, Seed};

use crate::clock::Clock;
use crate::driver::Driver;
use crate::engine::{DriverWaker, Engine, EngineHandle};
use crate::error::io_error;
use crate::stack::Stack;

/// Default limit of the free payload memory that a stack keeps for reuse, in bytes.
const POOL_BYTES: usize = 64 << 20;

enum DeviceChoice {
    None,
    Tun(TunBuilder),
    Device(Box<dyn Device>),
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
    offload: OffloadSet,
    kernel_addresses: Vec<Cidr>,
    net: NetConfig,
    sysctl: Sysctl,
    seed: Option<Seed>,
    #[cfg(feature = "control")]
    link_name: String,
    #[cfg(feature = "control")]
    control: Option<PathBuf>,
    pool_bytes: usize,
    busy_poll: Option<Nanos>,
    /// The first error in an argument.
    error: Option<Error>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            choice: DeviceChoice::None,
            offload: OffloadSet::ALL,
            kernel_addresses: Vec::new(),
            net: NetConfig::default(),
            sysctl: Sysctl::for_memory_or_default(process_memory()),
            seed: None,
            #[cfg(feature = "control")]
            link_name: "link0".to_owned(),
            #[cfg(feature = "control")]
            control: None,
            pool_bytes: POOL_BYTES,
            busy_poll: None,
            error: None,
        }
    }

    /// Uses the TUN device `name` (IP packets). Creates it if it does not exist.
    #[must_use]
    pub fn tun(self, name: &str) -> Self {
        self.named_device(name, Tun::tun(name))
    }

    /// Uses the TAP device `name` (Ethernet frames). Creates it if it does not exist.
    #[must_use]
    pub fn tap(self, name: &str) -> Self {
        self.named_device(name, Tun::tap(name))
    }

    #[cfg_attr(not(feature = "control"), allow(unused_variables))]
    fn named_device(mut self, name: &str, tun: TunBuilder) -> Self {
        self.choice = DeviceChoice::Tun(tun);
        #[cfg(feature = "control")]
        name.clone_into(&mut self.link_name);
        self
    }

    /// Uses another device, which must have a file descriptor to poll (`Device::fd`).
    #[must_use]
    pub fn device(mut self, device: Box<dyn Device>) -> Self {
        self.choice = DeviceChoice::Device(device);
        self
    }

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

    /// Sets the stack's Ethernet address on a TAP. By default it is derived from the seed.
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
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.sysctl = Sysctl::for_memory(bytes);
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
    /// `"tbf rate 100mbit burst 64kb"`, `"pfifo limit 1000"`. The default is `"noqueue"`.
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

    /// Opens the device and spawns the stack's driver task on the current tokio runtime, whose I/O
    /// and time drivers must be enabled.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid argument; the message names the value and what to write
    ///   instead.
    /// - The error of the operating system if the device or the control socket cannot be opened.
    /// - `Other` outside of a tokio runtime.
    pub fn build(mut self) -> io::Result<Stack> {
        let choice = std::mem::replace(&mut self.choice, DeviceChoice::None);
        self.start(Clock::new(), Arc::default(), |builder, host| match choice {
            DeviceChoice::Tun(tun) => builder.open(tun, host),
            DeviceChoice::Device(device) if device.fd().is_some() => Ok(device),
            DeviceChoice::Device(_) => Err(invalid(
                "the device has no file descriptor to wait on; choose a device whose fd() returns \
                 one, or use Stack::pair()",
            )),
            DeviceChoice::None => Err(invalid(
                "the stack has no device; choose one with .tun(..), .tap(..) or .device(..), or \
                 use Stack::pair()",
            )),
        })
    }

    fn open(&self, mut tun: TunBuilder, host: &Host) -> io::Result<Box<dyn Device>> {
        tun = tun.offload(self.offload).pool(host.pool().clone());
        if let Some(mtu) = self.net.mtu {
            tun = tun.mtu(mtu);
        }
        for cidr in &self.kernel_addresses {
            tun = tun.kernel_address(cidr.addr, cidr.prefix);
        }
        Ok(Box::new(tun.open()?))
    }

    /// Builds the stack over the device that `open` returns, and spawns its driver.
    pub(crate) fn start(
        mut self,
        clock: Clock,
        driver_waker: Arc<DriverWaker>,
        open: impl FnOnce(&Self, &Host) -> io::Result<Box<dyn Device>>,
    ) -> io::Result<Stack> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::other(
                "there is no tokio runtime here; build the stack inside #[tokio::main] or \
                 block_on(..)",
            )
        })?;
        let seed = self.seed.map_or_else(os_seed, Ok)?;
        let mut host = Host::new(HostConfig {
            seed,
            sysctl: self.sysctl.clone(),
            pool_bytes: self.pool_bytes,
        });
        let device = open(&self, &host)?;
        let iface = self
            .net
            .set_up(&mut host, clock.now(), device.caps(), seed.0[3])
            .map_err(io_error)?;
        let engine = Arc::new(Engine::new(clock, driver_waker, host, iface, device));
        #[cfg(feature = "control")]
        {
            engine.name_link(&self.link_name);
            if let Some(path) = &self.control {
                engine.open_control_socket(path)?;
            }
        }
        let handle = EngineHandle::new(engine.clone());
        runtime.spawn(Driver::new(engine, self.busy_poll)?);
        Ok(Stack::new(handle))
    }
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

fn invalid_cidr(error: &ParseCidrError) -> Error {
    invalid(&error.to_string())
}
