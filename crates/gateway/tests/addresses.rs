//! Destinations that no packet of a guest may reach. Needs root.

mod common;

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;

use common::{GUEST, HOST, LIMIT, Rig, wait_until, with_gateway};
use fullsend_gateway::Config;
use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::ethernet::{EthernetRepr, Mac};
use fullsend_wire::ipv4::{self, Ipv4Repr};
use fullsend_wire::ipv6::{self, Ipv6Repr};
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{SeqNum, WireWindow};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, sendto, socket};

/// Sends a packet to the gateway as a guest that writes its own packets.
fn send_raw(rig: &Rig, (src, dst): (IpAddr, IpAddr), proto: u8, transport: &[u8]) {
    let mut frame = vec![0; 14];
    let link = EthernetRepr {
        dst: Mac(Config::default().mac),
        src: Mac([2, 0, 0, 0, 0, 9]),
        vlan: None,
        ethertype: if dst.is_ipv4() {
            ethertype::IPV4
        } else {
            ethertype::IPV6
        },
    };
    link.emit(&mut frame);
    let len = transport.len() as u16;
    let mut header;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            header = vec![0; ipv4::HEADER_LEN];
            Ipv4Repr::new(src, dst, proto, len).emit(&mut header);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            header = vec![0; ipv6::HEADER_LEN];
            Ipv6Repr::new(src, dst, proto, len).emit(&mut header);
        }
        _ => unreachable!(),
    }
    frame.extend(header);
    frame.extend(transport);
    rig.guest.run(move || {
        let tap = getifaddrs()
            .unwrap()
            .filter(|interface| interface.interface_name == "tap0")
            .find_map(|interface| interface.address?.as_link_addr().copied())
            .unwrap();
        let raw = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::empty(),
            None,
        );
        let raw = raw.unwrap();
        sendto(raw.as_raw_fd(), &frame, &tap, MsgFlags::empty()).unwrap();
    });
}

/// Sends a SYN, a datagram and an echo request.
fn send_one_of_each(rig: &Rig, family: usize, dst: &str, port: u16) {
    let addrs: (IpAddr, IpAddr) = (GUEST[family].parse().unwrap(), dst.parse().unwrap());
    let checksum = |proto: u8, bytes: &[u8]| {
        let pseudo = Sum::pseudo(addrs.0, addrs.1, proto, bytes.len() as u32);
        (pseudo + sum(bytes)).checksum().to_be_bytes()
    };
    let repr = TcpRepr {
        src_port: 4000,
        dst_port: port,
        flags: TcpFlags::SYN,
        seq: SeqNum::new(7),
        window: WireWindow(1000),
        ..TcpRepr::default()
    };
    let mut syn = vec![0; repr.header_len()];
    repr.emit(&mut syn);
    let sum = checksum(protocol::TCP, &syn);
    syn[16..18].copy_from_slice(&sum);
    send_raw(rig, addrs, protocol::TCP, &syn);

    let mut datagram = vec![0; 8];
    datagram[..2].copy_from_slice(&4000_u16.to_be_bytes());
    datagram[2..4].copy_from_slice(&port.to_be_bytes());
    datagram[5] = 12;
    datagram.extend(b"data");
    let sum = checksum(protocol::UDP, &datagram);
    datagram[6..8].copy_from_slice(&sum);
    send_raw(rig, addrs, protocol::UDP, &datagram);

    let (kind, proto) = [(8, protocol::ICMP), (128, protocol::ICMPV6)][family];
    let mut echo = vec![kind, 0, 0, 0, 0, 7, 0, 1];
    let sum = if family == 0 {
        fullsend_wire::checksum::sum(&echo).checksum().to_be_bytes()
    } else {
        checksum(proto, &echo)
    };
    echo[2..4].copy_from_slice(&sum);
    send_raw(rig, addrs, proto, &echo);
}

#[test]
fn the_unspecified_address_does_not_lead_to_the_hosts_loopback() {
    with_gateway(Config::default(), |rig| {
        let listener = TcpListener::bind("[::]:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = UdpSocket::bind(("::", port)).unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        let invalid = || {
            let counters = rig.gateway.stack().counters();
            let named = |name| counters.iter().find(|(n, _)| *n == name).unwrap().1;
            named("IpInAddrErrors") + named("Ip6InAddrErrors")
        };
        for (family, unspecified) in ["0.0.0.0", "::"].into_iter().enumerate() {
            let before = invalid();
            send_one_of_each(rig, family, unspecified, port);
            wait_until("the packets are dropped", || invalid() == before + 3);
            // The same packets to the host's address arrive.
            send_one_of_each(rig, family, HOST[family], port);
            let (len, from) = server.recv_from(&mut [0; 9]).unwrap();
            let host: IpAddr = HOST[family].parse().unwrap();
            assert_eq!((len, from.ip().to_canonical()), (4, host));
            wait_until("the connection is relayed", || listener.accept().is_ok());
            wait_until(
                "the echo request is relayed, or dropped without ping sockets",
                || {
                    let counters = rig.gateway.counters();
                    counters.ping_requests + counters.ping_dropped == 1 + family as u64
                },
            );
        }
        server.set_nonblocking(true).unwrap();
        assert!(server.recv_from(&mut [0; 9]).is_err(), "only two datagrams");
        assert!(listener.accept().is_err(), "only two connections");
        assert_eq!(rig.gateway.counters().udp_flows, 2);
    });
}
