//! `--api core`: two sans-IO hosts that one loop on one thread connects and drives, in real time.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, Result, anyhow, bail};
use fullsend_offload::{Caps, Checksum, Link, Packet, TxToken};
use fullsend_stack::{
    Cidr, Host, HostConfig, IfaceConfig, IfaceId, ListenConfig, ListenerId, Mac, QdiscConfig,
    StackError, TcpId,
};
use fullsend_tcp::{FlowReport, SocketOption, State, Sysctl, TcpError};
use fullsend_wire::{Instant, Seed};

use crate::args::{InProcessLink, NicKind, Test, TestArgs, congestion_error};
use crate::flow::FLOWS_PER_PORT;
use crate::progress::TestProgress;
use crate::report::TestResult;
use crate::send_report::SendReport;
use crate::usage::{self, Counters, Usage};

mod rr;
mod stream;

/// The port of the first listener.
const PORT: u16 = 5211;
/// Bytes of free payload memory that each host keeps.
const POOL_BYTES: usize = 64 << 20;
/// Super-segments that a host transmits at a time: enough to amortise the work of a batch, few enough to
/// stay in the cache.
const BATCH: usize = 32;
/// Time for connections to open, and to finish after the test's duration.
const FINISH_TIMEOUT: Duration = Duration::from_secs(30);

/// A host with its interface.
pub(crate) struct PairHost {
    pub(crate) host: Host,
    iface: IfaceId,
    ip: IpAddr,
}

/// Two hosts, the link between them, and their common clock.
pub(crate) struct HostPair {
    pub(crate) client: PairHost,
    pub(crate) server: PairHost,
    nic: NicKind,
    epoch: Clock,
    /// Packets in the network cards, for each direction.
    to_server: Vec<Packet>,
    to_client: Vec<Packet>,
    tokens: Vec<TxToken>,
    /// The port of the next listener.
    next_port: u16,
}

impl PairHost {
    fn new(n: u8, sysctl: Sysctl, link: InProcessLink, qdisc: QdiscConfig) -> Result<Self> {
        let mut host = Host::new(HostConfig {
            seed: Seed::from_u64(n.into()),
            sysctl,
            pool_bytes: POOL_BYTES,
        });
        let caps = match link.nic {
            NicKind::Tso => Caps::offloading(Link::Ip, link.mtu),
            NicKind::Mtu => Caps::plain(Link::Ip, link.mtu),
        };
        let iface = host.add_interface(IfaceConfig {
            gro: link.gro,
            qdisc,
            ..IfaceConfig::new(caps, Mac([2, 0, 0, 0, 0, n]))
        });
        let (ip, prefix): (IpAddr, u8) = if link.ipv6 {
            ([0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into(), 64)
        } else {
            ([10, 0, 0, n].into(), 24)
        };
        let cidr = Cidr { addr: ip, prefix };
        host.add_address(Instant::ZERO, iface, cidr)
            .map_err(stack_error)?;
        Ok(Self { host, iface, ip })
    }

    fn counters(&self) -> Counters {
        let counters = self.host.counters();
        let named = counters.into_iter().map(|(n, v)| (n.to_owned(), v as i64));
        named.collect()
    }
}

impl HostPair {
    pub(crate) fn new(
        link: InProcessLink,
        set: &[(String, String)],
        qdisc: QdiscConfig,
    ) -> Result<Self> {
        let mut sysctl = Sysctl::default();
        for (key, value) in set {
            sysctl
                .set(key, value)
                .map_err(|error| anyhow!("cannot apply --set {key}={value}: {error}"))?;
        }
        Ok(Self {
            client: PairHost::new(1, sysctl.clone(), link, qdisc)?,
            server: PairHost::new(2, sysctl, link, qdisc)?,
            nic: link.nic,
            epoch: Clock::now(),
            to_server: Vec::new(),
            to_client: Vec::new(),
            tokens: Vec::new(),
            next_port: PORT,
        })
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.epoch.elapsed().as_nanos() as u64)
    }

