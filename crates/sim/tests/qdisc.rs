//! Queueing disciplines between hosts and their cards.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use common::{IFACE, MODES, Scenario, counter, netem, pair, run};
use fullsend_sim::{HostId, NicConfig, Sim, TracePoint};
use fullsend_stack::{ListenConfig, SocketCursor, TcpId};
use fullsend_tcp::SocketOption;
use fullsend_wire::{Instant, Nanos, Rate};

fn scenario(nic: NicConfig, link: &str) -> Scenario {
    Scenario {
        nic,
        netem: netem(link),
        ..Scenario::default()
    }
}

/// Returns a card of 100 Mbit/s with a short ring behind `qdisc`.
fn slow_card(qdisc: &str) -> NicConfig {
    NicConfig {
        rate: Rate(12_500_000),
        ring: 2,
        qdisc: qdisc.parse().unwrap(),
        ..NicConfig::default()
    }
}

/// Senders on one host, and a sink on the other.
struct Flows {
    sim: Sim,
    hosts: [HostId; 2],
    clients: Vec<TcpId>,
    servers: Vec<(TcpId, SocketAddr)>,
    /// Bytes received, by the client's address.
    got: BTreeMap<SocketAddr, u64>,
}

impl Flows {
    fn new(scenario: &Scenario, n: usize) -> Self {
        let (mut sim, hosts) = pair(scenario);
        let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
        let listen = ListenConfig {
            backlog: 256,
            defer_syn_ack: false,
            any_destination: false,
        };
        let listener = sim.host(hosts[1]).tcp_listen(to, listen).unwrap();
        let connect = |_| {
            sim.host(hosts[0])
                .tcp_connect(Instant::ZERO, None, to)
                .unwrap()
        };
        let clients = (0..n).map(connect).collect();
        let mut servers = Vec::new();
        let all = sim.run_until(Instant::from_nanos(30_000_000_000), |sim| {
            while let Ok(Some(incoming)) = sim.host(hosts[1]).listener(listener).accept() {
                let (_, remote) = sim.host(hosts[1]).tcp(incoming.id).addrs().unwrap();
                servers.push((incoming.id, remote));
            }
            servers.len() == n
        });
        assert!(all, "{} of {n} connected", servers.len());
        Self {
            sim,
            hosts,
            clients,
            servers,
            got: BTreeMap::new(),
        }
    }

    /// Lets all senders write as much as possible, and the sink read, for `span`.
    fn stream(&mut self, span: Nanos) {
        let Self {
            sim, hosts, got, ..
        } = self;
        let data = vec![b'x'; 64 << 10];
        let mut buf = vec![0; 64 << 10];
        let deadline = sim.now() + span;
        sim.run_until(deadline, |sim| {
            let now = sim.now();
            for id in &self.clients {
                while sim.host(hosts[0]).tcp(*id).write(now, &data, false).is_ok() {}
            }
            for (id, from) in &self.servers {
                while let Ok(n @ 1..) = sim.host(hosts[1]).tcp(*id).read(now, &mut buf) {
                    *got.entry(*from).or_default() += n as u64;
                }
            }
            false
        });
    }

    /// Returns the bytes charged to all clients that the device has not completed.
    fn charged(&mut self) -> u64 {
        let now = self.sim.now();
        let mut sockets = Vec::new();
        let host = self.sim.host(self.hosts[0]);
        let mut cursor = Some(SocketCursor::default());
        while let Some(at) = cursor {
            cursor = host.sockets(now, at, 64, &mut sockets);
        }
        let tcp = sockets.iter().filter_map(|s| s.tcp.as_ref());
        tcp.map(|tcp| tcp.memory.wmem_alloc).sum()
    }
}

/// Returns counters of the packets that the host passes to the card, and of those among them that
/// come before their departure time.
fn count_departures(sim: &mut Sim, host: HostId) -> Rc<RefCell<(u64, u64)>> {
    let seen = Rc::new(RefCell::new((0, 0)));
    let counts = seen.clone();
    sim.set_observer(move |event| {
        if event.host == host && event.point == TracePoint::Queued && event.packet.tx.socket != 0 {
            let early = event
                .packet
                .tx
                .departure_ns
                .saturating_sub(event.at.as_nanos());
            let mut counts = counts.borrow_mut();
            counts.0 += 1;
            counts.1 += u64::from(early > 0);
        }
    });
    seen
}

