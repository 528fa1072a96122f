//! The checked arguments of a test: its traffic and its path.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, bail};
use fullsend_stack::{Cidr, QdiscConfig};
use fullsend_tcp::congestion::CongestionSet;

use super::perf::{Api, CommonArgs, DeviceArgs, NicKind, OnOff, PumpMode, RrArgs, StreamArgs};
use crate::stat::args::ControlArgs;

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
    /// Whether the hosts coalesce received packets (GRO).
    pub(crate) gro: bool,
}

impl InProcessLink {
    /// The link of a test without arguments.
    pub(crate) const DEFAULT: Self = Self {
        nic: NicKind::Tso,
        mtu: 1500,
        ipv6: false,
        gro: true,
    };

    /// Returns the server's address.
    pub(crate) const fn server_ip(self) -> IpAddr {
        if self.ipv6 {
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))
        }
    }
}

/// The kinds of devices of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceKind {
    /// A TUN, created if it does not exist.
    Tun,
    /// An Ethernet interface, through a packet socket.
    Packet,
    /// An Ethernet interface, through an `AF_XDP` socket.
    Xdp,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tun => "TUN",
            Self::Packet => "packet socket",
            Self::Xdp => "AF_XDP socket",
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

/// The checked arguments of a test.
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
    /// Returns whether buffers are lent and taken instead of copied, at each end in this process.
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
    /// Returns the arguments of a test that opens a connection for each transaction.
    pub(crate) fn into_crr(self) -> Result<TestArgs> {
        if let Some(api @ (Api::Core | Api::Set)) = self.common.api {
            bail!("--api {api} measures connections that exist; remove it, or use `perf rr`");
        }
        let (request, response) = self.rr;
        let test = Test::Crr { request, response };
        self.common.into_test_args(test)
    }
}

/// Most connections to a server at one other address: about the number of ephemeral ports.
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
        // Sysctls are set first, because each socket takes its congestion control from them, and the
        // handshake depends on it.
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
        let options = [
            ("--tun", DeviceKind::Tun, &self.tun),
            ("--packet", DeviceKind::Packet, &self.packet),
            ("--xdp", DeviceKind::Xdp, &self.xdp),
        ];
        let mut given = options.into_iter();
        given.find_map(|(option, kind, name)| Some((option, kind, name.as_deref()?)))
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

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{InProcessLink, NicKind, TestArgs, TestSetup};
    use crate::args::{Cli, Command, Perf};

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