    /// Moves the client's pending packets to its network card.
    #[inline]
    pub(crate) fn transmit(&mut self, now: Instant) {
        let PairHost { host, iface, .. } = &mut self.client;
        if host.needs_transmit(*iface) {
            host.transmit(now, *iface, &mut self.to_server, BATCH);
        }
    }

    /// Moves the client's pending packets, and the packets in its network card, to the server.
    pub(crate) fn carry_to_server(&mut self, now: Instant) {
        self.transmit(now);
        if !self.to_server.is_empty() {
            let (from, to) = (&mut self.client, &mut self.server);
            deliver(
                from,
                to,
                self.nic,
                &mut self.to_server,
                &mut self.tokens,
                now,
            );
        }
    }

    /// Moves the server's pending packets to the client.
    pub(crate) fn carry_to_client(&mut self, now: Instant) {
        let PairHost { host, iface, .. } = &mut self.server;
        if host.needs_transmit(*iface) {
            host.transmit(now, *iface, &mut self.to_client, BATCH);
            let (from, to) = (&mut self.server, &mut self.client);
            deliver(
                from,
                to,
                self.nic,
                &mut self.to_client,
                &mut self.tokens,
                now,
            );
        }
    }

    /// Runs timers that are due.
    pub(crate) fn poll_timers(&mut self, now: Instant) {
        for side in [&mut self.client, &mut self.server] {
            if side.host.poll_deadline().is_some_and(|at| at <= now) {
                side.host.poll(now);
            }
        }
    }

    fn listen(&mut self, on: SocketAddr) -> Result<ListenerId> {
        let config = ListenConfig {
            backlog: 4096,
            defer_syn_ack: false,
            any_destination: false,
        };
        self.server.host.tcp_listen(on, config).map_err(stack_error)
    }

    /// Opens connections to the necessary number of ports. Returns the handle of each at the client and
    /// at the server.
    pub(crate) fn open(&mut self, flows: usize) -> Result<Vec<(TcpId, TcpId)>> {
        let mut all = Vec::with_capacity(flows);
        while all.len() < flows {
            let to = SocketAddr::new(self.server.ip, self.next_port);
            self.next_port += 1;
            let listener = self.listen(to)?;
            let flows = FLOWS_PER_PORT.min(flows - all.len());
            all.extend(self.connect((listener, to), flows)?);
        }
        Ok(all)
    }

    /// Opens connections to one listener.
    fn connect(
        &mut self,
        (listener, to): (ListenerId, SocketAddr),
        flows: usize,
    ) -> Result<Vec<(TcpId, TcpId)>> {
        /// Concurrent handshakes; fewer than the SYN queue holds.
        const AT_ONCE: usize = 128;
        let limit = Clock::now() + FINISH_TIMEOUT;
        let mut clients: Vec<(u16, TcpId)> = Vec::with_capacity(flows);
        let mut servers: Vec<(u16, TcpId)> = Vec::with_capacity(flows);
        let mut open = 0;
        while open < flows {
            let now = self.now();
            while clients.len() < flows.min(open + AT_ONCE) {
                let host = &mut self.client.host;
                let id = host.tcp_connect(now, None, to).map_err(stack_error)?;
                let (local, _) = host.tcp(id).addrs().map_err(stack_error)?;
                clients.push((local.port(), id));
            }
            self.poll_timers(now);
            self.carry_to_server(now);
            self.carry_to_client(now);
            while let Some(new) = self
                .server
                .host
                .listener(listener)
                .accept()
                .map_err(stack_error)?
            {
                servers.push((new.remote.port(), new.id));
            }
            while open < servers.len().min(clients.len())
                && self.client.host.tcp(clients[open].1).state() == Ok(State::Established)
            {
                open += 1;
            }
            if Clock::now() > limit {
                bail!("only {open} of {flows} connections could be opened; use fewer with -P");
            }
        }
        clients.sort_unstable_by_key(|&(port, _)| port);
        servers.sort_unstable_by_key(|&(port, _)| port);
        let ids = clients.iter().zip(&servers);
        Ok(ids.map(|(&(_, c), &(_, s))| (c, s)).collect())
    }

