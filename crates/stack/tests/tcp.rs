//! TCP between two hosts.

mod common;

use common::{Count, IFACE, Net, Nic, V4, V6, bytes, wake_all};
use fullsend_offload::Link;
use fullsend_stack::{Interest, ListenConfig, StackError, TcpId};
use fullsend_tcp::{SocketOption, State, TcpError};
use fullsend_wire::{Nanos, Rng, Seed};

const ALL: [(Link, Nic); 4] = [
    (Link::Ip, Nic::Tso),
    (Link::Ip, Nic::Mtu),
    (Link::Ethernet, Nic::Tso),
    (Link::Ethernet, Nic::Mtu),
];

#[test]
fn a_megabyte_each_way_and_an_orderly_close() {
    for (link, nic) in ALL {
        for to in [format!("{}:80", V4[1]), format!("[{}]:80", V6[1])] {
            let mut net = Net::new(link, nic);
            let (client, server, _) = net.connect(&to);
            let data = bytes(1 << 20);
            net.transfer((0, client), (1, server), &data);
            net.transfer((1, server), (0, client), &data[..999_999]);
            assert_eq!(net.counter(0, "TcpRetransSegs"), 0);
            assert_eq!(net.counter(1, "TcpRetransSegs"), 0);
            orderly_close(&mut net, client, server);
        }
    }
}

fn orderly_close(net: &mut Net, client: TcpId, server: TcpId) {
    let now = net.now;
    net.hosts[0].tcp(client).close(now);
    assert_eq!(
        net.hosts[0].tcp(client).state(),
        Err(StackError::NoSuchSocket)
    );
    let mut buf = [0; 10];
    assert!(net.run_until(Nanos::from_secs(1), |net| {
        net.hosts[1].tcp(server).read(net.now, &mut buf) == Ok(0)
    }));
    assert_eq!(net.hosts[1].tcp(server).state(), Ok(State::CloseWait));
    let now = net.now;
    net.hosts[1].tcp(server).close(now);
    net.run_for(Nanos::from_millis(100));
    // Only the end that closed first keeps state: its TIME-WAIT entry.
    assert_eq!(net.hosts[0].tcp_socket_count(), 0);
    assert_eq!(net.hosts[1].tcp_socket_count(), 0);
    assert_eq!(net.counter(0, "TcpExtTW"), 1);
    assert_eq!(net.counter(1, "TcpExtTW"), 0);
    let [of_client, of_server] = [0, 1].map(|host| net.hosts[host].sockstat());
    assert_eq!((of_client.inuse, of_client.tw), (0, 1));
    for stat in [of_client, of_server] {
        assert_eq!((stat.orphan, stat.mem), (0, 0));
    }
    assert!(net.hosts[0].poll_deadline().is_some());
    net.run_for(Nanos::from_secs(61));
    assert_eq!(net.hosts[0].tcp_time_wait_count(), 0);
}

/// Nothing of a connection that has ended is in the way of the next one with its addresses.
#[test]
fn the_addresses_of_an_ended_connection_are_free() {
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    let to = format!("{}:80", V4[1]);
    let listener = net.listen(1, &to);
    let local = format!("{}:4000", V4[0]).parse().unwrap();
    for is_reset in [true, true, false, true] {
        let now = net.now;
        let client = net.hosts[0].tcp_connect(now, Some(local), to.parse().unwrap());
        let client = client.unwrap();
        let second = net.hosts[0].tcp_connect(now, Some(local), to.parse().unwrap());
        assert_eq!(second, Err(StackError::AddressInUse(local)));
        net.run_for(Nanos::from_millis(10));
        let server = net.hosts[1].listener(listener).accept().unwrap().unwrap();
        let now = net.now;
        if is_reset {
            net.hosts[0].tcp(client).abort(now);
        } else {
            net.hosts[0].tcp(client).close(now);
        }
        net.run_for(Nanos::from_millis(10));
        let now = net.now;
        net.hosts[1].tcp(server.id).close(now);
        net.run_for(Nanos::from_secs(61));
        for host in &net.hosts {
            assert_eq!(
                (host.tcp_socket_count(), host.tcp_time_wait_count()),
                (0, 0)
            );
        }
    }
}

