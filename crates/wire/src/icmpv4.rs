//! ICMP for IPv4 (RFC 792).

use crate::WireError;
use crate::checksum::sum;
use crate::read::{be16, be32, put16, put32};

/// Length of a message's header, before its data, in bytes.
pub const HEADER_LEN: usize = 8;

/// Codes of ICMPv4 Destination Unreachable.
pub mod unreachable {
    /// No route to the network.
    pub const NET: u8 = 0;
    /// No route to the host.
    pub const HOST: u8 = 1;
    /// The host has no handler for the protocol.
    pub const PROTOCOL: u8 = 2;
    /// No socket is bound to the port.
    pub const PORT: u8 = 3;
    /// DF is set and the next link's MTU is smaller (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Administratively prohibited by a filter.
    pub const ADMIN_PROHIBITED: u8 = 13;
}

mod kind {
    pub(super) const ECHO_REPLY: u8 = 0;
    pub(super) const UNREACHABLE: u8 = 3;
    pub(super) const ECHO_REQUEST: u8 = 8;
    pub(super) const TIME_EXCEEDED: u8 = 11;
    pub(super) const PARAMETER_PROBLEM: u8 = 12;
}

/// An ICMPv4 message; the `quote` of an error is the beginning of the packet it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmpv4Repr<'a> {
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
        /// Next hop's MTU in bytes with `FRAGMENTATION_NEEDED` (RFC 1191); 0 from old routers.
        mtu: u16,
        /// The beginning of the packet.
        quote: &'a [u8],
    },
    /// The TTL (code 0) or the reassembly timeout (code 1) expired.
    TimeExceeded {
        /// 0: TTL; 1: reassembly.
        code: u8,
        /// The beginning of the packet.
        quote: &'a [u8],
    },
    /// A header field is invalid.
    ParameterProblem {
        /// Code.
        code: u8,
        /// Offset of the field in the packet.
        pointer: u8,
        /// The beginning of the packet.
        quote: &'a [u8],
    },
    /// Any other message.
    Other {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// Bytes 4 to 7.
        rest: u32,
        /// The bytes after the header.
        data: &'a [u8],
    },
}

impl<'a> Icmpv4Repr<'a> {
    /// Reads a whole message, without verifying the checksum: see [`checksum_ok`].
    ///
    /// # Errors
    /// `Truncated` below [`HEADER_LEN`] bytes.
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

    /// Returns type, code, bytes 4 to 7 and data.
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

    /// Returns the number of bytes that [`emit`](Self::emit) writes.
    pub fn len(&self) -> usize {
        HEADER_LEN + self.parts().3.len()
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

/// Returns whether the checksum of a whole message is correct.
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

    /// Returns a message of one of the six kinds with `data`.
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
                // A type without a fixed length, so that etherparse accepts any data as well.
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
        fn parse_does_not_panic(bytes: Vec<u8>) {
            prop_assert_eq!(Icmpv4Repr::parse(&bytes).is_ok(), bytes.len() >= 8);
        }
    }

    #[test]
    fn short_is_truncated() {
        assert_eq!(Icmpv4Repr::parse(&[8; 7]), Err(WireError::Truncated));
    }
}