    /// Returns the merged send reports of the clients.
    fn flow_report(&mut self, flows: &[(TcpId, TcpId)]) -> FlowReport {
        let now = self.now();
        let mut all = FlowReport::default();
        for &(client, _) in flows {
            if let Ok(report) = self.client.host.tcp(client).flow_report(now) {
                all.merge(&report);
            }
        }
        all
    }

    fn set_options(&mut self, flows: &[(TcpId, TcpId)], args: &TestArgs) -> Result<()> {
        let now = self.now();
        for &(client, server) in flows {
            for (host, id) in [
                (&mut self.client.host, client),
                (&mut self.server.host, server),
            ] {
                if args.nodelay {
                    host.tcp(id)
                        .set_option(now, SocketOption::TcpNodelay(true))
                        .map_err(stack_error)?;
                }
                if let Some(name) = &args.congestion {
                    host.tcp(id)
                        .set_congestion(now, name)
                        .map_err(stack_error)
                        .with_context(|| congestion_error(name))?;
                }
            }
        }
        Ok(())
    }
}

/// Passes frames to the receiver, and completes their tokens at the sender.
fn deliver(
    from: &mut PairHost,
    to: &mut PairHost,
    nic: NicKind,
    frames: &mut Vec<Packet>,
    tokens: &mut Vec<TxToken>,
    now: Instant,
) {
    for frame in &mut *frames {
        if frame.tx.socket != 0 {
            tokens.push(frame.tx);
        }
        if nic == NicKind::Mtu {
            // The receiver verifies the checksum, even though the sender has computed it.
            frame.offload.checksum = Checksum::Unverified;
        }
    }
    to.host.receive(now, to.iface, frames);
    for token in tokens.drain(..) {
        from.host.complete(now, token);
    }
}

pub(crate) fn stack_error(error: StackError) -> anyhow::Error {
    match error {
        StackError::Tcp(error) => anyhow!(error.to_string()),
        other => anyhow!("{other:?}"),
    }
}

/// Converts the result of a call on a connection: `None` if the call would block.
#[inline]
pub(crate) fn would_block_to_none<T>(result: Result<T, StackError>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(StackError::Tcp(TcpError::WouldBlock)) => Ok(None),
        Err(error) => Err(stack_error(error)),
    }
}

/// Runs the test.
pub(crate) fn run(
    link: InProcessLink,
    args: &TestArgs,
    progress: &TestProgress,
) -> Result<TestResult> {
    let mut pair = HostPair::new(link, &args.set, args.qdisc)?;
    let flows = pair.open(args.flows)?;
    pair.set_options(&flows, args)?;
    let counters = (pair.client.counters(), pair.server.counters());
    let usage = Usage::now()?;
    let started = Clock::now();
    progress.start();
    let (bytes, transactions) = match args.test {
        Test::Stream {
            message,
            zerocopy,
            verify,
            pump,
            ..
        } => {
            let params = stream::TransferParams {
                message,
                zerocopy,
                verify,
                pump,
                deadline: pair.now() + args.time.into(),
            };
            (stream::run(&mut pair, &flows, &params, progress)?, None)
        }
        Test::Rr { request, response } => {
            let deadline = pair.now() + args.time.into();
            let done = rr::run(&mut pair, &flows, (request, response), deadline, progress)?;
            let bytes = done.0 * (request + response) as u64;
            (bytes, Some(done))
        }
        Test::Crr { .. } => bail!("`perf crr` has no --api core; use `perf rr`"),
    };
    let seconds = started.elapsed().as_secs_f64();
    Ok(TestResult {
        seconds,
        bytes,
        transactions,
        usage: Usage::now()?.since(&usage),
        client: usage::delta(&counters.0, &pair.client.counters()),
        server: usage::delta(&counters.1, &pair.server.counters()),
        reverse: false,
        flow: Some(SendReport::from(&pair.flow_report(&flows))),
    })
}