/// RFC 1122 4.2.3.10: a connection has one host at its other end.
#[test]
fn no_connection_to_a_group_or_broadcast_address() {
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    let now = net.now;
    for to in [
        "10.0.0.255:80",
        "255.255.255.255:80",
        "224.0.0.1:80",
        "[ff02::1]:80",
    ] {
        let to: std::net::SocketAddr = to.parse().unwrap();
        let refused = net.hosts[0].tcp_connect(now, None, to);
        assert_eq!(refused, Err(StackError::NoRoute(to.ip())));
    }
}

#[test]
fn a_closed_port_resets() {
    for to in [format!("{}:81", V4[1]), format!("[{}]:81", V6[1])] {
        let mut net = Net::new(Link::Ip, Nic::Mtu);
        let (count, waker) = Count::waker();
        let now = net.now;
        let id = net.hosts[0]
            .tcp_connect(now, None, to.parse().unwrap())
            .unwrap();
        let ready = net.hosts[0]
            .tcp(id)
            .poll_ready(now, Interest::Write, &waker);
        assert_eq!(ready, Ok(false));
        net.run_for(Nanos::from_millis(10));
        wake_all(&mut net.hosts[0]);
        assert_eq!(count.get(), 1);
        assert_eq!(
            net.hosts[0].tcp(id).take_error(),
            Ok(Some(TcpError::ConnectionRefused))
        );
        assert_eq!(net.counter(1, "TcpOutRsts"), 1);
        let now = net.now;
        net.hosts[0].tcp(id).close(now);
        assert_eq!(net.hosts[0].tcp_socket_count(), 0);
    }
}

#[test]
fn a_full_accept_queue_is_counted_and_recovers() {
    let to = format!("{}:80", V4[1]);
    let mut net = Net::new(Link::Ip, Nic::Tso);
    net.hosts[1].sysctl_mut().tcp_syncookies = 0;
    let listener = net.listen_with(1, &to, 2);
    for _ in 0..8 {
        let now = net.now;
        net.hosts[0]
            .tcp_connect(now, None, to.parse().unwrap())
            .unwrap();
    }
    net.run_for(Nanos::from_millis(500));
    assert!(net.counter(1, "TcpExtListenDrops") > 0);
    let mut accepted = 0;
    net.run_until(Nanos::from_secs(60), |net| {
        while let Some(_incoming) = net.hosts[1].listener(listener).accept().unwrap() {
            accepted += 1;
        }
        accepted == 8
    });
    assert_eq!(accepted, 8, "SYNs that were dropped come again");
}

#[test]
fn syn_floods_are_bounded() {
    let to = format!("{}:80", V4[1]);
    let mut net = Net::new(Link::Ip, Nic::Tso);
    net.hosts[1].sysctl_mut().tcp_syncookies = 0;
    net.listen_with(1, &to, 10);
    // The SYN-ACKs are lost.
    net.filter = Some(Box::new(|from, _| from == 0));
    for _ in 0..500 {
        let now = net.now;
        net.hosts[0]
            .tcp_connect(now, None, to.parse().unwrap())
            .unwrap();
    }
    net.run_for(Nanos::from_millis(100));
    assert!(net.hosts[1].tcp_socket_count() <= 11);
    assert!(net.counter(1, "TcpExtTCPReqQFullDrop") >= 480);
}

fn deferring_syns(any_destination: bool) -> ListenConfig {
    ListenConfig {
        backlog: 4,
        defer_syn_ack: true,
        any_destination,
    }
}

