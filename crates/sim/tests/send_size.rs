//! The size of a bulk flow's sends: full super-segments in steady state, after a loss too.

mod common;

use std::net::SocketAddr;

use common::{IFACE, Scenario, counter, netem, pair};
use fullsend_sim::{HostId, NicConfig, Sim};
use fullsend_stack::{ListenConfig, TcpId};
use fullsend_tcp::{FlowReport, SendLimit};
use fullsend_wire::{Instant, Nanos, Rate};

/// 45 segments of 1448 bytes.
const FULL: u64 = 65_160;

/// A bulk flow over a card with a ring of one packet.
struct Bulk {
    sim: Sim,
    hosts: [HostId; 2],
    client: TcpId,
    server: TcpId,
    received: u64,
    buf: Vec<u8>,
}

impl Bulk {
    fn new(qdisc: &str, congestion: &str, link: &str) -> Self {
        Self::over(Rate(1_250_000_000), qdisc, congestion, link)
    }

    fn over(rate: Rate, qdisc: &str, congestion: &str, link: &str) -> Self {
        let scenario = Scenario {
            nic: NicConfig {
                rate,
                ring: 1,
                qdisc: qdisc.parse().unwrap(),
                ..NicConfig::default()
            },
            netem: netem(link),
            ..Scenario::default()
        };
        let (mut sim, hosts) = pair(&scenario);
        let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
        let listen = ListenConfig {
            backlog: 1,
            defer_syn_ack: false,
            any_destination: false,
        };
        let listener = sim.host(hosts[1]).tcp_listen(to, listen).unwrap();
        let now = sim.now();
        let client = sim.host(hosts[0]).tcp_connect(now, None, to).unwrap();
        let host = sim.host(hosts[0]);
        host.tcp(client).set_congestion(now, congestion).unwrap();
        let mut server = None;
        sim.run_until(Instant::from_nanos(5_000_000_000), |sim| {
            server = sim.host(hosts[1]).listener(listener).accept().unwrap();
            server.is_some()
        });
        Self {
            sim,
            hosts,
            client,
            server: server.expect("accepted").id,
            received: 0,
            buf: vec![0; 256 << 10],
        }
    }

    fn run(&mut self, span: Nanos) {
        let Self {
            sim,
            hosts,
            client,
            server,
            received,
            buf,
        } = self;
        let end = sim.now() + span;
        sim.run_until(end, |sim| {
            let now = sim.now();
            let host = sim.host(hosts[0]);
            while host.tcp(*client).write(now, &buf[..], false).is_ok() {}
            while let Ok(n) = sim.host(hosts[1]).tcp(*server).read(now, buf) {
                *received += n as u64;
            }
            false
        });
    }

    fn report(&mut self) -> FlowReport {
        let now = self.sim.now();
        let host = self.sim.host(self.hosts[0]);
        host.tcp(self.client).flow_report(now).unwrap()
    }

    /// Returns the bytes sent so far, and the number of sends.
    fn sent(&mut self) -> (u64, u64) {
        let now = self.sim.now();
        let host = self.sim.host(self.hosts[0]);
        let info = host.tcp(self.client).info(now).unwrap();
        (info.tcpi_bytes_sent, self.report().send_size.count())
    }

    /// Returns the mean size of sends in bytes, and the goodput in bytes per second, over `span`.
    fn measure(&mut self, span: Nanos) -> (u64, f64) {
        let (bytes, sends) = self.sent();
        let received = self.received;
        self.run(span);
        let (bytes_after, sends_after) = self.sent();
        let mean = (bytes_after - bytes) / (sends_after - sends).max(1);
        let rate = (self.received - received) as f64 / span.as_secs_f64();
        (mean, rate)
    }
}

#[test]
fn steady_state_sends_full_super_segments() {
    for (qdisc, congestion) in [
        ("noqueue", "cubic"),
        ("noqueue", "reno"),
        ("fq", "cubic"),
        ("fq", "reno"),
        ("fq", "bbr"),
        ("pfifo limit 1000", "cubic"),
    ] {
        let mut bulk = Bulk::new(qdisc, congestion, "delay 500us limit 100000");
        bulk.run(Nanos::from_millis(60));
        let (mean, rate) = bulk.measure(Nanos::from_millis(60));
        println!(
            "{qdisc} {congestion}: mean {mean}, {:.3} Gbit/s",
            rate * 8e-9
        );
        assert!(mean * 10 >= FULL * 9, "{qdisc} {congestion}: mean {mean}");
        // BBR leaves room for others in part of its cycle.
        let least = if congestion == "bbr" { 0.8 } else { 0.9 };
        assert!(rate > least * 1.25e9, "{qdisc} {congestion}: {rate}");
    }
}

/// A loss leaves no state that reduces later sends.
#[test]
fn a_loss_does_not_shrink_later_sends() {
    for (qdisc, congestion) in [("noqueue", "cubic"), ("noqueue", "reno"), ("fq", "cubic")] {
        let mut bulk = Bulk::new(qdisc, congestion, "delay 500us limit 100000 loss 0.1%");
        bulk.run(Nanos::from_millis(250));
        let lost = counter(&mut bulk.sim, bulk.hosts[0], "TcpRetransSegs");
        assert!(lost > 50, "{lost}");
        let (mean, rate) = bulk.measure(Nanos::from_millis(250));
        println!(
            "{qdisc} {congestion}: mean {mean}, {:.3} Gbit/s",
            rate * 8e-9
        );
        let report = bulk.report();
        let time = |limit| report.time(limit);
        assert!(time(SendLimit::Cwnd) > time(SendLimit::Rwnd));
        assert!(mean * 10 >= FULL * 9, "{qdisc} {congestion}: mean {mean}");
    }
}

/// TCP Small Queues: the host's queue never has more of a flow than keeps the card busy, although
/// cwnd would allow it.
#[test]
fn tsq_bounds_the_host_queue() {
    let card = Rate(12_500_000);
    let mut bulk = Bulk::over(card, "pfifo limit 1000", "cubic", "delay 5ms limit 100000");
    bulk.run(Nanos::from_secs(1));
    let (start, received) = (bulk.sim.now(), bulk.received);
    let mut most = 0;
    while bulk.sim.now() < start + Nanos::from_secs(1) {
        bulk.run(Nanos::from_micros(100));
        let stats = bulk.sim.host(bulk.hosts[0]).qdisc_stats(IFACE);
        most = most.max(stats.expect("an interface").backlog_bytes);
    }
    let rate = (bulk.received - received) as f64;
    println!("{most} bytes at most, {:.1} Mbit/s", rate * 8e-6);
    // Two super-segments, and one that is admitted below the limit.
    assert!(most <= 3 * FULL + 3 * 2000, "{most}");
    assert!(rate > 0.9 * card.0 as f64, "{rate}");
    assert!(bulk.report().time(SendLimit::Tsq) > Nanos::from_millis(900));
    let host = bulk.hosts[0];
    assert_eq!(counter(&mut bulk.sim, host, "TcpRetransSegs"), 0);
}
