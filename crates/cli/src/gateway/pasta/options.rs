//! The command lines of pasta and passt.

mod value;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use fullsend_gateway::namespace::Identity;
use fullsend_gateway::{MemoryBudget, PortSpec};

use crate::gateway::getopt::{self, Opt, Order, Takes, option};
use crate::gateway::values::parse_number;
pub(super) use value::Mapped;
pub(in crate::gateway) use value::parse_guest_ports;
use value::{
    check_combination, parse_address, parse_fd, parse_host_ip, parse_ip, parse_mac, parse_mapped,
    parse_mtu, parse_netmask, set_list,
};

/// The folder in which `ip netns` keeps the names of network namespaces.
const NETNS_FOLDER: &str = "/run/netns";

/// A program whose command line is parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Program {
    Pasta,
    Passt,
}

impl Program {
    /// Returns the name under which the program is called.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Pasta => "pasta",
            Self::Passt => "passt",
        }
    }
}

/// The request of a command line.
#[derive(Debug)]
pub(super) enum Command {
    Help,
    Version,
    /// Prints the vhost-user backend's capabilities as JSON.
    PrintCapabilities,
    Serve(Box<Options>),
}

/// The location of the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    /// A command in new namespaces; the user's shell if it is empty.
    Command(Vec<OsString>),
    Process(u32),
    Path(PathBuf),
}

/// The settings of a gateway.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Options {
    pub(super) config_net: bool,
    pub(super) quiet: bool,
    pub(super) foreground: bool,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) conf_path: Option<PathBuf>,
    pub(super) pcap: Option<PathBuf>,
    /// The policy for the guest's flows and queries.
    pub(super) policy: Option<PathBuf>,
    pub(super) memory: Option<MemoryBudget>,
    pub(super) netns: Option<PathBuf>,
    pub(super) userns: Option<PathBuf>,
    /// Whether the caller's user namespace applies to the guest's network namespace.
    pub(super) netns_only: bool,
    pub(super) interface_name: Option<String>,
    pub(super) mtu: Option<u32>,
    pub(super) addresses: Vec<(IpAddr, Option<u8>)>,
    pub(super) netmask: Option<u8>,
    /// Whether only one address of each family, and no route except the default one, is copied.
    pub(super) no_copy_addresses: bool,
    /// Whether no route except the default one is copied.
    pub(super) no_copy_routes: bool,
    pub(super) gateways: Vec<IpAddr>,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) guest_mac: Option<[u8; 6]>,
    pub(super) interface: Option<String>,
    pub(super) outbound: Vec<IpAddr>,
    pub(super) outbound_if4: Option<String>,
    pub(super) outbound_if6: Option<String>,
    pub(super) dns: Vec<IpAddr>,
    pub(super) search: Vec<String>,
    pub(super) dns_forward: Vec<IpAddr>,
    pub(super) dns_host: Vec<IpAddr>,
    pub(super) map_host_loopback: Vec<Mapped>,
    pub(super) map_guest_addr: Vec<Mapped>,
    pub(super) no_map_gateway: bool,
    pub(super) tcp: Vec<PortSpec>,
    pub(super) udp: Vec<PortSpec>,
    /// Ports of the guest's loopback that lead to the host.
    pub(super) tcp_ns: Vec<PortSpec>,
    pub(super) udp_ns: Vec<PortSpec>,
    pub(super) no_splice: bool,
    /// Whether clients on the host's loopback reach the guest's loopback instead of its address.
    pub(super) host_loopback_to_guest_loopback: bool,
    pub(super) no_tcp: bool,
    pub(super) no_udp: bool,
    pub(super) no_icmp: bool,
    pub(super) no_dhcp: bool,
    pub(super) no_dhcpv6: bool,
    pub(super) no_ndp: bool,
    pub(super) no_ra: bool,
    pub(super) no_netns_quit: bool,
    pub(super) ipv4_only: bool,
    pub(super) ipv6_only: bool,
    pub(super) fqdn: Option<String>,
    pub(super) host_name: Option<String>,
    /// The domain in the guest's fully qualified name.
    pub(super) domain: Option<String>,
    pub(super) destination: Option<Destination>,
    /// Whether the guest gets no resolver.
    pub(super) no_dns: bool,
    /// The socket on which passt listens.
    pub(super) socket: Option<PathBuf>,
    /// The descriptor of a connected socket for passt.
    pub(super) fd: Option<i32>,
    /// Whether passt ends with its first connection.
    pub(super) one_off: bool,
    /// Whether passt's socket is for a vhost-user frontend.
    pub(super) vhost_user: bool,
    /// The user as which the gateway runs; `None` for the caller.
    pub(super) user: Option<Identity>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Address,
    ConfPath,
    ConfigNet,
    Fd,
    OneOff,
    PrintCapabilities,
    Socket,
    VhostUser,
    Dns,
    DnsForward,
    DnsHost,
    Foreground,
    Fqdn,
    Gateway,
    GuestMac,
    Help,
    HostName,
    HostLoToNsLo,
    Interface,
    InterfaceName,
    Ipv4Only,
    Ipv6Only,
    LogFile,
    Mac,
    MapGuestAddr,
    MapHostLoopback,
    Memory,
    Mtu,
    Netmask,
    Netns,
    NetnsOnly,
    NoCopyAddrs,
    NoCopyRoutes,
    NoDhcp,
    NoDhcpv6,
    NoIcmp,
    NoMapGateway,
    NoNdp,
    NoNetnsQuit,
    NoRa,
    NoSplice,
    NoTcp,
    NoUdp,
    /// An accepted option without an effect.
    Nothing,
    NothingValue,
    Outbound,
    OutboundIf4,
    OutboundIf6,
    Pcap,
    Pid,
    Policy,
    Quiet,
    RunAs,
    Search,
    TcpNs,
    TcpPorts,
    UdpNs,
    UdpPorts,
    Userns,
    Version,
}

