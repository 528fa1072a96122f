//! Frames as a sender without offloads writes them, for the benchmarks and examples.

use fullsend_wire::checksum::{Sum, sum};

/// The headers before the TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderShape {
    V4,
    V6,
    /// IPv6 with 8 bytes of destination options.
    V6Ext,
    V6InV6,
    V4InV4,
    /// IPv4 in VXLAN over IPv4, without an outer UDP checksum.
    Vxlan,
}

impl HeaderShape {
    pub(crate) const ALL: [(&'static str, Self); 6] = [
        ("v4", Self::V4),
        ("v6", Self::V6),
        ("v6+ext", Self::V6Ext),
        ("v6-in-v6", Self::V6InV6),
        ("v4-in-v4", Self::V4InV4),
        ("vxlan", Self::Vxlan),
    ];

    /// Returns segment `index` of a flow, with `len` bytes of payload.
    pub(crate) fn frame(self, flow: u16, index: usize, len: usize) -> Vec<u8> {
        self.frame_with(ACK, flow, index, len)
    }

    /// Returns segment `index` of a flow, with `len` bytes of payload and the PSH flag.
    #[allow(dead_code, reason = "not every bench has them")]
    pub(crate) fn pushed(self, flow: u16, index: usize, len: usize) -> Vec<u8> {
        self.frame_with(ACK | PSH, flow, index, len)
    }

    fn frame_with(self, flags: u8, flow: u16, index: usize, len: usize) -> Vec<u8> {
        let id = index as u16;
        let v6 = matches!(self, Self::V6 | Self::V6Ext | Self::V6InV6);
        let seq = u32::from(flow)
            .wrapping_mul(0x9e37_79b1)
            .wrapping_add((index * len) as u32);
        let tcp = tcp(flags, flow, seq, len, v6);
        match self {
            Self::V4 => ipv4(6, id, tcp),
            Self::V6 => ipv6(6, tcp),
            Self::V6Ext => ipv6(60, [&[6, 0, 1, 4, 0, 0, 0, 0], &tcp[..]].concat()),
            Self::V6InV6 => ipv6(41, ipv6(6, tcp)),
            Self::V4InV4 => ipv4(4, id, ipv4(6, id, tcp)),
            Self::Vxlan => ipv4(17, id, vxlan(ipv4(6, id, tcp))),
        }
    }
}

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

const V4: [u8; 8] = [10, 0, 0, 1, 10, 0, 0, 2];

fn v6_addresses() -> [u8; 32] {
    let mut both = [0xfd; 32];
    (both[15], both[31]) = (1, 2);
    both
}

fn tcp(flags: u8, port: u16, seq: u32, len: usize, v6: bool) -> Vec<u8> {
    let mut out = port.to_be_bytes().to_vec();
    out.extend([0, 80]);
    out.extend(seq.to_be_bytes());
    out.extend([0, 0, 0, 7, 0x80, flags, 1, 0, 0, 0, 0, 0]);
    out.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    out.resize(32 + len, 0x5a);
    let addresses = if v6 { sum(&v6_addresses()) } else { sum(&V4) };
    let total = addresses + Sum::word(6) + Sum::dword(out.len() as u32) + sum(&out);
    out[16..18].copy_from_slice(&total.checksum().to_be_bytes());
    out
}

fn ipv4(protocol: u8, id: u16, payload: Vec<u8>) -> Vec<u8> {
    let mut out = vec![0x45, 0];
    out.extend((20 + payload.len() as u16).to_be_bytes());
    out.extend(id.to_be_bytes());
    out.extend([0x40, 0, 64, protocol, 0, 0]);
    out.extend(V4);
    let value = sum(&out).checksum();
    out[10..12].copy_from_slice(&value.to_be_bytes());
    out.extend(payload);
    out
}

fn ipv6(next_header: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut out = vec![0x60, 0, 0, 0];
    out.extend((payload.len() as u16).to_be_bytes());
    out.extend([next_header, 64]);
    out.extend(v6_addresses());
    out.extend(payload);
    out
}

fn vxlan(packet: Vec<u8>) -> Vec<u8> {
    let mut out = vec![0xc0, 1, 0x12, 0xb5];
    out.extend((8 + 8 + 14 + packet.len() as u16).to_be_bytes());
    out.extend([0, 0, 8, 0, 0, 0, 0, 0, 42, 0]);
    out.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    out.extend(packet);
    out
}
