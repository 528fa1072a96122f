//! The command line of the program, and its checks.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use fullsend_stack::{Cidr, QdiscConfig};
use fullsend_tcp::congestion::CongestionSet;

use crate::gateway::GatewayArgs;
use crate::lab::Lab;
use crate::script::ScriptArgs;
use crate::size;
use crate::stat::args::{ControlArgs, StatArgs};
use crate::top::TopArgs;
use crate::wan::WanArgs;

/// The default port of `perf serve`.
pub(crate) const DEFAULT_PORT: u16 = 5211;
/// Largest `--message` in bytes, as the source of a stream keeps one in memory.
const MESSAGE_MAX: usize = 64 << 20;

/// Measures, inspects and tests a userspace TCP/IP stack, and compares it with the kernel's.
#[derive(Parser)]
#[command(name = "fullsend", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Measure throughput, transactions and memory, of this stack or of the kernel's.
    #[command(subcommand)]
    Perf(Perf),
    /// Inspect a running stack, and change settings: counters, sockets, links, tunables, captures.
    ///
    /// The stack's process must have opened a control socket: `gateway run --control`,
    /// `perf ... --control`, `Builder::control_socket` of the fullsend crate, or control=on in the
    /// settings of a C program.
    Stat(StatArgs),
    /// Show a running stack live in the terminal: its flows by their rates, and what holds each back.
    ///
    /// Works for any stack with a control socket; those of a gateway show the guest's flows, others
    /// their sockets. Keys: q quits, p pauses, r, u, d, b, t and s sort.
    Top(TopArgs),
    /// Run experiments that show each mechanism beside the figures of its reference.
    #[command(subcommand)]
    Lab(Lab),
    /// Emulate a path in real time, between two TUN devices, with the parameters of tc netem.
    ///
    /// Packets that the kernel sends into one device leave the other, later or not at all. Move one
    /// of the devices into another network namespace (ip link set NAME netns NS), or put a Fullsend
    /// stack behind the same routes. Needs CAP_NET_ADMIN if the devices do not exist.
    Wan(WanArgs),
    /// Run packet scripts: traces that the stack must follow, in virtual time (docs/scripts.md).
    Script(ScriptArgs),
    /// Give a network namespace a network through ordinary sockets of the host, without privileges.
    Gateway(GatewayArgs),
    /// Stand in for slirp4netns, with its options (slirp4netns --help lists them).
    #[command(name = "slirp4netns", disable_help_flag = true)]
    Slirp4netns(PersonalityArgs),
    /// Stand in for pasta, with its options (pasta --help lists them).
    #[command(name = "pasta", disable_help_flag = true)]
    Pasta(PersonalityArgs),
    /// Stand in for passt, with its options (passt --help lists them).
    #[command(name = "passt", disable_help_flag = true)]
    Passt(PersonalityArgs),
    /// Stand in for gvproxy, with its options (gvproxy -help lists them).
    #[command(name = "gvproxy", disable_help_flag = true)]
    Gvproxy(PersonalityArgs),
    /// Show and change the port forwards of a running pasta (pesto --help lists the options).
    #[command(name = "pesto", disable_help_flag = true)]
    Pesto(PersonalityArgs),
}

/// The options of another program, which parses them itself.
#[derive(Args)]
pub(crate) struct PersonalityArgs {
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "OPTION"
    )]
    _options: Vec<std::ffi::OsString>,
}