/// The options that both programs have.
const TABLE: &[Opt<Key>] = &[
    option(Key::Address, 'a', &["address"], Takes::Value),
    option(Key::ConfPath, 'c', &["conf-path"], Takes::Value),
    option(Key::Dns, 'D', &["dns"], Takes::Value),
    option(Key::DnsForward, '\0', &["dns-forward"], Takes::Value),
    option(Key::DnsHost, '\0', &["dns-host"], Takes::Value),
    option(Key::Foreground, 'f', &["foreground"], Takes::Nothing),
    option(Key::Fqdn, '\0', &["fqdn"], Takes::Value),
    option(Key::Gateway, 'g', &["gateway"], Takes::Value),
    option(Key::Help, 'h', &["help"], Takes::Nothing),
    option(Key::HostName, '\0', &["hostname"], Takes::Value),
    option(Key::Interface, 'i', &["interface"], Takes::Value),
    option(Key::Ipv4Only, '4', &["ipv4-only"], Takes::Nothing),
    option(Key::Ipv6Only, '6', &["ipv6-only"], Takes::Nothing),
    option(Key::LogFile, 'l', &["log-file"], Takes::Value),
    option(Key::Mac, 'M', &["mac-addr"], Takes::Value),
    option(Key::MapGuestAddr, '\0', &["map-guest-addr"], Takes::Value),
    option(
        Key::MapHostLoopback,
        '\0',
        &["map-host-loopback"],
        Takes::Value,
    ),
    option(Key::Memory, '\0', &["memory"], Takes::Value),
    option(Key::Mtu, 'm', &["mtu"], Takes::Value),
    option(Key::Netmask, 'n', &["netmask"], Takes::Value),
    option(Key::NoDhcp, '\0', &["no-dhcp"], Takes::Nothing),
    option(Key::NoDhcpv6, '\0', &["no-dhcpv6"], Takes::Nothing),
    option(Key::NoIcmp, '\0', &["no-icmp"], Takes::Nothing),
    option(Key::NoMapGateway, '\0', &["no-map-gw"], Takes::Nothing),
    option(Key::NoNdp, '\0', &["no-ndp"], Takes::Nothing),
    option(Key::NoRa, '\0', &["no-ra"], Takes::Nothing),
    option(Key::NoTcp, '\0', &["no-tcp"], Takes::Nothing),
    option(Key::NoUdp, '\0', &["no-udp"], Takes::Nothing),
    option(Key::Nothing, '\0', &["debug", "trace"], Takes::Nothing),
    option(Key::Nothing, 'd', &[], Takes::Nothing),
    option(Key::Nothing, 'e', &["stderr"], Takes::Nothing),
    option(Key::NothingValue, '\0', &["log-size"], Takes::Value),
    option(Key::Outbound, 'o', &["outbound"], Takes::Value),
    option(Key::OutboundIf4, '\0', &["outbound-if4"], Takes::Value),
    option(Key::OutboundIf6, '\0', &["outbound-if6"], Takes::Value),
    option(Key::Pcap, 'p', &["pcap"], Takes::Value),
    option(Key::Pid, 'P', &["pid"], Takes::Value),
    option(Key::Policy, '\0', &["policy"], Takes::Value),
    option(Key::Quiet, 'q', &["quiet"], Takes::Nothing),
    option(Key::RunAs, '\0', &["runas"], Takes::Value),
    option(Key::Search, 'S', &["search"], Takes::Value),
    option(Key::TcpPorts, 't', &["tcp-ports"], Takes::Value),
    option(Key::UdpPorts, 'u', &["udp-ports"], Takes::Value),
    option(Key::Version, '\0', &["version"], Takes::Nothing),
];

