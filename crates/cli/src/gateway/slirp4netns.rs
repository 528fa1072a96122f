//! `slirp4netns`: user-mode networking of an existing network namespace, with the interface that Podman,
//! buildah and RootlessKit use.

mod api;
mod cidr;
mod help;
mod options;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use fullsend_device::{Device, FrameSocket, Tun};
use fullsend_gateway::namespace::{
    InterfaceSetup, NamespaceEnd, Namespaces, Sandbox, close_inherited, hung_up, inherited_fd,
    open_tap,
};
use fullsend_gateway::{
    Builder, Config, DhcpRange, ForwardSource, Gateway, Ipv4Config, Ipv6Config, Mapping, Outbound,
    Target,
};

use super::json_socket;
use super::memory;
use super::policy;
use super::service::{relay, resolv_conf_opener, runtime};
use super::tool_sockets::ToolSockets;
use super::udp_filter;
use crate::output::ErrorLine;
use api::{Api, Defaults};
use cidr::Network;
use options::{Command, Destination, Options, Source};

const IPV6_PREFIX: u8 = 64;
const IPV6_GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const IPV6_DNS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);

/// Runs the program with the arguments after its name.
pub(crate) fn main(arguments: Vec<OsString>) -> ExitCode {
    let options = match options::parse(arguments) {
        Ok(Command::Help) => {
            out!("{}", help::text());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            out!("{}", help::version());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Serve(options)) => options,
        Err(error) => {
            errln!("slirp4netns: {error:#}");
            errln!("{}", help::USAGE);
            return ExitCode::FAILURE;
        }
    };
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("slirp4netns: {}", ErrorLine(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result<()> {
    // The descriptors are taken over before newly opened files can get their numbers.
    let inherited = |fd: Option<i32>| fd.map(inherited_fd).transpose();
    let exit_fd = inherited(options.exit_fd).context("cannot use --exit-fd")?;
    let ready_fd = inherited(options.ready_fd).context("cannot use --ready-fd")?;
    let mut config = config(options)?;
    udp_filter::apply(None, &mut config)?;
    memory::apply(options.memory, &mut config)?;
    let policy = policy::apply_from_environment(&mut config)?;
    let (device, end) = open_device(options)?;
    let api_socket = options.api_socket.as_deref();
    let api = api_socket
        .map(|path| json_socket::bind(path, "API"))
        .transpose()?;
    let api = api.map(|listener| (listener, api_defaults(options)));
    let tools = ToolSockets::from_environment().with_policy(policy, None)?;
    let sandbox = Sandbox {
        own_root: options.sandbox,
        hide_files: false,
        drop_capabilities: options.sandbox,
        seccomp: options.seccomp,
        ..Sandbox::default()
    };
    let opener = if options.sandbox {
        resolv_conf_opener(&config, None)?
    } else {
        None
    };
    close_inherited();
    if options.sandbox || options.seccomp {
        sandbox.apply()?;
    }
    print_config(options, &config);
    let mut builder = Gateway::builder().config(config).device(device);
    if let Some(opener) = opener {
        builder = builder.resolv_conf_opener(opener);
    }
    runtime()?.block_on(run((builder, tools), end, (ready_fd, exit_fd, api)))
}

async fn run(
    (builder, tools): (Builder, ToolSockets),
    end: NamespaceEnd,
    (ready, exit, api): (
        Option<OwnedFd>,
        Option<OwnedFd>,
        Option<(UnixListener, Defaults)>,
    ),
) -> Result<()> {
    let gateway = builder.build()?;
    let _files = tools.serve(&gateway)?;
    if let Some((listener, defaults)) = api {
        let handle = gateway.handle();
        tokio::spawn(json_socket::serve(listener, Api { handle, defaults })?);
    }
    if let Some(ready) = ready {
        let written = File::from(ready).write_all(b"1");
        written.context("cannot report readiness on --ready-fd")?;
    }
    let end = async {
        match exit {
            Some(exit) => tokio::select! {
                ended = end.wait() => ended,
                ended = hung_up(exit) => ended,
            },
            None => end.wait().await,
        }
    };
    relay(gateway, end).await
}

/// Returns the defaults for a request to the API.
const fn api_defaults(options: &Options) -> Defaults {
    Defaults {
        guest: options.network.guest(),
    }
}

/// Opens the guest's device. Returns it with the event that ends its network.
fn open_device(options: &Options) -> Result<(Box<dyn Device>, NamespaceEnd)> {
    let mtu = options.mtu;
    let (namespaces, end) = match &options.destination {
        Destination::Process(pid) => {
            let end = NamespaceEnd::of_process(*pid)
                .with_context(|| format!("cannot use the process {pid}"))?;
            let namespaces = match &options.userns_path {
                Some(user) => {
                    let net = format!("/proc/{pid}/ns/net");
                    Namespaces::at_path(net.as_ref(), Some(user))?
                }
                None => Namespaces::of_process(*pid)?,
            };
            (namespaces, end)
        }
        Destination::Path(path) => {
            let namespaces = Namespaces::at_path(path, options.userns_path.as_deref())?;
            (namespaces, NamespaceEnd::of_path(path)?)
        }
        Destination::TapFd(fd) => {
            let file = inherited_fd(*fd)
                .with_context(|| format!("cannot use the TAP with descriptor {fd}"))?;
            let device = Tun::tap("tap0").mtu(mtu).adopt(file)?;
            return Ok((Box::new(device), NamespaceEnd::never()));
        }
        Destination::Bess(path) => {
            let device = FrameSocket::connect(path, mtu)
                .with_context(|| format!("cannot connect to the bess socket {}", path.display()))?;
            return Ok((Box::new(device), NamespaceEnd::never()));
        }
    };
    let setup = options.configure.then(|| interface_setup(options));
    let tap = open_tap(&namespaces, &options.tap_name, setup.as_ref())?;
    let device = Tun::tap(&tap.name).mtu(mtu).adopt(tap.file)?;
    Ok((Box::new(device), end))
}

/// Returns the settings of the guest's interface for `--configure`.
fn interface_setup(options: &Options) -> InterfaceSetup {
    let network = options.network;
    InterfaceSetup {
        mtu: Some(options.mtu),
        mac: options.mac,
        addresses: vec![(network.guest().into(), network.prefix)],
        gateways: vec![network.gateway().into()],
        routes: Vec::new(),
        loopback: true,
        accept_ra: options.ipv6.then_some(true),
        leave_down: false,
    }
}

/// Returns the gateway's settings.
fn config(options: &Options) -> Result<Config> {
    let network: Network = options.network;
    let dns = network.dns();
    let mut mappings = Vec::new();
    let loopback = if options.disable_host_loopback {
        Target::Unreachable
    } else {
        Target::Loopback
    };
    let mut map = |guest: IpAddr, target| mappings.push(Mapping { guest, target });
    map(network.gateway().into(), loopback);
    map(IPV6_GATEWAY.into(), loopback);
    if options.disable_dns {
        map(dns.into(), Target::Drop);
        map(IPV6_DNS.into(), Target::Drop);
    }
    let (first, last) = network.dhcp();
    Ok(Config {
        ipv4: Some(Ipv4Config {
            // DHCP offers other addresses than the one that --configure sets.
            guest: first,
            prefix: network.prefix,
            gateway: network.gateway(),
            dns: (!options.disable_dns).then_some(dns),
            dhcp: Some(DhcpRange { first, last }),
        }),
        ipv6: options.ipv6.then(|| Ipv6Config {
            guest: None,
            prefix: IPV6_PREFIX,
            gateway: IPV6_GATEWAY,
            dns: (!options.disable_dns).then_some(IPV6_DNS),
            ra: true,
            dhcp: false,
        }),
        mtu: options.mtu,
        mappings,
        outbound: outbound(options)?,
        forward_source: ForwardSource::Gateway,
        ..Config::default()
    })
}

fn outbound(options: &Options) -> Result<Outbound> {
    let mut outbound = Outbound {
        // A server on the host's loopback sees the given address as well.
        loopback: true,
        ..Outbound::default()
    };
    match source_address(options.outbound_addr.as_ref(), false)? {
        Some(IpAddr::V4(address)) => outbound.ipv4 = Some(address),
        _ => outbound.ipv4 = None,
    }
    match source_address(options.outbound_addr6.as_ref(), true)? {
        Some(IpAddr::V6(address)) => outbound.ipv6 = Some(address),
        _ => outbound.ipv6 = None,
    }
    Ok(outbound)
}

/// Returns the given address, or the address of the given interface.
fn source_address(source: Option<&Source>, ipv6: bool) -> Result<Option<IpAddr>> {
    let name = match source {
        None => return Ok(None),
        Some(Source::Address(address)) => return Ok(Some(*address)),
        Some(Source::Interface(name)) => name,
    };
    let all = nix::ifaddrs::getifaddrs().context("cannot list the host's addresses")?;
    let of_interface = all.filter(|entry| entry.interface_name == *name);
    let mut addresses = of_interface.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
    });
    let found = addresses.find(|address| address.is_ipv6() == ipv6);
    let family = if ipv6 { "IPv6" } else { "IPv4" };
    found.map(Some).ok_or_else(|| {
        anyhow!(
            "outbound address {name:?} is neither an {family} address nor an interface with one; \
             `ip address` lists them"
        )
    })
}

/// Prints the addresses of the guest's network.
fn print_config(options: &Options, config: &Config) {
    let network = options.network;
    outln!("Starting the gateway");
    outln!("* MTU:             {}", config.mtu);
    outln!("* Network:         {}/{}", network.address, network.prefix);
    outln!("* Gateway:         {}", network.gateway());
    if !options.disable_dns {
        outln!("* DNS:             {}", network.dns());
    }
    let (first, last) = network.dhcp();
    outln!("* DHCP:            {first} to {last}");
    outln!("* Guest:           {}", network.guest());
    if let Some(path) = &options.api_socket {
        outln!("* API socket:      {}", path.display());
    }
    if !options.disable_host_loopback {
        outln!(
            "WARNING: 127.0.0.1 of the host can be reached at {}; --disable-host-loopback \
             forbids it",
            network.gateway()
        );
    }
    let _ = io::stdout().flush();
}

/// Answers requests to the API without a gateway, for the fuzz target.
pub fn answer_request(requests: &[u8]) {
    api::answer_lines(requests);
}
