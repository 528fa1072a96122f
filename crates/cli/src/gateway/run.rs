//! `fullsend gateway`: runs a command in its own network.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use fullsend_device::Tun;
use fullsend_gateway::metrics::MetricsAddress;
use fullsend_gateway::namespace::{
    FirstProcess, InterfaceSetup, NewNamespaces, Sandbox, close_inherited,
};
use fullsend_gateway::{Config, Forward, Gateway, MemoryBudget, Protocol, Side, UdpFiltering};

use super::install::InstallArgs;
use super::memory;
use super::policy::{self, PolicySource};
use super::service::{
    NotRun, PidFile, captured, leave_terminal, relay_command, resolv_conf_opener, runtime,
};
use super::tool_sockets::ToolSockets;
use super::udp_filter;
use super::values::parse_number;

/// The name of the command's interface.
const TAP_NAME: &str = "tap0";
/// The default MTU: the largest with room for an Ethernet header in 64 KiB.
const MTU: u32 = 65_520;

#[derive(Args)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    pub(crate) command: GatewayCommand,
}

#[derive(Subcommand)]
pub(crate) enum GatewayCommand {
    /// Run a command in new namespaces, with access to the host's network.
    ///
    /// Needs no privileges: its connections are made by ordinary sockets of this program. The
    /// command is root in its namespaces, and sees only its own processes. Its address is 10.0.2.100, the host's loopback is
    /// 10.0.2.2, and DNS is at 10.0.2.3. Exits with the command's status.
    Run(RunArgs),
    /// Make links named slirp4netns, pasta, passt, pesto and gvproxy to this program, for programs that
    /// call these.
    InstallLinks(InstallArgs),
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Forward a TCP port of the host to the command, as in 8080:80 or 127.0.0.1:8080:80. May be
    /// repeated.
    #[arg(short = 't', long, value_name = "[ADDR:]PORT[:PORT]", value_parser = parse_forward)]
    tcp: Vec<PortForward>,
    /// Forward a UDP port of the host to the command. May be repeated.
    #[arg(short = 'u', long, value_name = "[ADDR:]PORT[:PORT]", value_parser = parse_forward)]
    udp: Vec<PortForward>,
    /// Largest IP packet of the command's interface, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = MTU,
          value_parser = clap::value_parser!(u32).range(1280..=65_521))]
    mtu: u32,
    /// Do not let the command reach servers on the host's loopback.
    #[arg(long)]
    no_host_loopback: bool,
    /// Which hosts may send UDP datagrams to a port that the command has sent from: any, those with an
    /// address that it has sent to (address), or only from the port that it has sent to (address-port)
    /// [default: address].
    #[arg(long, value_name = "HOSTS", value_parser = udp_filter::parse)]
    udp_filter: Option<UdpFiltering>,
    /// Restrict what the command may reach to what this file allows, by domain, network, port and
    /// protocol. SIGHUP reads the file again.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Memory that the gateway may take, as in 64M [default: 256M, or a quarter of the memory that the
    /// machine or the control group has if that is less].
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemoryBudget>,
    /// Write the command's packets to this file in pcapng format.
    #[arg(short = 'p', long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Open a control socket, so that `fullsend stat` can inspect the gateway.
    #[command(flatten)]
    control: crate::stat::args::ControlArgs,
    /// Serve metrics in Prometheus' text format at this address, over HTTP at the path /metrics:
    /// ADDRESS:PORT, or unix:PATH.
    #[arg(long, value_name = "ADDRESS|unix:PATH")]
    metrics: Option<MetricsAddress>,
    /// Write the process ID of the gateway, which takes SIGHUP and SIGTERM, to this file.
    #[arg(long, value_name = "FILE")]
    pid: Option<PathBuf>,
    /// The command and its arguments [default: $SHELL].
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A forwarded port of the host, and the command's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PortForward {
    address: Option<IpAddr>,
    host: u16,
    guest: u16,
}

/// Parses `8080`, `8080:80`, `127.0.0.1:8080:80` and `[::1]:8080:80`.
fn parse_forward(text: &str) -> Result<PortForward, String> {
    let error =
        || format!("`{text}` is not a forward; write PORT, HOSTPORT:PORT or ADDRESS:HOSTPORT:PORT");
    let (address, ports) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, ports) = rest.split_once("]:").ok_or_else(error)?;
            (Some(address), ports)
        }
        None => match text.split_once(':') {
            Some((address, ports)) if address.contains('.') => (Some(address), ports),
            _ => (None, text),
        },
    };
    let address = match address {
        Some(address) => Some(address.parse().map_err(|_| error())?),
        None => None,
    };
    let (host, guest) = ports.split_once(':').unwrap_or((ports, ports));
    let port = |text: &str| {
        parse_number(text)
            .filter(|port| *port != 0)
            .ok_or_else(error)
    };
    Ok(PortForward {
        address,
        host: port(host)?,
        guest: port(guest)?,
    })
}

