//! Ethernet II frames, with 802.1Q and 802.1ad tags.

use core::fmt;

use crate::WireError;
use crate::numbers::ethertype;
use crate::read::{array, be16, put16};

/// Length of an Ethernet header without tags, in bytes.
pub const HEADER_LEN: usize = 14;
/// Length of one VLAN tag, in bytes.
pub const TAG_LEN: usize = 4;
/// Most tags that are skipped: a customer's tag inside a provider's.
const MAX_TAGS: usize = 2;

/// An Ethernet hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// The all-zero address, which identifies no station.
    pub const ZERO: Self = Self([0; 6]);

    /// Returns a locally administered unicast address (IEEE 802c) from the upper 48 bits of
    /// `random`.
    pub fn local(random: u64) -> Self {
        let [first, rest @ ..] = random.to_be_bytes();
        let mut mac = [(first & 0xfc) | 2, 0, 0, 0, 0, 0];
        mac[1..].copy_from_slice(&rest[..5]);
        Self(mac)
    }

    /// Returns whether this is a group address; the broadcast address is one.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns the hardware address of an IPv4 group (RFC 1112 6.4).
    pub const fn of_v4_group(group: core::net::Ipv4Addr) -> Self {
        let [_, b, c, d] = group.octets();
        Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    /// Returns the hardware address of an IPv6 group (RFC 2464 7).
    pub const fn of_v6_group(group: core::net::Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A frame whose header and tags lie within bounds.
#[derive(Clone, Copy, Debug)]
pub struct EthernetView<'a> {
    bytes: &'a [u8],
    header_len: usize,
}

impl<'a> EthernetView<'a> {
    /// Interprets `bytes` as the beginning of a frame.
    ///
    /// # Errors
    /// `Truncated` if `bytes` end before the header and its tags do.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() < HEADER_LEN {
            return Err(WireError::Truncated);
        }
        let mut header_len = HEADER_LEN;
        for _ in 0..MAX_TAGS {
            if !is_tag(be16(bytes, header_len - 2)) {
                break;
            }
            header_len += TAG_LEN;
            if bytes.len() < header_len {
                return Err(WireError::Truncated);
            }
        }
        Ok(Self { bytes, header_len })
    }

    /// Returns the destination address.
    #[inline]
    pub fn dst(&self) -> Mac {
        Mac(array(self.bytes, 0))
    }

    /// Returns the source address.
    #[inline]
    pub fn src(&self) -> Mac {
        Mac(array(self.bytes, 6))
    }

    /// Returns the EtherType of the payload, after the tags.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        be16(self.bytes, self.header_len - 2)
    }

    /// Returns the outermost tag's control field: priority, DEI and VLAN number.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        (self.header_len > HEADER_LEN).then(|| be16(self.bytes, HEADER_LEN))
    }

    /// Returns the tags' control fields, the outermost first.
    pub fn tags(&self) -> impl Iterator<Item = u16> + use<'a> {
        let bytes = self.bytes;
        let starts = (HEADER_LEN..self.header_len).step_by(TAG_LEN);
        starts.map(move |at| be16(bytes, at))
    }

    /// Returns the length of header and tags, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Returns the bytes after header and tags, link-layer padding included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len..]
    }
}

#[inline]
const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, ethertype::VLAN | ethertype::QINQ)
}

/// The fields of an Ethernet header with at most one tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetRepr {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// The control field of the 802.1Q tag, if there is one.
    pub vlan: Option<u16>,
    /// EtherType of the payload.
    pub ethertype: u16,
}

impl EthernetRepr {
    /// Returns the fields of `view`; of two tags, the outer one.
    #[inline]
    pub fn parse(view: EthernetView<'_>) -> Self {
        Self {
            dst: view.dst(),
            src: view.src(),
            vlan: view.vlan(),
            ethertype: view.ethertype(),
        }
    }

    /// Returns the number of bytes that [`emit`](Self::emit) writes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        HEADER_LEN + if self.vlan.is_some() { TAG_LEN } else { 0 }
    }

    /// Writes the header at the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`header_len`](Self::header_len).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..self.header_len()];
        out[..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        let mut at = 12;
        if let Some(tci) = self.vlan {
            put16(out, 12, ethertype::VLAN);
            put16(out, 14, tci);
            at = 16;
        }
        put16(out, at, self.ethertype);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use proptest::prelude::*;

    use super::{EthernetRepr, EthernetView, Mac};
    use crate::WireError;

    #[test]
    fn random_addresses_are_local_and_unicast() {
        for n in 0..50 {
            assert_eq!(Mac::local(crate::Seed::from_u64(n).0[3]).0[0] & 3, 2);
        }
    }

    proptest! {
        #[test]
        fn emit_then_parse_is_identity(dst: [u8; 6], src: [u8; 6], vlan: Option<u16>, kind: u16) {
            let ethertype = if super::is_tag(kind) { 0x0800 } else { kind };
            let repr = EthernetRepr { dst: Mac(dst), src: Mac(src), vlan, ethertype };
            let mut bytes = [0xee; 20];
            repr.emit(&mut bytes);
            let view = EthernetView::new(&bytes).unwrap();
            prop_assert_eq!(EthernetRepr::parse(view), repr);
            prop_assert_eq!(view.header_len(), repr.header_len());
            let theirs = etherparse::LaxSlicedPacket::from_ethernet(&bytes).unwrap();
            let link = theirs.link.unwrap().to_header().unwrap();
            prop_assert_eq!(link.clone().ethernet2().unwrap().destination, dst);
            prop_assert_eq!(link.ethernet2().unwrap().source, src);
            let tag = theirs.link_exts.first().and_then(|e| match e.to_header() {
                etherparse::LinkExtHeader::Vlan(tag) => Some(tag),
                etherparse::LinkExtHeader::Macsec(_) => None,
            });
            if let (Some(tci), Some(tag)) = (vlan, tag) {
                prop_assert_eq!(tag.vlan_id.value(), tci & 0xfff);
                prop_assert_eq!(tag.pcp.value(), (tci >> 13) as u8);
                prop_assert_eq!(tag.ether_type.0, ethertype);
            }
        }

        #[test]
        fn view_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(view) = EthernetView::new(&bytes) {
                prop_assert_eq!(view.header_len() + view.payload().len(), bytes.len());
            }
        }
    }

    #[test]
    fn at_most_two_tags_are_skipped() {
        let mut frame = [0u8; 30];
        frame[12..].copy_from_slice(&[
            0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7, 8, 0, 1, 2, 3, 4,
        ]);
        let view = EthernetView::new(&frame).unwrap();
        assert_eq!((view.vlan(), view.ethertype()), (Some(5), 0x8100));
        assert!(view.tags().eq([5, 6]));
        assert_eq!(view.header_len(), 22);
        assert_eq!(
            EthernetView::new(&frame[..21]).unwrap_err(),
            WireError::Truncated
        );
        assert_eq!(
            EthernetView::new(&frame[..13]).unwrap_err(),
            WireError::Truncated
        );
    }

    #[test]
    fn multicast_groups_map_to_mac_addresses() {
        let v4 = Mac::of_v4_group([239, 129, 2, 3].into());
        assert_eq!(v4.to_string(), "01:00:5e:01:02:03");
        let v6 = Mac::of_v6_group("ff02::1:ff00:1".parse().unwrap());
        assert_eq!(v6.to_string(), "33:33:ff:00:00:01");
        assert!(v4.is_multicast() && v6.is_multicast() && Mac::BROADCAST.is_multicast());
    }
}
