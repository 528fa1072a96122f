//! The network: switches, cards, watchers.

mod common;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use common::{IFACE, Scenario, netem, pair};
use fullsend_offload::Link;
use fullsend_sim::{HostId, NicConfig, NicMode, Sim, TracePoint, format_packet};
use fullsend_stack::{Cidr, ListenConfig, StackError};
use fullsend_tcp::TcpError;
use fullsend_wire::{Instant, Nanos, Rate, Seed};

const LISTEN: ListenConfig = ListenConfig {
    backlog: 64,
    defer_syn_ack: false,
    any_destination: false,
};

fn secs(n: u64) -> Instant {
    Instant::ZERO + Nanos::from_secs(n)
}

/// Returns hosts 10.0.0.1, .2, … on a switch.
fn star(n: usize, nic: NicConfig, up: &str, down: &str) -> (Sim, Vec<HostId>) {
    let mut sim = Sim::new(Seed::from_u64(5));
    let hosts: Vec<_> = (0..n).map(|_| sim.add_host()).collect();
    sim.switch(&hosts, nic, netem(up), netem(down));
    for (i, host) in hosts.iter().enumerate() {
        let addr = format!("10.0.0.{}", i + 1).parse().unwrap();
        let cidr = Cidr { addr, prefix: 24 };
        sim.host(*host)
            .add_address(Instant::ZERO, IFACE, cidr)
            .unwrap();
    }
    (sim, hosts)
}

#[test]
fn incast_through_a_switch() {
    const SENDERS: usize = 8;
    const BYTES: usize = 200_000;
    let (mut sim, hosts) = star(
        SENDERS + 1,
        NicConfig::default(),
        "delay 50us rate 1gbit",
        "delay 50us rate 1gbit limit 60",
    );
    let to: SocketAddr = "10.0.0.1:9".parse().unwrap();
    let listener = sim.host(hosts[0]).tcp_listen(to, LISTEN).unwrap();
    let data = vec![b'x'; BYTES];
    let mut senders: Vec<_> = hosts[1..]
        .iter()
        .map(|host| {
            let id = sim.host(*host).tcp_connect(Instant::ZERO, None, to);
            (*host, id.unwrap(), 0)
        })
        .collect();
    let (mut accepted, mut got) = (Vec::new(), 0);
    let done = sim.run_until(secs(60), |sim| {
        let now = sim.now();
        for (host, id, sent) in &mut senders {
            while *sent < BYTES
                && let Ok(n) = sim.host(*host).tcp(*id).write(now, &data[*sent..], false)
            {
                *sent += n;
            }
        }
        let sink = sim.host(hosts[0]);
        while let Ok(Some(incoming)) = sink.listener(listener).accept() {
            accepted.push(incoming.id);
        }
        let mut buf = [0; 4096];
        for id in &accepted {
            while let Ok(n @ 1..) = sink.tcp(*id).read(now, &mut buf) {
                got += n;
            }
        }
        got == SENDERS * BYTES
    });
    assert!(done, "{got} bytes of {}", SENDERS * BYTES);
}

#[test]
fn a_switch_forwards_only_to_the_destination() {
    let (mut sim, hosts) = star(3, NicConfig::default(), "", "");
    let unrelated = Rc::new(RefCell::new(0));
    let counter = unrelated.clone();
    let bystander = hosts[2];
    sim.set_observer(move |event| {
        *counter.borrow_mut() +=
            usize::from(event.host == bystander && event.point == TracePoint::Arrived);
    });
    let to: SocketAddr = "10.0.0.2:9".parse().unwrap();
    let listener = sim.host(hosts[1]).tcp_listen(to, LISTEN).unwrap();
    sim.host(hosts[0])
        .tcp_connect(Instant::ZERO, None, to)
        .unwrap();
    assert!(sim.run_until(secs(1), |sim| {
        sim.host(hosts[1])
            .listener(listener)
            .accept()
            .unwrap()
            .is_some()
    }));
    // Only the SYN went to all ports, as the switch had not learned the address.
    assert_eq!(*unrelated.borrow(), 1);
}

#[test]
fn the_trace_matches_tcpdump_format() {
    let (mut sim, hosts) = pair(&Scenario {
        netem: netem("delay 10ms"),
        ..Scenario::default()
    });
    let lines = Rc::new(RefCell::new(Vec::new()));
    let log = lines.clone();
    sim.set_observer(move |event| {
        if event.point != TracePoint::Queued {
            log.borrow_mut().push(format_packet(event, Link::Ip));
        }
    });
    let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
    sim.host(hosts[0])
        .tcp_connect(Instant::ZERO, None, to)
        .unwrap();
    sim.run_to(secs(1));
    let lines = lines.borrow();
    // No socket listens: a SYN, and a RST in return.
    assert_eq!(lines.len(), 4, "{lines:#?}");
    for (line, start, part) in [
        (
            0,
            "0.000000000 h0 sent    IP 10.0.0.1.",
            " > 10.0.0.2.80: Flags [S], seq ",
        ),
        (
            1,
            "0.010000000 h1 arrived IP 10.0.0.1.",
            "mss 1460,sackOK,TS val ",
        ),
        (
            2,
            "0.010000000 h1 sent    IP 10.0.0.2.80 > 10.0.0.1.",
            "Flags [R.]",
        ),
        (
            3,
            "0.020000000 h0 arrived IP 10.0.0.2.80 > 10.0.0.1.",
            "length 0",
        ),
    ] {
        let text = &lines[line];
        assert!(text.starts_with(start) && text.contains(part), "{text}");
    }
}

