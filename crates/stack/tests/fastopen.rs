//! TCP Fast Open (RFC 7413) between two hosts.

mod common;

use common::{Net, Nic, V4, V6};
use fullsend_offload::{Link, Packet};
use fullsend_stack::{ListenerId, StackError, TcpId};
use fullsend_tcp::{SocketOption, State, TcpError};
use fullsend_wire::Nanos;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

/// Creates host 0 as a client and host 1 as a server, whose listener has a Fast Open queue of
/// `qlen`.
fn pair(addrs: [&str; 2], qlen: u32) -> (Net, ListenerId, String) {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let to = if addrs == V4 {
        format!("{}:80", addrs[1])
    } else {
        format!("[{}]:80", addrs[1])
    };
    let listener = net.listen(1, &to);
    let host = &mut net.hosts[1];
    host.listener(listener)
        .set_option(SocketOption::TcpFastopen(qlen))
        .unwrap();
    host.sysctl_mut().set("tcp_fastopen", "3").unwrap();
    (net, listener, to)
}

/// Opens a connection like `sendmsg(MSG_FASTOPEN)`. Returns the number of bytes that the SYN
/// carries.
fn open(net: &mut Net, to: &str, data: &[u8]) -> (TcpId, Result<usize, StackError>) {
    let now = net.now;
    let host = &mut net.hosts[0];
    let id = host
        .tcp_connect_deferred(now, None, to.parse().unwrap())
        .unwrap();
    (id, host.tcp(id).write(now, data, false))
}

const WOULD_BLOCK: StackError = StackError::Tcp(TcpError::WouldBlock);

/// Makes the first connection, whose SYN-ACK carries the cookie.
fn get_cookie(net: &mut Net, listener: ListenerId, to: &str) {
    let (id, sent) = open(net, to, b"too early");
    assert_eq!(sent, Err(WOULD_BLOCK));
    net.run_for(Nanos::from_millis(100));
    assert_eq!(net.hosts[0].tcp(id).state(), Ok(State::Established));
    let accepted = net.hosts[1].listener(listener).accept().unwrap().unwrap();
    let now = net.now;
    net.hosts[0].tcp(id).abort(now);
    net.run_for(Nanos::from_millis(100));
    net.hosts[1].tcp(accepted.id).close(now);
}

fn count(net: &Net, who: usize, name: &str) -> u64 {
    net.counter(who, &format!("TcpExtTCPFastOpen{name}"))
}

fn tcp(packet: &Packet) -> TcpRepr {
    let mut packet = packet.clone();
    packet.parse(Link::Ip).unwrap();
    TcpRepr::parse(packet.transport_header()).unwrap().0
}

/// RFC 7413 3: the server's application has the request before the client has completed the handshake,
/// and the answer follows the SYN-ACK immediately.
#[test]
fn a_request_is_sent_in_the_syn() {
    for addrs in [V4, V6] {
        let (mut net, listener, to) = pair(addrs, 10);
        get_cookie(&mut net, listener, &to);
        assert_eq!(count(&net, 1, "CookieReqd"), 1);
        let (client, sent) = open(&mut net, &to, b"GET /");
        assert_eq!(sent, Ok(5));
        let mut server = None;
        let mut buf = [0; 100];
        assert!(net.run_until(Nanos::from_millis(200), |net| {
            server = server.or(net.hosts[1].listener(listener).accept().unwrap());
            server.is_some()
        }));
        let server = server.unwrap().id;
        let now = net.now;
        let host = &mut net.hosts[1];
        assert_eq!(host.tcp(server).state(), Ok(State::SynReceived));
        assert_eq!(host.tcp(server).read(now, &mut buf), Ok(5));
        assert_eq!(&buf[..5], b"GET /");
        assert_eq!(host.tcp(server).write(now, b"200", false), Ok(3));
        net.run_for(Nanos::from_millis(100));
        let now = net.now;
        assert_eq!(net.hosts[0].tcp(client).read(now, &mut buf), Ok(3));
        for (who, id) in [(0, client), (1, server)] {
            assert_eq!(net.hosts[who].tcp(id).state(), Ok(State::Established));
        }
        assert_eq!(count(&net, 0, "Active"), 1);
        assert_eq!(count(&net, 1, "Passive"), 1);
        net.transfer((0, client), (1, server), &common::bytes(200_000));
        net.transfer((1, server), (0, client), &common::bytes(200_000));
        assert_eq!(net.counter(0, "TcpRetransSegs"), 0);
    }
}

