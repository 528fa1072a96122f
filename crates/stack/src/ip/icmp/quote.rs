//! The packets that received errors quote: their flow, and the meaning of the error for the
//! transport protocol (RFC 1122 4.2.3.9, RFC 5461).

use alloc::vec::Vec;
use core::net::IpAddr;

use fullsend_tcp::{IcmpError, TcpError};
use fullsend_wire::icmpv4::unreachable as v4;
use fullsend_wire::icmpv6::unreachable as v6;
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::{HEADER_LEN, Ipv6View};
use fullsend_wire::numbers::protocol;
use fullsend_wire::{SeqNum, extension};

use super::TransportError;
use crate::ip::pmtu::plateau_below;

pub(super) const TIME_EXCEEDED: IcmpError = IcmpError::Unreachable(TcpError::HostUnreachable);
pub(super) const PARAMETER_PROBLEM: IcmpError = IcmpError::Unreachable(TcpError::HostUnreachable);

/// Returns the meaning of an ICMP Destination Unreachable message.
pub(super) fn unreachable_v4(code: u8, mtu: u16, quote: &[u8]) -> Option<IcmpError> {
    let error = match code {
        v4::FRAGMENTATION_NEEDED => {
            // RFC 1191 5: routers that do not support path MTU discovery leave the field zero.
            let guess = || Ipv4View::new(quote).map_or(0, |v| plateau_below(v.total_len() as u32));
            let mtu = if mtu == 0 { guess() } else { mtu.into() };
            return Some(IcmpError::TooBig { mtu });
        }
        v4::PROTOCOL | v4::PORT => TcpError::ConnectionRefused,
        // Network unreachable, unknown, isolated or prohibited, or unreachable for the type of
        // service.
        v4::NET | 5 | 6 | 9 | 11 => TcpError::NetworkUnreachable,
        v4::HOST | 7..=15 => TcpError::HostUnreachable,
        _ => return None,
    };
    Some(IcmpError::Unreachable(error))
}

/// Returns the meaning of an ICMPv6 Destination Unreachable message.
pub(super) const fn unreachable_v6(code: u8) -> IcmpError {
    IcmpError::Unreachable(match code {
        v6::NO_ROUTE => TcpError::NetworkUnreachable,
        v6::PORT => TcpError::ConnectionRefused,
        _ => TcpError::HostUnreachable,
    })
}

/// Returns the error with the flow of the quoted IPv4 packet.
pub(super) fn parse_v4(quote: &[u8], error: IcmpError) -> Option<TransportError> {
    let ip = Ipv4View::new(quote).ok()?;
    if ip.fragment_offset() != 0 {
        return None;
    }
    let addrs = (ip.src().into(), ip.dst().into());
    transport(addrs, ip.protocol(), ip.payload(), error)
}

/// Returns the error with the flow of the quoted IPv6 packet.
pub(super) fn parse_v6(quote: &[u8], error: IcmpError) -> Option<TransportError> {
    let ip = Ipv6View::new(quote).ok()?;
    let rest = &quote[HEADER_LEN..];
    let upper = extension::parse_headers(ip.next_header(), rest).ok()?;
    if upper.fragment.is_some_and(|f| f.offset != 0) {
        return None;
    }
    let addrs = (ip.src().into(), ip.dst().into());
    transport(addrs, upper.protocol, &rest[upper.offset..], error)
}

/// Reads the ports and, for TCP, the sequence number: at least 8 bytes of transport header are
/// quoted (RFC 792).
fn transport(
    (src, dst): (IpAddr, IpAddr),
    protocol: u8,
    header: &[u8],
    error: IcmpError,
) -> Option<TransportError> {
    if !matches!(protocol, protocol::TCP | protocol::UDP) {
        return None;
    }
    let &[s0, s1, d0, d1, q0, q1, q2, q3] = header.first_chunk()?;
    Some(TransportError {
        protocol,
        local: (src, u16::from_be_bytes([s0, s1])),
        remote: (dst, u16::from_be_bytes([d0, d1])),
        seq: SeqNum::new(u32::from_be_bytes([q0, q1, q2, q3])),
        error,
        // The caller fills these in from the message.
        kind: (0, 0),
        offender: src,
        payload: match protocol {
            protocol::UDP => header[8..].to_vec(),
            _ => Vec::new(),
        },
    })
}
