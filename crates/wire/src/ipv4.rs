//! IPv4 header (RFC 791).

mod options;

use core::net::Ipv4Addr;

use crate::WireError;
use crate::checksum::{Sum, sum};
use crate::numbers::DEFAULT_TTL;
use crate::read::{array, be16, put16};

pub use options::{OptionError, check_options};

/// Length of a header without options, in bytes; `emit` writes no options.
pub const HEADER_LEN: usize = 20;
/// Offset of the header checksum.
pub const CHECKSUM_OFFSET: usize = 10;

/// An IPv4 header whose version, header length and total length have been checked.
///
/// The payload may be in other memory or cut short (as in an ICMP error): see
/// [`is_complete`](Self::is_complete).
#[derive(Clone, Copy, Debug)]
pub struct Ipv4View<'a> {
    bytes: &'a [u8],
}

impl<'a> Ipv4View<'a> {
    /// Interprets `bytes` as the beginning of a packet.
    ///
    /// # Errors
    /// `Truncated` if `bytes` end before the header does; `BadVersion` if the version is not 4;
    /// `BadLength` for a header length below 20 bytes or a total length below the header's.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        let Some(fixed) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Truncated);
        };
        if fixed[0] >> 4 != 4 {
            return Err(WireError::BadVersion);
        }
        let header_len = usize::from(fixed[0] & 0xf) * 4;
        if header_len < HEADER_LEN || usize::from(be16(fixed, 2)) < header_len {
            return Err(WireError::BadLength);
        }
        if bytes.len() < header_len {
            return Err(WireError::Truncated);
        }
        Ok(Self { bytes })
    }

    /// Returns the length of the header, options included, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes[0] & 0xf) * 4
    }

    /// Returns the total length field: header and payload, in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(be16(self.bytes, 2))
    }

    /// Returns whether the whole packet, by its total length field, is in `bytes`.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.total_len() <= self.bytes.len()
    }

    /// Returns the bytes of the header, options included.
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        &self.bytes[..self.header_len()]
    }

    /// Returns the bytes of the options.
    #[inline]
    pub fn options(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..self.header_len()]
    }

    /// Returns the payload as far as it is present, without link-layer padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len()..self.total_len().min(self.bytes.len())]
    }

    /// Returns the type of service byte: DSCP and ECN.
    #[inline]
    pub fn tos(&self) -> u8 {
        self.bytes[1]
    }

    /// Returns the identification.
    #[inline]
    pub fn ident(&self) -> u16 {
        be16(self.bytes, 4)
    }

    /// Returns the DF (don't fragment) bit.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.bytes[6] & 0x40 != 0
    }

    /// Returns the MF (more fragments) bit.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.bytes[6] & 0x20 != 0
    }

    /// Returns the offset of this fragment's payload, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(be16(self.bytes, 6) & 0x1fff) * 8
    }

    /// Returns whether this is a fragment: MF is set or the offset is not zero.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        be16(self.bytes, 6) & 0x3fff != 0
    }

    /// Returns the time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.bytes[8]
    }

    /// Returns the payload's protocol.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.bytes[9]
    }

    /// Returns the source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        array::<4>(self.bytes, 12).into()
    }

    /// Returns the destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        array::<4>(self.bytes, 16).into()
    }

    /// Returns whether the header's checksum is correct.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        sum(self.header()).is_valid()
    }

    /// Returns the sum of the pseudo-header of this packet's payload.
    #[inline]
    pub fn pseudo_sum(&self) -> Sum {
        let len = self.total_len() - self.header_len();
        Sum::pseudo_v4(self.src(), self.dst(), self.protocol(), len as u32)
    }
}

/// The fields of an IPv4 header, without options.
///
/// ```
/// use fullsend_wire::ipv4::{HEADER_LEN, Ipv4Repr, Ipv4View};
/// use fullsend_wire::numbers::protocol;
///
/// let repr = Ipv4Repr::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP, 8);
/// let mut packet = [0; HEADER_LEN + 8];
/// repr.emit(&mut packet);
///
/// let view = Ipv4View::new(&packet).unwrap();
/// assert!(view.checksum_ok() && view.is_complete());
/// assert_eq!(Ipv4Repr::parse(view), repr);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Repr {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// The payload's protocol.
    pub protocol: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Identification.
    pub ident: u16,
    /// DF: routers must not fragment the packet.
    pub dont_fragment: bool,
    /// MF: more fragments follow.
    pub more_fragments: bool,
    /// Offset of the payload in the original packet, in bytes: a multiple of 8 below 65536.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Bytes that follow the header; 65515 at most.
    pub payload_len: u16,
}

