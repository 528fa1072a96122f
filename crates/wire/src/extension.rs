//! IPv6 extension headers (RFC 8200 4), from the fixed header to the upper layer.

use crate::numbers::protocol;
use crate::read::{be16, be32, put16, put32};
use crate::{WireError, ipv6};

/// Most extension headers of one packet; packets with more are dropped as an attack.
const MAX_HEADERS: usize = 8;
/// The option of a jumbogram (RFC 2675 2), in hop-by-hop headers.
const JUMBO_PAYLOAD: u8 = 0xc2;
/// Offset of the payload length in the fixed header.
const PAYLOAD_LENGTH_AT: u32 = 4;
/// ICMPv6 codes of Parameter Problem: an erroneous field, an unrecognized next header or option (RFC 4443
/// 3.4), and too many extension headers (RFC 8883, code 8).
const ERRONEOUS_FIELD: u8 = 0;
const UNRECOGNIZED_HEADER: u8 = 1;
const UNRECOGNIZED_OPTION: u8 = 2;
const TOO_MANY_HEADERS: u8 = 8;
/// Length of the fragment header, in bytes.
pub const FRAGMENT_LEN: usize = 8;

/// The upper-layer header, or the fragment, that follows the extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpperHeader {
    /// The first next-header value that is not an extension header that [`parse_headers`] skips.
    pub protocol: u8,
    /// Offset of that header from the end of the fixed header, in bytes.
    pub offset: usize,
    /// The fragment header, if the packet is a fragment: `offset` is then where its piece of the
    /// original packet begins, and `protocol` is the first header of the original. A packet whose
    /// only fragment has all the data (RFC 6946) counts as whole.
    pub fragment: Option<FragmentRepr>,
}

/// The reason why a packet is dropped for its extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtensionError {
    /// The bytes end before a header does.
    Truncated,
    /// The packet is dropped without an answer.
    Discard,
    /// The packet is dropped and answered with an ICMPv6 Parameter Problem (RFC 4443 3.4).
    Problem {
        /// ICMPv6 code.
        code: u8,
        /// Offset of the fault from the start of the fixed header.
        pointer: u32,
        /// Answer even if the destination is a multicast address (RFC 8200 4.2, action 10).
        even_multicast: bool,
    },
}

impl ExtensionError {
    const fn problem(code: u8, at: usize) -> Self {
        Self::Problem {
            code,
            pointer: (ipv6::HEADER_LEN + at) as u32,
            even_multicast: false,
        }
    }
}

/// Parses the extension headers in `bytes`, which follow a fixed header whose next header field
/// is `next_header`, and processes their options as the packet's destination does.
///
/// # Errors
/// Returns the [`ExtensionError`] that the packet is dropped for.
///
/// ```
/// use fullsend_wire::{extension::parse_headers, numbers::protocol};
/// let upper = parse_headers(protocol::TCP, &[]).unwrap(); // the usual case: none at all
/// assert_eq!((upper.protocol, upper.offset), (protocol::TCP, 0));
/// ```
#[inline]
pub fn parse_headers(next_header: u8, bytes: &[u8]) -> Result<UpperHeader, ExtensionError> {
    if is_extension(next_header) {
        parse_chain(next_header, bytes)
    } else {
        Ok(UpperHeader {
            protocol: next_header,
            offset: 0,
            fragment: None,
        })
    }
}

/// Returns whether `protocol` is an extension header that [`parse_headers`] skips.
#[inline]
pub const fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        protocol::HOP_BY_HOP | protocol::ROUTING | protocol::FRAGMENT | protocol::DESTINATION
    )
}