#[derive(Subcommand)]
pub(crate) enum Perf {
    /// Measure bulk transfer: bits per second received.
    ///
    /// By default both hosts run in this process, joined by an in-process link. Nothing is
    /// installed and no privilege is needed.
    Stream(StreamArgs),
    /// Measure requests and responses: transactions per second, and latency.
    ///
    /// By default both hosts run in this process, joined by an in-process link. Nothing is
    /// installed and no privilege is needed.
    Rr(RrArgs),
    /// Measure connections: each is opened, carries a request and a response, and is closed.
    ///
    /// The server closes first, so that TIME-WAIT is not at the client, whose ports would be used up.
    /// By default both hosts run in this process, joined by an in-process link.
    Crr(RrArgs),
    /// Serve `perf stream`, `perf rr` and `perf crr` clients that use --connect, until Ctrl-C.
    Serve(ServeArgs),
    /// Measure the memory of idle established connections, with both ends in this process.
    Idle(IdleArgs),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Api {
    /// The tokio sockets.
    Tokio,
    /// One task at each end that serves all connections with a `TcpSet`.
    Set,
    /// The sans-IO hosts, driven in a tight loop.
    Core,
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokio => "tokio",
            Self::Set => "set",
            Self::Core => "core",
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum NicKind {
    /// Super-segments cross the in-process link whole, as through a NIC with TSO and LRO.
    Tso,
    /// Every packet is segmented to the MTU, with checksums computed and verified.
    Mtu,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum PumpMode {
    /// After every write, like a socket.
    Write,
    /// Only when the connection accepts no more data.
    Full,
}

/// The device of the kernel to use, and the addresses of the stack behind it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DeviceArgs {
    /// Put the stack behind the TUN device of this name, which is created if it does not exist
    /// (that needs CAP_NET_ADMIN). The kernel's side gets the address of --connect if that is on
    /// the link, and another one of the network otherwise.
    #[arg(long, value_name = "NAME", requires = "address", group = "device")]
    pub(crate) tun: Option<String>,
    /// Put the stack on this Ethernet interface of the kernel, e.g. one end of a veth pair, through a
    /// packet socket (that needs CAP_NET_RAW).
    #[arg(long, value_name = "INTERFACE", requires = "address", group = "device")]
    pub(crate) packet: Option<String>,
    /// The stack's address behind the device, with its prefix length, as in 10.0.0.2/24. May be
    /// repeated.
    #[arg(long, value_name = "CIDR", requires = "device")]
    pub(crate) address: Vec<Cidr>,
    /// Gateway for destinations that are not on the link: usually the kernel's side, which
    /// forwards.
    #[arg(long, value_name = "IP", requires = "device")]
    pub(crate) gateway: Option<IpAddr>,
    /// Plain TUN: no virtio_net header, so that each MTU-sized packet is one system call.
    #[arg(long, requires = "tun")]
    pub(crate) plain: bool,
    /// Offloads of the TUN to use: all, none, or a list of vnet_hdr, csum, tso4, tso6, tso, uso;
    /// a minus sign removes one, as in all,-tso6.
    #[arg(
        long,
        value_name = "LIST",
        requires = "tun",
        conflicts_with = "plain",
        allow_hyphen_values = true
    )]
    pub(crate) offload: Option<String>,
    /// Poll the device for this many microseconds after each packet before sleeping.
    #[arg(long, value_name = "US", requires = "device", default_value_t = 0)]
    pub(crate) busy_poll: u32,
}

