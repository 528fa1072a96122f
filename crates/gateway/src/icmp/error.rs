//! ICMP errors about the guest's datagrams.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use fullsend::{Chain, UnreachableCode};
use fullsend_wire::icmpv4::Icmpv4Repr;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::ipv4::{self, Ipv4Repr};
use fullsend_wire::ipv6::{self, Ipv6Repr};
use fullsend_wire::numbers::protocol;
use fullsend_wire::udp::{self, UdpRepr};

use crate::counters::add;
use crate::gateway::Shared;
use crate::udp::ReportedError;

/// Bytes of payload that an error quotes, so that it fits 576 bytes (RFC 1812 4.3.2.3) and 1280 bytes
/// (RFC 4443 2.4 c).
const QUOTED_PAYLOAD: usize = 512;
/// Type of an ICMP error about an unreachable destination.
const UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;
/// Code of ICMP for a datagram that must not be fragmented.
const FRAGMENTATION_NEEDED: u8 = 4;
/// Types of ICMPv6 errors.
const UNREACHABLE_V6: u8 = 1;
const TOO_BIG_V6: u8 = 2;
const TIME_EXCEEDED_V6: u8 = 3;
/// The protocols of echo requests over IPv4 and IPv6.
const ECHO: [u8; 2] = [protocol::ICMP, protocol::ICMPV6];

/// Sends the guest a "destination unreachable" about a datagram from `guest` to `remote`.
pub(crate) fn report_unreachable(
    shared: &Shared,
    guest: SocketAddr,
    remote: SocketAddr,
    payload: &Chain,
    code: UnreachableCode,
) {
    let mut quoted = vec![0; payload.len().min(QUOTED_PAYLOAD)];
    payload.copy_to(&mut quoted);
    let v6 = guest.is_ipv6();
    let error = ReportedError {
        kind: if v6 { UNREACHABLE_V6 } else { UNREACHABLE },
        code: code.code(v6),
        mtu: 0,
        offender: None,
        to: None,
        payload: quoted,
    };
    let offender = match code {
        // The destination itself reports a closed port.
        UnreachableCode::Port => remote.ip(),
        _ => shared.own_address(guest.ip()).unwrap_or(remote.ip()),
    };
    report_error(shared, guest, remote, offender, &error);
}

/// Sends the guest an error that `offender` reports about a datagram from `guest` to `remote`.
pub(crate) fn report_error(
    shared: &Shared,
    guest: SocketAddr,
    remote: SocketAddr,
    offender: IpAddr,
    error: &ReportedError,
) {
    // A flow between address families has no packet to quote.
    let Some(message) = build_message(guest, remote, error) else {
        return;
    };
    let offender = if offender.is_ipv4() == guest.is_ipv4() {
        offender
    } else {
        remote.ip()
    };
    if shared
        .icmp
        .send(offender, guest.ip(), message, None)
        .is_ok()
    {
        add(&shared.counters.icmp_errors, 1);
    }
}

/// Sends the guest an "administratively prohibited" about its echo request from `guest` to `remote`.
pub(super) fn report_prohibited_echo(
    shared: &Shared,
    guest: IpAddr,
    remote: IpAddr,
    request: &[u8],
) {
    let error = ReportedError {
        kind: if guest.is_ipv6() {
            UNREACHABLE_V6
        } else {
            UNREACHABLE
        },
        code: UnreachableCode::Prohibited.code(guest.is_ipv6()),
        mtu: 0,
        offender: None,
        to: None,
        payload: request[..request.len().min(QUOTED_PAYLOAD)].to_vec(),
    };
    let offender = shared.own_address(guest).unwrap_or(remote);
    report_echo_error(shared, (guest, remote), offender, &error);
}

/// Sends the guest an error that `offender` reports about its echo request from `guest` to `remote`. The
/// error's payload is the request.
pub(super) fn report_echo_error(
    shared: &Shared,
    (guest, remote): (IpAddr, IpAddr),
    offender: IpAddr,
    error: &ReportedError,
) {
    let quote = quote_ip(guest, remote, ECHO, &error.payload);
    let message = quote.and_then(|quote| with_quote(guest.is_ipv4(), &quote, error));
    if let Some(message) = message
        && shared.icmp.send(offender, guest, message, None).is_ok()
    {
        add(&shared.counters.icmp_errors, 1);
    }
}

/// Builds the message without its checksum. Returns `None` if `error` is not about a destination.
fn build_message(guest: SocketAddr, remote: SocketAddr, error: &ReportedError) -> Option<Vec<u8>> {
    let quote = quote(guest, remote, &error.payload)?;
    with_quote(guest.is_ipv4(), &quote, error)
}