fn parse_chain(next_header: u8, bytes: &[u8]) -> Result<UpperHeader, ExtensionError> {
    let mut upper = UpperHeader {
        protocol: next_header,
        offset: 0,
        fragment: None,
    };
    // Offset of the field that names the current header; the fixed header's is its byte 6.
    let mut next_header_at = None;
    for _ in 0..MAX_HEADERS {
        if !is_extension(upper.protocol) {
            return Ok(upper);
        }
        let at = upper.offset;
        // RFC 8200 4: only directly after the fixed header. Elsewhere it is no known header, whether
        // its bytes are here or not.
        if upper.protocol == protocol::HOP_BY_HOP
            && let Some(at) = next_header_at
        {
            return Err(ExtensionError::problem(UNRECOGNIZED_HEADER, at));
        }
        let header = header(upper.protocol, bytes.get(at..).unwrap_or(&[]))?;
        match upper.protocol {
            protocol::HOP_BY_HOP | protocol::DESTINATION => options(upper.protocol, header, at)?,
            // RFC 8200 4.4 and RFC 5095: every routing type is unknown; one with no segments left
            // is skipped.
            protocol::ROUTING if header[3] != 0 => {
                return Err(ExtensionError::problem(ERRONEOUS_FIELD, at + 2));
            }
            protocol::FRAGMENT => {
                let fragment =
                    FragmentRepr::parse(header).map_err(|_| ExtensionError::Truncated)?;
                if fragment.offset != 0 || fragment.more {
                    // RFC 8200 4.5: only the first fragment determines the next header.
                    if fragment.offset == 0 && fragment.next_header == protocol::HOP_BY_HOP {
                        return Err(ExtensionError::problem(UNRECOGNIZED_HEADER, at));
                    }
                    return Ok(UpperHeader {
                        protocol: fragment.next_header,
                        offset: at + FRAGMENT_LEN,
                        fragment: Some(fragment),
                    });
                }
            }
            _ => {}
        }
        next_header_at = Some(at);
        upper.protocol = header[0];
        upper.offset = at + header.len();
    }
    if is_extension(upper.protocol) {
        let first_beyond = upper.offset;
        return Err(ExtensionError::problem(TOO_MANY_HEADERS, first_beyond));
    }
    Ok(upper)
}

/// Returns whether the first fragment of a packet has all headers, including a whole upper-layer
/// header (RFC 8200 4.5, RFC 7112 5). `bytes` are those after the fragment header, whose next header
/// field is `next_header`. Other faults of the headers do not matter.
///
/// ```
/// use fullsend_wire::{extension::has_whole_headers, numbers::protocol};
/// assert!(has_whole_headers(protocol::UDP, &[0; 8]));
/// assert!(!has_whole_headers(protocol::TCP, &[0; 8]));
/// ```
pub fn has_whole_headers(next_header: u8, bytes: &[u8]) -> bool {
    let upper = match parse_headers(next_header, bytes) {
        Ok(upper) => upper,
        Err(error) => return error != ExtensionError::Truncated,
    };
    let rest = bytes.get(upper.offset..).unwrap_or(&[]);
    let len = match upper.protocol {
        protocol::TCP => {
            let data_offset = rest.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4);
            data_offset.max(20)
        }
        protocol::UDP | protocol::ICMPV6 => 8,
        protocol::NO_NEXT_HEADER => 0,
        // The length of another protocol's header is not known.
        _ => 1,
    };
    rest.len() >= len
}

/// Returns the fault of a packet whose payload length is 0 although a hop-by-hop header follows (RFC 2675
/// 3): there is no jumbo payload option, or it has a length that the payload length can express. Without
/// either, the packet is a jumbogram, of which a host without such links has only a part. `bytes` are those
/// after the fixed header.
///
/// ```
/// use fullsend_wire::extension::{ExtensionError, zero_length_fault};
/// let fault = zero_length_fault(&[6, 0, 1, 4, 0, 0, 0, 0]); // padding only
/// assert!(matches!(fault, ExtensionError::Problem { code: 0, pointer: 4, .. }));
/// ```
pub fn zero_length_fault(bytes: &[u8]) -> ExtensionError {
    let header = header(protocol::HOP_BY_HOP, bytes).unwrap_or(&[]);
    let mut at = 2;
    while let Some(&[kind, len]) = header.get(at..).and_then(|rest| rest.first_chunk()) {
        let value = header
            .get(at + 2..)
            .and_then(|rest| rest.first_chunk::<4>());
        match (kind, value) {
            (0, _) => at += 1,
            (JUMBO_PAYLOAD, Some(value)) if u32::from_be_bytes(*value) <= u16::MAX.into() => {
                return ExtensionError::problem(ERRONEOUS_FIELD, at + 2);
            }
            (JUMBO_PAYLOAD, _) => return ExtensionError::Truncated,
            _ => at += 2 + usize::from(len),
        }
    }
    ExtensionError::Problem {
        code: ERRONEOUS_FIELD,
        pointer: PAYLOAD_LENGTH_AT,
        even_multicast: false,
    }
}

/// Returns the extension header at the start of `bytes`.
fn header(kind: u8, bytes: &[u8]) -> Result<&[u8], ExtensionError> {
    let len = match (kind, bytes) {
        (protocol::FRAGMENT, _) => FRAGMENT_LEN,
        (_, &[_, units, ..]) => (usize::from(units) + 1) * 8,
        _ => return Err(ExtensionError::Truncated),
    };
    bytes.get(..len).ok_or(ExtensionError::Truncated)
}