#[test]
fn a_deferred_syn_waits_for_accept_or_reject() {
    let to = format!("{}:80", V4[1]);
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.hosts[1]
        .tcp_listen(to.parse().unwrap(), deferring_syns(false))
        .unwrap();
    let now = net.now;
    let yes = net.hosts[0]
        .tcp_connect(now, None, to.parse().unwrap())
        .unwrap();
    let no = net.hosts[0]
        .tcp_connect(now, None, to.parse().unwrap())
        .unwrap();
    net.run_for(Nanos::from_secs(2));
    let first = net.hosts[1].listener(listener).accept().unwrap().unwrap();
    let second = net.hosts[1].listener(listener).accept().unwrap().unwrap();
    assert_eq!(net.hosts[1].listener(listener).accept(), Ok(None));
    assert_eq!(net.hosts[0].tcp(yes).state(), Ok(State::SynSent));
    assert_eq!(net.hosts[1].tcp(first.id).state(), Ok(State::SynReceived));
    let now = net.now;
    net.hosts[1].tcp(first.id).accept_deferred(now).unwrap();
    net.hosts[1].tcp(second.id).reject_deferred(now).unwrap();
    net.run_for(Nanos::from_millis(10));
    assert_eq!(net.hosts[0].tcp(yes).state(), Ok(State::Established));
    assert_eq!(
        net.hosts[0].tcp(no).take_error(),
        Ok(Some(TcpError::ConnectionRefused))
    );
    assert_eq!(
        net.hosts[1].tcp(second.id).accept_deferred(now),
        Err(StackError::NoSuchSocket)
    );
    net.transfer((0, yes), (1, first.id), &bytes(100_000));
}

#[test]
fn deferred_syns_are_bounded_and_expire() {
    let to = format!("{}:80", V4[1]);
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.hosts[1]
        .tcp_listen(to.parse().unwrap(), deferring_syns(false))
        .unwrap();
    for _ in 0..20 {
        let now = net.now;
        net.hosts[0]
            .tcp_connect(now, None, to.parse().unwrap())
            .unwrap();
    }
    net.run_for(Nanos::from_millis(10));
    assert_eq!(net.hosts[1].tcp_socket_count(), 5);
    net.filter = Some(Box::new(|_, _| false));
    net.run_for(Nanos::from_secs(140));
    assert_eq!(net.hosts[1].tcp_socket_count(), 0);
    assert_eq!(net.hosts[1].listener(listener).accept(), Ok(None));
}

#[test]
fn a_gateway_accepts_connections_to_any_destination() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let everywhere = fullsend_stack::Cidr {
        addr: "0.0.0.0".parse().unwrap(),
        prefix: 0,
    };
    for host in &mut net.hosts {
        host.add_route(everywhere, None, IFACE).unwrap();
    }
    let listener = net.hosts[1]
        .tcp_listen("0.0.0.0:0".parse().unwrap(), deferring_syns(true))
        .unwrap();
    let now = net.now;
    let to = "203.0.113.7:443".parse().unwrap();
    let client = net.hosts[0].tcp_connect(now, None, to).unwrap();
    net.run_for(Nanos::from_millis(10));
    let incoming = net.hosts[1].listener(listener).accept().unwrap().unwrap();
    assert_eq!(incoming.local, to);
    let now = net.now;
    net.hosts[1].tcp(incoming.id).accept_deferred(now).unwrap();
    net.transfer((0, client), (1, incoming.id), &bytes(10_000));
    net.transfer((1, incoming.id), (0, client), &bytes(10_000));
}

#[test]
fn loopback_needs_no_interface() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen(0, "127.0.0.1:80");
    let now = net.now;
    let to = "127.0.0.1:80".parse().unwrap();
    let client = net.hosts[0].tcp_connect(now, None, to).unwrap();
    net.run_for(Nanos::from_millis(10));
    let server = net.hosts[0].listener(listener).accept().unwrap().unwrap();
    let data = bytes(300_000);
    net.transfer((0, client), (0, server.id), &data);
    assert_eq!(net.crossed, [0, 0]);
    // As on Linux: a segment with its headers fits the length field of IPv4, though the MTU is
    // 65,536.
    let info = net.hosts[0].tcp(client).info(now).unwrap();
    assert_eq!((info.tcpi_advmss, info.tcpi_snd_mss), (65_495, 65_483));
}

#[test]
fn a_four_kilobyte_write_leaves_as_one_packet() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    let now = net.now;
    net.hosts[0]
        .tcp(client)
        .set_option(now, SocketOption::TcpNodelay(true))
        .unwrap();
    net.transfer((0, client), (1, server), &bytes(4096));
    net.run_for(Nanos::from_millis(200));
    let before = (
        net.counter(0, "IpOutRequests"),
        net.counter(0, "IpExtOutOctets"),
    );
    let segs = net.counter(0, "TcpOutSegs");
    net.transfer((0, client), (1, server), &bytes(4096));
    let after = (
        net.counter(0, "IpOutRequests"),
        net.counter(0, "IpExtOutOctets"),
    );
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 4096 + 52));
    assert_eq!(net.counter(0, "TcpOutSegs") - segs, 3);
}

