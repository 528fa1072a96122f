//! The packets that received errors quote: their flow, and the meaning of the error for the
//! transport protocol (RFC 1122 4.2.3.9, RFC 5461).

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use fullsend_offload::Packet;
use fullsend_tcp::{IcmpError, TcpError};
use fullsend_wire::icmpv4::unreachable as v4;
use fullsend_wire::icmpv6::unreachable as v6;
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::{HEADER_LEN, Ipv6View};
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::{SeqNum, extension};

use super::TransportError;
use crate::ip::pmtu::plateau_below;

/// Bytes of a packet that an error of this host quotes.
const QUOTED: usize = 548;

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

/// Returns the error that this host would receive from itself (`ICMP_HOST_UNREACH`,
/// `ICMPV6_ADDR_UNREACH`) about a UDP datagram or an echo request whose next hop does not answer.
pub(crate) fn host_unreachable(packet: &Packet) -> Option<TransportError> {
    let header = packet.network_header();
    let mut quote = vec![0; (header.len() + packet.payload.len()).min(QUOTED)];
    let from_header = header.len().min(quote.len());
    quote[..from_header].copy_from_slice(&header[..from_header]);
    packet.payload.copy_to(&mut quote[from_header..]);
    let error = IcmpError::Unreachable(TcpError::HostUnreachable);
    let (mut report, kind) = match packet.layers.ethertype {
        ethertype::IPV4 => (parse_v4(&quote, error)?, (3, v4::HOST)),
        _ => (parse_v6(&quote, error)?, (1, v6::ADDRESS)),
    };
    if report.protocol == protocol::TCP {
        return None;
    }
    report.kind = kind;
    Some(report)
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
/// quoted (RFC 792). Of an echo request, it reads the identifier and the sequence number.
fn transport(
    (src, dst): (IpAddr, IpAddr),
    protocol: u8,
    header: &[u8],
    error: IcmpError,
) -> Option<TransportError> {
    let &[s0, s1, d0, d1, q0, q1, q2, q3] = header.first_chunk()?;
    let is_echo_request = matches!(
        (protocol, src.is_ipv4(), [s0, s1]),
        (protocol::ICMP, true, [8, 0]) | (protocol::ICMPV6, false, [128, 0])
    );
    let ports = match protocol {
        protocol::TCP | protocol::UDP => [[s0, s1], [d0, d1]],
        _ if is_echo_request => [[q0, q1], [q2, q3]],
        _ => return None,
    };
    let [local_port, remote_port] = ports.map(u16::from_be_bytes);
    Some(TransportError {
        protocol,
        local: (src, local_port),
        remote: (dst, remote_port),
        seq: SeqNum::new(u32::from_be_bytes([q0, q1, q2, q3])),
        error,
        // The caller fills these in from the message.
        kind: (0, 0),
        offender: src,
        payload: match protocol {
            protocol::TCP => Vec::new(),
            _ => header[8..].to_vec(),
        },
    })
}