/// The options that only pasta has.
const PASTA_TABLE: &[Opt<Key>] = &[
    option(Key::ConfigNet, '\0', &["config-net"], Takes::Nothing),
    option(Key::GuestMac, '\0', &["ns-mac-addr"], Takes::Value),
    option(
        Key::HostLoToNsLo,
        '\0',
        &["host-lo-to-ns-lo"],
        Takes::Nothing,
    ),
    option(Key::InterfaceName, 'I', &["ns-ifname"], Takes::Value),
    option(Key::Netns, '\0', &["netns"], Takes::Value),
    option(Key::NetnsOnly, '\0', &["netns-only"], Takes::Nothing),
    option(Key::NoCopyAddrs, '\0', &["no-copy-addrs"], Takes::Nothing),
    option(Key::NoCopyRoutes, '\0', &["no-copy-routes"], Takes::Nothing),
    option(Key::NoNetnsQuit, '\0', &["no-netns-quit"], Takes::Nothing),
    option(Key::NoSplice, '\0', &["no-splice"], Takes::Nothing),
    option(Key::TcpNs, 'T', &["tcp-ns"], Takes::Value),
    option(Key::UdpNs, 'U', &["udp-ns"], Takes::Value),
    option(Key::Userns, '\0', &["userns"], Takes::Value),
];

/// The options that only passt has.
const PASST_TABLE: &[Opt<Key>] = &[
    option(Key::Fd, 'F', &["fd"], Takes::Value),
    option(Key::NothingValue, '\0', &["repair-path"], Takes::Value),
    option(Key::OneOff, '1', &["one-off"], Takes::Nothing),
    option(
        Key::PrintCapabilities,
        '\0',
        &["print-capabilities"],
        Takes::Nothing,
    ),
    option(Key::Socket, 's', &["socket", "socket-path"], Takes::Value),
    option(Key::VhostUser, '\0', &["vhost-user"], Takes::Nothing),
];

impl Program {
    /// Returns all options of the program.
    fn table(self) -> Vec<Opt<Key>> {
        let own = match self {
            Self::Pasta => PASTA_TABLE,
            Self::Passt => PASST_TABLE,
        };
        TABLE.iter().chain(own).copied().collect()
    }
}

