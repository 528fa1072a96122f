//! IPv6 header (RFC 8200).

use core::net::Ipv6Addr;

use crate::WireError;
use crate::numbers::DEFAULT_TTL;
use crate::read::{array, be16, be32, put16, put32};

/// Length of the fixed header, in bytes.
pub const HEADER_LEN: usize = 40;

/// A fixed IPv6 header whose version has been checked.
///
/// The payload may be in other memory or cut short: see [`is_complete`](Self::is_complete).
#[derive(Clone, Copy, Debug)]
pub struct Ipv6View<'a> {
    bytes: &'a [u8],
}

impl<'a> Ipv6View<'a> {
    /// Interprets `bytes` as the beginning of a packet.
    ///
    /// # Errors
    /// `Truncated` below 40 bytes; `BadVersion` if the version is not 6.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() < HEADER_LEN {
            return Err(WireError::Truncated);
        }
        if bytes[0] >> 4 != 6 {
            return Err(WireError::BadVersion);
        }
        Ok(Self { bytes })
    }

    /// Returns the payload length field, in bytes; 0 for a jumbogram.
    #[inline]
    pub fn payload_len(&self) -> usize {
        usize::from(be16(self.bytes, 4))
    }

    /// Returns whether the whole packet, by its payload length field, is in `bytes`.
    #[inline]
    pub fn is_complete(&self) -> bool {
        HEADER_LEN + self.payload_len() <= self.bytes.len()
    }

    /// Returns the bytes after the fixed header as far as present, without link-layer padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..(HEADER_LEN + self.payload_len()).min(self.bytes.len())]
    }

    /// Returns the traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (be16(self.bytes, 0) >> 4) as u8
    }

    /// Returns the flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        be32(self.bytes, 0) & 0xf_ffff
    }

    /// Returns the protocol of the header that follows the fixed header.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.bytes[6]
    }

    /// Returns the hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.bytes[7]
    }

    /// Returns the source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        array::<16>(self.bytes, 8).into()
    }

    /// Returns the destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        array::<16>(self.bytes, 24).into()
    }
}

/// The fields of a fixed IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6Repr {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Protocol of the header that follows.
    pub next_header: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bytes that follow the header; 0 for a jumbogram.
    pub payload_len: u16,
}

impl Ipv6Repr {
    /// Returns a header with the default hop limit; the other fields are zero.
    pub const fn new(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, payload_len: u16) -> Self {
        Self {
            src,
            dst,
            next_header,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: DEFAULT_TTL,
            payload_len,
        }
    }

    /// Returns the fields of `view`.
    #[inline]
    pub fn parse(view: Ipv6View<'_>) -> Self {
        Self {
            src: view.src(),
            dst: view.dst(),
            next_header: view.next_header(),
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            hop_limit: view.hop_limit(),
            payload_len: view.payload_len() as u16,
        }
    }

    /// Writes the header at the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`HEADER_LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = out
            .first_chunk_mut::<HEADER_LEN>()
            .expect("room for the header");
        let class = u32::from(self.traffic_class) << 20;
        put32(out, 0, 6 << 28 | class | (self.flow_label & 0xf_ffff));
        put16(out, 4, self.payload_len);
        out[6] = self.next_header;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.src.octets());
        out[24..40].copy_from_slice(&self.dst.octets());
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;

    use super::{HEADER_LEN, Ipv6Repr, Ipv6View};
    use crate::WireError;

    fn repr() -> impl Strategy<Value = Ipv6Repr> {
        (
            any::<[u128; 2]>(),
            any::<[u8; 3]>(),
            0u32..1 << 20,
            any::<u16>(),
        )
            .prop_map(
                |([src, dst], [next_header, traffic_class, hop_limit], flow_label, payload_len)| {
                    Ipv6Repr {
                        src: src.into(),
                        dst: dst.into(),
                        next_header,
                        traffic_class,
                        flow_label,
                        hop_limit,
                        payload_len,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn emit_then_parse_is_identity(repr in repr()) {
            let mut bytes = [0xee; HEADER_LEN];
            repr.emit(&mut bytes);
            prop_assert_eq!(Ipv6Repr::parse(Ipv6View::new(&bytes).unwrap()), repr);
            let (theirs, _) = etherparse::Ipv6Header::from_slice(&bytes).unwrap();
            prop_assert_eq!(theirs.traffic_class, repr.traffic_class);
            prop_assert_eq!(theirs.flow_label.value(), repr.flow_label);
            prop_assert_eq!(theirs.payload_length, repr.payload_len);
            prop_assert_eq!(theirs.next_header.0, repr.next_header);
            prop_assert_eq!(theirs.hop_limit, repr.hop_limit);
            prop_assert_eq!(theirs.source, repr.src.octets());
            prop_assert_eq!(theirs.destination, repr.dst.octets());
        }

        #[test]
        fn view_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(view) = Ipv6View::new(&bytes) {
                let _ = (Ipv6Repr::parse(view), view.payload());
            }
        }
    }

    #[test]
    fn version_and_length() {
        let mut bytes = [0; 41];
        bytes[0] = 0x60;
        bytes[5] = 2;
        let view = Ipv6View::new(&bytes).unwrap();
        assert!(!view.is_complete());
        assert_eq!(view.payload(), [0]);
        assert_eq!(
            Ipv6View::new(&bytes[..39]).unwrap_err(),
            WireError::Truncated
        );
        bytes[0] = 0x40;
        assert_eq!(Ipv6View::new(&bytes).unwrap_err(), WireError::BadVersion);
    }
}
