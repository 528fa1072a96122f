//! Listeners: groups that share a port (`SO_REUSEPORT`), deferred accepts (`TCP_DEFER_ACCEPT`), and
//! inherited options, and saved SYNs.

mod common;

use common::{Net, Nic, V4};
use fullsend_offload::Link;
use fullsend_stack::{Host, ListenConfig, ListenerId, StackError, TcpId};
use fullsend_tcp::{SocketOption, State};
use fullsend_wire::Nanos;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

const CONFIG: ListenConfig = ListenConfig {
    backlog: 1000,
    defer_syn_ack: false,
    any_destination: false,
};

fn to() -> String {
    format!("{}:80", V4[1])
}

fn connect(net: &mut Net) -> TcpId {
    let now = net.now;
    let to = to().parse().unwrap();
    net.hosts[0].tcp_connect(now, None, to).unwrap()
}

fn accepted(net: &mut Net, listener: ListenerId) -> Vec<u16> {
    let mut ports = Vec::new();
    while let Some(incoming) = net.hosts[1].listener(listener).accept().unwrap() {
        ports.push(incoming.remote.port());
    }
    ports
}

#[test]
fn listeners_that_share_a_port_get_equal_shares() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let at = to().parse().unwrap();
    let host = &mut net.hosts[1];
    let group: Vec<_> = (0..4)
        .map(|_| host.tcp_listen_shared(at, CONFIG).unwrap())
        .collect();
    assert_eq!(
        host.tcp_listen(at, CONFIG),
        Err(StackError::AddressInUse(at)),
        "both must want it"
    );
    for _ in 0..400 {
        connect(&mut net);
    }
    net.run_for(Nanos::from_millis(100));
    for listener in group {
        let n = accepted(&mut net, listener).len();
        assert!((70..130).contains(&n), "{n}");
    }
}

/// The listener of a flow does not depend on the others of its group: closing one moves only its
/// own flows.
#[test]
fn closing_one_listener_moves_no_flow_of_the_others() {
    let mut runs = [false, true].map(|close_one| {
        let mut net = Net::new(Link::Ip, Nic::Tso);
        let at = to().parse().unwrap();
        let group: Vec<_> = (0..3)
            .map(|_| net.hosts[1].tcp_listen_shared(at, CONFIG).unwrap())
            .collect();
        if close_one {
            let now = net.now;
            net.hosts[1].listener(group[1]).close(now);
        }
        for _ in 0..100 {
            connect(&mut net);
        }
        net.run_for(Nanos::from_millis(100));
        [0, 2].map(|i| accepted(&mut net, group[i]))
    });
    let (before, after) = runs.split_at_mut(1);
    for (before, after) in before[0].iter().zip(&after[0]) {
        assert!(before.iter().all(|port| after.contains(port)));
        assert!(
            after.len() > before.len(),
            "it got a part of those that closed"
        );
    }
}

#[test]
fn a_deferred_accept_waits_for_data() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen(1, &to());
    let defer = SocketOption::TcpDeferAccept(10);
    net.hosts[1].listener(listener).set_option(defer).unwrap();
    let client = connect(&mut net);
    net.run_for(Nanos::from_secs(2));
    assert_eq!(net.hosts[0].tcp(client).state(), Ok(State::Established));
    assert!(accepted(&mut net, listener).is_empty());
    assert_eq!(net.counter(1, "TcpExtTCPDeferAcceptDrop"), 1);
    let now = net.now;
    net.hosts[0]
        .tcp(client)
        .write(now, b"hello", false)
        .unwrap();
    net.run_for(Nanos::from_millis(10));
    let incoming = net.hosts[1].listener(listener).accept().unwrap().unwrap();
    let (now, mut buf) = (net.now, [0; 10]);
    assert_eq!(net.hosts[1].tcp(incoming.id).read(now, &mut buf), Ok(5));
}

