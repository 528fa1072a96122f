use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_offload::{Chain, Link, Packet, Slice};
use fullsend_tcp::{IcmpError, Sysctl, TcpError};
use fullsend_wire::extension::ExtensionError;
use fullsend_wire::icmpv4::{self, Icmpv4Repr};
use fullsend_wire::icmpv6::{self, Icmpv6Repr};
use fullsend_wire::ipv4::{Ipv4Repr, Ipv4View};
use fullsend_wire::ipv6::{Ipv6Repr, Ipv6View};
use fullsend_wire::numbers::protocol;
use fullsend_wire::udp::UdpRepr;
use fullsend_wire::{Instant, Rng, Seed, SeqNum};

use super::{Icmp, IcmpAction, IcmpAddrs, IcmpPacket, Problem, TransportError};

const US: &str = "10.0.0.1";
const PEER: &str = "10.0.0.2";
const US6: &str = "fd00::1";
const PEER6: &str = "fd00::2";
const T0: Instant = Instant::ZERO;

fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn arrival(src: &str, dst: &str, own: &str) -> IcmpAddrs {
    IcmpAddrs {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        own: Some(own.parse().unwrap()),
    }
}

fn message_v4(repr: &Icmpv4Repr<'_>) -> Chain {
    let mut bytes = vec![0; repr.len()];
    repr.emit(&mut bytes);
    Slice::copied_from(&bytes).into()
}

fn message_v6(repr: &Icmpv6Repr<'_>, src: &str, dst: &str) -> Chain {
    let mut bytes = vec![0; repr.len()];
    repr.emit(v6(src), v6(dst), &mut bytes);
    Slice::copied_from(&bytes).into()
}

/// Returns an IP packet as bytes.
fn ip_packet(src: &str, dst: &str, protocol: u8, offset: u16, payload: &[u8]) -> Vec<u8> {
    let payload_len = payload.len() as u16;
    let mut bytes = match (src.parse().unwrap(), dst.parse().unwrap()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let repr = Ipv4Repr {
                dont_fragment: false,
                fragment_offset: offset,
                ..Ipv4Repr::new(src, dst, protocol, payload_len)
            };
            let mut bytes = vec![0; 20];
            repr.emit(&mut bytes);
            bytes
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut bytes = vec![0; 40];
            Ipv6Repr::new(src, dst, protocol, payload_len).emit(&mut bytes);
            bytes
        }
        _ => panic!("families"),
    };
    bytes.extend_from_slice(payload);
    bytes
}

fn udp(payload_len: u16) -> Vec<u8> {
    let mut bytes = vec![7; 8 + usize::from(payload_len)];
    let repr = UdpRepr {
        src_port: 1000,
        dst_port: 2000,
        payload_len,
    };
    repr.emit(&mut bytes);
    bytes
}

fn parsed(bytes: &[u8]) -> Packet {
    let mut packet = Packet::from_frame(Slice::copied_from(bytes));
    packet.parse(Link::Ip).unwrap();
    packet
}