#[test]
fn a_cut_link_times_out_both_sides() {
    let (mut sim, hosts) = pair(&Scenario::default());
    let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let listener = sim.host(hosts[1]).tcp_listen(to, LISTEN).unwrap();
    let client = sim
        .host(hosts[0])
        .tcp_connect(Instant::ZERO, None, to)
        .unwrap();
    let mut server = None;
    assert!(sim.run_until(secs(5), |sim| {
        server = sim.host(hosts[1]).listener(listener).accept().unwrap();
        server.is_some()
    }));
    let server = server.unwrap().id;
    for host in hosts {
        sim.set_netem(fullsend_sim::LinkId(0), host, netem("loss 100%"));
    }
    let now = sim.now();
    for (host, id) in [(hosts[0], client), (hosts[1], server)] {
        assert_eq!(sim.host(host).tcp(id).write(now, b"hello?", false), Ok(6));
    }
    // tcp_retries2 is a quarter of an hour.
    sim.run_to(now + Nanos::from_secs(1000));
    let now = sim.now();
    for (host, id) in [(hosts[0], client), (hosts[1], server)] {
        let error = sim.host(host).tcp(id).read(now, &mut [0; 10]);
        assert_eq!(error, Err(StackError::Tcp(TcpError::TimedOut)));
        sim.host(host).tcp(id).close(now);
        assert_eq!(sim.host(host).tcp_socket_count(), 0);
    }
}

#[test]
fn a_nic_is_limited_by_its_rate_and_ring() {
    let nic = NicConfig {
        mode: NicMode::Mtu,
        rate: Rate(12_500_000),
        ring: 8,
        ..NicConfig::default()
    };
    let scenario = Scenario {
        nic,
        netem: netem("delay 1ms"),
        bytes: [2_000_000, 0],
        ..Scenario::default()
    };
    let outcome = common::run(&scenario);
    assert_eq!(outcome.retransmitted, [0, 0]);
    // 2 MB at 100 Mbit/s with their headers: 166 ms, plus the handshake.
    let took = outcome.took.as_millis();
    assert!((165..180).contains(&took), "{took} ms");
}

#[test]
fn a_nic_counts_wire_overhead() {
    let took = |overhead| {
        let scenario = Scenario {
            nic: NicConfig {
                rate: Rate(12_500_000),
                overhead,
                ..NicConfig::default()
            },
            netem: netem("delay 1ms"),
            bytes: [2_000_000, 0],
            ..Scenario::default()
        };
        common::run(&scenario).took.as_millis() as f64
    };
    // 1,538 instead of 1,500 bytes, for each segment of every super-segment.
    let ratio = took(38) / took(0);
    assert!((1.02..1.03).contains(&ratio), "{ratio}");
}

#[test]
fn tx_coalescing_merges_small_writes() {
    // Returns the number of packets that four writes become, 2 us apart.
    let packets = |tx_coalesce| {
        let scenario = Scenario {
            nic: NicConfig {
                tx_coalesce,
                ..NicConfig::default()
            },
            netem: netem("delay 1ms"),
            ..Scenario::default()
        };
        let (mut sim, hosts) = pair(&scenario);
        let to: SocketAddr = "10.0.0.2:9".parse().unwrap();
        sim.host(hosts[1]).tcp_listen(to, LISTEN).unwrap();
        let id = sim.host(hosts[0]).tcp_connect(Instant::ZERO, None, to);
        let id = id.unwrap();
        let nodelay = fullsend_tcp::SocketOption::TcpNodelay(true);
        let now = sim.now();
        sim.host(hosts[0]).tcp(id).set_option(now, nodelay).unwrap();
        sim.run_to(secs(1));
        let before = common::counter(&mut sim, hosts[0], "IpOutRequests");
        for _ in 0..4 {
            let now = sim.now();
            let wrote = sim.host(hosts[0]).tcp(id).write(now, b"a few bytes", false);
            assert_eq!(wrote, Ok(11));
            sim.run_to(now + Nanos::from_micros(2));
        }
        sim.run_to(secs(2));
        common::counter(&mut sim, hosts[0], "IpOutRequests") - before
    };
    assert_eq!(packets(Nanos::ZERO), 4);
    // The first packet leaves alone, the others when it is completed.
    assert_eq!(packets(Nanos::from_micros(20)), 2);
}
