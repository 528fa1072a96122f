//! Two senders at different distances, one receiver, and the bottleneck in front of it.

use std::net::SocketAddr;

use fullsend_offload::Slice;
use fullsend_sim::{HostId, Netem, NicConfig, NicMode, Sim};
use fullsend_stack::{Cidr, IfaceId, ListenConfig, ListenerId, TcpId};
use fullsend_wire::{Instant, Nanos, Rate, Seed};

/// Time between polls of the sockets by the applications.
const POLL_INTERVAL: Nanos = Nanos::from_millis(2);
/// Bytes of one write, which lends memory.
const MESSAGE: usize = 16 << 10;

/// A flow that competes with another one.
struct SenderFlow {
    host: HostId,
    ids: Option<(TcpId, TcpId)>,
    received: u64,
}

pub(super) struct Bottleneck {
    sim: Sim,
    flows: [SenderFlow; 2],
    receiver: HostId,
    listener: ListenerId,
    to: SocketAddr,
    message: Slice,
    rate: Rate,
}

/// The properties of the bottleneck.
#[derive(Clone, Copy)]
pub(super) struct BottleneckConfig {
    pub(super) rate: Rate,
    /// Most packets in the queue.
    pub(super) limit: u32,
    /// Time in the queue from which packets are marked.
    pub(super) ce_threshold: Nanos,
}

impl Bottleneck {
    /// Returns the network; `rtts` are round-trip times without queueing.
    pub(super) fn new(seed: u64, link: BottleneckConfig, rtts: [Nanos; 2]) -> Self {
        let mut sim = Sim::new(Seed::from_u64(seed));
        sim.set_hash_headers_only();
        let hosts = [(); 3].map(|()| sim.add_host());
        let nic = NicConfig {
            mode: NicMode::Mtu,
            ring: 1 << 20,
            ..NicConfig::default()
        };
        let down = Netem {
            rate: link.rate,
            limit: link.limit,
            ce_threshold: link.ce_threshold,
            ..Netem::default()
        };
        let wire = sim.switch(&hosts, nic, Netem::default(), down);
        for (i, host) in hosts.into_iter().enumerate() {
            // The delay of the whole round trip is in front of the bottleneck.
            let delay = rtts.get(i).copied().unwrap_or(Nanos::ZERO);
            let up = Netem {
                delay,
                limit: 1 << 20,
                ..Netem::default()
            };
            sim.set_netem(wire, host, up);
            let addr = [10, 0, 0, i as u8 + 1].into();
            let cidr = Cidr { addr, prefix: 24 };
            let host = sim.host(host);
            let added = host.add_address(Instant::ZERO, IfaceId(0), cidr);
            added.expect("a first address is free");
            let result = host.sysctl_mut().set("tcp_ecn", "1");
            result.expect("1 requests ECN");
        }
        let [first, second, receiver] = hosts;
        let to = SocketAddr::new([10, 0, 0, 3].into(), 5001);
        let config = ListenConfig {
            backlog: 2,
            defer_syn_ack: false,
            any_destination: false,
        };
        let listener = sim.host(receiver).tcp_listen(to, config);
        Self {
            flows: [first, second].map(|host| SenderFlow {
                host,
                ids: None,
                received: 0,
            }),
            listener: listener.expect("the port is free"),
            sim,
            receiver,
            to,
            rate: link.rate,
            message: Slice::copied_from(&vec![b'f'; MESSAGE]),
        }
    }

    pub(super) const fn now(&self) -> Instant {
        self.sim.now()
    }

    /// Opens one of the flows, which sends from now on.
    pub(super) fn start(&mut self, flow: usize, congestion: &str) {
        let (now, host, receiver, listener) = (
            self.sim.now(),
            self.flows[flow].host,
            self.receiver,
            self.listener,
        );
        // Both ends negotiate DCTCP.
        let chosen = self
            .sim
            .host(receiver)
            .listener(listener)
            .set_congestion(congestion);
        chosen.expect("it is available");
        let sender = self.sim.host(host);
        let client = sender.tcp_connect(now, None, self.to);
        let client = client.expect("there is a port");
        let chosen = sender.tcp(client).set_congestion(now, congestion);
        chosen.expect("it is available");
        let mut server = None;
        self.sim.run_until(now + Nanos::from_secs(10), |sim| {
            let incoming = sim.host(receiver).listener(listener).accept();
            server = incoming.expect("it listens").map(|i| i.id);
            server.is_some()
        });
        self.flows[flow].ids = server.map(|server| (client, server));
    }

    /// Lets both flows send for `span`.
    pub(super) fn run(&mut self, span: Nanos) {
        let end = self.sim.now() + span;
        while self.sim.now() < end {
            self.poll_apps();
            let next = self.sim.now() + POLL_INTERVAL;
            self.sim.run_to(next.min(end));
        }
    }

    fn poll_apps(&mut self) {
        let (now, receiver) = (self.sim.now(), self.receiver);
        for flow in &mut self.flows {
            let Some((client, server)) = flow.ids else {
                continue;
            };
            let sender = self.sim.host(flow.host);
            while sender
                .tcp(client)
                .write_slice(now, self.message.clone())
                .is_ok()
            {}
            while let Ok(chain) = self.sim.host(receiver).tcp(server).read_chain(now, MESSAGE)
                && !chain.is_empty()
            {
                flow.received += chain.len() as u64;
            }
        }
    }

    /// Returns the rate of the bottleneck in Mbit/s.
    pub(super) fn rate_mbps(&self) -> f64 {
        self.rate.0 as f64 * 8.0 / 1e6
    }

    /// Returns the bytes received of each flow.
    pub(super) fn received(&self) -> [u64; 2] {
        [self.flows[0].received, self.flows[1].received]
    }

    /// Returns the smoothed round-trip time of a flow, and its retransmitted segments.
    pub(super) fn info(&mut self, flow: usize) -> Option<(Nanos, u32)> {
        let (client, _) = self.flows[flow].ids?;
        let now = self.sim.now();
        let info = self.sim.host(self.flows[flow].host).tcp(client).info(now);
        let info = info.ok()?;
        let srtt = Nanos::from_micros(info.tcpi_rtt.into());
        Some((srtt, info.tcpi_total_retrans))
    }
}