#[test]
fn a_reader_is_woken_once_per_arrival() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    let (count, waker) = Count::waker();
    let now = net.now;
    let ready = net.hosts[1]
        .tcp(server)
        .poll_ready(now, Interest::Read, &waker);
    assert_eq!(ready, Ok(false));
    for _ in 0..3 {
        let now = net.now;
        net.hosts[0]
            .tcp(client)
            .write(now, b"hello", false)
            .unwrap();
        net.run_for(Nanos::from_millis(100));
    }
    wake_all(&mut net.hosts[1]);
    assert_eq!(count.get(), 1);
    let now = net.now;
    let ready = net.hosts[1]
        .tcp(server)
        .poll_ready(now, Interest::Read, &waker);
    assert_eq!(ready, Ok(true));
}

#[test]
fn closing_a_listener_resets_unaccepted_connections() {
    let to = format!("{}:80", V4[1]);
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen(1, &to);
    let now = net.now;
    let client = net.hosts[0]
        .tcp_connect(now, None, to.parse().unwrap())
        .unwrap();
    net.run_for(Nanos::from_millis(10));
    assert_eq!(net.hosts[0].tcp(client).state(), Ok(State::Established));
    let now = net.now;
    net.hosts[1].listener(listener).close(now);
    net.run_for(Nanos::from_millis(10));
    assert_eq!(
        net.hosts[0].tcp(client).take_error(),
        Ok(Some(TcpError::ConnectionReset))
    );
    assert_eq!(net.hosts[1].tcp_socket_count(), 0);
    // The address is free again.
    net.listen(1, &to);
}

#[test]
fn errors_name_the_cause() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let now = net.now;
    let host = &mut net.hosts[0];
    let there = "192.0.2.1:80".parse().unwrap();
    let error = host.tcp_connect(now, None, there).unwrap_err();
    assert_eq!(error, StackError::NoRoute(there.ip()));
    assert!(error.to_string().contains("192.0.2.1"));
    let config = ListenConfig {
        backlog: 1,
        defer_syn_ack: false,
        any_destination: false,
    };
    let error = host.tcp_listen(there, config).unwrap_err();
    assert_eq!(error, StackError::AddressNotAvailable(there));
    let ours = "10.0.0.1:80".parse().unwrap();
    host.tcp_listen(ours, config).unwrap();
    let error = host.tcp_listen(ours, config).unwrap_err();
    assert_eq!(error, StackError::AddressInUse(ours));
    let neighbour = "10.0.0.2:80".parse().unwrap();
    let error = host.tcp_connect(now, Some(there), neighbour).unwrap_err();
    assert_eq!(error, StackError::AddressNotAvailable(there));
    let from = "10.0.0.1:5000".parse().unwrap();
    host.tcp_connect(now, Some(from), neighbour).unwrap();
    let error = host.tcp_connect(now, Some(from), neighbour).unwrap_err();
    assert_eq!(error, StackError::AddressInUse(from));
}

/// Closes both ends of a connection, host 0 first, so that host 0 keeps TIME-WAIT.
fn close_both(net: &mut Net, client: TcpId, server: TcpId) {
    let now = net.now;
    net.hosts[0].tcp(client).close(now);
    net.run_for(Nanos::from_millis(5));
    let now = net.now;
    net.hosts[1].tcp(server).close(now);
    net.run_for(Nanos::from_millis(5));
}

#[test]
fn a_connect_reuses_a_time_wait_entry_after_a_second() {
    let (from, to) = ("10.0.0.1:5000", "10.0.0.2:80");
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen(1, to);
    for round in 0..3 {
        let now = net.now;
        let client = net.hosts[0]
            .tcp_connect(now, Some(from.parse().unwrap()), to.parse().unwrap())
            .unwrap();
        net.run_for(Nanos::from_millis(5));
        let server = net.hosts[1].listener(listener).accept().unwrap().unwrap();
        net.transfer((0, client), (1, server.id), &bytes(1000));
        close_both(&mut net, client, server.id);
        assert_eq!(net.hosts[0].tcp_time_wait_count(), 1);
        assert_eq!(net.counter(0, "TcpExtTWRecycled"), round);
        let again =
            net.hosts[0].tcp_connect(net.now, Some(from.parse().unwrap()), to.parse().unwrap());
        let taken = StackError::AddressInUse(from.parse().unwrap());
        assert_eq!(again, Err(taken), "too early to distinguish the two");
        net.run_for(Nanos::from_millis(1100));
    }
}

