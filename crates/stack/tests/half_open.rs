//! Half-open connections, and SYN cookies when there are too many (RFC 4987).

mod common;

use std::net::SocketAddr;

use common::{IFACE, Net, Nic, V4, V6, bytes};
use fullsend_offload::{Link, Packet};
use fullsend_stack::{ListenerId, TcpId};
use fullsend_tcp::{SocketOption, State, TcpError};
use fullsend_wire::Nanos;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

const TO: [fn() -> String; 2] = [|| format!("{}:80", V4[1]), || format!("[{}]:80", V6[1])];

fn connect(net: &mut Net, to: &str) -> TcpId {
    let now = net.now;
    net.hosts[0]
        .tcp_connect(now, None, to.parse().unwrap())
        .unwrap()
}

fn accept(net: &mut Net, listener: ListenerId) -> Option<TcpId> {
    let incoming = net.hosts[1].listener(listener).accept().unwrap();
    incoming.map(|incoming| incoming.id)
}

fn repr_of(packet: &Packet) -> TcpRepr {
    TcpRepr::parse(packet.transport_header()).unwrap().0
}

#[test]
fn with_cookies_only_a_handshake_keeps_no_state_and_all_options() {
    for to in TO {
        for timestamps in [true, false] {
            let mut net = Net::new(Link::Ip, Nic::Mtu);
            net.hosts[1].sysctl_mut().tcp_syncookies = 2;
            net.hosts[0].sysctl_mut().tcp_timestamps = timestamps;
            let listener = net.listen(1, &to());
            let client = connect(&mut net, &to());
            // Carries the SYN and the SYN-ACK.
            let mut sent = 0;
            net.run_until(Nanos::from_micros(15), |net| {
                sent = net.counter(1, "TcpExtSyncookiesSent");
                false
            });
            assert_eq!(sent, 1);
            assert_eq!(net.hosts[1].tcp_socket_count(), 0);
            net.run_for(Nanos::from_millis(1));
            let server = accept(&mut net, listener).expect("the cookie came back");
            assert_eq!(net.counter(1, "TcpExtSyncookiesRecv"), 1);
            assert_eq!(net.counter(1, "TcpPassiveOpens"), 1);
            let now = net.now;
            let info = net.hosts[1].tcp(server).info(now).unwrap();
            let options = u8::from(timestamps) * (1 | 2 | 4);
            assert_eq!(
                info.tcpi_options & 7,
                options,
                "timestamps, SACK, window scale"
            );
            let data = bytes(500_000);
            net.transfer((0, client), (1, server), &data);
            net.transfer((1, server), (0, client), &data);
        }
    }
}

#[test]
fn a_flood_leaves_room_for_legitimate_peers() {
    for to in TO {
        let mut net = Net::new(Link::Ip, Nic::Mtu);
        let listener = net.listen_with(1, &to(), 10);
        // The answers to the flood are lost.
        net.filter = Some(Box::new(|from, _| from == 0));
        let flood: Vec<_> = (0..300).map(|_| connect(&mut net, &to())).collect();
        net.run_for(Nanos::from_millis(100));
        assert_eq!(net.hosts[1].tcp_socket_count(), 11);
        assert_eq!(net.counter(1, "TcpExtTCPReqQFullDoCookies"), 289);
        assert_eq!(net.counter(1, "TcpExtSyncookiesSent"), 289);
        let now = net.now;
        for client in flood {
            net.hosts[0].tcp(client).abort(now);
        }
        net.filter = None;
        net.run_for(Nanos::from_secs(1));
        let client = connect(&mut net, &to());
        net.run_for(Nanos::from_millis(1));
        let server = accept(&mut net, listener).unwrap();
        net.transfer((0, client), (1, server), &bytes(100_000));
    }
}