#[test]
fn paced_flows_share_a_slow_card_and_never_leave_early() {
    for (mode, _) in MODES {
        let nic = NicConfig {
            mode,
            ..slow_card("fq")
        };
        let mut flows = Flows::new(&scenario(nic, "delay 5ms"), 16);
        let host = flows.hosts[0];
        let seen = count_departures(&mut flows.sim, host);
        flows.stream(Nanos::from_millis(500));
        flows.got.clear();
        flows.stream(Nanos::from_secs(4));
        let bytes: Vec<u64> = flows.got.values().copied().collect();
        let mean = bytes.iter().sum::<u64>() / 16;
        assert_eq!(bytes.len(), 16);
        for got in &bytes {
            assert!(got.abs_diff(mean) * 10 < mean, "{mode:?}: {bytes:?}");
        }
        // Nearly the whole rate of the card.
        assert!(mean * 16 > 44_000_000, "{mode:?}: {}", mean * 16);
        let (packets, early) = *seen.borrow();
        assert!(packets > 500, "{packets}");
        assert_eq!(early, 0, "{mode:?}");
        let stats = flows.sim.host(host).qdisc_stats(IFACE).unwrap();
        assert_eq!(stats.dropped, 0, "{stats}");
    }
}

#[test]
fn fq_enforces_so_max_pacing_rate() {
    let nic = NicConfig {
        qdisc: "fq".parse().unwrap(),
        ..NicConfig::default()
    };
    let mut flows = Flows::new(&scenario(nic, "delay 5ms"), 2);
    let host = flows.hosts[0];
    let seen = count_departures(&mut flows.sim, host);
    let now = flows.sim.now();
    let rates = [1_000_000, 3_000_000];
    for (id, rate) in flows.clients.clone().into_iter().zip(rates) {
        let option = SocketOption::SoMaxPacingRate(rate);
        flows
            .sim
            .host(host)
            .tcp(id)
            .set_option(now, option)
            .unwrap();
    }
    flows.stream(Nanos::from_secs(1));
    flows.got.clear();
    flows.stream(Nanos::from_secs(10));
    let bytes: Vec<u64> = flows.got.values().copied().collect();
    let mut sorted = bytes.clone();
    sorted.sort_unstable();
    for (got, rate) in sorted.into_iter().zip(rates) {
        // Rates count headers.
        let with_headers = got * 1520 / 1448;
        assert!(
            with_headers.abs_diff(rate * 10) * 50 < rate * 10,
            "{bytes:?}"
        );
    }
    assert_eq!(seen.borrow().1, 0);
    let stats = flows.sim.host(host).qdisc_stats(IFACE).unwrap();
    assert!(stats.fq.unwrap().throttled > 1000, "{stats}");
}

#[test]
fn a_token_bucket_keeps_its_rate_and_lets_bursts_pass() {
    for (mode, _) in MODES {
        let nic = NicConfig {
            mode,
            qdisc: "tbf rate 40mbit burst 64kb latency 20ms".parse().unwrap(),
            ..NicConfig::default()
        };
        let mut flows = Flows::new(&scenario(nic, "delay 2ms"), 4);
        flows.stream(Nanos::from_secs(4));
        let all: u64 = flows.got.values().sum();
        let most = 20_000_000 + 65_536 + 70_000;
        assert!((18_500_000..most).contains(&all), "{mode:?}: {all}");
    }
}

