//! The command line of slirp4netns.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use fullsend_gateway::MemoryBudget;

use super::cidr::Network;
use crate::gateway::getopt::{self, Opt, Order, Takes, option};
use crate::gateway::values::{self, parse_number};

/// Most bytes of an IP packet: 65535 without the Ethernet header.
const MTU_MAX: u32 = 65_521;
/// Fewest bytes of an IP packet that IPv4 requires of a link.
const MTU_MIN: u32 = 68;
const TAP_NAME: &str = "tap0";

/// The request of a command line.
#[derive(Debug)]
pub(super) enum Command {
    Help,
    Version,
    Serve(Box<Options>),
}

/// The location of the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    Process(u32),
    Path(PathBuf),
    TapFd(i32),
    Bess(PathBuf),
}

/// The source address of the host's sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    Address(IpAddr),
    Interface(String),
}

/// The settings of a gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Options {
    pub(super) configure: bool,
    pub(super) exit_fd: Option<i32>,
    pub(super) ready_fd: Option<i32>,
    pub(super) mtu: u32,
    pub(super) network: Network,
    pub(super) ipv6: bool,
    pub(super) disable_host_loopback: bool,
    pub(super) disable_dns: bool,
    pub(super) api_socket: Option<PathBuf>,
    pub(super) userns_path: Option<PathBuf>,
    pub(super) sandbox: bool,
    pub(super) seccomp: bool,
    pub(super) outbound_addr: Option<Source>,
    pub(super) outbound_addr6: Option<Source>,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) memory: Option<MemoryBudget>,
    pub(super) destination: Destination,
    pub(super) tap_name: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Configure,
    ExitFd,
    ReadyFd,
    Mtu,
    Cidr,
    DisableHostLoopback,
    DisableDns,
    EnableIpv6,
    ApiSocket,
    NetnsType,
    UsernsPath,
    EnableSandbox,
    EnableSeccomp,
    OutboundAddr,
    OutboundAddr6,
    MacAddress,
    Memory,
    TargetType,
    Help,
    Version,
}

const TABLE: &[Opt<Key>] = &[
    option(Key::Configure, 'c', &["configure"], Takes::Nothing),
    option(Key::ExitFd, 'e', &["exit-fd"], Takes::Value),
    option(Key::ReadyFd, 'r', &["ready-fd"], Takes::Value),
    option(Key::Mtu, 'm', &["mtu"], Takes::Value),
    option(Key::EnableIpv6, '6', &["enable-ipv6"], Takes::Nothing),
    option(Key::ApiSocket, 'a', &["api-socket"], Takes::Value),
    option(Key::Cidr, '\0', &["cidr"], Takes::Value),
    option(
        Key::DisableHostLoopback,
        '\0',
        &["disable-host-loopback", "no-host-loopback"],
        Takes::Nothing,
    ),
    option(Key::DisableDns, '\0', &["disable-dns"], Takes::Nothing),
    option(Key::NetnsType, '\0', &["netns-type"], Takes::Value),
    option(Key::UsernsPath, '\0', &["userns-path"], Takes::Value),
    option(
        Key::EnableSandbox,
        '\0',
        &["enable-sandbox", "create-sandbox"],
        Takes::Nothing,
    ),
    option(
        Key::EnableSeccomp,
        '\0',
        &["enable-seccomp"],
        Takes::Nothing,
    ),
    option(Key::OutboundAddr, '\0', &["outbound-addr"], Takes::Value),
    option(Key::OutboundAddr6, '\0', &["outbound-addr6"], Takes::Value),
    option(Key::MacAddress, '\0', &["macaddress"], Takes::Value),
    option(Key::Memory, '\0', &["memory"], Takes::Value),
    option(Key::TargetType, '\0', &["target-type"], Takes::Value),
    option(Key::Help, 'h', &["help"], Takes::Nothing),
    option(Key::Version, 'v', &["version"], Takes::Nothing),
];

/// The meaning of the first positional argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NetnsType {
    Pid,
    Path,
    TapFd,
}

/// Parses the arguments after the program's name.
pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command> {
    let parsed = getopt::parse(TABLE, Order::Mixed, arguments)?;
    for (key, _) in &parsed.options {
        match key {
            Key::Help => return Ok(Command::Help),
            Key::Version => return Ok(Command::Version),
            _ => {}
        }
    }
    let mut netns_type = NetnsType::Pid;
    let mut bess = false;
    let mut options = Options::new();
    for (key, value) in &parsed.options {
        match key {
            Key::NetnsType => netns_type = parse_netns_type(value)?,
            Key::TargetType => bess = parse_target_type(value)?,
            key => options.set(*key, value)?,
        }
    }
    let mut positionals = parsed.positionals.into_iter();
    let first = positionals.next().ok_or_else(|| {
        anyhow!("no PID, PATH or FD is given; write e.g. slirp4netns --configure 4711 tap0")
    })?;
    options.destination = destination(&first, netns_type, bess)?;
    if let Some(name) = positionals.next() {
        text(&name)?.clone_into(&mut options.tap_name);
    }
    for surplus in positionals {
        errln!("slirp4netns: ignored the argument {}", surplus.display());
    }
    if options.mac.is_some() && !options.configure {
        bail!("--macaddress needs --configure, which sets the interface up");
    }
    Ok(Command::Serve(Box::new(options)))
}