#[test]
fn a_later_syn_of_the_peer_replaces_a_time_wait_entry() {
    let (from, to) = ("10.0.0.2:5000", "10.0.0.1:80");
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen(0, to);
    for round in 0..3 {
        let now = net.now;
        let client = net.hosts[1]
            .tcp_connect(now, Some(from.parse().unwrap()), to.parse().unwrap())
            .unwrap();
        net.run_for(Nanos::from_millis(5));
        let server = net.hosts[0].listener(listener).accept().unwrap().unwrap();
        net.transfer((1, client), (0, server.id), &bytes(1000));
        // The listening host closes first and so keeps TIME-WAIT.
        close_both(&mut net, server.id, client);
        assert_eq!(net.hosts[0].tcp_time_wait_count(), 1);
        assert_eq!(net.counter(0, "TcpExtTWRecycled"), round);
        net.run_for(Nanos::from_millis(20));
    }
}

#[test]
fn a_closed_connection_answers_with_rst() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (client, server, _) = net.connect("10.0.0.2:80");
    // The server aborts, and its RST is lost.
    net.filter = Some(Box::new(|from, _| from == 0));
    let now = net.now;
    net.hosts[1].tcp(server).abort(now);
    net.run_for(Nanos::from_millis(5));
    assert_eq!(net.hosts[1].tcp_socket_count(), 0);
    net.filter = None;
    let now = net.now;
    net.hosts[0]
        .tcp(client)
        .write(now, b"anyone?", false)
        .unwrap();
    net.run_for(Nanos::from_millis(5));
    assert_eq!(
        net.hosts[0].tcp(client).take_error(),
        Ok(Some(TcpError::ConnectionReset))
    );
    // The client's handle is still open, but its 4-tuple is free.
    let (local, remote) = net.hosts[0].tcp(client).addrs().unwrap();
    let now = net.now;
    net.hosts[0].tcp_connect(now, Some(local), remote).unwrap();
}

#[test]
fn ephemeral_ports_come_from_the_range_until_exhausted() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let now = net.now;
    let host = &mut net.hosts[0];
    host.sysctl_mut()
        .set("net.ipv4.ip_local_port_range", "40000 40009")
        .unwrap();
    let to = "10.0.0.2:80".parse().unwrap();
    for _ in 0..10 {
        let id = host.tcp_connect(now, None, to).unwrap();
        let port = host.tcp(id).addrs().unwrap().0.port();
        assert!((40_000..=40_009).contains(&port));
    }
    assert_eq!(host.tcp_connect(now, None, to), Err(StackError::NoPorts));
    // Another destination has its own ports.
    assert!(
        host.tcp_connect(now, None, "10.0.0.2:81".parse().unwrap())
            .is_ok()
    );
}

/// The search for a connection with unacknowledged data goes on where it has stopped.
#[test]
fn a_host_is_flushed_when_each_connection_is() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    net.delay = Nanos::from_millis(3);
    let (first, _, listener) = net.connect(&format!("{}:80", V4[1]));
    let mut clients = vec![first];
    for _ in 0..5 {
        clients.push(net.connect_to(listener, &format!("{}:80", V4[1])).0);
    }
    let mut rng = Rng::new(Seed::from_u64(3));
    let mut found = [0; 2];
    for _ in 0..400 {
        let (now, client) = (net.now, clients[rng.below(6) as usize]);
        match rng.below(40) {
            0..=9 => drop(net.hosts[0].tcp(client).write(now, b"data", false)),
            10 => drop(net.hosts[0].tcp(client).shutdown_write(now)),
            _ => net.run_for(Nanos::from_millis(1 + rng.below(2))),
        }
        let host = &mut net.hosts[0];
        let is_flushed = host.tcp_unflushed_count() == 0;
        assert_eq!(host.tcp_is_flushed(), is_flushed);
        found[usize::from(is_flushed)] += 1;
    }
    assert!(found.iter().all(|n| *n > 20), "{found:?}");
}