/// A peer that sends no data gets a second SYN-ACK when the time is over, and its answer is
/// accepted.
#[test]
fn defer_accept_times_out() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen(1, &to());
    let defer = SocketOption::TcpDeferAccept(3);
    net.hosts[1].listener(listener).set_option(defer).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    net.filter = Some(Box::new(move |from, packet| {
        let mut packet = packet.clone();
        packet.parse(Link::Ip).unwrap();
        let repr = TcpRepr::parse(packet.transport_header()).unwrap().0;
        if from == 1 && repr.flags.contains(TcpFlags::SYN) {
            tx.send(()).unwrap();
        }
        true
    }));
    connect(&mut net);
    net.run_for(Nanos::from_millis(2900));
    assert_eq!(
        (rx.try_iter().count(), accepted(&mut net, listener).len()),
        (1, 0)
    );
    net.run_for(Nanos::from_secs(5));
    assert_eq!(
        (rx.try_iter().count(), accepted(&mut net, listener).len()),
        (1, 1)
    );
}

#[test]
fn connections_inherit_their_listeners_options() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen(1, &to());
    for option in [
        SocketOption::TcpNodelay(true),
        SocketOption::TcpMaxseg(500),
        SocketOption::SoRcvbuf(10_000),
        SocketOption::IpTos(0x2b),
        SocketOption::TcpNodelay(false),
        SocketOption::TcpCork(true),
    ] {
        net.hosts[1].listener(listener).set_option(option).unwrap();
    }
    let client = connect(&mut net);
    net.run_for(Nanos::from_millis(10));
    let now = net.now;
    let info = net.hosts[0].tcp(client).info(now).unwrap();
    assert_eq!((info.tcpi_snd_mss, info.tcpi_snd_wnd), (488, 20 * 488));
    let server = net.hosts[1]
        .listener(listener)
        .accept()
        .unwrap()
        .unwrap()
        .id;
    let options = net.hosts[1].tcp(server).options().unwrap();
    assert_eq!((options.tcp_nodelay, options.tcp_cork), (false, true));
    assert_eq!((options.so_rcvbuf, options.ip_tos), (20_000, 0x28));
}

/// DCTCP is negotiated in the handshake: a listener's choice applies from the SYN-ACK on.
#[test]
fn a_listeners_congestion_control_is_used_in_the_handshake() {
    for (choice, client_has, server_has) in [
        (Some("dctcp"), "dctcp", "dctcp"),
        (Some("reno"), "dctcp-reno", "reno"),
        (None, "dctcp-reno", "cubic"),
    ] {
        let mut net = Net::new(Link::Ip, Nic::Tso);
        let listener = net.listen(1, &to());
        if let Some(name) = choice {
            net.hosts[1]
                .listener(listener)
                .set_congestion(name)
                .unwrap();
        }
        let client = connect(&mut net);
        let now = net.now;
        net.hosts[0]
            .tcp(client)
            .set_congestion(now, "dctcp")
            .unwrap();
        net.run_for(Nanos::from_millis(10));
        let server = net.hosts[1]
            .listener(listener)
            .accept()
            .unwrap()
            .unwrap()
            .id;
        let name = |host: &mut Host, id| host.tcp(id).cc_info().unwrap().0;
        assert_eq!(name(&mut net.hosts[0], client), client_has, "{choice:?}");
        assert_eq!(name(&mut net.hosts[1], server), server_has, "{choice:?}");
    }
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen(1, &to());
    assert!(
        net.hosts[1]
            .listener(listener)
            .set_congestion("vegas")
            .is_err()
    );
    net.hosts[1]
        .sysctl_mut()
        .set("tcp_allowed_congestion_control", "reno")
        .unwrap();
    assert!(
        net.hosts[1]
            .listener(listener)
            .set_congestion("dctcp")
            .is_err()
    );
}

#[test]
fn a_saved_syn_belongs_to_the_open_connection() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let listener = net.listen(1, "10.0.0.2:80");
    let save = SocketOption::TcpSaveSyn(true);
    net.hosts[1].listener(listener).set_option(save).unwrap();
    let (_, server) = net.connect_to(listener, "10.0.0.2:80");
    let now = net.now;
    let host = &mut net.hosts[1];
    assert_eq!(host.tcp(server).saved_syn().map(|syn| syn[0]), Some(0x45));
    host.tcp(server).close(now);
    assert_eq!(host.tcp(server).saved_syn(), None);
    assert_eq!(host.tcp(server).take_saved_syn(), None);
}