/// Processes the options of a hop-by-hop or destination header that begins at `start`.
fn options(kind_of_header: u8, header: &[u8], start: usize) -> Result<(), ExtensionError> {
    let mut at = 2;
    while let Some(&kind) = header.get(at) {
        // Pad1 is the only option without a length.
        if kind == 0 {
            at += 1;
            continue;
        }
        let Some(&len) = header.get(at + 1) else {
            return Err(ExtensionError::problem(ERRONEOUS_FIELD, start + at));
        };
        let end = at + 2 + usize::from(len);
        if end > header.len() {
            return Err(ExtensionError::problem(ERRONEOUS_FIELD, start + at + 1));
        }
        // RFC 2675 3: it contradicts the payload length, which is not 0: no jumbogram gets here.
        if kind == JUMBO_PAYLOAD && kind_of_header == protocol::HOP_BY_HOP {
            return Err(ExtensionError::problem(ERRONEOUS_FIELD, start + at));
        }
        // RFC 8200 4.2: the two highest bits determine the treatment of an unrecognised option. The
        // other options that are defined may all be skipped, so that none needs to be recognised.
        match kind >> 6 {
            0 => at = end,
            1 => return Err(ExtensionError::Discard),
            action => {
                return Err(ExtensionError::Problem {
                    code: UNRECOGNIZED_OPTION,
                    pointer: (ipv6::HEADER_LEN + start + at) as u32,
                    even_multicast: action == 2,
                });
            }
        }
    }
    Ok(())
}

/// The fields of a fragment header (RFC 8200 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentRepr {
    /// First header of the original packet's fragmentable part.
    pub next_header: u8,
    /// Offset of this piece in bytes, a multiple of 8 below 65536.
    pub offset: u16,
    /// M: more fragments follow.
    pub more: bool,
    /// Identification.
    pub ident: u32,
}

