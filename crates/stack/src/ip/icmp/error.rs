//! ICMP errors that the host sends, and the cases in which it must not (RFC 1122 3.2.2, RFC 4443
//! 2.4).

use alloc::vec;
use core::net::{IpAddr, Ipv6Addr};

use fullsend_offload::{Packet, Slice};
use fullsend_wire::extension::ExtensionError;
use fullsend_wire::icmpv4::{Icmpv4Repr, unreachable};
use fullsend_wire::icmpv6::{Icmpv6Repr, parameter, unreachable as unreachable6};
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::Ipv6View;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::{extension, ipv6};

use super::IcmpPacket;
use crate::ip::link::was_sent_to_link_group;

/// Maximum number of quoted bytes: the message fills 576 bytes (RFC 1812 4.3.2.3) or 1280 bytes
/// (RFC 4443 2.4 c).
const QUOTE_V4: usize = 576 - 20 - 8;
const QUOTE_V6: usize = 1280 - 40 - 8;
/// The authentication header (RFC 4302 2).
const AUTHENTICATION: u8 = 51;

/// A problem with a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Problem {
    /// No socket is bound to the destination port.
    PortUnreachable,
    /// The transport protocol is not supported.
    ProtocolUnreachable,
    /// Fragments of the packet were missing when reassembly timed out.
    ReassemblyTime,
    /// A field of an IP header is invalid.
    Header {
        /// ICMP code.
        code: u8,
        /// Offset of the fault from the start of the IP header.
        pointer: u32,
        /// Whether the error is sent even if the packet was sent to a group.
        even_multicast: bool,
    },
}

impl Problem {
    /// Returns the problem to report for a fault in the extension headers, or `None` if the packet
    /// is to be dropped silently.
    pub(crate) const fn from_fault(fault: ExtensionError) -> Option<Self> {
        match fault {
            ExtensionError::Problem {
                code,
                pointer,
                even_multicast,
            } => Some(Self::Header {
                code,
                pointer,
                even_multicast,
            }),
            ExtensionError::Truncated | ExtensionError::Discard => None,
        }
    }

    const fn even_multicast(self) -> bool {
        matches!(
            self,
            Self::Header {
                even_multicast: true,
                ..
            }
        )
    }
}

/// Builds the error message, or returns `None` if none may be sent. The caller has verified that
/// the source address of `packet` can be that of a single host.
pub(super) fn build_error(problem: Problem, packet: &Packet, own: IpAddr) -> Option<IcmpPacket> {
    let header = packet.network_header();
    let (src, dst): (IpAddr, IpAddr) = match packet.layers.ethertype {
        ethertype::IPV4 => {
            let ip = Ipv4View::new(header).ok()?;
            // Only the first fragment contains the transport header.
            (ip.fragment_offset() == 0).then(|| (ip.src().into(), ip.dst().into()))?
        }
        ethertype::IPV6 => {
            let ip = Ipv6View::new(header).ok()?;
            (ip.src().into(), ip.dst().into())
        }
        _ => return None,
    };
    let to_group = dst.is_multicast() || was_sent_to_link_group(packet);
    let to_another = dst != own && !dst.is_multicast();
    if src.is_unspecified()
        || to_another
        || (to_group && !problem.even_multicast())
        || is_icmp_error(packet)
    {
        return None;
    }
    let (limit, protocol) = if own.is_ipv6() {
        (QUOTE_V6, protocol::ICMPV6)
    } else {
        (QUOTE_V4, protocol::ICMP)
    };
    let mut quote = vec![0; limit.min(header.len() + packet.payload.len())];
    let from_header = header.len().min(quote.len());
    quote[..from_header].copy_from_slice(&header[..from_header]);
    packet.payload.copy_to(&mut quote[from_header..]);
    let message = match (own, src) {
        (IpAddr::V4(_), IpAddr::V4(_)) => message_v4(problem, &quote),
        (IpAddr::V6(own), IpAddr::V6(src)) => message_v6(problem, &quote, (own, src)),
        _ => return None,
    };
    Some(IcmpPacket {
        src: own,
        dst: src,
        protocol,
        packet: Packet::from_frame(message),
    })
}