/// Runs `fullsend gateway run`.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let (config, policy) = config(args)?;
    let (v4, v6) = (config.ipv4.clone(), config.ipv6.clone());
    let (Some(v4), Some(v6)) = (v4, v6) else {
        bail!("the gateway has no addresses");
    };
    let mut setup = InterfaceSetup {
        mtu: Some(args.mtu),
        addresses: vec![(v4.guest.into(), v4.prefix)],
        gateways: vec![v4.gateway.into()],
        loopback: true,
        accept_ra: Some(true),
        ..InterfaceSetup::default()
    };
    if let Some(guest) = v6.guest {
        setup.addresses.push((guest.into(), v6.prefix));
        setup.gateways.push(v6.gateway.into());
    }
    let tools = ToolSockets::from_options(args.control.path()?, args.metrics.as_ref())?;
    let resolvers = [v4.dns.map(IpAddr::from), v6.dns.map(IpAddr::from)];
    let resolv_conf = resolvers.into_iter().flatten();
    let lines: Vec<_> = resolv_conf
        .map(|dns| format!("nameserver {dns}\n"))
        .collect();
    let pid_file = args.pid.as_deref().map(PidFile::create).transpose()?;
    let spawned = NewNamespaces {
        user: true,
        run_as: None,
        first: FirstProcess::Reaper,
        tap: TAP_NAME.to_owned(),
        setup,
        resolv_conf: Some(lines.concat()),
        read_only: policy.as_ref().and_then(PolicySource::guard),
        protected: pid_file.iter().filter_map(PidFile::protected).collect(),
        hidden: Vec::new(),
        command: command(args),
    }
    .make()?;
    let tap = &spawned.tap;
    let file = tap.file.try_clone().context("cannot use the TAP")?;
    let device = Tun::tap(&tap.name).mtu(tap.mtu).adopt(file)?;
    let device = captured(device, &tap.name, args.pcap.as_deref())?;
    leave_terminal()?;
    let tools = tools.with_policy(policy, Some(&spawned))?;
    if let Some(file) = pid_file {
        file.write()?;
    }
    let opener = resolv_conf_opener(&config, None)?;
    close_inherited();
    for refused in Sandbox::default().apply_where_possible() {
        tracing::warn!("{refused}; the gateway runs without this restriction");
    }
    let done = runtime()?.block_on(async {
        let mut builder = Gateway::builder().config(config).device(device);
        if let Some(opener) = opener {
            builder = builder.resolv_conf_opener(opener);
        }
        let gateway = builder.build()?;
        let reloads = tools.has_policy();
        let _files = tools.serve(&gateway)?;
        relay_command(gateway, &spawned, reloads).await
    });
    done.or_else(|error| {
        let not_run = error.downcast::<NotRun>()?;
        errln!("error: {not_run}");
        Ok(ExitCode::from(not_run.status()))
    })
}

fn command(args: &RunArgs) -> Vec<OsString> {
    if !args.command.is_empty() {
        return args.command.clone();
    }
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    vec![shell.unwrap_or_else(|| OsString::from("/bin/sh"))]
}

/// Returns the gateway's settings, and the file of its policy.
fn config(args: &RunArgs) -> Result<(Config, Option<PolicySource>)> {
    let mut config = Config {
        mtu: args.mtu,
        ..Config::default()
    };
    if let Some(v6) = &mut config.ipv6 {
        // The address is fixed, so that the command need not wait for an advertisement.
        v6.guest = Some("fd00::100".parse()?);
    }
    if args.no_host_loopback {
        config.mappings.clear();
    }
    udp_filter::apply(args.udp_filter, &mut config)?;
    memory::apply(args.memory, &mut config)?;
    let policy = policy::apply(args.policy.as_deref(), &mut config)?;
    for (protocol, forwards) in [(Protocol::Tcp, &args.tcp), (Protocol::Udp, &args.udp)] {
        for forward in forwards {
            config
                .forwards
                .extend(forwards_of(protocol, *forward, &config));
        }
    }
    Ok((config, policy))
}

/// Returns the forwards of one argument. Without an address, there is one for each address family.
fn forwards_of(protocol: Protocol, forward: PortForward, config: &Config) -> Vec<Forward> {
    let v4 = config.ipv4.as_ref().map(|v4| IpAddr::from(v4.guest));
    let v6 = config
        .ipv6
        .as_ref()
        .and_then(|v6| v6.guest)
        .map(IpAddr::from);
    let unspecified: [(IpAddr, _); 2] = [([0; 4].into(), v4), ([0; 16].into(), v6)];
    let hosts = match forward.address {
        Some(address) => vec![(address, if address.is_ipv4() { v4 } else { v6 })],
        None => unspecified.into(),
    };
    let forwards = hosts.into_iter().filter_map(|(host, guest)| {
        Some(Forward {
            from: Side::Host,
            protocol,
            host: (host, forward.host).into(),
            guest: (guest?, forward.guest).into(),
            interface: None,
        })
    });
    forwards.collect()
}

#[cfg(test)]
mod tests {
    use super::{PortForward, parse_forward};

    #[test]
    fn forwards_have_an_optional_address_and_an_optional_second_port() {
        let rows = [
            ("80", None, 80, 80),
            ("8080:80", None, 8080, 80),
            ("127.0.0.1:8080:80", Some("127.0.0.1"), 8080, 80),
            ("127.0.0.1:80", Some("127.0.0.1"), 80, 80),
            ("[::1]:8080:80", Some("::1"), 8080, 80),
        ];
        for (text, address, host, guest) in rows {
            let address = address.map(|a| a.parse().unwrap());
            let want = PortForward {
                address,
                host,
                guest,
            };
            assert_eq!(parse_forward(text), Ok(want), "{text}");
        }
        for text in [
            "", "0", "x", "1:2:3", "[::1]80", "[::1]:", "70000", "a.b:1", "1:", "+80", "80:+80",
        ] {
            assert!(parse_forward(text).is_err(), "{text}");
        }
    }
}
