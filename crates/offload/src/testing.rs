//! Packets for tests, written byte by byte with checksums of their own.

use alloc::vec;
use alloc::vec::Vec;

use fullsend_buf::Slice;

use crate::{Link, Packet};

pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const ACK: u16 = 0x10;
pub(crate) const URG: u16 = 0x20;
pub(crate) const ECE: u16 = 0x40;
pub(crate) const CWR: u16 = 0x80;

/// A TCP packet to be.
#[derive(Clone, Debug)]
pub(crate) struct Tcp {
    pub(crate) link: Link,
    pub(crate) vlan: Option<u16>,
    pub(crate) v6: bool,
    pub(crate) host: u8,
    pub(crate) port: u16,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) df: bool,
    pub(crate) fragment: u16,
    pub(crate) ip_id: u16,
    pub(crate) ip_options: Vec<u8>,
    pub(crate) label: u32,
    /// Type and bytes, the next-header field excepted.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u16,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) padding: usize,
    pub(crate) break_checksum: bool,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            link: Link::Ip,
            vlan: None,
            v6: false,
            host: 1,
            port: 1000,
            tos: 0,
            ttl: 64,
            df: true,
            fragment: 0,
            ip_id: 100,
            ip_options: Vec::new(),
            label: 0x12345,
            extensions: Vec::new(),
            seq: 1,
            ack: 77,
            flags: ACK,
            window: 500,
            urgent: 0,
            options: vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 3],
            payload: payload(0, 1000),
            padding: 0,
            break_checksum: false,
        }
    }
}

/// Bytes that tell where in the stream they are.
pub(crate) fn payload(seq: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (seq.wrapping_add(i).wrapping_mul(0x9e37_79b1) >> 13) as u8)
        .collect()
}

/// The checksum of RFC 1071, the plain way.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

impl Tcp {
    pub(crate) fn v6() -> Self {
        Self {
            v6: true,
            ip_id: 0,
            ..Self::default()
        }
    }

    /// `n` packets of a flow in a row, `len` bytes each.
    pub(crate) fn run(&self, n: usize, len: usize) -> Vec<Self> {
        (0..n)
            .map(|i| {
                let seq = self.seq.wrapping_add((i * len) as u32);
                Self {
                    seq,
                    ip_id: self.ip_id.wrapping_add(if self.v6 { 0 } else { i as u16 }),
                    payload: payload(seq, len),
                    ..self.clone()
                }
            })
            .collect()
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let addresses = self.addresses();
        let tcp = self.segment(&addresses);
        let mut out = self.link_header();
        if self.v6 {
            self.ipv6(&addresses, &tcp, &mut out);
        } else {
            self.ipv4(&addresses, &tcp, &mut out);
        }
        out.extend(vec![0xee; self.padding]);
        out
    }

    pub(crate) fn packet(&self) -> Packet {
        Packet::from_frame(Slice::copied_from(&self.frame()))
    }

    fn addresses(&self) -> Vec<u8> {
        if self.v6 {
            let mut both = vec![0xfd; 32];
            (both[15], both[31]) = (self.host, 2);
            both
        } else {
            vec![10, 0, 0, self.host, 10, 0, 0, 2]
        }
    }

    fn segment(&self, addresses: &[u8]) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.port.to_be_bytes());
        tcp.extend(80u16.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        let words = (20 + self.options.len()) as u16 / 4;
        tcp.extend((words << 12 | self.flags).to_be_bytes());
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0, 0]);
        tcp.extend(self.urgent.to_be_bytes());
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let mut summed = addresses.to_vec();
        summed.extend((tcp.len() as u32).to_be_bytes());
        summed.extend([0, 0, 0, 6]);
        summed.extend(&tcp);
        let value = checksum(&summed) ^ u16::from(self.break_checksum);
        tcp[16..18].copy_from_slice(&value.to_be_bytes());
        tcp
    }

    fn link_header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.link == Link::Ethernet {
            out.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, self.host]);
            if let Some(tag) = self.vlan {
                out.extend([0x81, 0]);
                out.extend(tag.to_be_bytes());
            }
            out.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        }
        out
    }

    fn ipv4(&self, addresses: &[u8], tcp: &[u8], out: &mut Vec<u8>) {
        let header_len = 20 + self.ip_options.len();
        let mut ip = vec![0x40 | (header_len / 4) as u8, self.tos];
        ip.extend(((header_len + tcp.len()) as u16).to_be_bytes());
        ip.extend(self.ip_id.to_be_bytes());
        ip.extend((u16::from(self.df) << 14 | self.fragment).to_be_bytes());
        ip.extend([self.ttl, 6, 0, 0]);
        ip.extend(addresses);
        ip.extend(&self.ip_options);
        let value = checksum(&ip);
        ip[10..12].copy_from_slice(&value.to_be_bytes());
        out.extend(ip);
        out.extend(tcp);
    }

    fn ipv6(&self, addresses: &[u8], tcp: &[u8], out: &mut Vec<u8>) {
        let extra: usize = self.extensions.iter().map(|(_, rest)| rest.len() + 1).sum();
        out.extend((6 << 28 | u32::from(self.tos) << 20 | self.label).to_be_bytes());
        out.extend(((extra + tcp.len()) as u16).to_be_bytes());
        out.push(self.extensions.first().map_or(6, |(kind, _)| *kind));
        out.push(self.ttl);
        out.extend(addresses);
        for (i, (_, rest)) in self.extensions.iter().enumerate() {
            out.push(self.extensions.get(i + 1).map_or(6, |(kind, _)| *kind));
            out.extend(rest);
        }
        out.extend(tcp);
    }
}