/// The arguments of both tests.
#[derive(Args, Clone, Debug)]
pub(crate) struct CommonArgs {
    /// Number of concurrent connections.
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = parse_flows)]
    flows: usize,
    /// Duration in seconds.
    #[arg(short, long, value_name = "S", default_value = "10", value_parser = parse_time)]
    time: Duration,
    /// Set TCP_NODELAY on both sides.
    #[arg(short = 'N', long)]
    nodelay: bool,
    /// Congestion control on both sides (TCP_CONGESTION), as in cubic, reno, bbr or dctcp. dctcp
    /// is negotiated in the handshake: a remote server needs --set tcp_congestion_control=dctcp,
    /// too.
    #[arg(short = 'K', long, value_name = "NAME")]
    congestion: Option<String>,
    /// NIC of the in-process link.
    #[arg(long, value_enum, value_name = "KIND")]
    nic: Option<NicKind>,
    /// Whether the in-process hosts coalesce received packets, like `ethtool -K DEV gro`
    /// [default: on].
    #[arg(long, value_enum, value_name = "ON|OFF")]
    gro: Option<OnOff>,
    /// Largest IP packet on the in-process link or the device, in bytes [default: 1500].
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<u32>,
    /// Set a tunable of the stack under its Linux name, as in --set tcp_sack=0. May be
    /// repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    set: Vec<(String, String)>,
    /// Queueing discipline of the stack's device, in tc's syntax, as in "fq" or "tbf rate 1gbit
    /// burst 64kb" (also "pfifo limit 1000") [default: noqueue].
    #[arg(long, value_name = "QDISC")]
    qdisc: Option<QdiscConfig>,
    /// Print the result as one JSON object.
    #[arg(short = 'J', long)]
    json: bool,
    /// Use IPv6 between the in-process hosts, or on the kernel's loopback.
    #[arg(short = '6', long)]
    ipv6: bool,
    /// Which programming interface of the stack to use.
    #[arg(long, value_enum, value_name = "API")]
    api: Option<Api>,
    /// Use the kernel's sockets instead of the stack's.
    #[arg(long, conflicts_with = "device")]
    kernel: bool,
    /// Connect to a `perf serve` at this address; the port may be omitted.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_endpoint)]
    connect: Option<SocketAddr>,
    /// Threads for client and server together when both run here: 1 or 2
    /// [default: 1, with --kernel 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=2))]
    threads: Option<u8>,
    /// Shards of each stack, each with a thread of its own that runs its flows [default: 1].
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["threads", "kernel"],
        value_parser = clap::value_parser!(u8).range(1..=64)
    )]
    shards: Option<u8>,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct StreamArgs {
    /// Bytes per write; K, M and G are 1024-based.
    #[arg(short, long, value_name = "BYTES", default_value = "128K", value_parser = parse_message)]
    message: usize,
    /// Make the server send and the client receive.
    #[arg(short = 'R', long)]
    reverse: bool,
    /// Lend and take buffers instead of copying in and out.
    #[arg(short = 'Z', long)]
    zerocopy: bool,
    /// Verify every received byte.
    #[arg(long)]
    verify: bool,
    /// With --api core: when to pass packets to the link.
    #[arg(long, value_enum, value_name = "WHEN")]
    pump: Option<PumpMode>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct RrArgs {
    /// Bytes of each request and response; K, M and G are 1024-based.
    #[arg(short, long = "rr", value_name = "REQ,RESP", default_value = "1,1", value_parser = size::parse_pair)]
    rr: (usize, usize),
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Serve with the kernel's sockets.
    #[arg(long, conflicts_with = "device")]
    pub(crate) kernel: bool,
    /// Address to listen on, with or without a port [default: any address, port 5211].
    #[arg(long, value_name = "ADDR", value_parser = parse_bind)]
    pub(crate) bind: Option<SocketAddr>,
    /// Largest IP packet on the device, in bytes [default: 1500].
    #[arg(long, value_name = "BYTES", requires = "device", value_parser = parse_mtu)]
    pub(crate) mtu: Option<u32>,
    /// Set a tunable of the stack under its Linux name. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", requires = "device", value_parser = parse_set)]
    pub(crate) set: Vec<(String, String)>,
    /// Queueing discipline of the stack's device, in tc's syntax, as in "fq" or "tbf rate 1gbit
    /// burst 64kb" (also "pfifo limit 1000") [default: noqueue].
    #[arg(long, value_name = "QDISC", requires = "device")]
    pub(crate) qdisc: Option<QdiscConfig>,
    /// Shards of the stack, each with a thread of its own that runs its flows.
    #[arg(
        long,
        value_name = "N",
        requires = "tun",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=64)
    )]
    pub(crate) shards: u8,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct IdleArgs {
    /// Number of connections.
    #[arg(short = 'P', long, value_name = "N", default_value_t = 10_000, value_parser = parse_flows)]
    pub(crate) connections: usize,
    /// Which programming interface of the stack to use.
    #[arg(long, value_enum, value_name = "API", default_value = "core")]
    pub(crate) api: Api,
    /// Print the result as one JSON object.
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

/// The traffic of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Test {
    Stream {
        message: usize,
        reverse: bool,
        zerocopy: bool,
        verify: bool,
        pump: PumpMode,
    },
    Rr {
        request: usize,
        response: usize,
    },
    Crr {
        request: usize,
        response: usize,
    },
}

