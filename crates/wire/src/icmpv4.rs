//! ICMP for IPv4 (RFC 792).

use crate::WireError;
use crate::checksum::sum;
use crate::read::{be16, be32, put16, put32};

/// Bytes before a message's data.
pub const HEADER_LEN: usize = 8;

/// Codes of Destination Unreachable.
pub mod unreachable {
    /// No route to the network.
    pub const NET: u8 = 0;
    /// No route to the host.
    pub const HOST: u8 = 1;
    /// Nobody speaks that protocol there.
    pub const PROTOCOL: u8 = 2;
    /// Nobody listens on that port.
    pub const PORT: u8 = 3;
    /// DF is set and the next link's MTU is smaller (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Forbidden by a filter.
    pub const ADMIN_PROHIBITED: u8 = 13;
}

mod kind {
    pub(super) const ECHO_REPLY: u8 = 0;
    pub(super) const UNREACHABLE: u8 = 3;
    pub(super) const ECHO_REQUEST: u8 = 8;
    pub(super) const TIME_EXCEEDED: u8 = 11;
    pub(super) const PARAMETER_PROBLEM: u8 = 12;
}

/// A message; `quote` is the beginning of the packet that an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv4Repr<'a> {
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
        /// Next hop's MTU with `FRAGMENTATION_NEEDED` (RFC 1191), from old routers 0.
        mtu: u16,
        /// The packet.
        quote: &'a [u8],
    },
    /// TTL (code 0) or reassembly time (code 1) ran out.
    TimeExceeded {
        /// Which.
        code: u8,
        /// The packet.
        quote: &'a [u8],
    },
    /// A header field made no sense.
    ParameterProblem {
        /// Code.
        code: u8,
        /// Offset of the field.
        pointer: u8,
        /// The packet.
        quote: &'a [u8],
    },
    /// Any other.
    Other {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// Bytes 4 to 7.
        rest: u32,
        /// What follows.
        data: &'a [u8],
    },
}

impl<'a> Icmpv4Repr<'a> {
    /// Reads a whole message. The checksum is not looked at: see [`checksum_ok`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let Some((head, data)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Truncated);
        };
        let (ident, seq) = (be16(head, 4), be16(head, 6));
        let code = head[1];
        Ok(match head[0] {
            kind::ECHO_REQUEST if code == 0 => Self::EchoRequest { ident, seq, data },
            kind::ECHO_REPLY if code == 0 => Self::EchoReply { ident, seq, data },
            kind::UNREACHABLE => Self::Unreachable {
                code,
                mtu: seq,
                quote: data,
            },
            kind::TIME_EXCEEDED => Self::TimeExceeded { code, quote: data },
            kind::PARAMETER_PROBLEM => Self::ParameterProblem {
                code,
                pointer: head[4],
                quote: data,
            },
            kind => Self::Other {
                kind,
                code,
                rest: be32(head, 4),
                data,
            },
        })
    }

    /// Type, code, bytes 4 to 7 and data.
    fn parts(&self) -> (u8, u8, u32, &'a [u8]) {
        let echo = |ident: u16, seq: u16| u32::from(ident) << 16 | u32::from(seq);
        match *self {
            Self::EchoRequest { ident, seq, data } => {
                (kind::ECHO_REQUEST, 0, echo(ident, seq), data)
            }
            Self::EchoReply { ident, seq, data } => (kind::ECHO_REPLY, 0, echo(ident, seq), data),
            Self::Unreachable { code, mtu, quote } => {
                (kind::UNREACHABLE, code, u32::from(mtu), quote)
            }
            Self::TimeExceeded { code, quote } => (kind::TIME_EXCEEDED, code, 0, quote),
            Self::ParameterProblem {
                code,
                pointer,
                quote,
            } => (
                kind::PARAMETER_PROBLEM,
                code,
                u32::from(pointer) << 24,
                quote,
            ),
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
        HEADER_LEN + self.parts().3.len()
    }

    /// Never: a message has at least its header.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message, checksum included, at the start of `out`; how long it is.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let (kind, code, rest, data) = self.parts();
        let out = &mut out[..HEADER_LEN + data.len()];
        out[0] = kind;
        out[1] = code;
        put16(out, 2, 0);
        put32(out, 4, rest);
        out[HEADER_LEN..].copy_from_slice(data);
        let checksum = sum(out).checksum();
        put16(out, 2, checksum);
        out.len()
    }
}

/// A whole message's checksum is right.
pub fn checksum_ok(message: &[u8]) -> bool {
    sum(message).is_valid()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::{Icmpv4Repr, checksum_ok};
    use crate::WireError;

    /// A message of any kind over `data`.
    fn message(which: u8, a: u16, b: u16, data: &[u8]) -> Icmpv4Repr<'_> {
        let code = b as u8;
        match which % 6 {
            0 => Icmpv4Repr::EchoRequest {
                ident: a,
                seq: b,
                data,
            },
            1 => Icmpv4Repr::EchoReply {
                ident: a,
                seq: b,
                data,
            },
            2 => Icmpv4Repr::Unreachable {
                code,
                mtu: a,
                quote: data,
            },
            3 => Icmpv4Repr::TimeExceeded { code, quote: data },
            4 => Icmpv4Repr::ParameterProblem {
                code,
                pointer: a as u8,
                quote: data,
            },
            _ => Icmpv4Repr::Other {
                // A kind without a fixed length, so that the other parser takes any data too.
                kind: 40,
                code,
                rest: u32::from(a) << 9,
                data,
            },
        }
    }

    proptest! {
        #[test]
        fn emit_then_parse_is_identity(which: u8, a: u16, b: u16, data: Vec<u8>) {
            let repr = message(which, a, b, &data);
            let mut bytes = vec![0xee; repr.len()];
            prop_assert_eq!(repr.emit(&mut bytes), bytes.len());
            prop_assert!(checksum_ok(&bytes));
            prop_assert_eq!(Icmpv4Repr::parse(&bytes), Ok(repr));
            let theirs = etherparse::Icmpv4Slice::from_slice(&bytes).unwrap();
            prop_assert_eq!(&theirs.bytes5to8()[..], &bytes[4..8]);
            prop_assert_eq!(theirs.payload(), &data);
        }

        #[test]
        fn any_bytes_parse_or_fail(bytes: Vec<u8>) {
            prop_assert_eq!(Icmpv4Repr::parse(&bytes).is_ok(), bytes.len() >= 8);
        }
    }

    #[test]
    fn short_is_truncated() {
        assert_eq!(Icmpv4Repr::parse(&[8; 7]), Err(WireError::Truncated));
    }
}