/// As on Linux, `TCP_SYNCNT` of a listener is the number of retransmissions of its SYN-ACKs, which
/// may be fewer or more than `tcp_synack_retries`.
#[test]
fn a_listeners_syncnt_counts_its_syn_acks() {
    for (syncnt, end) in [(1, 3), (2, 7), (6, 127)] {
        let to = TO[0]();
        let mut net = Net::new(Link::Ip, Nic::Mtu);
        let listener = net.listen_with(1, &to, 10);
        let option = SocketOption::TcpSyncnt(syncnt);
        net.hosts[1].listener(listener).set_option(option).unwrap();
        net.filter = Some(Box::new(|from, _| from == 0));
        connect(&mut net, &to);
        net.run_for(Nanos::from_millis(1));
        net.filter = Some(Box::new(|_, _| false));
        net.run_for(Nanos::from_millis(end * 1000 - 100));
        let sent = net.counter(1, "TcpExtTCPSynRetrans");
        assert_eq!((sent, net.hosts[1].tcp_socket_count()), (syncnt.into(), 1));
        net.run_for(Nanos::from_millis(200));
        assert_eq!(net.hosts[1].tcp_socket_count(), 0, "{syncnt}");
    }
}

#[test]
fn half_open_connections_expire_and_the_queue_accepts_again() {
    let to = TO[0]();
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    net.listen_with(1, &to, 10);
    net.filter = Some(Box::new(|from, _| from == 0));
    let client = connect(&mut net, &to);
    // SYN-ACKs at 0, 1, 3, 7, 15, 31 s; the end at 63 s. The client's retransmissions are lost.
    net.run_for(Nanos::from_millis(1));
    net.filter = Some(Box::new(|_, _| false));
    net.run_for(Nanos::from_millis(62_900));
    assert_eq!(net.counter(1, "TcpExtTCPSynRetrans"), 5);
    assert_eq!(net.hosts[1].tcp_socket_count(), 1);
    net.run_for(Nanos::from_millis(200));
    assert_eq!(net.hosts[1].tcp_socket_count(), 0);
    assert_eq!(net.counter(1, "TcpAttemptFails"), 1);
    let now = net.now;
    net.hosts[0].tcp(client).abort(now);
}

#[test]
fn an_old_half_open_connection_expires_sooner_when_there_are_many() {
    let to = TO[0]();
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    net.listen_with(1, &to, 10);
    net.filter = Some(Box::new(|from, _| from == 0));
    for _ in 0..11 {
        connect(&mut net, &to);
    }
    net.run_for(Nanos::from_millis(1));
    net.filter = Some(Box::new(|_, _| false));
    // After two retransmissions: at 0, 1, 3 s, and the end at 7 s.
    net.run_for(Nanos::from_secs(8));
    assert!(net.hosts[1].tcp_socket_count() <= 5);
}

/// Delivers a packet of host 0's connection, modified by `edit`, to host 1.
fn inject(net: &mut Net, seen: &Packet, edit: impl FnOnce(&mut TcpRepr)) {
    let mut repr = repr_of(seen);
    edit(&mut repr);
    let [from, to] = [(V4[0], repr.src_port), (V4[1], repr.dst_port)]
        .map(|(ip, port)| SocketAddr::new(ip.parse().unwrap(), port));
    let frame = common::forge::tcp(from, to, repr, b"");
    let now = net.now;
    net.hosts[1].receive(now, IFACE, &mut vec![frame]);
}

/// Creates a half-open connection on host 1; the ACK that would complete it is intercepted and
/// returned.
fn half_open(backlog: usize) -> (Net, ListenerId, TcpId, Packet) {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen_with(1, &TO[0](), backlog);
    let (tx, rx) = std::sync::mpsc::channel();
    net.filter = Some(Box::new(move |from, packet| {
        let hold = from == 0 && !repr_of(packet).flags.contains(TcpFlags::SYN);
        if hold {
            tx.send(packet.clone()).unwrap();
        }
        !hold
    }));
    let client = connect(&mut net, &TO[0]());
    net.run_for(Nanos::from_millis(1));
    net.filter = None;
    (net, listener, client, rx.try_recv().unwrap())
}

#[test]
fn only_the_exact_reset_ends_a_half_open_connection() {
    let (mut net, _, _, ack) = half_open(4);
    inject(&mut net, &ack, |r| {
        r.flags = TcpFlags::RST;
        r.seq += 1;
    });
    inject(&mut net, &ack, |r| {
        r.flags = TcpFlags::RST;
        r.seq += 1_000_000;
    });
    assert_eq!(net.hosts[1].tcp_socket_count(), 1);
    inject(&mut net, &ack, |r| r.flags = TcpFlags::RST);
    assert_eq!(net.hosts[1].tcp_socket_count(), 0);
    assert_eq!(net.counter(1, "TcpExtEmbryonicRsts"), 1);
}

