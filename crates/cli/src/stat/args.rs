//! The command line of `stat`, and the `--control` option of the commands that it inspects.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};

/// The value of `--control` if it is given without a path.
const DEFAULT: &str = ".";

/// The option that opens a control socket for `fullsend stat`.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub(crate) struct ControlArgs {
    /// Open a control socket, so that `fullsend stat` can inspect the stack while it runs
    /// [default path: PID.sock in $XDG_RUNTIME_DIR/fullsend or /run/fullsend]. With two stacks in
    /// this process it is the client's; the server's path ends in .server.sock.
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = DEFAULT)]
    control: Option<PathBuf>,
}

impl ControlArgs {
    /// Returns whether the option was given.
    pub(crate) fn is_given(&self) -> bool {
        self.control.is_some()
    }

    /// Returns the path of the socket to open, if any.
    pub(crate) fn path(&self) -> Result<Option<PathBuf>> {
        match &self.control {
            None => Ok(None),
            Some(path) if path == Path::new(DEFAULT) => {
                Ok(Some(fullsend::control::default_path()?))
            }
            Some(path) => Ok(Some(path.clone())),
        }
    }

    /// Returns the path of the server's socket, derived from the client's.
    pub(crate) fn server_path(client: &Path) -> PathBuf {
        client.with_extension("server.sock")
    }
}

#[derive(Args)]
pub(crate) struct StatArgs {
    /// The stack's control socket [default: that of the only process that has one in
    /// $XDG_RUNTIME_DIR/fullsend or /run/fullsend].
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(short = 'J', long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: StatCommand,
}

#[derive(Subcommand)]
pub(crate) enum StatCommand {
    /// Print the increase of each counter since the last call, like nstat.
    Nstat(NstatArgs),
    /// Print the sockets, in the format of `ss -tinmo`.
    Ss(SsArgs),
    /// Print the flows of a gateway: the guest's and the host's socket of each, and what holds it back.
    ///
    /// Connections that the kernel splices, and DNS over TCP, are counted in the summary and not listed.
    Gateway(GatewayArgs),
    /// Print the number of sockets and their memory, as in /proc/net/sockstat.
    Sockstat,
    /// Print the addresses and their states, like `ip -brief address`: `tentative` while duplicate
    /// address detection runs, `dadfailed` if another host on the link has the address.
    Addr,
    /// Print the packets and bytes of each link, like dlstat: bytes include link headers, and a
    /// super-segment is one packet.
    Link(LinkArgs),
    /// Print a tunable, or set it with KEY=VALUE; -a prints all.
    Sysctl {
        /// Print all tunables.
        #[arg(
            short,
            long,
            required_unless_present = "setting",
            conflicts_with = "setting"
        )]
        all: bool,
        /// The tunable's Linux name; `net.ipv4.` may be omitted.
        #[arg(value_name = "KEY[=VALUE]")]
        setting: Option<String>,
    },
    /// Set a socket option of a live connection, as in `set sk:1000000 TCP_NODELAY=1`.
    Set {
        /// The connection: its id as `stat ss` shows it, or LOCAL:PORT-PEER:PORT.
        #[arg(value_name = "FLOW")]
        flow: String,
        /// TCP_NODELAY, TCP_CORK, TCP_QUICKACK, TCP_MAXSEG, TCP_USER_TIMEOUT (ms), TCP_SYNCNT,
        /// TCP_KEEPIDLE (s), TCP_KEEPINTVL (s), TCP_KEEPCNT, TCP_NOTSENT_LOWAT,
        /// TCP_CONGESTION, SO_KEEPALIVE, SO_LINGER (s or off), SO_SNDBUF, SO_RCVBUF, SO_RCVLOWAT
        /// or SO_MAX_PACING_RATE (bytes/s or max), with its value.
        #[arg(value_name = "OPTION=VALUE")]
        setting: String,
    },
    /// Print the queueing discipline of each link, like `tc -s qdisc`.
    Qdisc,
    /// Capture packets between the stack and its device as pcapng, until Ctrl-C.
    Capture(CaptureArgs),
}

#[derive(Args, Clone, Copy)]
pub(crate) struct NstatArgs {
    /// Show values (and rates) since the stack's start, instead of since the last call.
    #[arg(short, long)]
    pub(crate) absolute: bool,
    /// Also show counters that are zero.
    #[arg(short, long)]
    pub(crate) zeros: bool,
    /// Do not update the history, so that the next call includes this growth.
    #[arg(short = 's', long)]
    pub(crate) noupdate: bool,
}

#[derive(Args, Clone)]
pub(crate) struct SsArgs {
    /// Also show listeners.
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Show listeners only.
    #[arg(short, long, conflicts_with = "all")]
    pub(crate) listening: bool,
    /// Show what limits each flow: the sizes of its sends, the bytes that could still have been
    /// sent, and the limits that blocked it.
    #[arg(long, conflicts_with = "summary")]
    pub(crate) why: bool,
    /// Print the number of sockets, by protocol and state, instead of the sockets.
    #[arg(short, long, conflicts_with_all = ["all", "listening", "filter"])]
    pub(crate) summary: bool,
    /// Show only sockets in these states, in the syntax of `ss`: `state STATE` or `exclude STATE`,
    /// any number of times. STATE is established, syn-sent, syn-recv, fin-wait-1, fin-wait-2,
    /// time-wait, closed, close-wait, last-ack, listening, closing, or a group: all, connected,
    /// synchronized, bucket, big.
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
    /// Accepted for compatibility with `ss`: these fields are always shown.
    #[arg(short = 't', short_aliases = ['i', 'n', 'm', 'o'], action = clap::ArgAction::Count, hide = true)]
    pub(crate) tinmo: u8,
}

#[derive(Args, Clone)]
pub(crate) struct GatewayArgs {
    /// Print the guest's addresses and leases, the numbers of flows, the memory and the counters
    /// instead of the flows.
    #[arg(short, long, conflicts_with_all = ["listening", "tcp", "udp", "filter"])]
    pub(crate) summary: bool,
    /// Print the forwards instead of the flows.
    #[arg(short, long, conflicts_with = "filter")]
    pub(crate) listening: bool,
    /// Show TCP.
    #[arg(short, long)]
    pub(crate) tcp: bool,
    /// Show UDP.
    #[arg(short, long)]
    pub(crate) udp: bool,
    /// Show only flows in these states of the guest's side, in the syntax of `ss`: `state STATE` or
    /// `exclude STATE`, any number of times, as for `stat ss`.
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
}

#[derive(Args, Clone, Copy)]
pub(crate) struct LinkArgs {
    /// Print the traffic of each interval of this many seconds, until Ctrl-C [default: print the
    /// traffic since the stack's start once].
    #[arg(short, long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) interval: Option<u32>,
    /// Number of intervals to print.
    #[arg(short, long, value_name = "N", requires = "interval")]
    pub(crate) count: Option<u64>,
}

#[derive(Args, Clone)]
pub(crate) struct CaptureArgs {
    /// File to write; - for a pipe, as in `stat capture - | wireshark -k -i -`.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Number of packets to record (a super-segment is one) [default: until Ctrl-C].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Memory for packets that are not yet written, in MiB; packets that arrive when it is full are
    /// dropped, and their number is printed at the end.
    #[arg(short = 'B', long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) buffer: u64,
    /// Packets to record, in a subset of tcpdump's language: tcp, udp, icmp, icmp6, ip, ip6, arp,
    /// host ADDR, net CIDR, port N, src and dst, joined by and, or, not and parentheses [default:
    /// all].
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
    /// Most bytes to record of each packet [default: all].
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) snaplen: Option<u32>,
}
