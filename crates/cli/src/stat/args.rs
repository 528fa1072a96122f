//! The command line of `stat`, and `--control` of the commands that it looks into.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};

/// What `--control` stands for alone.
const DEFAULT: &str = ".";

/// Opens the socket that `fullsend stat` looks through.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub(crate) struct ControlArgs {
    /// Open a control socket, so that `fullsend stat` can look into our stack while it runs
    /// [default path: PID.sock in $XDG_RUNTIME_DIR/fullsend or /run/fullsend]. Of two stacks in
    /// this process, that is the client's; the server's path ends in .server.sock.
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = DEFAULT)]
    control: Option<PathBuf>,
}

impl ControlArgs {
    /// It was asked for.
    pub(crate) fn is_given(&self) -> bool {
        self.control.is_some()
    }

    /// Where to open it, if at all.
    pub(crate) fn path(&self) -> Result<Option<PathBuf>> {
        match &self.control {
            None => Ok(None),
            Some(path) if path == Path::new(DEFAULT) => {
                Ok(Some(fullsend::control::default_path()?))
            }
            Some(path) => Ok(Some(path.clone())),
        }
    }

    /// The server's beside the client's.
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
    /// Print JSON in place of text.
    #[arg(short = 'J', long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: StatCommand,
}

#[derive(Subcommand)]
pub(crate) enum StatCommand {
    /// Counters: what they grew by since the last call, as nstat shows it.
    Nstat(NstatArgs),
    /// Sockets, in the shape of `ss -tinmo`.
    Ss(SsArgs),
    /// Numbers of sockets and their memory, as in /proc/net/sockstat.
    Sockstat,
    /// Addresses and their states, as `ip -brief address` shows them: `tentative` while duplicate
    /// address detection runs, `dadfailed` if another host on the link has the address.
    Addr,
    /// Packets and bytes of each link, as dlstat shows them: bytes include link headers, and a
    /// super-segment is one packet.
    Link(LinkArgs),
    /// Read a tunable, or set it with KEY=VALUE; all of them with -a.
    Sysctl {
        /// All tunables.
        #[arg(
            short,
            long,
            required_unless_present = "setting",
            conflicts_with = "setting"
        )]
        all: bool,
        /// The tunable's Linux name; `net.ipv4.` may be left out.
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
    /// The queue in front of each link, as `tc -s qdisc` shows it.
    Qdisc,
    /// Record packets as pcapng until Ctrl-C, at the place where the stack meets its device.
    Capture(CaptureArgs),
}

#[derive(Args, Clone, Copy)]
pub(crate) struct NstatArgs {
    /// Values since the stack's start (rates too), not since the last call.
    #[arg(short, long)]
    pub(crate) absolute: bool,
    /// Counters that are zero too.
    #[arg(short, long)]
    pub(crate) zeros: bool,
    /// Leave the history as it is, so that the next call shows the same and more.
    #[arg(short = 's', long)]
    pub(crate) noupdate: bool,
}

#[derive(Args, Clone)]
pub(crate) struct SsArgs {
    /// Listeners too.
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Listeners only.
    #[arg(short, long, conflicts_with = "all")]
    pub(crate) listening: bool,
    /// Why each flow is no faster: sizes of its sends, room they had, and what held it back.
    #[arg(long, conflicts_with = "summary")]
    pub(crate) why: bool,
    /// Print how many sockets there are, by protocol and state, in place of the sockets.
    #[arg(short, long, conflicts_with_all = ["all", "listening", "filter"])]
    pub(crate) summary: bool,
    /// Only sockets in these states, as `ss` takes them: `state STATE` or `exclude STATE`, any
    /// number of times. STATE is established, syn-sent, syn-recv, fin-wait-1, fin-wait-2,
    /// time-wait, closed, close-wait, last-ack, listening, closing, or a group: all, connected,
    /// synchronized, bucket, big.
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
    /// For the fingers' sake: these are always shown.
    #[arg(short = 't', short_aliases = ['i', 'n', 'm', 'o'], action = clap::ArgAction::Count, hide = true)]
    pub(crate) tinmo: u8,
}

#[derive(Args, Clone, Copy)]
pub(crate) struct LinkArgs {
    /// Print what passed in each interval of so many seconds, until Ctrl-C [default: print once
    /// what passed since the stack's start].
    #[arg(short, long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) interval: Option<u32>,
    /// Intervals to print.
    #[arg(short, long, value_name = "N", requires = "interval")]
    pub(crate) count: Option<u64>,
}

#[derive(Args, Clone)]
pub(crate) struct CaptureArgs {
    /// File to write; - for a pipe, as in `stat capture - | wireshark -k -i -`.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Packets to record (a super-segment is one) [default: until Ctrl-C].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Memory for packets that wait to be written, MiB; what comes when it is full is dropped, and
    /// the number printed at the end.
    #[arg(short = 'B', long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) buffer: u64,
    /// Which packets, in a part of tcpdump's language: tcp, udp, icmp, icmp6, ip, ip6, arp, host
    /// ADDR, net CIDR, port N, src and dst, joined by and, or, not and parentheses [default: all].
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
    /// Most bytes of each packet [default: all].
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) snaplen: Option<u32>,
}
