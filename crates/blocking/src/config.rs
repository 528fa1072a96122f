//! Configuration of a stack by text: `KEY=VALUE` settings.

use std::fmt;
use std::io;
use std::net::IpAddr;

use fullsend_device::{Caps, OffloadSet, Tun, TunBuilder, os_seed, process_memory};
use fullsend_offload::Link;
use fullsend_stack::{
    Cidr, Host, HostConfig, IfaceChange, IfaceId, Mac, NetConfig, QdiscConfig, StackError,
};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Seed};

#[cfg(feature = "control")]
use crate::control::ControlPath;

/// Default limit of free payload memory that a stack keeps for reuse, in bytes.
const DEFAULT_POOL_BYTES: usize = 16 << 20;
/// Default MTU of a stack without a TUN or TAP, in bytes.
const DEFAULT_MTU: u32 = 1500;

/// The settings of a stack.
///
/// | key | value |
/// |---|---|
/// | `tun`, `tap` | name of the device to use, which is created if it does not exist |
/// | `address` | an address with its prefix length: `10.9.0.2/24`, `fd09::2/64`; may be repeated |
/// | `kernel_address` | an address with its prefix length for the kernel's side of a TUN or TAP; may be repeated |
/// | `gateway` | gateway of the default route of its address family |
/// | `route` | `10.8.0.0/16 via 10.9.0.1`, or without `via` for a destination on the link |
/// | `mtu` | size of the largest IP packet, in bytes |
/// | `link` | header that the packets of a user-driven stack begin with: `ip` or `ethernet` |
/// | `mac` | Ethernet address of the stack, `02:00:00:00:00:01` |
/// | `offload` | offloads to request from a TUN or TAP: `csum,tso4`, `all`, `none` |
/// | `gso`, `gro` | `on` or `off` |
/// | `qdisc` | `fq`, `tbf rate 100mbit burst 64kb`, `pfifo limit 1000`, `noqueue` |
/// | `seed` | number from which all random numbers are derived, for repeatable runs |
/// | `pool_bytes` | limit of free payload memory kept for reuse, in bytes |
/// | `control` | path of a socket through which `fullsend stat` inspects the stack and sets options; `on`: the path where `fullsend stat` expects the socket of this process. Needs the crate's feature `control` |
/// | any other | a tunable by its Linux name, with or without `net.ipv4.` |
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) device: DeviceChoice,
    offload: OffloadSet,
    kernel_addresses: Vec<Cidr>,
    net: NetConfig,
    sysctl: Sysctl,
    seed: Option<Seed>,
    pool_bytes: usize,
    #[cfg(feature = "control")]
    pub(crate) control: Option<ControlPath>,
}

/// The device of a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DeviceChoice {
    UserDriven(Link),
    Tun(String),
    Tap(String),
}

/// A destination and its gateway, or `None` if the destination is on the link.
pub(crate) type Route = (Cidr, Option<IpAddr>);

/// Error of a setting: what is wrong and what to write instead.
///
/// `Debug` prints the same message, as it is what a `main` that returns `io::Result` prints.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError(pub(crate) String);

impl ConfigError {
    /// Returns an error with the message `text`, which should name the setting and what to write
    /// instead.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigError {}

impl From<StackError> for ConfigError {
    fn from(error: StackError) -> Self {
        Self(error.to_string())
    }
}

impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: DeviceChoice::UserDriven(Link::Ip),
            offload: OffloadSet::ALL,
            kernel_addresses: Vec::new(),
            net: NetConfig::default(),
            sysctl: Sysctl::for_memory_or_default(process_memory()),
            seed: None,
            pool_bytes: DEFAULT_POOL_BYTES,
            #[cfg(feature = "control")]
            control: None,
        }
    }
}

