//! `virtio_net_hdr` (virtio 1.2, 5.1.6): the offloads that a packet between a host and its device
//! requests. Little endian, without `num_buffers`.

/// Length of the header, in bytes.
pub const VNET_HDR_LEN: usize = 10;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_UDP: u8 = 3;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// The segmentation type of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VnetGso {
    /// No segmentation.
    #[default]
    None,
    /// TCP/IPv4 segments.
    TcpV4,
    /// TCP/IPv6 segments.
    TcpV6,
    /// UDP datagrams.
    UdpL4,
    /// Fragments of one UDP datagram (UFO, withdrawn).
    UdpFragments,
    /// A type that this crate does not implement.
    Unknown(u8),
}

/// The fields of a `virtio_net_hdr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VnetHdr {
    /// The transport checksum field holds the sum of the pseudo-header: the receiver completes it
    /// over the bytes from `csum_start`, in the field `csum_offset` bytes after that.
    pub needs_csum: bool,
    /// The checksum has been verified.
    pub data_valid: bool,
    /// The segmentation to perform.
    pub gso: VnetGso,
    /// CWR is set on the first segment only (RFC 3168 6.1.2).
    pub ecn: bool,
    /// Bytes of headers, a hint.
    pub hdr_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// Offset of the summed bytes from the start of the frame.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
}

impl VnetHdr {
    /// Reads the header; every bit pattern is valid.
    pub const fn parse(bytes: &[u8; VNET_HDR_LEN]) -> Self {
        let [flags, gso, h0, h1, g0, g1, s0, s1, o0, o1] = *bytes;
        Self {
            needs_csum: flags & F_NEEDS_CSUM != 0,
            data_valid: flags & F_DATA_VALID != 0,
            gso: match gso & !GSO_ECN {
                0 => VnetGso::None,
                GSO_TCPV4 => VnetGso::TcpV4,
                GSO_TCPV6 => VnetGso::TcpV6,
                GSO_UDP_L4 => VnetGso::UdpL4,
                GSO_UDP => VnetGso::UdpFragments,
                other => VnetGso::Unknown(other),
            },
            ecn: gso & GSO_ECN != 0,
            hdr_len: u16::from_le_bytes([h0, h1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            csum_start: u16::from_le_bytes([s0, s1]),
            csum_offset: u16::from_le_bytes([o0, o1]),
        }
    }

    /// Returns the bytes of the header.
    pub const fn emit(&self) -> [u8; VNET_HDR_LEN] {
        let flags = (if self.needs_csum { F_NEEDS_CSUM } else { 0 })
            | (if self.data_valid { F_DATA_VALID } else { 0 });
        let kind = match self.gso {
            VnetGso::None => 0,
            VnetGso::TcpV4 => GSO_TCPV4,
            VnetGso::TcpV6 => GSO_TCPV6,
            VnetGso::UdpL4 => GSO_UDP_L4,
            VnetGso::UdpFragments => GSO_UDP,
            VnetGso::Unknown(other) => other,
        };
        let gso = kind | if self.ecn { GSO_ECN } else { 0 };
        let [h0, h1] = self.hdr_len.to_le_bytes();
        let [g0, g1] = self.gso_size.to_le_bytes();
        let [s0, s1] = self.csum_start.to_le_bytes();
        let [o0, o1] = self.csum_offset.to_le_bytes();
        [flags, gso, h0, h1, g0, g1, s0, s1, o0, o1]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{VNET_HDR_LEN, VnetGso, VnetHdr};

    #[test]
    fn a_tso_packet() {
        let hdr = VnetHdr {
            needs_csum: true,
            gso: VnetGso::TcpV4,
            hdr_len: 52,
            gso_size: 1448,
            csum_start: 20,
            csum_offset: 16,
            ..VnetHdr::default()
        };
        let bytes = hdr.emit();
        assert_eq!(bytes, [1, 1, 52, 0, 0xa8, 5, 20, 0, 16, 0]);
        assert_eq!(VnetHdr::parse(&bytes), hdr);
    }

    proptest! {
        #[test]
        fn parse_then_emit_is_identity(bytes: [u8; VNET_HDR_LEN]) {
            let again = VnetHdr::parse(&bytes).emit();
            prop_assert_eq!(again[0], bytes[0] & 3);
            prop_assert_eq!(&again[1..], &bytes[1..]);
        }
    }
}
