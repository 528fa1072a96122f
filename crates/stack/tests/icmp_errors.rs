//! ICMP errors about the handshake's segments (RFC 1122 4.2.3.9, RFC 5461), by type and code.

mod common;

use std::net::{IpAddr, SocketAddr};

use common::forge::{ip, tcp};
use common::{IFACE, Net, Nic, V4, V6};
use fullsend_offload::{Link, Packet};
use fullsend_stack::{ListenerId, StackError};
use fullsend_tcp::{State, TcpError};
use fullsend_wire::checksum::{RunningSum, Sum};
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{Nanos, SeqNum, WireWindow};

fn pair(addrs: [&str; 2]) -> [IpAddr; 2] {
    addrs.map(|addr| addr.parse().unwrap())
}

/// Returns an ICMP error of this type and code from host 0 to host 1, about a packet of host 1.
fn error(addrs: [&str; 2], (kind, code): (u8, u8), quote: &[u8]) -> Packet {
    let [from, to] = pair(addrs);
    let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(quote);
    let (protocol, pseudo) = match (from, to) {
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = message.len() as u32;
            let pseudo = Sum::pseudo_v6(from, to, protocol::ICMPV6, len);
            (protocol::ICMPV6, pseudo)
        }
        _ => (protocol::ICMP, Sum::ZERO),
    };
    let mut sum = RunningSum::from(pseudo);
    sum.push(&message);
    let checksum = sum.sum().checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    ip(from, to, protocol, &message)
}

fn deliver(net: &mut Net, packet: Packet) -> Vec<Vec<u8>> {
    let now = net.now;
    let mut out = Vec::new();
    net.hosts[1].receive(now, IFACE, &mut vec![packet]);
    net.hosts[1].transmit(now, IFACE, &mut out, 8);
    out.iter().map(Packet::to_bytes).collect()
}

fn transport(packet: &[u8]) -> TcpRepr {
    let header_len = if packet[0] >> 4 == 4 { 20 } else { 40 };
    TcpRepr::parse(&packet[header_len..]).unwrap().0
}

/// Returns whether a connect of host 1 survives the error about its SYN.
fn connect_survives(addrs: [&str; 2], kind: (u8, u8)) -> Result<(), TcpError> {
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    let [to, _] = pair(addrs);
    let now = net.now;
    let id = net.hosts[1]
        .tcp_connect(now, None, (to, 80).into())
        .unwrap();
    let mut out = Vec::new();
    net.hosts[1].transmit(now, IFACE, &mut out, 8);
    let syn = out.pop().unwrap().to_bytes();
    deliver(&mut net, error(addrs, kind, &syn));
    match net.hosts[1].tcp(id).state() {
        Ok(State::SynSent) => Ok(()),
        Ok(State::Closed) => match net.hosts[1].tcp(id).read(now, &mut [0]) {
            Err(StackError::Tcp(error)) => Err(error),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Returns whether a connection to host 1 survives the error about its SYN-ACK.
fn half_open_survives(addrs: [&str; 2], kind: (u8, u8)) -> bool {
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    let [from, to] = pair(addrs);
    let (client, server): (SocketAddr, SocketAddr) = ((from, 4000).into(), (to, 80).into());
    let listener: ListenerId = net.listen(1, &server.to_string());
    let syn = TcpRepr {
        seq: SeqNum::new(99),
        flags: TcpFlags::SYN,
        window: WireWindow(1000),
        ..TcpRepr::default()
    };
    let syn_ack = deliver(&mut net, tcp(client, server, syn, &[])).remove(0);
    deliver(&mut net, error(addrs, kind, &syn_ack));
    let ack = TcpRepr {
        seq: SeqNum::new(100),
        ack: transport(&syn_ack).seq + 1,
        flags: TcpFlags::ACK,
        ..syn
    };
    deliver(&mut net, tcp(client, server, ack, &[]));
    net.run_for(Nanos::from_millis(1));
    net.hosts[1].listener(listener).accept().unwrap().is_some()
}

/// Hard errors (a protocol or port that is unreachable) and soft ones end a connection that is not
/// established. A fragment that was lost is no reason.
#[test]
fn errors_about_the_handshake_end_it_except_for_a_lost_fragment() {
    use TcpError::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let v4 = [
        ((3, 0), Some(NetworkUnreachable)),
        ((3, 1), Some(HostUnreachable)),
        ((3, 2), Some(ConnectionRefused)),
        ((3, 3), Some(ConnectionRefused)),
        ((3, 5), Some(NetworkUnreachable)),
        ((11, 0), Some(HostUnreachable)),
        ((11, 1), None),
        ((12, 0), Some(HostUnreachable)),
    ];
    let v6 = [
        ((1, 0), Some(NetworkUnreachable)),
        ((1, 3), Some(HostUnreachable)),
        ((1, 4), Some(ConnectionRefused)),
        ((3, 0), Some(HostUnreachable)),
        ((3, 1), None),
        ((4, 1), Some(HostUnreachable)),
    ];
    for (addrs, cases) in [(V4, &v4[..]), (V6, &v6[..])] {
        for (kind, expected) in cases {
            let connect = connect_survives(addrs, *kind).err();
            assert_eq!(connect, *expected, "SYN-SENT, {kind:?}");
            let half_open = half_open_survives(addrs, *kind);
            assert_eq!(half_open, expected.is_none(), "SYN-RECEIVED, {kind:?}");
        }
    }
}
