//! Inspection of a host's sockets and links.

mod common;

use common::{IFACE, Net, Nic, V4, V6, bytes};
use fullsend_offload::Link;
use fullsend_stack::{SocketCursor, SocketInfo, SocketKind, SocketOwner};
use fullsend_tcp::{SocketOption, TimerKind};
use fullsend_wire::Nanos;

/// Returns every socket of a host, listed `slots` slots at a time.
fn all(net: &mut Net, host: usize, slots: usize) -> Vec<SocketInfo> {
    let mut out = Vec::new();
    let mut cursor = Some(SocketCursor::default());
    while let Some(at) = cursor {
        cursor = net.hosts[host].sockets(net.now, at, slots, &mut out);
    }
    out
}

fn only(net: &mut Net, host: usize, kind: SocketKind) -> SocketInfo {
    let mut its = all(net, host, 1000);
    its.retain(|socket| socket.kind == kind);
    assert_eq!(its.len(), 1, "{its:?}");
    its.remove(0)
}

#[test]
fn queues_state_memory_and_timer_of_a_connection() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    let now = net.now;
    net.hosts[0]
        .tcp(client)
        .write(now, &bytes(1000), false)
        .unwrap();
    net.run_for(Nanos::from_millis(1));
    let there = only(&mut net, 1, SocketKind::Tcp);
    assert_eq!((there.id, there.state), (server.0, "ESTAB"));
    assert_eq!((there.recv_q, there.send_q), (1000, 0));
    assert_eq!(there.owner, SocketOwner::User);
    let tcp = there.tcp.unwrap();
    assert_eq!(tcp.info.tcpi_bytes_received, 1000);
    assert!(tcp.memory.rmem_alloc >= 1000 && tcp.memory.rcvbuf > 0);
    assert_eq!(
        (tcp.congestion, tcp.nodelay, tcp.cork),
        ("cubic", false, false)
    );

    // All packets are dropped from now on: written data stays queued, and the timer runs.
    net.filter = Some(Box::new(|_, _| false));
    let now = net.now;
    net.hosts[0]
        .tcp(client)
        .set_option(now, SocketOption::TcpNodelay(true))
        .unwrap();
    net.hosts[0]
        .tcp(client)
        .write(now, &bytes(500), false)
        .unwrap();
    net.run_for(Nanos::from_millis(1));
    let here = only(&mut net, 0, SocketKind::Tcp);
    assert_eq!((here.recv_q, here.send_q), (0, 500));
    let timer = here.timer.unwrap();
    assert_eq!((timer.kind, timer.retransmits), (TimerKind::On, 0));
    assert!(timer.remaining <= Nanos::from_millis(1000), "{timer:?}");
    assert!(here.tcp.unwrap().nodelay);
}

#[test]
fn listeners_orphans_time_wait_and_udp_are_listed_too() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (client, server, _) = net.connect(&format!("[{}]:80", V6[1]));
    net.hosts[1]
        .udp_bind(format!("{}:53", V4[1]).parse().unwrap())
        .unwrap();
    let listener = only(&mut net, 1, SocketKind::Listener);
    assert_eq!((listener.state, listener.recv_q), ("LISTEN", 0));
    assert!(listener.send_q > 0 && listener.remote.is_none());
    let udp = only(&mut net, 1, SocketKind::Udp);
    assert_eq!(udp.local.port(), 53);

    let now = net.now;
    net.hosts[0].tcp(client).close(now);
    net.run_for(Nanos::from_millis(1));
    let orphan = only(&mut net, 0, SocketKind::Tcp);
    assert_eq!(
        (orphan.owner, orphan.state),
        (SocketOwner::Orphan, "FIN-WAIT-2")
    );
    assert_eq!(orphan.timer.unwrap().kind, TimerKind::Keepalive);
    let now = net.now;
    net.hosts[1].tcp(server).close(now);
    net.run_for(Nanos::from_millis(1));
    let rest = only(&mut net, 0, SocketKind::TimeWait);
    assert_eq!((rest.state, rest.id), ("TIME-WAIT", 0));
    assert_eq!(rest.timer.unwrap().kind, TimerKind::TimeWait);
    assert!(rest.timer.unwrap().remaining > Nanos::from_secs(50));
}

#[test]
fn a_paged_listing_equals_the_whole_listing() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (_, _, _) = net.connect(&format!("{}:80", V4[1]));
    for port in 1..20 {
        let addr = format!("{}:{port}", V4[1]).parse().unwrap();
        net.hosts[1].udp_bind(addr).unwrap();
    }
    let whole = all(&mut net, 1, 1000);
    assert_eq!(whole.len(), 21);
    for slots in [1, 2, 7, 21] {
        assert_eq!(all(&mut net, 1, slots), whole);
    }
}

#[test]
fn a_connection_is_found_by_its_addresses() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    let (here, there) = net.hosts[0].tcp(client).addrs().unwrap();
    assert_eq!(net.hosts[0].tcp_find(here, there), Some(client));
    assert_eq!(net.hosts[1].tcp_find(there, here), Some(server));
    assert_eq!(net.hosts[0].tcp_find(there, here), None);
    let v6 = format!("[{}]:80", V6[1]).parse().unwrap();
    assert_eq!(net.hosts[0].tcp_find(here, v6), None);
}

#[test]
fn a_link_counts_super_segments_and_wire_packets_with_their_headers() {
    let mut net = Net::new(Link::Ethernet, Nic::Tso);
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    let before = [0, 1].map(|i| net.hosts[i].link_stats(IFACE).unwrap());
    // 40 full segments, each with 14 + 20 + 32 bytes of headers.
    net.transfer((0, client), (1, server), &bytes(40 * 1448));
    let after = [0, 1].map(|i| net.hosts[i].link_stats(IFACE).unwrap());
    let sent = after[0].tx_packets - before[0].tx_packets;
    assert!((1..=10).contains(&sent), "{sent}");
    assert_eq!(
        after[0].tx_bytes - before[0].tx_bytes,
        sent * 66 + 40 * 1448
    );
    assert_eq!(after[0].tx_wire_packets - before[0].tx_wire_packets, 40);
    assert_eq!(after[0].tx_wire_bytes - before[0].tx_wire_bytes, 40 * 1514);
    assert_eq!(after[1].rx_packets - before[1].rx_packets, sent);
    assert_eq!(
        after[1].rx_bytes - before[1].rx_bytes,
        sent * 66 + 40 * 1448
    );
}
