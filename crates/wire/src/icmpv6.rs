//! ICMP for IPv6 (RFC 4443), with Neighbour Discovery in [`ndp`].

use core::net::Ipv6Addr;

use crate::WireError;
use crate::checksum::{Sum, sum};
use crate::ndp::{self, NdpRepr};
use crate::numbers::protocol;
use crate::read::{be16, be32, put16, put32};

/// Bytes before a message's data.
pub const HEADER_LEN: usize = 8;

/// Codes of Destination Unreachable.
pub mod unreachable {
    /// No route to the destination.
    pub const NO_ROUTE: u8 = 0;
    /// Forbidden by a filter.
    pub const ADMIN_PROHIBITED: u8 = 1;
    /// No such address on the link.
    pub const ADDRESS: u8 = 3;
    /// Nobody listens on that port.
    pub const PORT: u8 = 4;
}

/// Codes of Parameter Problem.
pub mod parameter {
    /// A field makes no sense.
    pub const FIELD: u8 = 0;
    /// Nobody speaks that protocol here.
    pub const NEXT_HEADER: u8 = 1;
    /// An option that must be known is not.
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

/// A message; `quote` is the beginning of the packet that an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv6Repr<'a> {
    /// Ping.
    EchoRequest {
        /// Identifier.
        ident: u16,
        /// Sequence number.
        seq: u16,
        /// Data to be sent back.
        data: &'a [u8],
    },
    /// Its answer.
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
        /// Why; see [`mod@unreachable`].
        code: u8,
        /// The packet.
        quote: &'a [u8],
    },
    /// The next link's MTU is smaller.
    PacketTooBig {
        /// That MTU.
        mtu: u32,
        /// The packet.
        quote: &'a [u8],
    },
    /// Hop limit (code 0) or reassembly time (code 1) ran out.
    TimeExceeded {
        /// Which.
        code: u8,
        /// The packet.
        quote: &'a [u8],
    },
    /// A header made no sense; see [`parameter`].
    ParameterProblem {
        /// Which kind of nonsense.
        code: u8,
        /// Its offset in the packet.
        pointer: u32,
        /// The packet.
        quote: &'a [u8],
    },
    /// Neighbour Discovery.
    Ndp(NdpRepr<'a>),
    /// Any other.
    Other {
        /// Type; below 128 it is an error message.
        kind: u8,
        /// Code.
        code: u8,
        /// Bytes 4 to 7.
        rest: u32,
        /// What follows.
        data: &'a [u8],
    },
}

impl<'a> Icmpv6Repr<'a> {
    /// Reads a whole message. The checksum is not looked at: see [`checksum_ok`]; nor is the hop
    /// limit, which must be 255 for Neighbour Discovery.
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
            // RFC 4443 3.2: its code is ignored.
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

    /// Type, code, bytes 4 to 7 and data of all but Neighbour Discovery.
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

    /// Bytes that [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        HEADER_LEN
            + match self {
                Self::Ndp(ndp) => ndp.body_len(),
                _ => self.parts().3.len(),
            }
    }

    /// Never: a message has at least its header.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message, checksum included, at the start of `out`; how long it is.
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

/// A whole message's checksum is right.
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

    /// A message of any kind over `data`.
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
        fn any_bytes_parse_or_fail(kind in 125u8..140, mut bytes: Vec<u8>) {
            let _ = Icmpv6Repr::parse(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = Icmpv6Repr::parse(&bytes);
        }
    }
}
