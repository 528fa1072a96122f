//! ICMP for IPv6 (RFC 4443), with Neighbour Discovery in [`ndp`].

use core::net::Ipv6Addr;

use crate::WireError;
use crate::checksum::{Sum, sum};
use crate::ndp::{self, NdpRepr};
use crate::numbers::protocol;
use crate::read::{be16, be32, put16, put32};

/// Length of a message's header, before its data, in bytes.
pub const HEADER_LEN: usize = 8;

/// Codes of ICMPv6 Destination Unreachable.
pub mod unreachable {
    /// No route to the destination.
    pub const NO_ROUTE: u8 = 0;
    /// Administratively prohibited by a filter.
    pub const ADMIN_PROHIBITED: u8 = 1;
    /// The address is not reachable on the link.
    pub const ADDRESS: u8 = 3;
    /// No socket is bound to the port.
    pub const PORT: u8 = 4;
}

/// Codes of ICMPv6 Parameter Problem.
pub mod parameter {
    /// A header field is invalid.
    pub const FIELD: u8 = 0;
    /// The next header is not implemented.
    pub const NEXT_HEADER: u8 = 1;
    /// An option that must be recognised is not.
    pub const OPTION: u8 = 2;
}

mod kind {
    pub(super) const UNREACHABLE: u8 = 1;
    pub(super) const PACKET_TOO_BIG: u8 = 2;
    pub(super) const TIME_EXCEEDED: u8 = 3;
    pub(super) const PARAMETER_PROBLEM: u8 = 4;
    pub(super) const ECHO_REQUEST: u8 = 128;
    pub(super) const ECHO_REPLY: u8 = 129;
}

/// An ICMPv6 message; the `quote` of an error is the beginning of the packet it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv6Repr<'a> {
    /// Echo request (ping).
    EchoRequest {
        /// Identifier.
        ident: u16,
        /// Sequence number.
        seq: u16,
        /// Data to be sent back.
        data: &'a [u8],
    },
    /// Echo reply.
    EchoReply {
        /// Identifier.
        ident: u16,
        /// Sequence number.
        seq: u16,
        /// The request's data.
        data: &'a [u8],
    },
    /// Destination unreachable.
    Unreachable {
        /// The reason; see [`mod@unreachable`].
        code: u8,
        /// The beginning of the packet.
        quote: &'a [u8],
    },
    /// The packet is larger than the next link's MTU.
    PacketTooBig {
        /// The MTU of the next link, in bytes.
        mtu: u32,
        /// The beginning of the packet.
        quote: &'a [u8],
    },
    /// The hop limit (code 0) or the reassembly timeout (code 1) expired.
    TimeExceeded {
        /// 0: hop limit; 1: reassembly.
        code: u8,
        /// The beginning of the packet.
        quote: &'a [u8],
    },
    /// A header is invalid.
    ParameterProblem {
        /// The reason; see [`parameter`].
        code: u8,
        /// Offset of the fault in the packet.
        pointer: u32,
        /// The beginning of the packet.
        quote: &'a [u8],
    },
    /// A Neighbour Discovery message.
    Ndp(NdpRepr<'a>),
    /// Any other message.
    Other {
        /// Type; types below 128 are error messages.
        kind: u8,
        /// Code.
        code: u8,
        /// Bytes 4 to 7.
        rest: u32,
        /// The bytes after the header.
        data: &'a [u8],
    },
}