impl FragmentRepr {
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// `Truncated` below 8 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let Some(bytes) = bytes.first_chunk::<FRAGMENT_LEN>() else {
            return Err(WireError::Truncated);
        };
        let field = be16(bytes, 2);
        Ok(Self {
            next_header: bytes[0],
            offset: field & !7,
            more: field & 1 != 0,
            ident: be32(bytes, 4),
        })
    }

    /// Writes the header at the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`FRAGMENT_LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let out = out
            .first_chunk_mut::<FRAGMENT_LEN>()
            .expect("room for the header");
        out[0] = self.next_header;
        out[1] = 0;
        put16(out, 2, (self.offset & !7) | u16::from(self.more));
        put32(out, 4, self.ident);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::{
        ExtensionError, FRAGMENT_LEN, FragmentRepr, JUMBO_PAYLOAD, TOO_MANY_HEADERS, UpperHeader,
        has_whole_headers, parse_headers,
    };
    use crate::numbers::protocol::{
        DESTINATION, FRAGMENT, HOP_BY_HOP, ICMPV6, NO_NEXT_HEADER, ROUTING, TCP, UDP,
    };

    /// Returns headers of 8 bytes each, of these kinds, followed by TCP.
    fn chain(kinds: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (i, _) in kinds.iter().enumerate() {
            let next = kinds.get(i + 1).copied().unwrap_or(TCP);
            bytes.extend([next, 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes
    }

    fn plain(protocol: u8, offset: usize) -> UpperHeader {
        UpperHeader {
            protocol,
            offset,
            fragment: None,
        }
    }

    proptest! {
        #[test]
        fn fragment_emit_then_parse_is_identity(
            next_header: u8, offset: u16, more: bool, ident: u32,
        ) {
            let repr = FragmentRepr { next_header, offset: offset & !7, more, ident };
            let mut bytes = [0xee; FRAGMENT_LEN];
            repr.emit(&mut bytes);
            prop_assert_eq!(FragmentRepr::parse(&bytes), Ok(repr));
            let (theirs, _) = etherparse::Ipv6FragmentHeader::from_slice(&bytes).unwrap();
            // Offset and M are not compared: etherparse 0.19 reads them from other bits than RFC
            // 8200 4.5.
            prop_assert_eq!(theirs.next_header.0, next_header);
            prop_assert_eq!(theirs.identification, ident);
        }

        #[test]
        fn parse_headers_stays_within_the_bytes(
            first in prop_oneof![Just(0u8), Just(43), Just(44), Just(60), any::<u8>()],
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(60), Just(43), any::<u8>()], 0..120),
        ) {
            if let Ok(upper) = parse_headers(first, &bytes) {
                prop_assert!(upper.offset <= bytes.len());
            }
        }
    }

    #[test]
    fn all_known_extension_headers_are_parsed() {
        let kinds = [HOP_BY_HOP, DESTINATION, ROUTING, FRAGMENT, DESTINATION];
        assert_eq!(
            parse_headers(HOP_BY_HOP, &chain(&kinds)),
            Ok(plain(TCP, 40))
        );
        assert_eq!(parse_headers(UDP, &[]), Ok(plain(UDP, 0)));
        assert_eq!(
            parse_headers(DESTINATION, &chain(&[DESTINATION; 8])),
            Ok(plain(TCP, 64))
        );
        assert_eq!(
            parse_headers(DESTINATION, &chain(&[DESTINATION; 9])),
            Err(ExtensionError::problem(TOO_MANY_HEADERS, 64))
        );
        for cut in 0..40 {
            assert_eq!(
                parse_headers(HOP_BY_HOP, &chain(&kinds)[..cut]),
                Err(ExtensionError::Truncated)
            );
        }
    }

    #[test]
    fn a_first_fragment_needs_the_whole_upper_header() {
        for (protocol, least) in [
            (TCP, 20),
            (UDP, 8),
            (ICMPV6, 8),
            (NO_NEXT_HEADER, 0),
            (200, 1),
        ] {
            for len in 0..30 {
                let bytes = &[0; 30][..len];
                assert_eq!(
                    has_whole_headers(protocol, bytes),
                    len >= least,
                    "{protocol}"
                );
            }
        }
        // With TCP's options, and behind an extension header.
        let mut bytes = chain(&[DESTINATION]);
        bytes.resize(8 + 24, 0);
        bytes[8 + 12] = 6 << 4;
        for cut in 0..32 {
            assert!(!has_whole_headers(DESTINATION, &bytes[..cut]), "{cut}");
        }
        assert!(has_whole_headers(DESTINATION, &bytes));
    }

    #[test]
    fn fragments_end_the_extension_headers() {
        let mut bytes = chain(&[HOP_BY_HOP, FRAGMENT]);
        let repr = FragmentRepr {
            next_header: UDP,
            offset: 1448,
            more: true,
            ident: 7,
        };
        repr.emit(&mut bytes[8..]);
        assert_eq!(bytes[8..], [UDP, 0, 0x05, 0xa9, 0, 0, 0, 7]);
        let upper = parse_headers(HOP_BY_HOP, &bytes).unwrap();
        assert_eq!((upper.protocol, upper.offset), (UDP, 16));
        assert_eq!(upper.fragment, Some(repr));
    }

    #[test]
    fn parameter_problems_point_at_their_byte() {
        let problem = |code, pointer, even_multicast| {
            Err(ExtensionError::Problem {
                code,
                pointer,
                even_multicast,
            })
        };
        // A hop-by-hop header that is not first: the pointer is at the field that names it.
        let bytes = chain(&[DESTINATION, HOP_BY_HOP]);
        assert_eq!(parse_headers(DESTINATION, &bytes), problem(1, 40, false));
        // Also where a parser has cut it off, where it is a second one, and within a fragment.
        assert_eq!(
            parse_headers(DESTINATION, &bytes[..8]),
            problem(1, 40, false)
        );
        let bytes = chain(&[HOP_BY_HOP, HOP_BY_HOP]);
        assert_eq!(parse_headers(HOP_BY_HOP, &bytes), problem(1, 40, false));
        for more in [0, 1] {
            let mut bytes = chain(&[FRAGMENT, HOP_BY_HOP]);
            bytes[3] = more;
            assert_eq!(parse_headers(FRAGMENT, &bytes), problem(1, 40, false));
        }
        // RFC 2675: the option of a jumbogram in a packet that is none.
        let jumbo = [TCP, 0, JUMBO_PAYLOAD, 4, 0, 1, 0, 0];
        assert_eq!(parse_headers(HOP_BY_HOP, &jumbo), problem(0, 42, false));
        assert_eq!(parse_headers(DESTINATION, &jumbo), problem(2, 42, false));
        // A routing header with segments left: the pointer is at its type.
        let mut bytes = chain(&[ROUTING]);
        bytes[3] = 1;
        assert_eq!(parse_headers(ROUTING, &bytes), problem(0, 42, false));
        // Unknown options, by their action bits.
        for (kind, expected) in [
            (0x3e, Ok(plain(TCP, 8))),
            (0x7e, Err(ExtensionError::Discard)),
            (0xbe, problem(2, 43, true)),
            (0xfe, problem(2, 43, false)),
        ] {
            let bytes = [TCP, 0, 0, kind, 3, 0, 0, 0];
            assert_eq!(parse_headers(DESTINATION, &bytes), expected, "{kind:#x}");
        }
        // An option longer than its header, and one without a length.
        assert_eq!(
            parse_headers(DESTINATION, &[TCP, 0, 1, 5, 0, 0, 0, 0]),
            problem(0, 43, false)
        );
        assert_eq!(
            parse_headers(DESTINATION, &[TCP, 0, 1, 3, 0, 0, 0, 1]),
            problem(0, 47, false)
        );
    }
}
