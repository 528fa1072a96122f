//! The notices that a host has for the log.

mod common;

use common::{IFACE, Net, Nic, V4, V6, bytes, forge};
use fullsend_offload::Link;
use fullsend_stack::{Cidr, Notice};
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{Nanos, SeqNum, WireWindow};

fn notices(net: &mut Net, who: usize) -> Vec<Notice> {
    let now = net.now;
    net.hosts[who].take_notices(now)
}

/// Sends a SYN from each of `ports` to port 80 of host 1.
fn syns(net: &mut Net, ports: std::ops::Range<u16>) {
    let mut packets: Vec<_> = ports
        .map(|port| {
            let from = ([10, 0, 0, 9], port).into();
            let repr = TcpRepr {
                flags: TcpFlags::SYN,
                seq: SeqNum::new(port.into()),
                window: WireWindow(65_535),
                ..TcpRepr::default()
            };
            forge::tcp(from, format!("{}:80", V4[1]).parse().unwrap(), repr, b"")
        })
        .collect();
    let now = net.now;
    net.hosts[1].receive(now, IFACE, &mut packets);
}

#[test]
fn a_syn_flood_is_reported_once_a_minute_with_its_counts() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    net.listen_with(1, &format!("{}:80", V4[1]), 8);
    assert_eq!(notices(&mut net, 1), []);
    syns(&mut net, 1..109);
    net.run_for(Nanos::from_secs(1));
    let flood = |cookies, dropped| vec![Notice::SynFlood { cookies, dropped }];
    let seen = net.counter(1, "TcpExtTCPReqQFullDoCookies");
    assert!((95..108).contains(&seen), "{seen}");
    assert_eq!(notices(&mut net, 1), flood(seen, 0));
    net.hosts[1].sysctl_mut().tcp_syncookies = 0;
    syns(&mut net, 200..230);
    net.run_for(Nanos::from_secs(2));
    assert_eq!(notices(&mut net, 1), [], "it is silent for a minute");
    net.run_for(Nanos::from_secs(58));
    assert_eq!(notices(&mut net, 1), flood(0, 30));
    net.run_for(Nanos::from_secs(100));
    assert_eq!(notices(&mut net, 1), []);
}

#[test]
fn memory_pressure_is_reported_with_its_limits() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    net.hosts[1].sysctl_mut().tcp_mem = [2, 4, 10_000];
    let (client, _, _) = net.connect(&format!("{}:80", V4[1]));
    let now = net.now;
    net.hosts[0]
        .tcp(client)
        .write(now, &bytes(60_000), false)
        .unwrap();
    net.run_for(Nanos::from_secs(1));
    let [
        Notice::MemoryPressure {
            pages,
            limits,
            times,
        },
    ] = notices(&mut net, 1)[..]
    else {
        panic!("no notice");
    };
    assert!(pages >= 4, "{pages}");
    assert_eq!((limits, times), ([2, 4, 10_000], 1));
}

#[test]
fn a_duplicate_address_is_reported() {
    let mut net = Net::new(Link::Ethernet, Nic::Tso);
    let addr = V6[1].parse().unwrap();
    let now = net.now;
    net.hosts[0]
        .add_address(now, IFACE, Cidr { addr, prefix: 64 })
        .unwrap();
    net.run_for(Nanos::from_secs(3));
    let [notice] = &notices(&mut net, 0)[..] else {
        panic!("one notice");
    };
    assert!(
        notice.to_string().starts_with("fd00::2 is not used"),
        "{notice}"
    );
}
