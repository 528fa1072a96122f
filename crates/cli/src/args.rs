//! The command line of the program, and its checks.

mod perf;
mod test_args;
mod values;

use clap::{Args, Parser, Subcommand};

pub(crate) use self::perf::{Api, IdleArgs, NicKind, Perf, PumpMode, ServeArgs};
pub(crate) use self::test_args::{
    DeviceConfig, DeviceKind, InProcessLink, Test, TestArgs, TestSetup, congestion_error,
};
pub(crate) use self::values::parse_mtu;
use crate::gateway::GatewayArgs;
use crate::lab::Lab;
use crate::script::ScriptArgs;
use crate::stat::args::StatArgs;
use crate::top::TopArgs;
use crate::wan::WanArgs;

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