impl Test {
    /// Returns the test's name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stream { .. } => "stream",
            Self::Rr { .. } => "rr",
            Self::Crr { .. } => "crr",
        }
    }

    /// Returns whether the server is the sender.
    pub(crate) fn is_reverse(self) -> bool {
        matches!(self, Self::Stream { reverse: true, .. })
    }
}

/// The stacks and the path of a test.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum TestSetup {
    /// Two Fullsend hosts in this process, through the tokio API.
    Pair(InProcessLink),
    /// Two Fullsend hosts in this process, with a `TcpSet` at each.
    Set(InProcessLink),
    /// Two Fullsend hosts in this process, driven directly.
    Core(InProcessLink),
    /// The kernel on both sides, over its loopback.
    Loopback { ipv6: bool },
    /// The kernel as client of a remote server.
    Kernel { server: SocketAddr },
    /// The Fullsend stack behind a device of the kernel, as client of a remote server.
    Device {
        server: SocketAddr,
        device: DeviceConfig,
    },
}

/// The link between two hosts in this process.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct InProcessLink {
    pub(crate) nic: NicKind,
    pub(crate) mtu: u32,
    pub(crate) ipv6: bool,
    /// GRO: the hosts coalesce received packets.
    pub(crate) gro: bool,
}

impl InProcessLink {
    /// The link without any argument.
    pub(crate) const DEFAULT: Self = Self {
        nic: NicKind::Tso,
        mtu: 1500,
        ipv6: false,
        gro: true,
    };
}

/// The kinds of devices of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceKind {
    /// A TUN, made if it does not exist.
    Tun,
    /// An Ethernet interface, through a packet socket.
    Packet,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tun => "TUN",
            Self::Packet => "packet socket",
        })
    }
}

/// The device to open, and the stack behind it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct DeviceConfig {
    pub(crate) kind: DeviceKind,
    pub(crate) name: String,
    pub(crate) addresses: Vec<Cidr>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) plain: bool,
    pub(crate) offload: Option<String>,
    pub(crate) busy_poll: Duration,
    pub(crate) mtu: u32,
}

/// The arguments of a test, checked.
#[derive(Clone, Debug)]
pub(crate) struct TestArgs {
    pub(crate) test: Test,
    pub(crate) flows: usize,
    pub(crate) time: Duration,
    pub(crate) nodelay: bool,
    pub(crate) congestion: Option<String>,
    pub(crate) setup: TestSetup,
    pub(crate) set: Vec<(String, String)>,
    pub(crate) qdisc: QdiscConfig,
    pub(crate) threads: u8,
    pub(crate) shards: usize,
    pub(crate) json: bool,
    pub(crate) control: ControlArgs,
}

impl TestArgs {
    /// Returns whether buffers are lent and taken, at each end in this process.
    pub(crate) fn zerocopy(&self) -> bool {
        matches!(self.test, Test::Stream { zerocopy: true, .. })
    }
}

impl TryFrom<StreamArgs> for TestArgs {
    type Error = anyhow::Error;

    fn try_from(args: StreamArgs) -> Result<Self> {
        if args.common.kernel && args.zerocopy {
            bail!("--zerocopy applies to the fullsend stack; remove it, or --kernel");
        }
        if args.pump.is_some() && args.common.api != Some(Api::Core) {
            bail!("--pump applies to --api core; add --api core, or remove --pump");
        }
        if args.common.api == Some(Api::Set) {
            bail!("--api set measures `perf rr`; remove it, or use `perf rr`");
        }
        if args.reverse && args.common.api == Some(Api::Core) {
            bail!("--reverse has no effect with --api core; remove it");
        }
        let test = Test::Stream {
            message: args.message,
            reverse: args.reverse,
            zerocopy: args.zerocopy,
            verify: args.verify,
            pump: args.pump.unwrap_or(PumpMode::Write),
        };
        args.common.into_test_args(test)
    }
}

impl TryFrom<RrArgs> for TestArgs {
    type Error = anyhow::Error;

    fn try_from(args: RrArgs) -> Result<Self> {
        let (request, response) = args.rr;
        args.common.into_test_args(Test::Rr { request, response })
    }
}