impl Options {
    fn new() -> Self {
        Self {
            configure: false,
            exit_fd: None,
            ready_fd: None,
            mtu: 1500,
            network: Network::DEFAULT,
            ipv6: false,
            disable_host_loopback: false,
            disable_dns: false,
            api_socket: None,
            userns_path: None,
            sandbox: false,
            seccomp: false,
            outbound_addr: None,
            outbound_addr6: None,
            mac: None,
            memory: None,
            destination: Destination::Process(0),
            tap_name: TAP_NAME.to_owned(),
        }
    }

    /// Applies one option.
    fn set(&mut self, key: Key, value: &OsStr) -> Result<()> {
        match key {
            Key::Configure => self.configure = true,
            Key::ExitFd => self.exit_fd = Some(parse_fd("--exit-fd", value)?),
            Key::ReadyFd => self.ready_fd = Some(parse_fd("--ready-fd", value)?),
            Key::Mtu => self.mtu = parse_mtu(value)?,
            Key::Cidr => self.network = text(value)?.parse()?,
            Key::DisableHostLoopback => self.disable_host_loopback = true,
            Key::DisableDns => self.disable_dns = true,
            Key::EnableIpv6 => self.ipv6 = true,
            Key::ApiSocket => self.api_socket = Some(value.into()),
            Key::UsernsPath => self.userns_path = Some(value.into()),
            Key::EnableSandbox => self.sandbox = true,
            Key::EnableSeccomp => self.seccomp = true,
            Key::OutboundAddr => self.outbound_addr = Some(parse_source::<Ipv4Addr>(value)?),
            Key::OutboundAddr6 => self.outbound_addr6 = Some(parse_source::<Ipv6Addr>(value)?),
            Key::MacAddress => self.mac = Some(parse_mac(text(value)?)?),
            Key::Memory => self.memory = Some(text(value)?.parse().context("--memory")?),
            // `parse` has already used these options.
            Key::NetnsType | Key::TargetType | Key::Help | Key::Version => {}
        }
        Ok(())
    }
}

fn text(value: &OsStr) -> Result<&str> {
    let shown = value.display();
    value
        .to_str()
        .ok_or_else(|| anyhow!("{shown} is not UTF-8"))
}

fn parse_fd(option: &str, value: &OsStr) -> Result<i32> {
    let fd = parse_number(text(value)?);
    fd.ok_or_else(|| {
        anyhow!(
            "{option} {} is not a descriptor; write e.g. 3",
            value.display()
        )
    })
}

fn parse_mtu(value: &OsStr) -> Result<u32> {
    let mtu = parse_number(text(value)?);
    let mtu = mtu.filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu));
    mtu.ok_or_else(|| {
        anyhow!(
            "MTU {} is not between {MTU_MIN} and {MTU_MAX}",
            value.display()
        )
    })
}

fn parse_netns_type(value: &OsStr) -> Result<NetnsType> {
    match text(value)? {
        "pid" => Ok(NetnsType::Pid),
        "path" => Ok(NetnsType::Path),
        "tapfd" => Ok(NetnsType::TapFd),
        other => bail!("--netns-type {other} does not exist; write path, pid or tapfd"),
    }
}

/// Returns whether the option names a bess socket.
fn parse_target_type(value: &OsStr) -> Result<bool> {
    match text(value)? {
        "netns" => Ok(false),
        "bess" => Ok(true),
        other => bail!("--target-type {other} does not exist; write netns or bess"),
    }
}

fn parse_source<A>(value: &OsStr) -> Result<Source>
where
    A: FromStr + Into<IpAddr>,
{
    let value = text(value)?;
    Ok(match value.parse::<A>() {
        Ok(address) => Source::Address(address.into()),
        Err(_) => Source::Interface(value.to_owned()),
    })
}

/// Parses six bytes in hexadecimal, separated by colons.
fn parse_mac(value: &str) -> Result<[u8; 6]> {
    values::parse_mac(value, &[':']).ok_or_else(|| {
        anyhow!("MAC address {value} is not that of one interface; write e.g. 52:54:00:12:34:56")
    })
}

fn destination(first: &OsStr, netns_type: NetnsType, bess: bool) -> Result<Destination> {
    if bess {
        return Ok(Destination::Bess(first.into()));
    }
    match netns_type {
        NetnsType::Path => Ok(Destination::Path(first.into())),
        NetnsType::Pid => {
            let pid = parse_number(text(first)?).filter(|pid| *pid > 0);
            let pid = pid.with_context(|| {
                format!(
                    "PID {} is not a process ID; for a path add --netns-type=path",
                    first.display()
                )
            })?;
            Ok(Destination::Process(pid))
        }
        NetnsType::TapFd => Ok(Destination::TapFd(parse_fd("--netns-type=tapfd", first)?)),
    }
}
