//! The builder of a stack.

mod check;
mod device;
mod names;
mod net;
mod shards;

use std::io::{self, Error};
use std::net::IpAddr;
#[cfg(feature = "control")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[cfg(target_os = "linux")]
use fullsend_device::OffloadSet;
use fullsend_device::{os_seed, process_memory};
#[cfg(target_os = "linux")]
use fullsend_stack::Cidr;
use fullsend_stack::NetConfig;
use fullsend_tcp::Sysctl;
use fullsend_tcp::congestion::{CongestionControl, CongestionFactory};
use fullsend_wire::{Nanos, Seed};
use tokio::runtime::Handle;

pub(crate) use self::check::check_shards;
use self::check::{MIN_MEMORY_BYTES, invalid};
use self::device::DeviceChoice;
use crate::clock::Clock;
use crate::driver_timer::DriverTimer;
use crate::engine::{DriverWaker, device_waker};
use crate::resolve::Resolve;
use crate::stack::Stack;

/// Default limit of the free payload memory that a stack keeps for reuse, in bytes.
const POOL_BYTES: usize = 64 << 20;

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
    dns_servers: Vec<IpAddr>,
    resolver: Option<Arc<dyn Resolve>>,
    shards: usize,
    /// The runtime of each shard's driver; empty if all use the current one.
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
            dns_servers: Vec::new(),
            resolver: None,
            shards: 1,
            runtimes: Vec::new(),
            error: None,
        }
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

    /// Sets a congestion control of the program for the stack's connections, instead of
    /// `tcp_congestion_control`: `create` creates one for each connection. Listeners and streams may
    /// select another one.
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
    /// 4 KiB in each direction (`tcp_rmem[0]`, `tcp_wmem[0]`), or an equal part of a 16th of the memory
    /// (`tcp_minimum_mem`) if that is less.
    ///
    /// All of the stack's memory is then less than `bytes`: it also limits the number of connections
    /// (`tcp_max_sockets`, one for 7 KiB), the device's queues and buffers, datagrams, fragments, free
    /// payload memory (instead of [`pool_bytes`](Self::pool_bytes)) and tables. `docs/memory.md` lists
    /// the shares, the counters of dropped data, and the memory that is not included: sockets that the
    /// application opens without limit, and packets and `Bytes` that it keeps. Each shard needs at least
    /// 8 MiB.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use fullsend::{Stack, UserDeviceConfig};
    ///
    /// let (builder, _port) = Stack::builder().user_device(UserDeviceConfig::ip(1420));
    /// let stack = builder.address("10.9.0.2/24").memory_bytes(15 << 20).build()?;
    /// assert_eq!(stack.sysctl("tcp_max_sockets")?, "2194");
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

    /// Sets the timer of the stack's driver, which replaces tokio's, with its resolution of 1 ms, and the
    /// kernel's for departure times: a simulation in virtual time is then exact to the nanosecond. The
    /// stack reads its time from tokio in any case (`tokio::time::Instant`).
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

    fn record_error(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// Opens the device and spawns the stack's driver task on the current tokio runtime, or the drivers
    /// of its shards on the runtimes of [`shards_on`](Self::shards_on). The I/O and time drivers of the
    /// runtime must be enabled.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid argument; the message names the value and what to write
    ///   instead.
    /// - The error of the operating system if the device or the control socket cannot be opened.
    /// - `Other` outside of a tokio runtime, unless `shards_on` was called, and if the runtime has no
    ///   time driver, or no I/O driver where the device needs it. (tokio prints a panic message, too;
    ///   in a program with `panic = "abort"` it ends the program.)
    pub fn build(mut self) -> io::Result<Stack> {
        #[cfg(target_os = "linux")]
        self.choose_mac();
        self.check()?;
        let choice = std::mem::replace(&mut self.choice, DeviceChoice::None);
        let driver_wakers: Vec<Arc<DriverWaker>> =
            (0..self.shards).map(|_| Arc::default()).collect();
        let wakers: Vec<_> = driver_wakers.iter().map(device_waker).collect();
        let steering_seed = self.seed.map_or_else(os_seed, Ok)?;
        self.start(
            Clock::new(),
            driver_wakers,
            steering_seed,
            |builder, pools| builder.open_device(choice, pools, &wakers),
        )
    }
}