impl RrArgs {
    /// Returns the arguments of a test with a connection for each transaction.
    pub(crate) fn into_crr(self) -> Result<TestArgs> {
        if let Some(api @ (Api::Core | Api::Set)) = self.common.api {
            bail!("--api {api} measures connections that exist; remove it, or use `perf rr`");
        }
        let (request, response) = self.rr;
        let test = Test::Crr { request, response };
        self.common.into_test_args(test)
    }
}

/// Most connections to a server at another address: about as many as there are ephemeral ports.
const FLOWS_TO_SERVER: usize = 28_000;

impl CommonArgs {
    fn into_test_args(self, test: Test) -> Result<TestArgs> {
        let setup = self.setup()?;
        let threads = match (&setup, self.threads) {
            (TestSetup::Core(_) | TestSetup::Set(_), Some(2)) => bail!(
                "--threads 2 is not possible with --api core and --api set, which drive both hosts \
                 from one thread; remove --threads"
            ),
            (TestSetup::Loopback { .. } | TestSetup::Pair(_), Some(n)) => n,
            (_, Some(_)) => bail!(
                "--threads applies to tests with both ends in this process; remove it, or --connect"
            ),
            (TestSetup::Loopback { .. }, None) => 2,
            (_, None) => 1,
        };
        if let (TestSetup::Core(_) | TestSetup::Set(_), Some(2..), Some(api)) =
            (&setup, self.shards, self.api)
        {
            bail!("--api {api} has one shard; remove --shards, or --api {api}");
        }
        let connects = matches!(setup, TestSetup::Device { .. } | TestSetup::Kernel { .. });
        if connects && self.flows > FLOWS_TO_SERVER {
            bail!(
                "--flows {} is more than one port of a server can have from one address; use at \
                 most {FLOWS_TO_SERVER} with --connect",
                self.flows
            );
        }
        // Sysctls are set first: the handshake depends on the congestion control, and each socket
        // takes it from there.
        let known = self
            .congestion
            .as_deref()
            .filter(|name| CongestionSet::ALL.contains(name));
        let congestion_sysctl =
            known.map(|name| ("tcp_congestion_control".to_owned(), name.to_owned()));
        Ok(TestArgs {
            test,
            flows: self.flows,
            time: self.time,
            nodelay: self.nodelay,
            congestion: self.congestion,
            setup,
            set: congestion_sysctl.into_iter().chain(self.set).collect(),
            qdisc: self.qdisc.unwrap_or_default(),
            threads,
            shards: self.shards.unwrap_or(1).into(),
            json: self.json,
            control: self.control,
        })
    }

    fn setup(&self) -> Result<TestSetup> {
        let link = InProcessLink {
            nic: self.nic.unwrap_or(InProcessLink::DEFAULT.nic),
            mtu: self.mtu.unwrap_or(InProcessLink::DEFAULT.mtu),
            ipv6: self.ipv6,
            gro: self.gro.is_none_or(|gro| gro == OnOff::On),
        };
        let ipv6 = self.ipv6;
        if self.kernel {
            for (given, name) in [
                (self.nic.is_some(), "--nic"),
                (self.gro.is_some(), "--gro"),
                (self.mtu.is_some(), "--mtu"),
                (!self.set.is_empty(), "--set"),
                (self.qdisc.is_some(), "--qdisc"),
                (self.api.is_some(), "--api"),
                (self.control.is_given(), "--control"),
            ] {
                if given {
                    bail!("{name} applies to the fullsend stack; remove it, or --kernel");
                }
            }
            return Ok(match self.connect {
                Some(server) => TestSetup::Kernel { server },
                None => TestSetup::Loopback { ipv6 },
            });
        }
        match (self.device.option(), self.connect) {
            (Some(_), Some(server)) => {
                if self.nic.is_some() {
                    bail!(
                        "--nic applies to the in-process link; with --tun, use --offload or --plain \
                         instead"
                    );
                }
                if self.gro.is_some() {
                    bail!("--gro applies to the in-process link; remove it, or the device");
                }
                if let Some(api @ (Api::Core | Api::Set)) = self.api {
                    bail!(
                        "--api {api} drives two hosts in this process; remove the device and \
                         --connect, or --api {api}"
                    );
                }
                let device = self.device.clone().validate(link.mtu)?;
                Ok(TestSetup::Device { server, device })
            }
            (Some((option, _, name)), None) => {
                bail!("{option} {name} requires a server to connect to; add --connect ADDR:PORT")
            }
            (None, Some(server)) => bail!(
                "--connect {server} requires a stack to connect from; add --kernel, or --tun NAME \
                 --address CIDR"
            ),
            (None, None) if self.api == Some(Api::Core) => {
                if self.control.is_given() {
                    bail!("--control is not possible with --api core; remove one of them");
                }
                Ok(TestSetup::Core(link))
            }
            (None, None) if self.api == Some(Api::Set) => Ok(TestSetup::Set(link)),
            (None, None) => Ok(TestSetup::Pair(link)),
        }
    }
}