/// More is written than the SYN can carry: the rest is sent after the handshake.
#[test]
fn syn_data_is_limited_by_the_mss_and_the_options() {
    let (mut net, listener, to) = pair(V4, 10);
    get_cookie(&mut net, listener, &to);
    let (id, sent) = open(&mut net, &to, &common::bytes(5000));
    assert_eq!(sent, Ok(1420));
    let now = net.now;
    assert_eq!(
        net.hosts[0].tcp(id).write(now, b"more", false),
        Err(WOULD_BLOCK)
    );
    net.run_for(Nanos::from_millis(100));
    let server = net.hosts[1]
        .listener(listener)
        .accept()
        .unwrap()
        .unwrap()
        .id;
    let mut buf = [0; 3000];
    let now = net.now;
    assert_eq!(net.hosts[1].tcp(server).read(now, &mut buf), Ok(1420));
    assert_eq!(buf[..1420], common::bytes(1420));
}

/// As on Linux: `TCP_SYNCNT` of the listener, or one more than `tcp_synack_retries`.
#[test]
fn a_fast_open_syn_ack_is_retransmitted_as_often_as_the_listener_allows() {
    for (syncnt, repetitions) in [(None, 3), (Some(1), 1), (Some(4), 4)] {
        let (mut net, listener, to) = pair(V4, 10);
        net.hosts[1].sysctl_mut().tcp_synack_retries = 2;
        get_cookie(&mut net, listener, &to);
        if let Some(option) = syncnt.map(SocketOption::TcpSyncnt) {
            net.hosts[1].listener(listener).set_option(option).unwrap();
        }
        open(&mut net, &to, b"GET /").1.unwrap();
        net.filter = Some(Box::new(|from, _| from == 0));
        net.run_for(Nanos::from_millis(1));
        let before = net.counter(1, "TcpExtTCPSynRetrans");
        net.filter = Some(Box::new(|_, _| false));
        net.run_for(Nanos::from_secs(100));
        let sent = net.counter(1, "TcpExtTCPSynRetrans") - before;
        assert_eq!(sent, repetitions, "{syncnt:?}");
    }
}

/// RFC 7413 4.1.3: if the path drops SYNs with data, a SYN without data is sent, and the data after
/// the handshake.
#[test]
fn syn_data_is_retransmitted_after_a_plain_syn() {
    let (mut net, listener, to) = pair(V4, 10);
    get_cookie(&mut net, listener, &to);
    net.filter = Some(Box::new(|_, packet| {
        let repr = tcp(packet);
        !repr.flags.contains(TcpFlags::SYN) || packet.payload.is_empty()
    }));
    let (client, sent) = open(&mut net, &to, b"hello");
    assert_eq!(sent, Ok(5));
    net.run_for(Nanos::from_secs(2));
    let server = net.hosts[1]
        .listener(listener)
        .accept()
        .unwrap()
        .unwrap()
        .id;
    let (now, mut buf) = (net.now, [0; 10]);
    assert_eq!(net.hosts[1].tcp(server).read(now, &mut buf), Ok(5));
    let info = net.hosts[0].tcp(client).info(now).unwrap();
    assert_eq!(info.tcpi_fastopen_client_fail, 3);
    assert_eq!((info.tcpi_bytes_acked, info.tcpi_unacked), (5, 0));
    assert_eq!(count(&net, 0, "ActiveFail"), 1);
}

/// A wrong cookie, or one made with an older key, is answered with the right one.
#[test]
fn keys_rotate() {
    let (mut net, listener, to) = pair(V4, 10);
    let set = |net: &mut Net, keys: &str| {
        net.hosts[1]
            .sysctl_mut()
            .set("tcp_fastopen_key", keys)
            .unwrap();
    };
    let (old, new) = (
        "00000001-00000002-00000003-00000004",
        "00000005-00000006-00000007-00000008",
    );
    set(&mut net, old);
    get_cookie(&mut net, listener, &to);
    set(&mut net, &format!("{new},{old}"));
    let (_, sent) = open(&mut net, &to, b"x");
    assert_eq!(sent, Ok(1));
    net.run_for(Nanos::from_millis(100));
    assert_eq!(count(&net, 1, "PassiveAltKey"), 1);
    // The SYN-ACK carried the new cookie.
    set(&mut net, new);
    open(&mut net, &to, b"x").1.unwrap();
    net.run_for(Nanos::from_millis(100));
    assert_eq!(count(&net, 1, "Passive"), 2);
    set(&mut net, old);
    let (id, sent) = open(&mut net, &to, b"x");
    assert_eq!(sent, Ok(1));
    net.run_for(Nanos::from_millis(100));
    assert_eq!(count(&net, 1, "PassiveFail"), 1);
    let now = net.now;
    let info = net.hosts[0].tcp(id).info(now).unwrap();
    assert_eq!(info.tcpi_fastopen_client_fail, 2);
    assert_eq!(info.tcpi_bytes_acked, 1, "sent again at once");
}

