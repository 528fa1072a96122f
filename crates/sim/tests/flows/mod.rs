//! Bulk flows from one host to another over one bottleneck, and measurements of them.
#![allow(dead_code, reason = "each test file uses only some items")]

use std::net::SocketAddr;

use fullsend_sim::{HostId, LinkId, Netem, NicConfig, NicMode, Sim};
use fullsend_stack::{Cidr, IfaceId, ListenConfig, ListenerId, TcpId};
use fullsend_tcp::congestion::{CcInfo, CongestionControl, CongestionFactory};
use fullsend_tcp::{SocketOption, TcpInfo};
use fullsend_wire::{Instant, Nanos, Seed};

/// Time between polls of the sockets by the applications.
const POLL_INTERVAL: Nanos = Nanos::from_millis(1);

pub(crate) const fn secs(n: u64) -> Nanos {
    Nanos::from_secs(n)
}

pub(crate) const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// The path to the receiver, with the bottleneck, and back.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    pub(crate) netem: &'a str,
    pub(crate) reverse: &'a str,
}

/// One bulk flow.
pub(crate) struct Flow {
    client: TcpId,
    server: TcpId,
    /// Bytes that the application still has to write.
    left: u64,
    received: u64,
}

impl Flow {
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Ends the application's data.
    pub(crate) fn stop(&mut self) {
        self.left = 0;
    }

    /// Adds `bytes` to the application's data.
    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        self.left += bytes;
    }

    pub(crate) fn set_unlimited(&mut self) {
        self.left = u64::MAX;
    }

    fn poll(&mut self, sim: &mut Sim, hosts: [HostId; 2], buf: &mut [u8]) {
        let now = sim.now();
        while self.left > 0 {
            let n = self.left.min(buf.len() as u64) as usize;
            let written = sim
                .host(hosts[0])
                .tcp(self.client)
                .write(now, &buf[..n], false);
            let Ok(n) = written else { break };
            self.left -= n as u64;
        }
        while let Ok(n) = sim.host(hosts[1]).tcp(self.server).read(now, buf) {
            assert!(n > 0, "the stream ended");
            self.received += n as u64;
        }
    }
}

/// Two hosts and the path between them.
pub(crate) struct Testbed {
    sim: Sim,
    hosts: [HostId; 2],
    link: LinkId,
    to: SocketAddr,
    listener: ListenerId,
    buf: Vec<u8>,
}

impl Testbed {
    pub(crate) fn new(seed: u64, path: Path<'_>) -> Self {
        Self::with_qdisc(seed, path, "noqueue")
    }

    /// Returns a lab with this queueing discipline, in tc's syntax, in front of each card.
    pub(crate) fn with_qdisc(seed: u64, path: Path<'_>, qdisc: &str) -> Self {
        let mut sim = Sim::new(Seed::from_u64(seed));
        let hosts = [sim.add_host(), sim.add_host()];
        let nic = NicConfig {
            mode: NicMode::Mtu,
            ring: 100_000,
            qdisc: qdisc.parse().unwrap(),
            ..NicConfig::default()
        };
        let netem = [path.netem, path.reverse].map(|spec| spec.parse::<Netem>().unwrap());
        let link = sim.connect(hosts, nic, netem);
        for (host, addr) in hosts.into_iter().zip(["10.0.0.1", "10.0.0.2"]) {
            let addr = addr.parse().unwrap();
            let cidr = Cidr { addr, prefix: 24 };
            sim.host(host)
                .add_address(Instant::ZERO, IfaceId(0), cidr)
                .unwrap();
        }
        let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
        let config = ListenConfig {
            backlog: 128,
            defer_syn_ack: false,
            any_destination: false,
        };
        let listener = sim.host(hosts[1]).tcp_listen(to, config).unwrap();
        Self {
            sim,
            hosts,
            link,
            to,
            listener,
            buf: vec![0; 256 << 10],
        }
    }

    /// Opens a flow that writes without end.
    pub(crate) fn flow(&mut self, congestion: &str) -> Flow {
        self.open_flow(Some(congestion))
    }

    /// Opens a flow that writes without end, with the congestion control of the hosts.
    pub(crate) fn flow_with_default(&mut self) -> Flow {
        self.open_flow(None)
    }

    fn open_flow(&mut self, congestion: Option<&str>) -> Flow {
        let Self { sim, hosts, .. } = self;
        let now = sim.now();
        let host = sim.host(hosts[0]);
        let client = host.tcp_connect(now, None, self.to).unwrap();
        if let Some(congestion) = congestion {
            host.tcp(client).set_congestion(now, congestion).unwrap();
        }
        let mut server = None;
        sim.run_until(now + secs(60), |sim| {
            let incoming = sim.host(hosts[1]).listener(self.listener).accept().unwrap();
            server = incoming.map(|incoming| incoming.id);
            server.is_some()
        });
        Flow {
            client,
            server: server.expect("accepted"),
            left: u64::MAX,
            received: 0,
        }
    }