impl DeviceArgs {
    /// Returns the option that chooses the device, its kind and its name.
    fn option(&self) -> Option<(&'static str, DeviceKind, &str)> {
        match (&self.tun, &self.packet) {
            (Some(name), _) => Some(("--tun", DeviceKind::Tun, name)),
            (None, Some(name)) => Some(("--packet", DeviceKind::Packet, name)),
            (None, None) => None,
        }
    }

    /// Checks the arguments, and returns the device that they name.
    pub(crate) fn validate(self, mtu: u32) -> Result<DeviceConfig> {
        let Some((option, kind, name)) = self.option() else {
            bail!("`perf serve` requires a stack; add --kernel, or --tun NAME --address CIDR");
        };
        if name.is_empty() || name.len() > 15 || name.contains(['/', ' ']) {
            bail!(
                "{option} `{name}` is not an interface name; write 1 to 15 characters without \
                 spaces and /, e.g. tun0"
            );
        }
        Ok(DeviceConfig {
            kind,
            name: name.to_owned(),
            addresses: self.address,
            gateway: self.gateway,
            plain: self.plain,
            offload: self.offload,
            busy_poll: Duration::from_micros(self.busy_poll.into()),
            mtu,
        })
    }
}

/// Returns the error text for a congestion control that a stack does not have.
pub(crate) fn congestion_error(name: &str) -> String {
    format!("--congestion `{name}` is not available on this stack; write cubic, reno, bbr or dctcp")
}

fn parse_flows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=1_000_000) => Ok(n),
        _ => Err(format!(
            "`{text}` is not a number of connections; write 1 to 1000000"
        )),
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 86_400.0 => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!(
            "`{text}` is not a time; write seconds above 0 and up to 86400, e.g. 0.5"
        )),
    }
}

fn parse_message(text: &str) -> Result<usize, String> {
    match size::parse(text)? {
        n if n > MESSAGE_MAX => Err(format!("`{text}` is too large; write 64M or less")),
        n => Ok(n),
    }
}

pub(crate) fn parse_mtu(text: &str) -> Result<u32, String> {
    match size::parse(text) {
        // RFC 8200 5: IPv6 requires an MTU of at least 1280.
        Ok(n @ 1280..=65_535) => Ok(n as u32),
        _ => Err(format!(
            "`{text}` is not an MTU; write bytes from 1280 to 65535"
        )),
    }
}

fn parse_set(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(format!("`{text}` is not KEY=VALUE; write e.g. tcp_sack=0")),
    }
}

fn parse_endpoint(text: &str) -> Result<SocketAddr, String> {
    with_port(text).ok_or_else(|| {
        format!("`{text}` is not ADDR:PORT; write e.g. 10.0.0.2:5211 or [fd00::2]:5211")
    })
}

fn parse_bind(text: &str) -> Result<SocketAddr, String> {
    with_port(text).ok_or_else(|| {
        format!("`{text}` is not an address; write e.g. 127.0.0.1, [::1]:5211 or 0.0.0.0:0")
    })
}