impl Config {
    /// Parses settings separated by commas, semicolons or line ends; `#` begins a comment.
    ///
    /// A piece without `=` belongs to the value before it: `tcp_wmem=4096,16384,65536`.
    ///
    /// # Errors
    /// A message that names the first invalid setting and what to write instead.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (key, value) in Self::pairs(text)? {
            config.set(&key, &value)?;
        }
        Ok(config)
    }

    /// Returns the keys and values of settings in the syntax of [`parse`](Self::parse), in order.
    ///
    /// # Errors
    /// A message that names a piece without a key and what to write instead.
    pub fn pairs(text: &str) -> Result<Vec<(String, String)>, ConfigError> {
        let mut out = Vec::<(String, String)>::new();
        for line in text.split(['\n', ';']) {
            let line = line.split('#').next().unwrap_or("");
            let mut continues = false;
            for piece in line.split(',').map(str::trim).filter(|p| !p.is_empty()) {
                match (piece.split_once('='), out.last_mut()) {
                    (Some((key, value)), _) => out.push((key.trim().into(), value.trim().into())),
                    (None, Some((_, value))) if continues => {
                        value.push(',');
                        value.push_str(piece);
                    }
                    (None, _) => return Err(invalid("setting", piece, "KEY=VALUE")),
                }
                continues = true;
            }
        }
        Ok(out)
    }

    /// Sets one setting. A key that may be repeated adds a value.
    ///
    /// # Errors
    /// A message that names the setting and what to write instead.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        match key {
            "tun" => self.device = DeviceChoice::Tun(value.into()),
            "tap" => self.device = DeviceChoice::Tap(value.into()),
            "link" => self.device = DeviceChoice::UserDriven(parse_link(value)?),
            "address" => self.net.addresses.push(parse_cidr(value)?),
            "kernel_address" => self.kernel_addresses.push(parse_cidr(value)?),
            "gateway" => self.net.routes.push(parse_gateway(value)?),
            "route" => self.net.routes.push(parse_route(value)?),
            "mtu" => self.net.mtu = Some(parse_number(key, value)?),
            "mac" => self.net.mac = Some(parse_mac(value)?),
            "offload" => {
                let set = value.parse::<OffloadSet>();
                self.offload = set.map_err(|e| ConfigError(format!("offload: {e}")))?;
            }
            "gso" => self.net.gso = parse_switch(key, value)?,
            "gro" => self.net.gro = parse_switch(key, value)?,
            "qdisc" => {
                let qdisc = value.parse::<QdiscConfig>();
                self.net.qdisc = qdisc.map_err(|e| ConfigError(format!("qdisc: {e}")))?;
            }
            "seed" => self.seed = Some(Seed::from_u64(parse_number(key, value)?)),
            #[cfg(feature = "control")]
            "control" => self.control = ControlPath::parse(value)?,
            #[cfg(not(feature = "control"))]
            "control" => {
                let text = "control: this program was built without control sockets; build it with \
                            the feature `control` of fullsend-blocking";
                return Err(ConfigError(text.into()));
            }
            "pool_bytes" => self.pool_bytes = parse_number(key, value)?,
            _ => {
                let set = self.sysctl.set(key, value);
                set.map_err(|e| ConfigError(e.to_string()))?;
            }
        }
        Ok(())
    }

    /// Returns whether the stack has a TUN or TAP, and is not user-driven.
    pub fn has_device(&self) -> bool {
        !matches!(self.device, DeviceChoice::UserDriven(_))
    }

    /// Returns a host without interfaces, and the seed of its random numbers.
    pub(crate) fn host(&self) -> io::Result<(Host, Seed)> {
        let seed = self.seed.map_or_else(os_seed, Ok)?;
        let host = Host::new(HostConfig {
            seed,
            sysctl: self.sysctl.clone(),
            pool_bytes: self.pool_bytes,
        });
        Ok((host, seed))
    }

    /// Returns the TUN or TAP to open, or `None` for a user-driven stack.
    pub(crate) fn tun(&self) -> Option<TunBuilder> {
        let mut tun = match &self.device {
            DeviceChoice::UserDriven(_) => return None,
            DeviceChoice::Tun(name) => Tun::tun(name),
            DeviceChoice::Tap(name) => Tun::tap(name),
        };
        tun = tun.offload(self.offload);
        if let Some(mtu) = self.net.mtu {
            tun = tun.mtu(mtu);
        }
        for cidr in &self.kernel_addresses {
            tun = tun.kernel_address(cidr.addr, cidr.prefix);
        }
        Some(tun)
    }

    /// Returns the MTU of a stack without a device.
    pub(crate) fn mtu(&self) -> u32 {
        self.net.mtu.unwrap_or(DEFAULT_MTU)
    }

    /// Creates the host's interface with its addresses and routes.
    pub(crate) fn set_up(
        &self,
        host: &mut Host,
        seed: Seed,
        caps: Caps,
        now: Instant,
    ) -> Result<IfaceId, ConfigError> {
        Ok(self.net.set_up(host, now, caps, seed.0[3])?)
    }
}

pub(crate) fn invalid(key: &str, value: &str, expected: &str) -> ConfigError {
    ConfigError(format!("{key} {value:?} is not valid; write {expected}"))
}

fn parse_number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, ConfigError> {
    value.parse().map_err(|_| invalid(key, value, "a number"))
}

fn parse_switch(key: &str, value: &str) -> Result<bool, ConfigError> {
    match value {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err(invalid(key, value, "on or off")),
    }
}

/// Parses a change of the link.
pub(crate) fn parse_change(key: &str, value: &str) -> Result<IfaceChange, ConfigError> {
    Ok(match key {
        "mtu" => IfaceChange::Mtu(parse_number(key, value)?),
        "tso" => IfaceChange::Tso(parse_switch(key, value)?),
        "gso" => IfaceChange::Gso(parse_switch(key, value)?),
        _ => {
            let qdisc = value.parse::<QdiscConfig>();
            IfaceChange::Qdisc(qdisc.map_err(|e| ConfigError(format!("qdisc: {e}")))?)
        }
    })
}

