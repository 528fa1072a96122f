//! The command line of gvproxy.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use fullsend_gateway::{
    Config, DhcpRange, DnsConfig, ForwardSource, Ipv4Config, Mapping, MemoryBudget, Target, Zone,
};

use super::exposures::{Entry, Transport};
use super::flags::{self, Flag, Kind};
use super::listen::Endpoint;
use crate::gateway::values::parse_number;

/// The gateway's Ethernet address, and the address that Podman gives to its machine.
const GATEWAY_MAC: [u8; 6] = [0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xdd];
pub(super) const GUEST_MAC: [u8; 6] = [0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xee];
/// The domains in which the gateway and the host have names.
const ZONES: [&str; 2] = ["containers.internal", "docker.internal"];
const MTU: u32 = 1500;
const SSH_PORT: i64 = 2222;
const GUEST_SSH_PORT: u16 = 22;

/// The settings of the command line.
#[derive(Debug)]
pub(super) enum Command {
    Help,
    Version,
    Serve(Box<Options>),
}

/// The addresses of the guest's network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Network {
    pub(super) gateway: Ipv4Addr,
    pub(super) guest: Ipv4Addr,
    /// The address that stands for the host's loopback.
    pub(super) host: Ipv4Addr,
    pub(super) prefix: u8,
}

/// The settings of a gateway.
#[derive(Debug)]
pub(super) struct Options {
    /// Sockets of the API to which virtual machines may also connect.
    pub(super) listen: Vec<Endpoint>,
    /// A socket of the API only.
    pub(super) services: Option<Endpoint>,
    pub(super) qemu: Option<Endpoint>,
    pub(super) bess: Option<Endpoint>,
    pub(super) vpnkit: Option<Endpoint>,
    pub(super) vfkit: Option<Endpoint>,
    pub(super) vhost_user: Option<Endpoint>,
    pub(super) stdio: bool,
    pub(super) ssh_port: Option<u16>,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) log_file: Option<PathBuf>,
    pub(super) notification: Option<PathBuf>,
    pub(super) pcap: Option<PathBuf>,
    /// The policy for the guest's flows and queries.
    pub(super) policy: Option<PathBuf>,
    pub(super) memory: Option<MemoryBudget>,
    pub(super) network: Network,
    pub(super) config: Config,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Debug,
    DeviceIp,
    Ec2MetadataAccess,
    Forward,
    GatewayIp,
    Help,
    HostIp,
    Listen,
    ListenBess,
    ListenQemu,
    ListenStdio,
    ListenVfkit,
    ListenVhostUser,
    ListenVpnkit,
    LogFile,
    Memory,
    Mtu,
    Notification,
    Pcap,
    PidFile,
    Policy,
    Services,
    SshPort,
    Subnet,
    Version,
}

const fn value(key: Key, name: &'static str) -> Flag<Key> {
    let kind = Kind::Value;
    Flag { key, name, kind }
}

const fn switch(key: Key, name: &'static str) -> Flag<Key> {
    let kind = Kind::Bool;
    Flag { key, name, kind }
}

const TABLE: &[Flag<Key>] = &[
    switch(Key::Debug, "debug"),
    value(Key::DeviceIp, "deviceIP"),
    switch(Key::Ec2MetadataAccess, "ec2-metadata-access"),
    value(Key::Forward, "forward-dest"),
    value(Key::Forward, "forward-identity"),
    value(Key::Forward, "forward-sock"),
    value(Key::Forward, "forward-user"),
    value(Key::GatewayIp, "gatewayIP"),
    switch(Key::Help, "h"),
    switch(Key::Help, "help"),
    value(Key::HostIp, "hostIP"),
    value(Key::Listen, "listen"),
    value(Key::ListenBess, "listen-bess"),
    value(Key::ListenQemu, "listen-qemu"),
    value(Key::ListenStdio, "listen-stdio"),
    value(Key::ListenVfkit, "listen-vfkit"),
    value(Key::ListenVhostUser, "listen-vhost-user"),
    value(Key::ListenVpnkit, "listen-vpnkit"),
    value(Key::LogFile, "log-file"),
    value(Key::Memory, "memory"),
    value(Key::Mtu, "mtu"),
    value(Key::Notification, "notification"),
    value(Key::Pcap, "pcap"),
    value(Key::PidFile, "pid-file"),
    value(Key::Policy, "policy"),
    value(Key::Services, "services"),
    value(Key::SshPort, "ssh-port"),
    value(Key::Subnet, "subnet"),
    switch(Key::Version, "version"),
];