    pub(crate) fn run_for(&mut self, flows: &mut [&mut Flow], span: Nanos) {
        let end = self.sim.now() + span;
        while self.sim.now() < end {
            for flow in flows.iter_mut() {
                flow.poll(&mut self.sim, self.hosts, &mut self.buf);
            }
            let next = self.sim.now() + POLL_INTERVAL;
            self.sim.run_to(next.min(end));
        }
    }

    pub(crate) fn info(&mut self, flow: &Flow) -> TcpInfo {
        let now = self.sim.now();
        self.sim
            .host(self.hosts[0])
            .tcp(flow.client)
            .info(now)
            .unwrap()
    }

    pub(crate) fn cc(&mut self, flow: &Flow) -> CcInfo {
        let host = self.sim.host(self.hosts[0]);
        host.tcp(flow.client).cc_info().unwrap().1
    }

    /// Returns BBR's bandwidth estimate, in bytes per second.
    pub(crate) fn bw(&mut self, flow: &Flow) -> f64 {
        match self.cc(flow) {
            CcInfo::Bbr { bw, .. } => bw.0 as f64,
            other => panic!("{other:?}"),
        }
    }

    /// Sets `TCP_CONGESTION` at the sender during a flow.
    pub(crate) fn set_sender_congestion(&mut self, flow: &Flow, congestion: &str) {
        self.set_congestion(0, flow.client, congestion);
    }

    /// Sets `TCP_CONGESTION` at the receiver during a flow.
    pub(crate) fn set_receiver_congestion(&mut self, flow: &Flow, congestion: &str) {
        self.set_congestion(1, flow.server, congestion);
    }

    /// Gives the sender of a flow a congestion control of the test.
    pub(crate) fn set_sender_control(&mut self, flow: &Flow, control: Box<dyn CongestionControl>) {
        let now = self.sim.now();
        let host = self.sim.host(self.hosts[0]);
        host.tcp(flow.client)
            .set_congestion_with(now, control)
            .unwrap();
    }

    /// Gives new connections of the sender (0) or the receiver (1) a congestion control of the test.
    pub(crate) fn set_host_control<C: CongestionControl + 'static>(
        &mut self,
        host: usize,
        create: impl Fn() -> C + Send + Sync + 'static,
    ) {
        let factory = CongestionFactory::new(create);
        self.sim
            .host(self.hosts[host])
            .set_congestion_with(Some(factory));
    }

    /// Gives new connections of the receiver's listener a congestion control of the test.
    pub(crate) fn set_listener_control<C: CongestionControl + 'static>(
        &mut self,
        create: impl Fn() -> C + Send + Sync + 'static,
    ) {
        let factory = CongestionFactory::new(create);
        self.sim
            .host(self.hosts[1])
            .listener(self.listener)
            .set_congestion_with(factory)
            .unwrap();
    }

    /// Returns the names of the congestion controls of sender and receiver.
    pub(crate) fn congestion_of(&mut self, flow: &Flow) -> [&'static str; 2] {
        [(0, flow.client), (1, flow.server)].map(|(host, id)| {
            let host = self.sim.host(self.hosts[host]);
            host.tcp(id).options().unwrap().tcp_congestion
        })
    }

    fn set_congestion(&mut self, side: usize, id: TcpId, congestion: &str) {
        let now = self.sim.now();
        let host = self.sim.host(self.hosts[side]);
        host.tcp(id).set_congestion(now, congestion).unwrap();
    }

    /// Sets `SO_MAX_PACING_RATE`, in bytes per second.
    pub(crate) fn set_max_pacing_rate(&mut self, flow: &Flow, rate: u64) {
        let now = self.sim.now();
        self.sim
            .host(self.hosts[0])
            .tcp(flow.client)
            .set_option(now, SocketOption::SoMaxPacingRate(rate))
            .unwrap();
    }

    pub(crate) fn set_netem(&mut self, spec: &str) {
        self.sim
            .set_netem(self.link, self.hosts[0], spec.parse().unwrap());
    }

    pub(crate) fn sysctl(&mut self, name: &str, value: &str) {
        (0..self.hosts.len()).for_each(|host| self.sysctl_of(host, name, value));
    }

    /// Sets a sysctl of the sender (0) or the receiver (1) alone.
    pub(crate) fn sysctl_of(&mut self, host: usize, name: &str, value: &str) {
        let host = self.sim.host(self.hosts[host]);
        host.sysctl_mut().set(name, value).unwrap();
    }

    /// Returns a counter of the sender (0) or the receiver (1).
    pub(crate) fn counter(&mut self, host: usize, name: &str) -> u64 {
        let all = self.sim.host(self.hosts[host]).counters();
        let found = all.iter().find(|(n, _)| *n == name);
        found.unwrap_or_else(|| panic!("no {name}")).1
    }
}
