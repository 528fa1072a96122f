//! The arguments of `fullsend perf`, as the command line gives them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use fullsend_stack::{Cidr, QdiscConfig};

use super::values::{
    DEFAULT_PORT, parse_bind, parse_endpoint, parse_flows, parse_message, parse_mtu, parse_set,
    parse_time,
};
use crate::size;
use crate::stat::args::ControlArgs;

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
    /// Put the stack on this Ethernet interface of the kernel through an AF_XDP socket, for many small
    /// packets (that needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF). The kernel no longer receives from
    /// the interface.
    #[arg(long, value_name = "INTERFACE", requires = "address", group = "device")]
    pub(crate) xdp: Option<String>,
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
    pub(super) flows: usize,
    /// Duration in seconds.
    #[arg(short, long, value_name = "S", default_value = "10", value_parser = parse_time)]
    pub(super) time: Duration,
    /// Set TCP_NODELAY on both sides.
    #[arg(short = 'N', long)]
    pub(super) nodelay: bool,
    /// Congestion control on both sides (TCP_CONGESTION), as in cubic, reno, bbr or dctcp. dctcp
    /// is negotiated in the handshake: a remote server needs --set tcp_congestion_control=dctcp,
    /// too.
    #[arg(short = 'K', long, value_name = "NAME")]
    pub(super) congestion: Option<String>,
    /// NIC of the in-process link.
    #[arg(long, value_enum, value_name = "KIND")]
    pub(super) nic: Option<NicKind>,
    /// Whether the in-process hosts coalesce received packets, like `ethtool -K DEV gro`
    /// [default: on].
    #[arg(long, value_enum, value_name = "ON|OFF")]
    pub(super) gro: Option<OnOff>,
    /// Largest IP packet on the in-process link or the device, in bytes [default: 1500].
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    pub(super) mtu: Option<u32>,
    /// Set a tunable of the stack under its Linux name, as in --set tcp_sack=0. May be
    /// repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    pub(super) set: Vec<(String, String)>,
    /// Queueing discipline of the stack's device, in tc's syntax, as in "fq" or "tbf rate 1gbit
    /// burst 64kb" (also "pfifo limit 1000") [default: noqueue].
    #[arg(long, value_name = "QDISC")]
    pub(super) qdisc: Option<QdiscConfig>,
    /// Print the result as one JSON object.
    #[arg(short = 'J', long)]
    pub(super) json: bool,
    /// Use IPv6 between the in-process hosts, or on the kernel's loopback.
    #[arg(short = '6', long)]
    pub(super) ipv6: bool,
    /// Which programming interface of the stack to use.
    #[arg(long, value_enum, value_name = "API")]
    pub(super) api: Option<Api>,
    /// Use the kernel's sockets instead of the stack's.
    #[arg(long, conflicts_with = "device")]
    pub(super) kernel: bool,
    /// Connect to a `perf serve` at this address; the port may be omitted.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_endpoint)]
    pub(super) connect: Option<SocketAddr>,
    /// Threads for client and server together when both run here: 1 or 2
    /// [default: 1, with --kernel 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(super) threads: Option<u8>,
    /// Shards of each stack, each with a thread of its own that runs its flows [default: 1].
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["threads", "kernel"],
        value_parser = clap::value_parser!(u8).range(1..=64)
    )]
    pub(super) shards: Option<u8>,
    #[command(flatten)]
    pub(super) control: ControlArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct StreamArgs {
    /// Bytes per write; K, M and G are 1024-based.
    #[arg(short, long, value_name = "BYTES", default_value = "128K", value_parser = parse_message)]
    pub(super) message: usize,
    /// Make the server send and the client receive.
    #[arg(short = 'R', long)]
    pub(super) reverse: bool,
    /// Lend and take buffers instead of copying in and out.
    #[arg(short = 'Z', long)]
    pub(super) zerocopy: bool,
    /// Verify every received byte.
    #[arg(long)]
    pub(super) verify: bool,
    /// With --api core: when to pass packets to the link.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(super) pump: Option<PumpMode>,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct RrArgs {
    /// Bytes of each request and response; K, M and G are 1024-based.
    #[arg(short, long = "rr", value_name = "REQ,RESP", default_value = "1,1", value_parser = size::parse_pair)]
    pub(super) rr: (usize, usize),
    #[command(flatten)]
    pub(super) common: CommonArgs,
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

impl ServeArgs {
    /// Returns the address to listen on: all addresses of both families unless `--bind` names one.
    pub(crate) fn listen_on(&self) -> SocketAddr {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), DEFAULT_PORT);
        self.bind.unwrap_or(any)
    }
}