/// The parsed values of the flags.
#[derive(Default)]
struct Given {
    listen: Vec<Endpoint>,
    services: Option<Endpoint>,
    qemu: Option<Endpoint>,
    bess: Option<Endpoint>,
    vpnkit: Option<Endpoint>,
    vfkit: Option<Endpoint>,
    vhost_user: Option<Endpoint>,
    stdio: bool,
    link_local: bool,
    ssh_port: Option<i64>,
    pid_file: Option<PathBuf>,
    log_file: Option<PathBuf>,
    notification: Option<PathBuf>,
    pcap: Option<PathBuf>,
    policy: Option<PathBuf>,
    memory: Option<MemoryBudget>,
    mtu: Option<u32>,
    subnet: Option<(Ipv4Addr, u8)>,
    gateway: Option<Ipv4Addr>,
    guest: Option<Ipv4Addr>,
    host: Option<Ipv4Addr>,
}

/// Returns the list of flags.
pub(super) fn usage() -> String {
    let mut text = "Usage of gvproxy:".to_owned();
    for flag in TABLE {
        let value = if flag.kind == Kind::Value {
            " value"
        } else {
            ""
        };
        text.extend(["\n  -", flag.name, value]);
    }
    text
}

/// Parses the arguments after the program's name.
pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command> {
    let parsed = flags::parse(TABLE, arguments)?;
    for (key, _) in &parsed {
        match key {
            Key::Help => return Ok(Command::Help),
            Key::Version => return Ok(Command::Version),
            _ => {}
        }
    }
    let mut given = Given::default();
    for (key, value) in parsed {
        given.set(key, value)?;
    }
    Ok(Command::Serve(Box::new(given.options()?)))
}

fn address(flag: &str, value: &str) -> Result<Ipv4Addr> {
    let parsed = value.parse();
    parsed.with_context(|| {
        format!("-{flag} {value} is not an IPv4 address; write e.g. 192.168.127.1")
    })
}

impl Given {
    fn set(&mut self, key: Key, value: String) -> Result<()> {
        let endpoint = |flag: &str| {
            Endpoint::parse(&value).with_context(|| format!("cannot use -{flag} {value}"))
        };
        match key {
            Key::DeviceIp => self.guest = Some(address("deviceIP", &value)?),
            Key::Forward => bail!(
                "-forward-sock, -forward-dest, -forward-user and -forward-identity are not \
                 supported: they need SSH; use `ssh -L` to the port of -ssh-port"
            ),
            Key::GatewayIp => self.gateway = Some(address("gatewayIP", &value)?),
            Key::HostIp => self.host = Some(address("hostIP", &value)?),
            Key::Listen => self.listen.push(endpoint("listen")?.of_stream("listen")?),
            Key::ListenBess => self.bess = Some(endpoint("listen-bess")?.of_messages()?),
            Key::ListenQemu => {
                self.qemu = Some(endpoint("listen-qemu")?.of_stream("listen-qemu")?);
            }
            Key::Ec2MetadataAccess => self.link_local = true,
            Key::ListenStdio => self.stdio = true,
            Key::ListenVfkit => self.vfkit = Some(endpoint("listen-vfkit")?.of_datagrams()?),
            Key::ListenVhostUser => {
                self.vhost_user = Some(endpoint("listen-vhost-user")?.of_memory()?);
            }
            Key::ListenVpnkit => {
                self.vpnkit = Some(endpoint("listen-vpnkit")?.of_stream("listen-vpnkit")?);
            }
            Key::LogFile => self.log_file = Some(value.into()),
            Key::Memory => self.memory = Some(value.parse().context("-memory")?),
            Key::Mtu => {
                let mtu = parse_number(&value).filter(|mtu| (576..=65_520).contains(mtu));
                let mtu =
                    mtu.with_context(|| format!("-mtu {value} is not between 576 and 65520"))?;
                self.mtu = Some(mtu);
            }
            Key::Notification => {
                let Endpoint::Unix(path) = endpoint("notification")? else {
                    bail!("-notification {value} is not a Unix socket; write unix:///PATH");
                };
                self.notification = Some(path);
            }
            Key::Pcap => self.pcap = Some(value.into()),
            Key::PidFile => self.pid_file = Some(value.into()),
            Key::Policy => self.policy = Some(value.into()),
            Key::Services => {
                self.services = Some(endpoint("services")?.of_stream("services")?);
            }
            Key::SshPort => {
                let port = value.parse().ok();
                let port = port.filter(|port| *port == -1 || (1024..=65_535).contains(port));
                let port = port.with_context(|| {
                    format!(
                        "-ssh-port {value}: ssh-port value must be between 1024 and 65535, or -1 \
                         for none"
                    )
                })?;
                self.ssh_port = Some(port);
            }
            Key::Subnet => self.subnet = Some(subnet(&value)?),
            Key::Debug | Key::Help | Key::Version => {}
        }
        Ok(())
    }

