//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use crate::WireError;
use crate::ethernet::Mac;
use crate::numbers::ethertype;
use crate::read::{array, be16, put16};

/// Length of an ARP message for IPv4 over Ethernet, in bytes.
pub const LEN: usize = 28;

/// The operation of an ARP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpOperation {
    /// Requests the hardware address of the target address.
    Request,
    /// Reports the sender's hardware address.
    Reply,
}

/// An ARP message for IPv4 over Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArpRepr {
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender's hardware address.
    pub sender_mac: Mac,
    /// The sender's IPv4 address; unspecified in a probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// The target's hardware address; meaningless in a request.
    pub target_mac: Mac,
    /// The target's IPv4 address.
    pub target: Ipv4Addr,
}

impl ArpRepr {
    /// Reads a message at the start of `bytes`.
    ///
    /// # Errors
    /// `Truncated` below 28 bytes; `BadVersion` for other hardware or protocol types; `BadLength`
    /// for other address lengths; `BadField` for any operation but request and reply.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let Some(bytes) = bytes.first_chunk::<LEN>() else {
            return Err(WireError::Truncated);
        };
        if be16(bytes, 0) != 1 || be16(bytes, 2) != ethertype::IPV4 {
            return Err(WireError::BadVersion);
        }
        if bytes[4] != 6 || bytes[5] != 4 {
            return Err(WireError::BadLength);
        }
        Ok(Self {
            operation: match be16(bytes, 6) {
                1 => ArpOperation::Request,
                2 => ArpOperation::Reply,
                _ => return Err(WireError::BadField),
            },
            sender_mac: Mac(array(bytes, 8)),
            sender: array::<4>(bytes, 14).into(),
            target_mac: Mac(array(bytes, 18)),
            target: array::<4>(bytes, 24).into(),
        })
    }

    /// Writes the message at the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let out = out.first_chunk_mut::<LEN>().expect("room for the message");
        put16(out, 0, 1);
        put16(out, 2, ethertype::IPV4);
        out[4] = 6;
        out[5] = 4;
        let operation = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        put16(out, 6, operation);
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..28].copy_from_slice(&self.target.octets());
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;

    use super::{ArpOperation, ArpRepr, LEN};
    use crate::WireError;
    use crate::ethernet::Mac;

    proptest! {
        #[test]
        fn emit_then_parse_is_identity(
            reply: bool, macs: [[u8; 6]; 2], addresses: [u32; 2],
        ) {
            let repr = ArpRepr {
                operation: if reply { ArpOperation::Reply } else { ArpOperation::Request },
                sender_mac: Mac(macs[0]),
                sender: addresses[0].into(),
                target_mac: Mac(macs[1]),
                target: addresses[1].into(),
            };
            let mut bytes = [0xee; LEN];
            repr.emit(&mut bytes);
            prop_assert_eq!(ArpRepr::parse(&bytes), Ok(repr));
            let theirs = etherparse::ArpPacketSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(theirs.operation().0, 1 + u16::from(reply));
            prop_assert_eq!(theirs.sender_hw_addr(), &macs[0]);
            prop_assert_eq!(theirs.target_protocol_addr(), &addresses[1].to_be_bytes());
        }

        #[test]
        fn parse_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = ArpRepr::parse(&bytes);
        }
    }

    #[test]
    fn other_kinds_are_errors() {
        let mut good = [0; LEN];
        good[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        assert!(ArpRepr::parse(&good).is_ok());
        assert_eq!(ArpRepr::parse(&good[..27]), Err(WireError::Truncated));
        for (at, value, error) in [
            (1, 6, WireError::BadVersion),
            (2, 9, WireError::BadVersion),
            (4, 8, WireError::BadLength),
            (5, 16, WireError::BadLength),
            (7, 3, WireError::BadField),
        ] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(ArpRepr::parse(&bad), Err(error), "byte {at}");
        }
    }
}