/// Builds the message, which ends with `quote`, the beginning of the guest's packet.
fn with_quote(is_ipv4: bool, quote: &[u8], error: &ReportedError) -> Option<Vec<u8>> {
    if is_ipv4 {
        let repr = match error.kind {
            UNREACHABLE => Icmpv4Repr::Unreachable {
                code: error.code,
                mtu: match error.code {
                    FRAGMENTATION_NEEDED => u16::try_from(error.mtu).unwrap_or(u16::MAX),
                    _ => 0,
                },
                quote,
            },
            TIME_EXCEEDED => Icmpv4Repr::TimeExceeded {
                code: error.code,
                quote,
            },
            _ => return None,
        };
        let mut message = vec![0; repr.len()];
        repr.emit(&mut message);
        return Some(message);
    }
    let repr = match error.kind {
        UNREACHABLE_V6 => Icmpv6Repr::Unreachable {
            code: error.code,
            quote,
        },
        TOO_BIG_V6 => Icmpv6Repr::PacketTooBig {
            mtu: error.mtu,
            quote,
        },
        TIME_EXCEEDED_V6 => Icmpv6Repr::TimeExceeded {
            code: error.code,
            quote,
        },
        _ => return None,
    };
    let mut message = vec![0; repr.len()];
    // The stack computes the checksum, which depends on the addresses.
    repr.emit(Ipv6Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED, &mut message);
    Some(message)
}

/// Rebuilds the beginning of the guest's packet. Returns `None` if the addresses are of different
/// families.
fn quote(guest: SocketAddr, remote: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let header = UdpRepr {
        src_port: guest.port(),
        dst_port: remote.port(),
        payload_len: payload.len() as u16,
    };
    let mut udp = vec![0; udp::HEADER_LEN + payload.len()];
    header.emit(&mut udp[..udp::HEADER_LEN]);
    udp[udp::HEADER_LEN..].copy_from_slice(payload);
    quote_ip(guest.ip(), remote.ip(), [protocol::UDP; 2], &udp)
}

/// Rebuilds the guest's packet with this payload. `protocols` are its protocols over IPv4 and over IPv6.
fn quote_ip(guest: IpAddr, remote: IpAddr, protocols: [u8; 2], payload: &[u8]) -> Option<Vec<u8>> {
    let len = payload.len() as u16;
    let mut quote = vec![
        0;
        if guest.is_ipv4() {
            ipv4::HEADER_LEN
        } else {
            ipv6::HEADER_LEN
        }
    ];
    match (guest, remote) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Ipv4Repr::new(src, dst, protocols[0], len).emit(&mut quote);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Ipv6Repr::new(src, dst, protocols[1], len).emit(&mut quote);
        }
        _ => return None,
    }
    quote.extend(payload);
    Some(quote)
}

#[cfg(test)]
mod tests {
    use fullsend_wire::ipv4::Ipv4View;
    use fullsend_wire::ipv6::Ipv6View;

    use super::*;

    fn error(kind: u8, code: u8, mtu: u32) -> ReportedError {
        ReportedError {
            kind,
            code,
            mtu,
            offender: None,
            to: None,
            payload: b"payload".to_vec(),
        }
    }

    #[test]
    fn errors_quote_the_guests_packet() {
        let guest = "10.0.2.100:4000".parse().unwrap();
        let remote = "192.0.2.1:53".parse().unwrap();
        let message = build_message(guest, remote, &error(3, 4, 1400)).unwrap();
        let Icmpv4Repr::Unreachable { code, mtu, quote } = Icmpv4Repr::parse(&message).unwrap()
        else {
            panic!("{message:?}");
        };
        assert_eq!((code, mtu), (4, 1400));
        let ip = Ipv4View::new(quote).unwrap();
        assert_eq!(
            (ip.src().into(), ip.dst().into()),
            (guest.ip(), remote.ip())
        );
        assert_eq!(UdpRepr::parse(ip.payload()).unwrap().src_port, 4000);
        assert!(quote.ends_with(b"payload"));

        let guest = "[fd00::64]:4000".parse().unwrap();
        let remote = "[2001:db8::1]:53".parse().unwrap();
        let message = build_message(guest, remote, &error(2, 0, 1400)).unwrap();
        let Icmpv6Repr::PacketTooBig { mtu, quote } = Icmpv6Repr::parse(&message).unwrap() else {
            panic!("{message:?}");
        };
        assert_eq!(mtu, 1400);
        let ip = Ipv6View::new(quote).unwrap();
        assert_eq!(
            (ip.src().into(), ip.dst().into()),
            (guest.ip(), remote.ip())
        );
        assert!(quote.ends_with(b"payload"));
    }

    #[test]
    fn other_messages_are_not_passed_on() {
        let guest = "10.0.2.100:4000".parse().unwrap();
        let remote = "192.0.2.1:53".parse().unwrap();
        assert!(build_message(guest, remote, &error(5, 0, 0)).is_none());
        let other_family = "[2001:db8::1]:53".parse().unwrap();
        assert!(build_message(guest, other_family, &error(3, 3, 0)).is_none());
    }
}