#[test]
fn every_charged_packet_is_completed_once_even_if_dropped() {
    for qdisc in [
        "pfifo limit 2",
        "fq limit 12 flow_limit 3",
        "fq horizon 1ms",
        "tbf rate 30mbit burst 3000 limit 9kb",
    ] {
        for (mode, _) in MODES {
            let nic = NicConfig {
                mode,
                ..slow_card(qdisc)
            };
            // Completing a packet that is not charged triggers an assertion in the connection.
            let mut flows = Flows::new(&scenario(nic, "delay 5ms loss 0.5%"), 6);
            flows.stream(Nanos::from_secs(3));
            let host = flows.hosts[0];
            let busy = flows.charged();
            let later = flows.sim.now() + Nanos::from_secs(300);
            let (hosts, servers) = (flows.hosts, flows.servers.clone());
            let mut buf = vec![0; 64 << 10];
            let quiet = flows.sim.run_until(later, |sim| {
                let now = sim.now();
                for (id, _) in &servers {
                    while let Ok(1..) = sim.host(hosts[1]).tcp(*id).read(now, &mut buf) {}
                }
                sim.host(hosts[0]).tcp_unflushed_count() == 0
            });
            assert!(quiet, "{qdisc}: not all was acknowledged");
            assert_eq!(flows.charged(), 0, "{qdisc} {mode:?}, {busy} when busy");
            let stats = flows.sim.host(host).qdisc_stats(IFACE).unwrap();
            assert_eq!(stats.backlog_packets, 0, "{stats}");
            let discards = counter(&mut flows.sim, host, "IpOutDiscards");
            // The qdisc counts the segments of a super-segment one by one, and IP counts it once.
            assert!(discards <= stats.dropped, "{discards}: {stats}");
            assert_eq!(discards > 0, stats.dropped > 0, "{discards}: {stats}");
            if qdisc.contains("limit") {
                assert!(stats.dropped > 0, "nothing was dropped: {stats}");
            }
        }
    }
}

#[test]
fn a_throttled_queue_sleeps_until_it_is_due() {
    let nic = NicConfig {
        qdisc: "tbf rate 8kbit burst 200".parse().unwrap(),
        ..NicConfig::default()
    };
    let mut flows = Flows::new(&scenario(nic, "delay 1ms"), 1);
    let now = flows.sim.now();
    let (client, host) = (flows.clients[0], flows.hosts[0]);
    let (mut steps, mut got) = (0, 0);
    for _ in 0..2 {
        let now = flows.sim.now();
        let written = flows
            .sim
            .host(host)
            .tcp(client)
            .write(now, &[1; 1000], false);
        assert_eq!(written.unwrap(), 1000);
        let until = got + 1000;
        while got < until {
            steps += 1;
            assert!(flows.sim.step(now + Nanos::from_secs(10)));
            let at = flows.sim.now();
            let mut buf = [0; 1000];
            let sink = flows.sim.host(flows.hosts[1]);
            if let Ok(n) = sink.tcp(flows.servers[0].0).read(at, &mut buf) {
                got += n;
            }
        }
    }
    // The first packet leaves when the 112 bytes of the handshake are paid, the second when the
    // 1052 bytes of the first are: 1000 bytes per second.
    let took = flows.sim.now().since(now).as_millis();
    assert!((1_052..1_200).contains(&took), "{took} ms");
    assert!(steps < 40, "{steps} events for two packets");
}

#[test]
fn every_qdisc_carries_both_directions() {
    for qdisc in [
        "pfifo",
        "fq",
        "fq maxrate 50mbit",
        "tbf rate 80mbit burst 20kb",
    ] {
        for (mode, v6) in MODES {
            let nic = NicConfig {
                mode,
                ..slow_card(qdisc)
            };
            run(&Scenario {
                v6,
                ..scenario(nic, "delay 3ms loss 0.3%")
            });
        }
    }
}

/// A full qdisc of the host is congestion that the connection learns of at once: cwnd is reduced,
/// and dropped segments are retransmitted without waiting for the peer's report.
#[test]
fn qdisc_drops_are_retransmitted_at_once() {
    let nic = slow_card("pfifo limit 4");
    let mut flows = Flows::new(&scenario(nic, "delay 20ms"), 4);
    flows.stream(Nanos::from_secs(5));
    let host = flows.hosts[0];
    let dropped = flows.sim.host(host).qdisc_stats(IFACE).unwrap().dropped;
    let mut count = |name| counter(&mut flows.sim, host, name);
    assert!(dropped > 10, "{dropped}");
    let reported = count("TcpExtFullsendHostDrops");
    assert!(
        reported > 0 && reported <= dropped,
        "{reported} of {dropped}"
    );
    for reason in ["TcpExtTCPTimeouts", "TcpExtTCPSackRecovery"] {
        assert_eq!(count(reason), 0, "{reason}");
    }
}