#[test]
fn wrong_segments_do_not_complete_a_handshake() {
    let (mut net, listener, _, ack) = half_open(4);
    let rsts = net.counter(1, "TcpOutRsts");
    inject(&mut net, &ack, |r| r.ack += 1);
    assert_eq!(net.counter(1, "TcpOutRsts"), rsts + 1);
    inject(&mut net, &ack, |r| r.seq += 70_000);
    inject(&mut net, &ack, |r| r.seq += 70_001);
    assert_eq!(net.counter(1, "TcpExtTCPACKSkippedSynRecv"), 1);
    inject(&mut net, &ack, |r| {
        r.options.timestamps.as_mut().unwrap().ecr ^= 0x4000_0000;
    });
    assert_eq!(net.counter(1, "TcpExtTSEcrRejected"), 1);
    inject(&mut net, &ack, |r| {
        let ts = r.options.timestamps.as_mut().unwrap();
        ts.val = ts.val.wrapping_sub(100_000);
    });
    assert_eq!(net.counter(1, "TcpExtPAWSEstab"), 1);
    inject(&mut net, &ack, |r| r.flags = TcpFlags::PSH);
    assert_eq!(accept(&mut net, listener), None);
    inject(&mut net, &ack, |_| {});
    assert!(accept(&mut net, listener).is_some());
}

#[test]
fn a_challenge_ack_leaves_the_rtt_sample_unambiguous() {
    let (mut net, listener, _, ack) = half_open(4);
    inject(&mut net, &ack, |r| {
        r.seq += 70_000;
        r.options.timestamps = None;
    });
    inject(&mut net, &ack, |r| r.options.timestamps = None);
    let server = accept(&mut net, listener).expect("the handshake is complete");
    let now = net.now;
    let info = net.hosts[1].tcp(server).info(now).unwrap();
    assert!(
        info.tcpi_rtt > 0 && info.tcpi_rtt < 2000,
        "{}",
        info.tcpi_rtt
    );
}

#[test]
fn a_final_ack_without_accept_queue_space_is_retried_or_reset() {
    for abort in [false, true] {
        let (mut net, listener, client, _) = half_open(1);
        net.hosts[1].sysctl_mut().tcp_abort_on_overflow = abort;
        // Other connections fill the queue.
        let others = [0, 1].map(|_| connect(&mut net, &TO[0]()));
        net.run_for(Nanos::from_millis(1));
        for other in others {
            assert_eq!(net.hosts[0].tcp(other).state(), Ok(State::Established));
        }
        net.run_for(Nanos::from_millis(1500));
        assert_eq!(net.counter(1, "TcpExtListenOverflows"), 1);
        if abort {
            let error = net.hosts[0].tcp(client).take_error();
            assert_eq!(error, Ok(Some(TcpError::ConnectionReset)));
            continue;
        }
        assert!((0..2).all(|_| accept(&mut net, listener).is_some()));
        // The SYN-ACK is retransmitted and causes another ACK of the client.
        net.run_for(Nanos::from_secs(4));
        let server = accept(&mut net, listener).unwrap();
        net.transfer((0, client), (1, server), b"hello");
    }
}

#[test]
fn a_final_ack_is_ignored_while_allocations_fail() {
    let (mut net, listener, client, ack) = half_open(1);
    net.hosts[1].pool().set_reserve(usize::MAX);
    inject(&mut net, &ack, |_| {});
    assert_eq!(accept(&mut net, listener), None);
    assert_eq!(net.counter(1, "TcpExtListenDrops"), 1);
    assert_eq!(net.counter(1, "TcpExtListenOverflows"), 0);
    net.hosts[1].pool().set_reserve(0);
    // The SYN-ACK is retransmitted and causes another ACK of the client.
    net.run_for(Nanos::from_secs(4));
    let server = accept(&mut net, listener).unwrap();
    net.transfer((0, client), (1, server), b"hello");
}