/// Parses the arguments after the program's name.
pub(super) fn parse(
    program: Program,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Command> {
    let parsed = getopt::parse(&program.table(), Order::OptionsFirst, arguments)?;
    for (key, _) in &parsed.options {
        match key {
            Key::Help => return Ok(Command::Help),
            Key::Version => return Ok(Command::Version),
            Key::PrintCapabilities => return Ok(Command::PrintCapabilities),
            _ => {}
        }
    }
    let mut options = Options::default();
    for (key, value) in &parsed.options {
        options.set(*key, value)?;
    }
    if options.ipv4_only && options.ipv6_only {
        bail!("--ipv4-only and --ipv6-only exclude each other; give at most one");
    }
    if options.netns_only && options.userns.is_some() {
        bail!("--netns-only and --userns exclude each other; give at most one");
    }
    for (option, specs) in [
        ("--tcp-ports", &options.tcp),
        ("--udp-ports", &options.udp),
        ("--tcp-ns", &options.tcp_ns),
        ("--udp-ns", &options.udp_ns),
    ] {
        check_combination(option, specs)?;
    }
    options.set_names()?;
    if program == Program::Passt {
        options.check_of_passt(&parsed.positionals)?;
        return Ok(Command::Serve(Box::new(options)));
    }
    options.destination = Some(match &options.netns {
        Some(path) if parsed.positionals.is_empty() => Destination::Path(path.clone()),
        Some(path) => bail!(
            "--netns {} and a command or PID exclude each other; give one",
            path.display()
        ),
        None => destination(parsed.positionals),
    });
    Ok(Command::Serve(Box::new(options)))
}

impl Options {
    /// Applies one option.
    fn set(&mut self, key: Key, value: &OsStr) -> Result<()> {
        let shown = value.display();
        let word = || {
            value
                .to_str()
                .ok_or_else(|| anyhow!("{shown} is not UTF-8"))
        };
        let name = || word().map(str::to_owned);
        match key {
            Key::Address => self.addresses.push(parse_address(word()?)?),
            Key::ConfPath => self.conf_path = Some(value.into()),
            Key::ConfigNet => self.config_net = true,
            Key::Dns => {
                set_list(&mut self.dns, word()?)?;
                self.no_dns = self.dns.is_empty();
            }
            Key::DnsForward => self.dns_forward.push(parse_host_ip(word()?)?),
            Key::DnsHost => self.dns_host.push(parse_ip(word()?)?),
            Key::Fd => self.fd = Some(parse_fd(word()?)?),
            Key::Foreground => self.foreground = true,
            Key::Fqdn => self.fqdn = Some(name()?),
            Key::Gateway => self.gateways.push(parse_host_ip(word()?)?),
            Key::GuestMac => self.guest_mac = Some(parse_mac(word()?)?),
            Key::HostName => self.host_name = Some(name()?),
            Key::Interface => self.interface = Some(name()?),
            Key::InterfaceName => self.interface_name = Some(name()?),
            Key::Ipv4Only => self.ipv4_only = true,
            Key::Ipv6Only => self.ipv6_only = true,
            Key::LogFile => {
                bail!("--log-file {shown} is not supported; use --foreground --stderr 2>{shown}")
            }
            Key::Mac => self.mac = Some(parse_mac(word()?)?),
            Key::MapGuestAddr => self.map_guest_addr.push(parse_mapped(word()?)?),
            Key::MapHostLoopback => self.map_host_loopback.push(parse_mapped(word()?)?),
            Key::Memory => self.memory = Some(word()?.parse().context("--memory")?),
            Key::Mtu => self.mtu = Some(parse_mtu(word()?)?),
            Key::Netmask => self.netmask = Some(parse_netmask(word()?)?),
            Key::Netns => self.netns = Some(namespace_path(value)),
            Key::NetnsOnly => self.netns_only = true,
            Key::NoCopyAddrs => self.no_copy_addresses = true,
            Key::NoCopyRoutes => self.no_copy_routes = true,
            Key::NoDhcp => self.no_dhcp = true,
            Key::NoDhcpv6 => self.no_dhcpv6 = true,
            Key::NoIcmp => self.no_icmp = true,
            Key::NoMapGateway => self.no_map_gateway = true,
            Key::NoNdp => self.no_ndp = true,
            Key::NoNetnsQuit => self.no_netns_quit = true,
            Key::NoRa => self.no_ra = true,
            Key::NoSplice => self.no_splice = true,
            Key::NoTcp => self.no_tcp = true,
            Key::NoUdp => self.no_udp = true,
            Key::OneOff => self.one_off = true,
            Key::Outbound => self.outbound.push(parse_ip(word()?)?),
            Key::OutboundIf4 => self.outbound_if4 = Some(name()?),
            Key::OutboundIf6 => self.outbound_if6 = Some(name()?),
            Key::Pcap => self.pcap = Some(value.into()),
            Key::Pid => self.pid_file = Some(value.into()),
            Key::Policy => self.policy = Some(value.into()),
            Key::Quiet => self.quiet = true,
            Key::RunAs => self.user = Some(word()?.parse().context("--runas")?),
            Key::Search => match word()? {
                "none" => self.search.clear(),
                name => self.search.push(name.to_owned()),
            },
            Key::Socket => self.socket = Some(value.into()),
            Key::VhostUser => self.vhost_user = true,
            Key::TcpPorts => self.tcp.push(word()?.parse()?),
            Key::UdpPorts => self.udp.push(word()?.parse()?),
            Key::TcpNs => self.tcp_ns.push(parse_guest_ports("--tcp-ns", word()?)?),
            Key::UdpNs => self.udp_ns.push(parse_guest_ports("--udp-ns", word()?)?),
            Key::Userns => self.userns = Some(value.into()),
            Key::HostLoToNsLo => self.host_loopback_to_guest_loopback = true,
            Key::Nothing
            | Key::NothingValue
            | Key::Help
            | Key::PrintCapabilities
            | Key::Version => {}
        }
        Ok(())
    }
}

impl Options {
    /// Checks the options of passt, and sets its defaults.
    fn check_of_passt(&mut self, positionals: &[OsString]) -> Result<()> {
        if let Some(word) = positionals.first() {
            bail!(
                "{} is not an option; passt has no other arguments",
                word.display()
            );
        }
        if self.fd.is_some() && self.socket.is_some() {
            bail!("--fd and --socket exclude each other; give at most one");
        }
        for (option, specs) in [
            ("--tcp-ports", &mut self.tcp),
            ("--udp-ports", &mut self.udp),
        ] {
            if specs.contains(&PortSpec::Auto) {
                bail!("{option} auto is for pasta; write the ports of the virtual machine");
            }
            if specs.is_empty() {
                specs.push(PortSpec::None);
            }
        }
        self.tcp_ns = vec![PortSpec::None];
        self.udp_ns = vec![PortSpec::None];
        self.no_splice = true;
        self.one_off |= self.fd.is_some();
        Ok(())
    }

    /// Sets the host name and the domain from the fully qualified name.
    fn set_names(&mut self) -> Result<()> {
        let Some(fqdn) = &self.fqdn else {
            return Ok(());
        };
        let name = fqdn.strip_suffix('.').unwrap_or(fqdn);
        let (host, domain) = match name.split_once('.') {
            Some((host, domain)) => (host, Some(domain.to_owned())),
            None => (name, None),
        };
        if let Some(given) = self.host_name.as_deref().filter(|given| *given != host) {
            bail!("--fqdn {fqdn} is not a name of --hostname {given}; write e.g. {given}.{fqdn}");
        }
        self.host_name = Some(host.to_owned());
        self.domain = domain;
        Ok(())
    }
}

/// Returns the guest's location given by the positional arguments. A single argument may be a PID, a path
/// or a name.
fn destination(positionals: Vec<OsString>) -> Destination {
    let [only] = &positionals[..] else {
        return Destination::Command(positionals);
    };
    let word = only.to_str().unwrap_or_default();
    if let Some(pid) = parse_number(word).filter(|pid| *pid > 0) {
        return Destination::Process(pid);
    }
    let path = namespace_path(only);
    if is_namespace(&path) {
        return Destination::Path(path);
    }
    Destination::Command(positionals)
}

/// Returns the path of a network namespace that is given by a name or a path.
fn namespace_path(word: &OsStr) -> PathBuf {
    if word.as_bytes().contains(&b'/') {
        return PathBuf::from(word);
    }
    Path::new(NETNS_FOLDER).join(word)
}

/// Returns whether a path is the file of a namespace rather than a program.
fn is_namespace(path: &Path) -> bool {
    let magic = fs::File::open(path).and_then(|file| Ok(nix::sys::statfs::fstatfs(&file)?));
    magic.is_ok_and(|stat| stat.filesystem_type() == nix::sys::statfs::NSFS_MAGIC)
}

/// Returns the list of the program's options.
pub(super) fn help(program: Program) -> String {
    let mut text = String::new();
    let table = program.table();
    for opt in table.iter().filter(|opt| opt.key != Key::Nothing) {
        let value = if opt.takes == Takes::Value {
            " VALUE"
        } else {
            ""
        };
        let letter = match opt.short {
            '\0' => "    ".to_owned(),
            letter => format!("-{letter}, "),
        };
        for long in opt.long {
            text.extend(["  ", &letter, "--", long, value, "\n"]);
        }
    }
    text
}