/// RFC 7413 5.1: the number of connections in the handshake is bounded, and resetting them makes no
/// room.
#[test]
fn the_queue_is_bounded() {
    let (mut net, listener, to) = pair(V4, 2);
    get_cookie(&mut net, listener, &to);
    // The SYN-ACKs are lost.
    net.filter = Some(Box::new(|from, _| from == 0));
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(open(&mut net, &to, b"x").0);
    }
    net.run_for(Nanos::from_millis(10));
    assert_eq!(count(&net, 1, "Passive"), 2);
    assert_eq!(count(&net, 1, "ListenOverflow"), 2);
    // The client's host resets connections that it no longer has.
    let now = net.now;
    for id in clients {
        net.hosts[0].tcp(id).abort(now);
    }
    net.filter = None;
    net.run_for(Nanos::from_secs(10));
    let first = net.hosts[1]
        .listener(listener)
        .accept()
        .unwrap()
        .unwrap()
        .id;
    let (now, mut buf) = (net.now, [0; 4]);
    assert_eq!(net.hosts[1].tcp(first).read(now, &mut buf), Ok(1));
    assert_eq!(
        net.hosts[1].tcp(first).read(now, &mut buf),
        Err(StackError::Tcp(TcpError::ConnectionReset))
    );
    open(&mut net, &to, b"x").1.unwrap();
    net.run_for(Nanos::from_millis(100));
    assert_eq!(count(&net, 1, "Passive"), 2, "they count for a minute");
    net.run_for(Nanos::from_secs(60));
    open(&mut net, &to, b"x").1.unwrap();
    net.run_for(Nanos::from_millis(100));
    assert_eq!(count(&net, 1, "Passive"), 3);
}

#[test]
fn no_cookie_is_needed_where_both_sides_allow_it() {
    let (mut net, listener, to) = pair(V4, 10);
    net.hosts[0].sysctl_mut().set("tcp_fastopen", "5").unwrap();
    net.hosts[1]
        .sysctl_mut()
        .set("tcp_fastopen", "0x203")
        .unwrap();
    let (_, sent) = open(&mut net, &to, &common::bytes(1000));
    assert_eq!(sent, Ok(1000), "the peer's MSS is taken to be ours");
    net.run_for(Nanos::from_millis(100));
    let server = net.hosts[1]
        .listener(listener)
        .accept()
        .unwrap()
        .unwrap()
        .id;
    let (now, mut buf) = (net.now, [0; 1000]);
    assert_eq!(net.hosts[1].tcp(server).read(now, &mut buf), Ok(1000));
    assert_eq!(count(&net, 0, "Active"), 1);
}

/// RFC 7413 4.1.3.1: Fast Open is suspended if the path drops its segments.
#[test]
fn a_path_that_drops_syn_data_disables_fast_open() {
    let (mut net, listener, to) = pair(V4, 10);
    let name = "tcp_fastopen_blackhole_timeout_sec";
    net.hosts[0].sysctl_mut().set(name, "3600").unwrap();
    get_cookie(&mut net, listener, &to);
    net.filter = Some(Box::new(|_, _| false));
    open(&mut net, &to, b"x").1.unwrap();
    net.run_for(Nanos::from_secs(10));
    assert_eq!(count(&net, 0, "Blackhole"), 1);
    net.filter = None;
    assert_eq!(open(&mut net, &to, b"x").1, Err(WOULD_BLOCK));
    net.run_for(Nanos::from_secs(3600));
    assert_eq!(open(&mut net, &to, b"x").1, Ok(1));
}

#[test]
fn a_server_without_fast_open_is_connected_by_a_plain_handshake() {
    let (mut net, listener, to) = pair(V4, 0);
    let (id, sent) = open(&mut net, &to, b"x");
    assert_eq!(sent, Err(WOULD_BLOCK));
    net.run_for(Nanos::from_millis(100));
    let server = net.hosts[1]
        .listener(listener)
        .accept()
        .unwrap()
        .unwrap()
        .id;
    net.transfer((0, id), (1, server), b"hello");
    assert_eq!(open(&mut net, &to, b"x").1, Err(WOULD_BLOCK));
}