impl Ipv4Repr {
    /// Returns the header of a whole packet with DF and the default TTL; the other fields are zero.
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload_len: u16) -> Self {
        Self {
            src,
            dst,
            protocol,
            tos: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: DEFAULT_TTL,
            payload_len,
        }
    }

    /// Returns the fields of `view`.
    #[inline]
    pub fn parse(view: Ipv4View<'_>) -> Self {
        Self {
            src: view.src(),
            dst: view.dst(),
            protocol: view.protocol(),
            tos: view.tos(),
            ident: view.ident(),
            dont_fragment: view.dont_fragment(),
            more_fragments: view.more_fragments(),
            fragment_offset: view.fragment_offset() as u16,
            ttl: view.ttl(),
            payload_len: (view.total_len() - view.header_len()) as u16,
        }
    }

    /// Writes the header, checksum included, at the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`HEADER_LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = out
            .first_chunk_mut::<HEADER_LEN>()
            .expect("room for the header");
        debug_assert!(usize::from(self.payload_len) <= 65535 - HEADER_LEN);
        out[0] = 0x45;
        out[1] = self.tos;
        put16(out, 2, self.payload_len.wrapping_add(HEADER_LEN as u16));
        put16(out, 4, self.ident);
        let df = u16::from(self.dont_fragment) << 14;
        let mf = u16::from(self.more_fragments) << 13;
        put16(out, 6, df | mf | self.fragment_offset >> 3);
        out[8] = self.ttl;
        out[9] = self.protocol;
        put16(out, CHECKSUM_OFFSET, 0);
        out[12..16].copy_from_slice(&self.src.octets());
        out[16..20].copy_from_slice(&self.dst.octets());
        let checksum = sum(out).checksum();
        put16(out, CHECKSUM_OFFSET, checksum);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;

    use super::{HEADER_LEN, Ipv4Repr, Ipv4View};
    use crate::WireError;

    fn repr() -> impl Strategy<Value = Ipv4Repr> {
        (
            any::<[u32; 2]>(),
            any::<[u8; 3]>(),
            any::<[u16; 2]>(),
            any::<[bool; 2]>(),
            0u16..65516,
        )
            .prop_map(
                |([src, dst], [protocol, tos, ttl], [ident, at], [df, mf], payload_len)| Ipv4Repr {
                    src: src.into(),
                    dst: dst.into(),
                    protocol,
                    tos,
                    ident,
                    dont_fragment: df,
                    more_fragments: mf,
                    fragment_offset: at & !7,
                    ttl,
                    payload_len,
                },
            )
    }

    proptest! {
        #[test]
        fn emit_then_parse_is_identity(repr in repr()) {
            let mut bytes = [0xee; HEADER_LEN];
            repr.emit(&mut bytes);
            let view = Ipv4View::new(&bytes).unwrap();
            prop_assert!(view.checksum_ok());
            prop_assert_eq!(Ipv4Repr::parse(view), repr);
            let (theirs, _) = etherparse::Ipv4Header::from_slice(&bytes).unwrap();
            prop_assert_eq!(theirs.header_checksum, theirs.calc_header_checksum());
            prop_assert_eq!(theirs.source, repr.src.octets());
            prop_assert_eq!(theirs.destination, repr.dst.octets());
            prop_assert_eq!(theirs.total_len, repr.payload_len + 20);
            prop_assert_eq!(theirs.fragment_offset.byte_offset(), repr.fragment_offset);
            prop_assert_eq!(theirs.more_fragments, repr.more_fragments);
            prop_assert_eq!(theirs.dont_fragment, repr.dont_fragment);
            prop_assert_eq!(theirs.time_to_live, repr.ttl);
        }

        #[test]
        fn view_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(view) = Ipv4View::new(&bytes) {
                let _ = (Ipv4Repr::parse(view), view.payload(), view.options());
                prop_assert_eq!(view.is_complete(), view.total_len() <= bytes.len());
            }
        }
    }

    #[test]
    fn lengths_must_agree() {
        let mut bytes = [0; 24];
        bytes[0] = 0x45;
        bytes[3] = 20;
        assert!(Ipv4View::new(&bytes).unwrap().payload().is_empty());
        assert_eq!(
            Ipv4View::new(&bytes[..19]).unwrap_err(),
            WireError::Truncated
        );
        bytes[0] = 0x46;
        assert_eq!(Ipv4View::new(&bytes).unwrap_err(), WireError::BadLength);
        bytes[3] = 30;
        let view = Ipv4View::new(&bytes).unwrap();
        assert!(!view.is_complete() && view.payload().is_empty());
        bytes[0] = 0x44;
        assert_eq!(Ipv4View::new(&bytes).unwrap_err(), WireError::BadLength);
        bytes[0] = 0x65;
        assert_eq!(Ipv4View::new(&bytes).unwrap_err(), WireError::BadVersion);
        bytes[0] = 0x4f;
        bytes[3] = 60;
        assert_eq!(Ipv4View::new(&bytes).unwrap_err(), WireError::Truncated);
    }
}