fn parse_link(value: &str) -> Result<Link, ConfigError> {
    match value {
        "ip" => Ok(Link::Ip),
        "ethernet" => Ok(Link::Ethernet),
        _ => Err(invalid("link", value, "ip or ethernet")),
    }
}

pub(crate) fn parse_cidr(text: &str) -> Result<Cidr, ConfigError> {
    text.parse()
        .map_err(|e| ConfigError(format!("address: {e}")))
}

pub(crate) fn parse_route(text: &str) -> Result<Route, ConfigError> {
    match text.split_once(" via ") {
        None => Ok((parse_cidr(text)?, None)),
        Some((destination, gateway)) => {
            let (_, gateway) = parse_gateway(gateway.trim())?;
            Ok((parse_cidr(destination.trim())?, gateway))
        }
    }
}

/// Parses a gateway and returns the default route of its address family.
pub(crate) fn parse_gateway(text: &str) -> Result<Route, ConfigError> {
    let gateway: IpAddr = text
        .parse()
        .map_err(|_| invalid("gateway", text, "an IP address, e.g. 10.0.0.1"))?;
    Ok((Cidr::default_route_for(gateway), Some(gateway)))
}

fn parse_mac(text: &str) -> Result<Mac, ConfigError> {
    let parse = || {
        let mut mac = [0; 6];
        let mut pieces = text.split(':');
        for byte in &mut mac {
            *byte = u8::from_str_radix(pieces.next()?, 16).ok()?;
        }
        // A multicast address cannot be a source address.
        (pieces.next().is_none() && mac[0] & 1 == 0).then_some(Mac(mac))
    };
    let expected = "the address of one host, e.g. 02:00:00:00:00:01";
    parse().ok_or_else(|| invalid("mac", text, expected))
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Rng, Seed};

    use super::{Config, DeviceChoice};

    #[test]
    fn separators_and_comments() {
        let text = "tun=fs0,address=10.0.0.1/24, address = fd00::1/64;mtu=9000\n\
                    # nothing\ntcp_wmem=4096,16384,65536,gso=off # no super-segments\n\
                    net.ipv4.tcp_rmem=4096 5000 6000\nroute=10.1.0.0/16 via 10.0.0.9\n\
                    qdisc=tbf rate 100mbit burst 64kb";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.device, DeviceChoice::Tun("fs0".into()));
        assert_eq!(config.net.addresses.len(), 2);
        assert_eq!((config.mtu(), config.net.gso), (9000, false));
        assert_eq!(config.sysctl.tcp_wmem, [4096, 16_384, 65_536]);
        assert_eq!(config.sysctl.tcp_rmem, [4096, 5000, 6000]);
        let (destination, gateway) = config.net.routes[0];
        assert_eq!(destination.prefix, 16);
        assert_eq!(gateway, Some([10, 0, 0, 9].into()));
    }

    #[test]
    fn parsed_pairs_round_trip() {
        let mut rng = Rng::new(Seed::from_u64(5));
        let alphabet: Vec<char> = "abm=,;\n# 1.\t\r\u{a0}/".chars().collect();
        for _ in 0..20_000 {
            let n = rng.next_u64() % 24;
            let pick = |_| alphabet[rng.next_u64() as usize % alphabet.len()];
            let text: String = (0..n).map(pick).collect();
            let _ = Config::parse(&text);
            if let Ok(pairs) = Config::pairs(&text) {
                let joined: Vec<String> = pairs.iter().map(|(k, v)| format!("{k}={v}")).collect();
                assert_eq!(Config::pairs(&joined.join("\n")), Ok(pairs), "{text:?}");
            }
        }
    }

    #[test]
    fn errors_name_the_setting_and_what_to_write() {
        for (text, part) in [
            ("tun", "\"tun\" is not valid; write KEY=VALUE"),
            ("mtu=big", "mtu \"big\" is not valid; write a number"),
            ("address=10.0.0.1", "\"10.0.0.1\""),
            ("address=10.0.0.1/33", "prefix length"),
            ("mac=01:00:00:00:00:00", "one host"),
            ("mac=02:00:00:00:00", "one host"),
            ("gro=maybe", "on or off"),
            ("gateway=x", "an IP address"),
            ("route=10.0.0.0/8 via y", "an IP address"),
            ("tcp_sak=1", "tcp_sack"),
            ("qdisc=nonsense", "qdisc"),
            ("link=atm", "ip or ethernet"),
            ("mtu=9000\n16384", "\"16384\""),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