#[test]
fn guessed_cookies_are_refused() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    net.hosts[1].sysctl_mut().tcp_syncookies = 2;
    let (tx, rx) = std::sync::mpsc::channel();
    let listener = net.listen_with(1, &TO[0](), 4);
    net.filter = Some(Box::new(move |from, packet| {
        let hold = from == 0 && !repr_of(packet).flags.contains(TcpFlags::SYN);
        if hold {
            tx.send(packet.clone()).unwrap();
        }
        !hold
    }));
    connect(&mut net, &TO[0]());
    net.run_for(Nanos::from_millis(1));
    let ack = rx.try_recv().unwrap();
    net.filter = None;
    for n in 1..1000 {
        inject(&mut net, &ack, |r| r.ack += n * 7919);
    }
    assert_eq!(net.counter(1, "TcpExtSyncookiesFailed"), 999);
    assert_eq!(accept(&mut net, listener), None);
    // At the limit of sockets a guess is no connection that the limit refuses; a valid cookie is.
    let max = std::mem::replace(&mut net.hosts[1].sysctl_mut().tcp_max_sockets, 1);
    let (now, other) = (net.now, format!("{}:9", V4[0]).parse().unwrap());
    let other = net.hosts[1].tcp_connect(now, None, other).unwrap();
    inject(&mut net, &ack, |r| r.ack += 1);
    assert_eq!(net.counter(1, "TcpExtFullsendSocketsLimited"), 0);
    inject(&mut net, &ack, |_| {});
    assert_eq!(net.counter(1, "TcpExtFullsendSocketsLimited"), 1);
    net.hosts[1].sysctl_mut().tcp_max_sockets = max;
    net.hosts[1].tcp(other).abort(now);
    // The valid cookie is accepted once, more than a minute later, but not after two minutes.
    net.now += Nanos::from_secs(64);
    inject(&mut net, &ack, |_| {});
    assert!(accept(&mut net, listener).is_some());
    assert_eq!(net.counter(1, "TcpExtSyncookiesRecv"), 1);
}

/// The options are in the echoed timestamp. Without an echo there are none, rather than those that the
/// connection's random offset happens to encode.
#[test]
fn a_cookie_without_an_echoed_timestamp_has_no_options() {
    for seed in 0..8 {
        let mut net = Net::new(Link::Ip, Nic::Tso);
        net.hosts[1].sysctl_mut().tcp_syncookies = 2;
        let (tx, rx) = std::sync::mpsc::channel();
        let to = format!("{}:{}", V4[1], 80 + seed);
        let listener = net.listen_with(1, &to, 4);
        net.filter = Some(Box::new(move |from, packet| {
            let hold = from == 0 && !repr_of(packet).flags.contains(TcpFlags::SYN);
            if hold {
                tx.send(packet.clone()).unwrap();
            }
            !hold
        }));
        connect(&mut net, &to);
        net.run_for(Nanos::from_millis(1));
        let ack = rx.try_recv().unwrap();
        inject(&mut net, &ack, |repr| {
            if let Some(ts) = &mut repr.options.timestamps {
                ts.ecr = 0;
            }
        });
        let server = accept(&mut net, listener).unwrap();
        let info = net.hosts[1].tcp(server).info(net.now).unwrap();
        let sack = info.tcpi_options & 2;
        assert_eq!((sack, info.tcpi_snd_wscale), (0, 0), "{seed}");
    }
}

#[test]
fn without_a_flood_no_cookie_is_accepted() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (client, server, _) = net.connect(&TO[0]());
    let now = net.now;
    net.hosts[1].tcp(server).abort(now);
    net.run_for(Nanos::from_millis(1));
    assert_eq!(net.counter(1, "TcpExtSyncookiesFailed"), 0);
    assert_eq!(
        net.hosts[0].tcp(client).take_error(),
        Ok(Some(TcpError::ConnectionReset))
    );
}

/// A client whose first data was lost and that has filled the window: its ACKs are at the window's
/// right edge, and it echoes the timestamp of the ACK that answered one of its segments.
#[test]
fn a_client_with_a_full_window_completes_its_handshake() {
    let (mut net, listener, _, ack) = half_open(4);
    net.run_for(Nanos::from_millis(20));
    inject(&mut net, &ack, |r| r.seq += 70_000);
    inject(&mut net, &ack, |r| {
        // The window that the SYN-ACK offered: whole segments, without timestamps.
        r.seq += 45 * 1448;
        // A timestamp between that of the SYN-ACK and that of the answer.
        let ts = r.options.timestamps.as_mut().unwrap();
        ts.ecr = ts.ecr.wrapping_add(10);
    });
    assert!(accept(&mut net, listener).is_some());
}
