//! UDP header (RFC 768).

use crate::WireError;
use crate::read::{be16, put16};

/// Length of a UDP header, in bytes.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum field from the start of the header, in bytes.
pub const CHECKSUM_OFFSET: usize = 6;

/// The fields of a UDP header, without the checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UdpRepr {
    /// Source port; 0 if no answer is expected.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes that follow the header; 65527 at most.
    pub payload_len: u16,
}

impl UdpRepr {
    /// Reads the header at the start of `bytes`.
    ///
    /// The caller checks that the payload has the length given: it may be in other memory.
    ///
    /// # Errors
    /// `Truncated` below 8 bytes; `BadLength` for a length field below 8.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Truncated);
        };
        let Some(payload_len) = be16(bytes, 4).checked_sub(HEADER_LEN as u16) else {
            return Err(WireError::BadLength);
        };
        Ok(Self {
            src_port: be16(bytes, 0),
            dst_port: be16(bytes, 2),
            payload_len,
        })
    }

    /// Writes the header, with the checksum field zero ("none"), at the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`HEADER_LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = out
            .first_chunk_mut::<HEADER_LEN>()
            .expect("room for the header");
        put16(out, 0, self.src_port);
        put16(out, 2, self.dst_port);
        put16(out, 4, self.payload_len.wrapping_add(HEADER_LEN as u16));
        put16(out, CHECKSUM_OFFSET, 0);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;

    use super::{HEADER_LEN, UdpRepr};
    use crate::WireError;

    proptest! {
        #[test]
        fn emit_then_parse_is_identity(src_port: u16, dst_port: u16, payload_len in 0u16..65528) {
            let repr = UdpRepr { src_port, dst_port, payload_len };
            let mut bytes = [0xee; HEADER_LEN];
            repr.emit(&mut bytes);
            prop_assert_eq!(UdpRepr::parse(&bytes), Ok(repr));
            let (theirs, _) = etherparse::UdpHeader::from_slice(&bytes).unwrap();
            prop_assert_eq!(theirs.source_port, src_port);
            prop_assert_eq!(theirs.destination_port, dst_port);
            prop_assert_eq!(theirs.length, payload_len + 8);
            prop_assert_eq!(theirs.checksum, 0);
        }
    }

    #[test]
    fn length_covers_the_header() {
        let bytes = [0, 1, 0, 2, 0, 7, 0, 0];
        assert_eq!(UdpRepr::parse(&bytes), Err(WireError::BadLength));
        assert_eq!(UdpRepr::parse(&bytes[..7]), Err(WireError::Truncated));
    }
}