fn reply(received: IcmpAction) -> IcmpPacket {
    match received {
        IcmpAction::Reply(datagram) => datagram,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pings_are_answered() {
    let mut icmp = Icmp::default();
    let data = &[1, 2, 3][..];
    let ping = Icmpv4Repr::EchoRequest {
        ident: 7,
        seq: 9,
        data,
    };
    let answer = reply(icmp.input(&arrival(PEER, US, US), &message_v4(&ping)));
    assert_eq!((answer.src, answer.dst), (v4(US).into(), v4(PEER).into()));
    let bytes = answer.packet.to_bytes();
    assert!(icmpv4::checksum_ok(&bytes));
    let expected = Icmpv4Repr::EchoReply {
        ident: 7,
        seq: 9,
        data,
    };
    assert_eq!(Icmpv4Repr::parse(&bytes), Ok(expected));
    assert_eq!((icmp.v4.in_echos, icmp.v4.out_echo_reps), (1, 1));

    let ping = Icmpv6Repr::EchoRequest {
        ident: 7,
        seq: 9,
        data,
    };
    // To a local address, and to a group, which is answered from the local address.
    for dst in [US6, "ff02::1"] {
        let message = message_v6(&ping, PEER6, dst);
        let answer = reply(icmp.input(&arrival(PEER6, dst, US6), &message));
        let bytes = answer.packet.to_bytes();
        assert!(icmpv6::checksum_ok(v6(US6), v6(PEER6), &bytes));
        let expected = Icmpv6Repr::EchoReply {
            ident: 7,
            seq: 9,
            data,
        };
        assert_eq!(Icmpv6Repr::parse(&bytes), Ok(expected));
    }
}

#[test]
fn broadcast_pings_and_wrong_checksums_are_not_answered() {
    let mut icmp = Icmp::default();
    let ping = Icmpv4Repr::EchoRequest {
        ident: 7,
        seq: 9,
        data: &[],
    };
    let message = message_v4(&ping);
    let received = icmp.input(&arrival(PEER, "10.0.0.255", US), &message);
    assert!(matches!(received, IcmpAction::None));
    let mut bytes = message.slices()[0].to_vec();
    bytes[7] ^= 1;
    let received = icmp.input(&arrival(PEER, US, US), &Slice::copied_from(&bytes).into());
    assert!(matches!(received, IcmpAction::None));
    let received = icmp.input(
        &arrival(PEER, US, US),
        &Slice::copied_from(&[8, 0, 1]).into(),
    );
    assert!(matches!(received, IcmpAction::None));
    assert_eq!(
        (icmp.v4.in_csum_errors, icmp.v4.in_errors, icmp.v4.in_msgs),
        (2, 2, 3)
    );
}

#[test]
fn neighbour_discovery_is_passed_on() {
    let mut icmp = Icmp::default();
    let solicit = fullsend_wire::ndp::NdpRepr::NeighbourSolicit {
        target: v6(US6),
        source_mac: None,
        nonce: None,
    };
    let message = message_v6(&Icmpv6Repr::Ndp(solicit), PEER6, US6);
    let IcmpAction::Ndp(bytes) = icmp.input(&arrival(PEER6, US6, US6), &message) else {
        panic!("not passed on")
    };
    assert_eq!(Icmpv6Repr::parse(&bytes), Ok(Icmpv6Repr::Ndp(solicit)));
}

fn reported_error(icmp: &mut Icmp, arrival: &IcmpAddrs, message: &Chain) -> Option<TransportError> {
    match icmp.input(arrival, message) {
        IcmpAction::Error(error) => Some(error),
        IcmpAction::None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_about_our_segments_find_their_flow() {
    let mut icmp = Icmp::default();
    let from = arrival("10.9.9.9", US, US);
    let quote = ip_packet(US, PEER, protocol::TCP, 0, &[0, 80, 1, 0, 0, 0, 0, 99]);
    let expect = |error, kind| {
        Some(TransportError {
            protocol: protocol::TCP,
            local: (v4(US).into(), 80),
            remote: (v4(PEER).into(), 256),
            seq: SeqNum::new(99),
            error,
            kind,
            offender: v4("10.9.9.9").into(),
            payload: Vec::new(),
        })
    };
    for (code, mtu, error) in [
        (0, 0, IcmpError::Unreachable(TcpError::NetworkUnreachable)),
        (1, 0, IcmpError::Unreachable(TcpError::HostUnreachable)),
        (3, 0, IcmpError::Unreachable(TcpError::ConnectionRefused)),
        (4, 1400, IcmpError::TooBig { mtu: 1400 }),
        (13, 0, IcmpError::Unreachable(TcpError::HostUnreachable)),
    ] {
        let quote = &quote[..];
        let message = message_v4(&Icmpv4Repr::Unreachable { code, mtu, quote });
        assert_eq!(
            reported_error(&mut icmp, &from, &message),
            expect(error, (3, code)),
            "code {code}"
        );
    }
    // An old router reports no MTU: the next plateau below the packet's length.
    let mut long = quote.clone();
    long[2..4].copy_from_slice(&1500u16.to_be_bytes());
    let message = message_v4(&Icmpv4Repr::Unreachable {
        code: 4,
        mtu: 0,
        quote: &long,
    });
    assert_eq!(
        reported_error(&mut icmp, &from, &message),
        expect(IcmpError::TooBig { mtu: 1492 }, (3, 4))
    );
    assert_eq!(icmp.v4.in_dest_unreachs, 6);
}

#[test]
fn icmpv6_errors_about_our_segments_find_their_flow() {
    let mut icmp = Icmp::default();
    let from = arrival(PEER6, US6, US6);
    // The UDP header follows destination options.
    let mut inner = vec![protocol::UDP, 0, 1, 4, 0, 0, 0, 0];
    inner.extend(udp(0));
    let quote = ip_packet(US6, PEER6, protocol::DESTINATION, 0, &inner);
    let message = Icmpv6Repr::PacketTooBig {
        mtu: 1300,
        quote: &quote,
    };
    let error = reported_error(&mut icmp, &from, &message_v6(&message, PEER6, US6)).unwrap();
    assert_eq!(error.error, IcmpError::TooBig { mtu: 1300 });
    assert_eq!(error.protocol, protocol::UDP);
    assert_eq!((error.local.1, error.remote.1), (1000, 2000));
}

#[test]
fn errors_with_invalid_quotes_are_dropped() {
    let mut icmp = Icmp::default();
    let from = arrival(PEER, US, US);
    for quote in [
        &ip_packet(US, PEER, protocol::TCP, 0, &[0, 80, 1, 0, 0, 0, 0])[..],
        &ip_packet(US, PEER, protocol::TCP, 8, &[0, 80, 1, 0, 0, 0, 0, 9]),
        &ip_packet(US, PEER, protocol::ICMP, 0, &[0; 8]),
        &[0x45; 19],
        &[],
    ] {
        let message = message_v4(&Icmpv4Repr::Unreachable {
            code: 3,
            mtu: 0,
            quote,
        });
        assert_eq!(reported_error(&mut icmp, &from, &message), None);
    }
    assert_eq!(icmp.v4.in_errors, 5);
}

#[test]
fn a_closed_port_draws_port_unreachable() {
    let mut icmp = Icmp::default();
    let packet = ip_packet(PEER, US, protocol::UDP, 0, &udp(1000));
    let own = v4(US).into();
    let error = error_about(&mut icmp, Problem::PortUnreachable, &parsed(&packet), own);
    let error = error.unwrap();
    assert_eq!((error.src, error.dst), (own, v4(PEER).into()));
    let bytes = error.packet.to_bytes();
    assert!(icmpv4::checksum_ok(&bytes));
    let expected = Icmpv4Repr::Unreachable {
        code: 3,
        mtu: 0,
        quote: &packet[..548],
    };
    assert_eq!(Icmpv4Repr::parse(&bytes), Ok(expected));
    assert_eq!((icmp.v4.out_msgs, icmp.v4.out_dest_unreachs), (1, 1));

    let packet = ip_packet(PEER6, US6, protocol::UDP, 0, &udp(10));
    let own = v6(US6).into();
    let error = error_about(&mut icmp, Problem::PortUnreachable, &parsed(&packet), own);
    let bytes = error.unwrap().packet.to_bytes();
    assert!(icmpv6::checksum_ok(v6(US6), v6(PEER6), &bytes));
    let expected = Icmpv6Repr::Unreachable {
        code: 4,
        quote: &packet,
    };
    assert_eq!(Icmpv6Repr::parse(&bytes), Ok(expected));
}

#[test]
fn no_error_is_sent_where_rfc_1122_forbids_it() {
    let mut icmp = Icmp::default();
    let datagram = udp(4);
    let port_unreachable = [3, 3, 0, 0, 0, 0, 0, 0, 0x45];
    for (src, dst, protocol, offset, payload) in [
        // Destinations that are groups or broadcasts, and no source address. `tests/sources.rs` has
        // the other sources.
        (PEER, "10.0.0.255", protocol::UDP, 0, &datagram[..]),
        (PEER, "224.0.0.1", protocol::UDP, 0, &datagram),
        ("0.0.0.0", US, protocol::UDP, 0, &datagram),
        // ICMP errors; later fragments.
        (PEER, US, protocol::ICMP, 0, &port_unreachable),
        (PEER, US, protocol::UDP, 8, &datagram),
    ] {
        let packet = parsed(&ip_packet(src, dst, protocol, offset, payload));
        let answer = error_about(
            &mut icmp,
            Problem::ProtocolUnreachable,
            &packet,
            v4(US).into(),
        );
        assert!(answer.is_none(), "{src} > {dst} {protocol}");
    }
    let packet = parsed(&ip_packet(
        PEER6,
        US6,
        protocol::ICMPV6,
        0,
        &[1, 4, 0, 0, 0, 0, 0, 0],
    ));
    let answer = error_about(
        &mut icmp,
        Problem::ProtocolUnreachable,
        &packet,
        v6(US6).into(),
    );
    assert!(answer.is_none());
    assert_eq!((icmp.v4.out_msgs, icmp.v6.out_msgs), (0, 0));
}

#[test]
fn errors_are_rate_limited() {
    let mut icmp = Icmp::default();
    let packet = parsed(&ip_packet(PEER, US, protocol::UDP, 0, &udp(4)));
    let mut error = || error_about(&mut icmp, Problem::PortUnreachable, &packet, v4(US).into());
    let sent = (0..20).filter_map(|_| error()).count();
    // One remote host gets six errors, whatever the global limit leaves for others.
    assert_eq!(sent, 6);
    assert_eq!(icmp.v4.out_rate_limit_host, 14);
    for n in 0..200 {
        let peer = alloc::format!("10.1.0.{n}");
        let packet = parsed(&ip_packet(&peer, US, protocol::UDP, 0, &udp(4)));
        error_about(&mut icmp, Problem::PortUnreachable, &packet, v4(US).into());
    }
    assert!((40..60).contains(&icmp.v4.out_msgs), "{}", icmp.v4.out_msgs);
    assert!(icmp.v4.out_rate_limit_global > 150);
}

fn error_about(
    icmp: &mut Icmp,
    problem: Problem,
    packet: &Packet,
    own: IpAddr,
) -> Option<IcmpPacket> {
    let mut rng = Rng::new(Seed::from_u64(icmp.v4.out_msgs));
    let limits = Some((&Sysctl::default(), &mut rng));
    icmp.error(T0, problem, packet, own, limits)
}

#[test]
fn header_problems_point_at_the_byte() {
    let mut icmp = Icmp::default();
    // An unknown option that must be reported, in a packet to a group.
    let inner = [protocol::NO_NEXT_HEADER, 0, 0xbe, 4, 0, 0, 0, 0];
    let bytes = ip_packet(PEER6, "ff02::1", protocol::DESTINATION, 0, &inner);
    let packet = parsed(&bytes);
    let view = Ipv6View::new(&bytes).unwrap();
    let fault =
        fullsend_wire::extension::parse_headers(view.next_header(), view.payload()).unwrap_err();
    let problem = Problem::from_fault(fault).unwrap();
    let answer = error_about(&mut icmp, problem, &packet, v6(US6).into()).unwrap();
    let expected = Icmpv6Repr::ParameterProblem {
        code: 2,
        pointer: 42,
        quote: &bytes,
    };
    assert_eq!(Icmpv6Repr::parse(&answer.packet.to_bytes()), Ok(expected));
    assert_eq!(Problem::from_fault(ExtensionError::Discard), None);

    // An unsupported protocol, named by the destination options header.
    let inner = [200, 0, 1, 4, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let bytes = ip_packet(PEER6, US6, protocol::DESTINATION, 0, &inner);
    let own = v6(US6).into();
    let answer = error_about(
        &mut icmp,
        Problem::ProtocolUnreachable,
        &parsed(&bytes),
        own,
    );
    let expected = Icmpv6Repr::ParameterProblem {
        code: 1,
        pointer: 40,
        quote: &bytes,
    };
    let answer = answer.unwrap().packet.to_bytes();
    assert_eq!(Icmpv6Repr::parse(&answer), Ok(expected));
    assert!(Ipv4View::new(&bytes).is_err());
}
