//! How a stack is put together.

use std::fs::File;
use std::io::{self, Error, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fullsend_device::{Caps, Device, OffloadSet, Tun, TunBuilder};
use fullsend_stack::{Cidr, Host, HostConfig, IfaceConfig, IfaceId, Mac, QdiscConfig};
use fullsend_tcp::Sysctl;
use fullsend_units::{Instant, Nanos, Seed};

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
    addresses: Vec<Cidr>,
    kernel_addresses: Vec<Cidr>,
    routes: Vec<(Cidr, Option<IpAddr>)>,
    mtu: Option<u32>,
    mac: Option<[u8; 6]>,
    sysctl: Sysctl,
    seed: Option<Seed>,
    link_name: String,
    control: Option<PathBuf>,
    pool_bytes: usize,
    gso: bool,
    gro: bool,
    qdisc: QdiscConfig,
    busy_poll: Option<Nanos>,
    /// The first mistake.
    error: Option<Error>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            choice: Choice::None,
            offload: OffloadSet::ALL,
            addresses: Vec::new(),
            kernel_addresses: Vec::new(),
            routes: Vec::new(),
            mtu: None,
            mac: None,
            sysctl: Sysctl::default(),
            seed: None,
            link_name: "link0".to_owned(),
            control: None,
            pool_bytes: POOL_BYTES,
            gso: true,
            gro: true,
            qdisc: QdiscConfig::NoQueue,
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
        match parse_cidr(cidr) {
            Ok(cidr) => self.addresses.push(cidr),
            Err(error) => self.fail(error),
        }
        self
    }

    /// Gives the kernel's side of a TUN or TAP this address with its on-link route. Once for each;
    /// [`other_address`](crate::other_address) helps to choose. Without any, set it up with `ip`.
    #[must_use]
    pub fn kernel_address(mut self, cidr: &str) -> Self {
        match parse_cidr(cidr) {
            Ok(cidr) => self.kernel_addresses.push(cidr),
            Err(error) => self.fail(error),
        }
        self
    }

    /// Sends what is for `destination` to `gateway`, or straight to the link without one.
    #[must_use]
    pub fn route(mut self, destination: &str, gateway: Option<IpAddr>) -> Self {
        match parse_cidr(destination) {
            Ok(cidr) => self.routes.push((cidr, gateway)),
            Err(error) => self.fail(error),
        }
        self
    }

    /// The default route of the gateway's family.
    #[must_use]
    pub fn gateway(mut self, gateway: impl Into<IpAddr>) -> Self {
        let gateway = gateway.into();
        self.routes.push((any_of(gateway), Some(gateway)));
        self
    }

    /// Largest IP packet, bytes; the device's own unless told otherwise.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Our hardware address on a TAP; made from the seed unless told otherwise.
    #[must_use]
    pub fn mac(mut self, mac: [u8; 6]) -> Self {
        self.mac = Some(mac);
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
    /// orphans and connections in TIME-WAIT, largest buffers). Tunables set before are forgotten.
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
        self.gso = on;
        self
    }

    /// Coalesces received packets (on) or not (off).
    #[must_use]
    pub fn gro(mut self, on: bool) -> Self {
        self.gro = on;
        self
    }

    /// The queueing discipline in front of the device, in `tc`'s words: `"fq"`,
    /// `"tbf rate 100mbit burst 64kb"`, `"pfifo limit 1000"`; `"noqueue"` unless told otherwise.
    #[must_use]
    pub fn qdisc(mut self, config: &str) -> Self {
        match config.parse() {
            Ok(config) => self.qdisc = config,
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
        if let Some(mtu) = self.mtu {
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
        let iface = self.set_up(&mut host, seed, device.caps(), clock.now())?;
        let engine = Arc::new(Engine::new(clock, kick, host, iface, device));
        engine.name_link(&self.link_name);
        if let Some(path) = &self.control {
            engine.open_control(path)?;
        }
        let handle = Handle::new(engine.clone());
        runtime.spawn(Driver::new(engine, self.busy_poll)?);
        Ok(Stack::new(handle))
    }

    /// Gives the host its interface, addresses and routes.
    fn set_up(&self, host: &mut Host, seed: Seed, caps: Caps, now: Instant) -> io::Result<IfaceId> {
        let mtu = self.mtu.unwrap_or(caps.mtu);
        let least = if self.addresses.iter().any(|a| a.addr.is_ipv6()) {
            1280
        } else {
            576
        };
        if !(least..=65_535).contains(&mtu) {
            return Err(invalid(&format!(
                "mtu {mtu} is out of range: choose {least} to 65535"
            )));
        }
        let iface = host.add_interface(IfaceConfig {
            link: caps.link,
            mac: self.mac.map_or_else(|| Mac::local(seed.0[3]), Mac),
            mtu,
            tso4: caps.tso4,
            tso6: caps.tso6,
            uso: caps.uso,
            tx_checksum: caps.tx_checksum,
            gso_max_size: caps.gso_max_size,
            gso: self.gso,
            gro: self.gro,
            qdisc: self.qdisc,
        });
        for &cidr in &self.addresses {
            host.add_address(now, iface, cidr).map_err(io_error)?;
        }
        for &(destination, gateway) in &self.routes {
            host.add_route(destination, gateway, iface)
                .map_err(io_error)?;
        }
        Ok(iface)
    }
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

fn os_seed() -> io::Result<Seed> {
    let mut bytes = [[0; 8]; 4];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(bytes.as_flattened_mut()))
        .map_err(|error| {
            let text = format!("/dev/urandom cannot be read ({error}): give a seed with .seed(..)");
            Error::new(error.kind(), text)
        })?;
    Ok(Seed(bytes.map(u64::from_ne_bytes)))
}

/// All addresses of the gateway's family.
fn any_of(gateway: IpAddr) -> Cidr {
    let addr = match gateway {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Cidr { addr, prefix: 0 }
}

fn parse_cidr(text: &str) -> io::Result<Cidr> {
    let parse = || {
        let (addr, prefix) = text.split_once('/')?;
        let addr: IpAddr = addr.parse().ok()?;
        let most = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.parse().ok().filter(|&p| p <= most)?;
        Some(Cidr { addr, prefix })
    };
    parse().ok_or_else(|| {
        invalid(&format!(
            "{text:?} is not an address with a prefix length, such as 10.9.0.2/24 or fd09::2/64"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::parse_cidr;

    #[test]
    fn addresses_with_prefix_and_nothing_else() {
        assert_eq!(parse_cidr("10.0.0.1/24").unwrap().prefix, 24);
        assert_eq!(parse_cidr("fd00::1/128").unwrap().prefix, 128);
        for wrong in [
            "10.0.0.1",
            "10.0.0.1/33",
            "fd00::1/129",
            "x/1",
            "10.0.0.1/-1",
            "",
        ] {
            let text = parse_cidr(wrong).unwrap_err().to_string();
            assert!(text.contains(&format!("{wrong:?}")), "{text}");
        }
    }
}