impl<'a> Icmpv6Repr<'a> {
    /// Reads a whole message, without verifying the checksum: see [`checksum_ok`].
    ///
    /// The caller also verifies that the hop limit of Neighbour Discovery is 255.
    ///
    /// # Errors
    /// `Truncated` below [`HEADER_LEN`] bytes; any error for an invalid Neighbour Discovery message
    /// (RFC 4861 6.1 and 7.1).
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let Some((head, data)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Truncated);
        };
        let (ident, seq) = (be16(head, 4), be16(head, 6));
        let (code, rest) = (head[1], be32(head, 4));
        Ok(match head[0] {
            kind::ECHO_REQUEST if code == 0 => Self::EchoRequest { ident, seq, data },
            kind::ECHO_REPLY if code == 0 => Self::EchoReply { ident, seq, data },
            kind::UNREACHABLE => Self::Unreachable { code, quote: data },
            // RFC 4443 3.2: the receiver ignores the code.
            kind::PACKET_TOO_BIG => Self::PacketTooBig {
                mtu: rest,
                quote: data,
            },
            kind::TIME_EXCEEDED => Self::TimeExceeded { code, quote: data },
            kind::PARAMETER_PROBLEM => Self::ParameterProblem {
                code,
                pointer: rest,
                quote: data,
            },
            kind if ndp::is_ndp(kind) => Self::Ndp(NdpRepr::parse(kind, code, rest, data)?),
            kind => Self::Other {
                kind,
                code,
                rest,
                data,
            },
        })
    }

    /// Returns type, code, bytes 4 to 7 and data, which is empty for Neighbour Discovery.
    fn parts(&self) -> (u8, u8, u32, &'a [u8]) {
        let echo = |ident: u16, seq: u16| u32::from(ident) << 16 | u32::from(seq);
        match *self {
            Self::EchoRequest { ident, seq, data } => {
                (kind::ECHO_REQUEST, 0, echo(ident, seq), data)
            }
            Self::EchoReply { ident, seq, data } => (kind::ECHO_REPLY, 0, echo(ident, seq), data),
            Self::Unreachable { code, quote } => (kind::UNREACHABLE, code, 0, quote),
            Self::PacketTooBig { mtu, quote } => (kind::PACKET_TOO_BIG, 0, mtu, quote),
            Self::TimeExceeded { code, quote } => (kind::TIME_EXCEEDED, code, 0, quote),
            Self::ParameterProblem {
                code,
                pointer,
                quote,
            } => (kind::PARAMETER_PROBLEM, code, pointer, quote),
            Self::Ndp(ndp) => (ndp.kind(), 0, ndp.rest(), &[]),
            Self::Other {
                kind,
                code,
                rest,
                data,
            } => (kind, code, rest, data),
        }
    }

    /// Returns the number of bytes that [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        HEADER_LEN
            + match self {
                Self::Ndp(ndp) => ndp.body_len(),
                _ => self.parts().3.len(),
            }
    }

    /// Returns `false`: a message has at least a header.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message, checksum included, at the start of `out`, and returns its length in
    /// bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`len`](Self::len).
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8]) -> usize {
        let (kind, code, rest, data) = self.parts();
        let out = &mut out[..self.len()];
        out[0] = kind;
        out[1] = code;
        put16(out, 2, 0);
        put32(out, 4, rest);
        if let Self::Ndp(ndp) = self {
            ndp.emit_body(&mut out[HEADER_LEN..]);
        } else {
            out[HEADER_LEN..].copy_from_slice(data);
        }
        let pseudo = Sum::pseudo_v6(src, dst, protocol::ICMPV6, out.len() as u32);
        let checksum = (pseudo + sum(out)).checksum();
        put16(out, 2, checksum);
        out.len()
    }
}

/// Returns whether the checksum of a whole message between these addresses is correct.
pub fn checksum_ok(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> bool {
    let pseudo = Sum::pseudo_v6(src, dst, protocol::ICMPV6, message.len() as u32);
    (pseudo + sum(message)).is_valid()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::{Icmpv6Repr, checksum_ok};

    /// Returns a message of one of the seven kinds with `data`.
    fn message(which: u8, a: u32, code: u8, data: &[u8]) -> Icmpv6Repr<'_> {
        let (ident, seq) = (a as u16, (a >> 16) as u16);
        match which % 7 {
            0 => Icmpv6Repr::EchoRequest { ident, seq, data },
            1 => Icmpv6Repr::EchoReply { ident, seq, data },
            2 => Icmpv6Repr::Unreachable { code, quote: data },
            3 => Icmpv6Repr::PacketTooBig {
                mtu: a,
                quote: data,
            },
            4 => Icmpv6Repr::TimeExceeded { code, quote: data },
            5 => Icmpv6Repr::ParameterProblem {
                code,
                pointer: a,
                quote: data,
            },
            _ => Icmpv6Repr::Other {
                kind: 143,
                code,
                rest: a,
                data,
            },
        }
    }

    proptest! {
        #[test]
        fn emit_then_parse_is_identity(
            which: u8, a: u32, code: u8, data: Vec<u8>, addresses: [u128; 2],
        ) {
            let [src, dst] = addresses;
            let repr = message(which, a, code, &data);
            let mut bytes = vec![0xee; repr.len()];
            prop_assert_eq!(repr.emit(src.into(), dst.into(), &mut bytes), bytes.len());
            prop_assert!(checksum_ok(src.into(), dst.into(), &bytes));
            prop_assert_eq!(Icmpv6Repr::parse(&bytes), Ok(repr));
            let theirs = etherparse::Icmpv6Slice::from_slice(&bytes).unwrap();
            prop_assert!(theirs.is_checksum_valid(src.to_be_bytes(), dst.to_be_bytes()));
        }

        #[test]
        fn parse_does_not_panic(kind in 125u8..140, mut bytes: Vec<u8>) {
            let _ = Icmpv6Repr::parse(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = Icmpv6Repr::parse(&bytes);
        }
    }
}