fn with_port(text: &str) -> Option<SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse()
        .ok()
        .or_else(|| Some(SocketAddr::new(bare.parse().ok()?, DEFAULT_PORT)))
}

impl ServeArgs {
    /// Returns the address to listen on: all addresses of both families unless `--bind` names one.
    pub(crate) fn listen_on(&self) -> SocketAddr {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), DEFAULT_PORT);
        self.bind.unwrap_or(any)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command, InProcessLink, NicKind, Perf, TestArgs, TestSetup};

    fn parse(line: &str) -> Result<TestArgs, String> {
        let words = ["fullsend", "perf"].into_iter().chain(line.split(' '));
        let cli = Cli::try_parse_from(words).map_err(|e| e.to_string())?;
        let Command::Perf(perf) = cli.command else {
            panic!("{line} is not a test");
        };
        match perf {
            Perf::Stream(args) => TestArgs::try_from(args),
            Perf::Rr(args) => TestArgs::try_from(args),
            Perf::Crr(args) => args.into_crr(),
            _ => return Err("not a test".into()),
        }
        .map_err(|e| e.to_string())
    }

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn setups() {
        let default = TestSetup::Pair(InProcessLink::DEFAULT);
        assert_eq!(parse("stream").unwrap().setup, default);
        let core = parse("rr --api core --nic mtu -6").unwrap();
        let link = InProcessLink {
            nic: NicKind::Mtu,
            ipv6: true,
            ..InProcessLink::DEFAULT
        };
        assert_eq!(core.setup, TestSetup::Core(link));
        let gro = parse("stream --gro off").unwrap();
        let off = InProcessLink {
            gro: false,
            ..InProcessLink::DEFAULT
        };
        assert_eq!(gro.setup, TestSetup::Pair(off));
        assert_eq!(parse("stream --kernel").unwrap().threads, 2);
        let client = parse("stream --kernel --connect 10.0.0.2").unwrap();
        let server = "10.0.0.2:5211".parse().unwrap();
        assert_eq!(client.setup, TestSetup::Kernel { server });
        let tun = parse("rr --tun t0 --address fd00::1/64 --plain --connect [fd00::2]:9").unwrap();
        assert!(matches!(tun.setup, TestSetup::Device { .. }));
    }

    #[test]
    fn errors_name_the_value_and_a_hint() {
        for (line, value, hint) in [
            ("stream --nic foo", "foo", "tso"),
            ("rr -r 4X", "4X", "K, M, G"),
            ("rr -r 0", "0", "1 or more"),
            ("crr --api core", "--api core", "perf rr"),
            ("stream -m 65M", "65M", "64M"),
            ("stream --time never", "never", "seconds"),
            ("stream --time 0", "0", "above 0"),
            ("stream --flows 0", "0", "1 to 1000000"),
            ("stream --mtu 100", "100", "1280"),
            ("stream --set tcp_sack", "tcp_sack", "KEY=VALUE"),
            ("stream --connect here --kernel", "here", "10.0.0.2:5211"),
            ("stream --connect 10.0.0.2", "10.0.0.2", "--kernel"),
            ("stream --tun t0 --address 10.0.0.1/24", "t0", "--connect"),
            (
                "stream --tun t0 --address 10.0.0.1/33 --connect 10.0.0.2",
                "10.0.0.1/33",
                "10.9.0.2/24",
            ),
            ("stream --tun t0 --connect 10.0.0.2", "--address", "CIDR"),
            ("stream --kernel --nic tso", "--nic", "remove it"),
            ("stream --kernel --gro off", "--gro", "remove it"),
            ("stream --gro never", "never", "on, off"),
            ("stream --qdisc red", "red", "noqueue, pfifo, fq or tbf"),
            ("stream --kernel --qdisc fq", "--qdisc", "remove it"),
            ("stream --kernel --zerocopy", "--zerocopy", "remove it"),
            (
                "stream --threads 2 --api core",
                "--threads 2",
                "remove --threads",
            ),
        ] {
            let error = parse(line).expect_err(line);
            assert!(
                error.contains(value) && error.contains(hint),
                "{line}: {error}"
            );
        }
    }
}