fn message_v4(problem: Problem, quote: &[u8]) -> Slice {
    let unreachable = |code| Icmpv4Repr::Unreachable {
        code,
        mtu: 0,
        quote,
    };
    let message = match problem {
        Problem::PortUnreachable => unreachable(unreachable::PORT),
        Problem::ProtocolUnreachable => unreachable(unreachable::PROTOCOL),
        Problem::ReassemblyTime => Icmpv4Repr::TimeExceeded { code: 1, quote },
        Problem::Header { code, pointer, .. } => Icmpv4Repr::ParameterProblem {
            code,
            // The header has at most 60 bytes.
            pointer: pointer as u8,
            quote,
        },
    };
    let mut bytes = vec![0; message.len()];
    message.emit(&mut bytes);
    Slice::copied_from(&bytes)
}

fn message_v6(problem: Problem, quote: &[u8], (own, to): (Ipv6Addr, Ipv6Addr)) -> Slice {
    let message = match problem {
        Problem::PortUnreachable => Icmpv6Repr::Unreachable {
            code: unreachable6::PORT,
            quote,
        },
        Problem::ProtocolUnreachable => Icmpv6Repr::ParameterProblem {
            code: parameter::NEXT_HEADER,
            pointer: next_header_at(quote),
            quote,
        },
        Problem::ReassemblyTime => Icmpv6Repr::TimeExceeded { code: 1, quote },
        Problem::Header { code, pointer, .. } => Icmpv6Repr::ParameterProblem {
            code,
            pointer,
            quote,
        },
    };
    let mut bytes = vec![0; message.len()];
    message.emit(own, to, &mut bytes);
    Slice::copied_from(&bytes)
}

/// Returns the offset of the Next Header field that names the packet's final protocol, bytes.
fn next_header_at(packet: &[u8]) -> u32 {
    let mut field_offset = 6;
    let mut at = ipv6::HEADER_LEN;
    while let Some(&kind) = packet.get(field_offset)
        && extension::is_extension(kind)
        && let Some(&header_units) = packet.get(at + 1)
    {
        field_offset = at;
        at += match kind {
            protocol::FRAGMENT => extension::FRAGMENT_LEN,
            _ => (usize::from(header_units) + 1) * 8,
        };
    }
    field_offset as u32
}

/// Returns whether a packet is an ICMP error, or an ICMP message of an unknown type.
fn is_icmp_error(packet: &Packet) -> bool {
    let (upper, kind) = upper_layer(packet);
    match upper {
        protocol::ICMP => !matches!(kind, 0 | 8 | 13 | 14),
        // RFC 4443 2.4 e: errors, and redirects.
        protocol::ICMPV6 => kind < 128 || kind == 137,
        _ => false,
    }
}

/// Returns the upper-layer protocol of a packet and the first byte of its header, 0 if there is none. The
/// parser stops at an extension header that is not accepted; what is behind that counts here, too.
fn upper_layer(packet: &Packet) -> (u8, u8) {
    let mut upper = packet.layers.protocol;
    let mut at = 0;
    let is_v6 = packet.layers.ethertype == ethertype::IPV6;
    // A fragment's headers are in the first one, whose part of them may end anywhere.
    while upper == AUTHENTICATION || is_v6 && extension::is_extension(upper) {
        let Some(header) = bytes_at::<2>(packet, at) else {
            break;
        };
        let units = usize::from(header[1]);
        at += match upper {
            protocol::FRAGMENT => extension::FRAGMENT_LEN,
            AUTHENTICATION => (units + 2) * 4,
            _ => (units + 1) * 8,
        };
        upper = header[0];
    }
    (upper, bytes_at::<1>(packet, at).map_or(0, |[kind]| kind))
}

/// Returns the bytes at an offset of the payload, if it has them.
fn bytes_at<const N: usize>(packet: &Packet, at: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let is_within = at + N <= packet.payload.len();
    is_within.then(|| packet.payload.range(at, N).copy_to(&mut bytes))?;
    Some(bytes)
}
