//! How a stack is put together.

use std::io::{self, Error, ErrorKind};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fullsend_device::{Device, OffloadSet, Tun, TunBuilder, os_seed, process_memory};
use fullsend_stack::{Cidr, Host, HostConfig, Mac, NetConfig, ParseCidrError};
use fullsend_tcp::Sysctl;
use fullsend_units::{Nanos, Seed};

use crate::clock::Clock;
use crate::driver::Driver;
use crate::engine::{Engine, Handle, Kick};
use crate::error::io_error;
use crate::stack::Stack;

/// Free payload memory that a stack keeps for reuse unless told otherwise.
const POOL_BYTES: usize = 64 << 20;

enum Choice {
    None,
    Tun(TunBuilder),
    Device(Box<dyn Device>),
}

/// Builds a [`Stack`]. Mistakes in the arguments are reported by [`build`](Self::build).
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
    choice: Choice,
    offload: OffloadSet,
    kernel_addresses: Vec<Cidr>,
    net: NetConfig,
    sysctl: Sysctl,
    seed: Option<Seed>,
    link_name: String,
    control: Option<PathBuf>,
    pool_bytes: usize,
    busy_poll: Option<Nanos>,
    /// The first mistake.
    error: Option<Error>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            choice: Choice::None,
            offload: OffloadSet::ALL,
            kernel_addresses: Vec::new(),
            net: NetConfig::default(),
            sysctl: Sysctl::for_memory_of(process_memory()),
            seed: None,
            link_name: "link0".to_owned(),
            control: None,
            pool_bytes: POOL_BYTES,
            busy_poll: None,
            error: None,
        }
    }

    /// Runs over the TUN device of that name (IP packets), which is made if it does not exist.
    #[must_use]
    pub fn tun(mut self, name: &str) -> Self {
        self.choice = Choice::Tun(Tun::tun(name));
        name.clone_into(&mut self.link_name);
        self
    }

    /// Runs over the TAP device of that name (Ethernet), which is made if it does not exist.
    #[must_use]
    pub fn tap(mut self, name: &str) -> Self {
        self.choice = Choice::Tun(Tun::tap(name));
        name.clone_into(&mut self.link_name);
        self
    }

    /// Runs over any other device. It must be a file to wait on (`Device::fd`).
    #[must_use]
    pub fn device(mut self, device: Box<dyn Device>) -> Self {
        self.choice = Choice::Device(device);
        self
    }

    /// Which offloads to ask a TUN or TAP for; all unless told otherwise. What the kernel refuses
    /// is done in software, with one line in the log.
    #[must_use]
    pub fn offload(mut self, offload: OffloadSet) -> Self {
        self.offload = offload;
        self
    }

    /// An address with its prefix length, as in `"10.9.0.2/24"` or `"fd09::2/64"`. Once for each.
    #[must_use]
    pub fn address(mut self, cidr: &str) -> Self {
        match cidr.parse() {
            Ok(cidr) => self.net.addresses.push(cidr),
            Err(error) => self.fail(not_a_cidr(&error)),
        }
        self
    }

    /// Gives the kernel's side of a TUN or TAP this address with its on-link route. Once for each;
    /// [`other_address`](crate::other_address) helps to choose. Without any, set it up with `ip`.
    #[must_use]
    pub fn kernel_address(mut self, cidr: &str) -> Self {
        match cidr.parse() {
            Ok(cidr) => self.kernel_addresses.push(cidr),
            Err(error) => self.fail(not_a_cidr(&error)),
        }
        self
    }

    /// Sends what is for `destination` to `gateway`, or straight to the link without one.
    #[must_use]
    pub fn route(mut self, destination: &str, gateway: Option<IpAddr>) -> Self {
        match destination.parse() {
            Ok(cidr) => self.net.routes.push((cidr, gateway)),
            Err(error) => self.fail(not_a_cidr(&error)),
        }
        self
    }

    /// The default route of the gateway's family.
    #[must_use]
    pub fn gateway(mut self, gateway: impl Into<IpAddr>) -> Self {
        let gateway = gateway.into();
        let destination = Cidr::all_like(gateway);
        self.net.routes.push((destination, Some(gateway)));
        self
    }

    /// Largest IP packet, bytes; the device's own unless told otherwise.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.net.mtu = Some(mtu);
        self
    }

    /// Our hardware address on a TAP; made from the seed unless told otherwise.
    #[must_use]
    pub fn mac(mut self, mac: [u8; 6]) -> Self {
        self.net.mac = Some(Mac(mac));
        self
    }

    /// Sets a tunable by its Linux name (`net.ipv4.` may be left out) and text form.
    #[must_use]
    pub fn sysctl(mut self, key: &str, value: &str) -> Self {
        if let Err(error) = self.sysctl.set(key, value) {
            self.fail(invalid(&error.to_string()));
        }
        self
    }

    /// What initial sequence numbers, ports and keys derive from; the operating system's random
    /// numbers unless told otherwise.
    #[must_use]
    pub fn seed(mut self, seed: Seed) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The memory of the host, in bytes: what connections may hold follows from it (`tcp_mem`, most
    /// orphans and connections in TIME-WAIT, largest buffers). The machine's, or the least limit of
    /// the process's control groups, unless told otherwise. Tunables set before are forgotten.
    ///
    /// Queued data takes 3/32 of it, and beyond that only the least of each connection: 4 KiB each
    /// way (`tcp_rmem[0]`, `tcp_wmem[0]`), in blocks of up to twice that.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.sysctl = Sysctl::for_memory(bytes);
        self
    }

    /// Most bytes of free payload memory kept for reuse; 64 MiB unless told otherwise.
    #[must_use]
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// Builds super-segments (on) or single packets (off) in TCP.
    #[must_use]
    pub fn gso(mut self, on: bool) -> Self {
        self.net.gso = on;
        self
    }

    /// Coalesces received packets (on) or not (off).
    #[must_use]
    pub fn gro(mut self, on: bool) -> Self {
        self.net.gro = on;
        self
    }

    /// The queueing discipline in front of the device, in `tc`'s words: `"fq"`,
    /// `"tbf rate 100mbit burst 64kb"`, `"pfifo limit 1000"`; `"noqueue"` unless told otherwise.
    #[must_use]
    pub fn qdisc(mut self, config: &str) -> Self {
        match config.parse() {
            Ok(config) => self.net.qdisc = config,
            Err(error) => self.fail(invalid(&format!("{error}"))),
        }
        self
    }

    /// Keeps asking a TUN, TAP or other device for this long after it gave something, instead of
    /// sleeping until it has more (Linux: `net.core.busy_poll`). Answers come sooner by the time
    /// that waking up takes, and an otherwise idle processor is kept busy meanwhile. Other tasks
    /// of the runtime run in between. Zero, the default, is off.
    #[must_use]
    pub fn busy_poll(mut self, span: Duration) -> Self {
        let span = Nanos::from_nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        self.busy_poll = (span != Nanos::ZERO).then_some(span);
        self
    }

    /// Opens a Unix socket of that name, mode 0600, through which `fullsend stat` looks into the
    /// stack (see [`control`](crate::control)). It goes away with the stack. A socket there that
    /// nobody listens on is replaced; anything else is an error of [`build`](Self::build).
    #[must_use]
    pub fn control_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.control = Some(path.into());
        self
    }

    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// Opens the device and starts the stack's task on the current tokio runtime (whose I/O and
    /// time must be enabled).
    ///
    /// # Errors
    /// `InvalidInput` for a wrong argument, what the system says about the device, and `Other`
    /// outside a tokio runtime; the text names the value and the mend.
    pub fn build(mut self) -> io::Result<Stack> {
        let choice = std::mem::replace(&mut self.choice, Choice::None);
        self.start(Clock::new(), Arc::default(), |builder, host| match choice {
            Choice::Tun(tun) => builder.open(tun, host),
            Choice::Device(device) if device.fd().is_some() => Ok(device),
            Choice::Device(_) => Err(invalid(
                "the device has no file to wait on: give one that has, or use Stack::pair()",
            )),
            Choice::None => Err(invalid(
                "no device: choose one with .tun(..), .tap(..) or .device(..), or use \
                 Stack::pair()",
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

    /// The stack over the device that `open` gives, with its driver spawned.
    pub(crate) fn start(
        mut self,
        clock: Clock,
        kick: Arc<Kick>,
        open: impl FnOnce(&Self, &Host) -> io::Result<Box<dyn Device>>,
    ) -> io::Result<Stack> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::other("no tokio runtime: build the stack inside #[tokio::main] or block_on(..)")
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
        let engine = Arc::new(Engine::new(clock, kick, host, iface, device));
        engine.name_link(&self.link_name);
        if let Some(path) = &self.control {
            engine.open_control(path)?;
        }
        let handle = Handle::new(engine.clone());
        runtime.spawn(Driver::new(engine, self.busy_poll)?);
        Ok(Stack::new(handle))
    }
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

fn not_a_cidr(error: &ParseCidrError) -> Error {
    invalid(&error.to_string())
}