    fn options(self) -> Result<Options> {
        let links = [
            &self.qemu,
            &self.bess,
            &self.vpnkit,
            &self.vfkit,
            &self.vhost_user,
        ];
        let has_link = links.into_iter().any(Option::is_some);
        if self.stdio && has_link {
            bail!(
                "gvproxy ends with the guest of -listen-stdio, which excludes -listen-qemu, \
                 -listen-bess, -listen-vpnkit, -listen-vfkit and -listen-vhost-user; give one"
            );
        }
        if !self.stdio && !has_link && self.listen.is_empty() {
            bail!("no virtual machine can connect; add e.g. -listen-qemu unix:///tmp/qemu.sock");
        }
        let network = self.network()?;
        Ok(Options {
            config: Config {
                link_local_destinations: self.link_local,
                ..config(network, self.mtu.unwrap_or(MTU))
            },
            network,
            ssh_port: u16::try_from(self.ssh_port.unwrap_or(SSH_PORT)).ok(),
            listen: self.listen,
            services: self.services,
            qemu: self.qemu,
            bess: self.bess,
            vpnkit: self.vpnkit,
            vfkit: self.vfkit,
            vhost_user: self.vhost_user,
            stdio: self.stdio,
            pid_file: self.pid_file,
            log_file: self.log_file,
            notification: self.notification,
            pcap: self.pcap,
            policy: self.policy,
            memory: self.memory,
        })
    }

    /// Returns the addresses from the flags; by default the first, the second and the last host of the
    /// network.
    fn network(&self) -> Result<Network> {
        let (base, prefix) = self.subnet.unwrap_or(([192, 168, 127, 0].into(), 24));
        let host_bits = u32::MAX >> prefix;
        let nth = |n: u32| Ipv4Addr::from_bits(base.to_bits() + n);
        let network = Network {
            gateway: self.gateway.unwrap_or(nth(1)),
            guest: self.guest.unwrap_or(nth(2)),
            host: self.host.unwrap_or(nth(host_bits - 1)),
            prefix,
        };
        let all = [network.gateway, network.guest, network.host];
        for (n, address) in all.iter().enumerate() {
            if address.to_bits() & !host_bits != base.to_bits() {
                bail!(
                    "{address} is not in the network {base}/{prefix}; change -subnet or the address"
                );
            }
            if all[..n].contains(address) {
                bail!(
                    "{address} is the address of two hosts; change one of -gatewayIP, -deviceIP and -hostIP"
                );
            }
        }
        Ok(network)
    }
}

/// Parses a network with room for the gateway, the guest and the host.
fn subnet(value: &str) -> Result<(Ipv4Addr, u8)> {
    let parse = || {
        let (base, prefix) = value.split_once('/')?;
        let base: Ipv4Addr = base.parse().ok()?;
        let prefix = parse_number(prefix).filter(|prefix: &u8| (8..=29).contains(prefix))?;
        Some((
            Ipv4Addr::from_bits(base.to_bits() & !(u32::MAX >> prefix)),
            prefix,
        ))
    };
    parse().with_context(|| {
        format!(
            "-subnet {value} is not an IPv4 network of 8 to 29 bits; write e.g. 192.168.127.0/24"
        )
    })
}

fn config(network: Network, mtu: u32) -> Config {
    let names = [("gateway", network.gateway), ("host", network.host)];
    let records = names.map(|(name, address)| (name.to_owned(), IpAddr::from(address)));
    let zone = |name: &&str| Zone {
        records: records.to_vec(),
        ..Zone::new(*name)
    };
    let host_bits = u32::MAX >> network.prefix;
    let first = network.gateway.to_bits() & !host_bits;
    Config {
        ipv4: Some(Ipv4Config {
            guest: network.guest,
            prefix: network.prefix,
            gateway: network.gateway,
            dns: Some(network.gateway),
            dhcp: Some(DhcpRange {
                first: Ipv4Addr::from_bits(first + 2),
                last: Ipv4Addr::from_bits(first + host_bits - 2),
            }),
        }),
        ipv6: None,
        mtu,
        mac: GATEWAY_MAC,
        mappings: vec![Mapping {
            guest: network.host.into(),
            target: Target::Loopback,
        }],
        forward_source: ForwardSource::Gateway,
        dns: DnsConfig {
            zones: ZONES.iter().map(zone).collect(),
            ..DnsConfig::default()
        },
        ..Config::default()
    }
}

impl Options {
    /// Returns the entries that exist from the start.
    pub(super) fn forwards(&self) -> Vec<Entry> {
        let forward = |port: u16| {
            let local = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let remote = SocketAddr::from((self.network.guest, GUEST_SSH_PORT));
            Entry {
                local: local.to_string(),
                remote: remote.to_string(),
                protocol: Transport::Tcp,
            }
        };
        self.ssh_port.map(forward).into_iter().collect()
    }
}
