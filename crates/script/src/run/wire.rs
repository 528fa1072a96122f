//! Packets as on the wire: parsing those that the stack sent, and building those it receives.

use std::net::IpAddr;

use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::ipv4::{Ipv4Repr, Ipv4View};
use fullsend_wire::ipv6::{Ipv6Repr, Ipv6View};
use fullsend_wire::numbers::protocol;
use fullsend_wire::{ipv4, ipv6, tcp};

use crate::tcp_option::TcpOption;

/// An IP header with its payload.
#[derive(Clone, Debug)]
pub struct IpPacket {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// The protocol of the payload, or IPv6's next header.
    pub protocol: u8,
    /// Type of service or traffic class, ECN bits included.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv6 flow label; zero in IPv4.
    pub flow_label: u32,
    /// The bytes after the IP header.
    pub payload: Vec<u8>,
}

impl IpPacket {
    /// Parses a packet.
    ///
    /// # Errors
    /// Returns a sentence that names the fault of the IP header.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.first().is_some_and(|first| first >> 4 == 6) {
            let view = Ipv6View::new(bytes)
                .map_err(|error| format!("its IPv6 header is invalid: {error:?}"))?;
            return Ok(Self {
                src: view.src().into(),
                dst: view.dst().into(),
                protocol: view.next_header(),
                tos: view.traffic_class(),
                ttl: view.hop_limit(),
                flow_label: view.flow_label(),
                payload: view.payload().to_vec(),
            });
        }
        let view = Ipv4View::new(bytes)
            .map_err(|error| format!("its IPv4 header is invalid: {error:?}"))?;
        if !view.checksum_ok() {
            return Err("the checksum of the IPv4 header is wrong".to_owned());
        }
        Ok(Self {
            src: view.src().into(),
            dst: view.dst().into(),
            protocol: view.protocol(),
            tos: view.tos(),
            ttl: view.ttl(),
            flow_label: 0,
            payload: view.payload().to_vec(),
        })
    }

    /// Returns the packet's bytes.
    pub fn emit(&self) -> Vec<u8> {
        let len = self.payload.len() as u16;
        let mut out = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header = vec![0; ipv4::HEADER_LEN];
                let repr = Ipv4Repr {
                    tos: self.tos,
                    ttl: self.ttl,
                    ..Ipv4Repr::new(src, dst, self.protocol, len)
                };
                repr.emit(&mut header);
                header
            }
            (src, dst) => {
                let v6 = |ip| match ip {
                    IpAddr::V6(ip) => ip,
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                };
                let mut header = vec![0; ipv6::HEADER_LEN];
                let repr = Ipv6Repr {
                    traffic_class: self.tos,
                    flow_label: self.flow_label,
                    hop_limit: self.ttl,
                    ..Ipv6Repr::new(v6(src), v6(dst), self.protocol, len)
                };
                repr.emit(&mut header);
                header
            }
        };
        out.extend_from_slice(&self.payload);
        out
    }

    fn pseudo(&self) -> Sum {
        Sum::pseudo(self.src, self.dst, self.protocol, self.payload.len() as u32)
    }

    /// Writes the checksum over pseudo-header and payload at `offset` of the payload.
    pub fn fill_checksum(&mut self, offset: usize) {
        self.payload[offset..offset + 2].fill(0);
        let whole = self.pseudo().join(sum(&self.payload), false);
        let checksum = if self.protocol == protocol::UDP {
            whole.udp_checksum()
        } else {
            whole.checksum()
        };
        self.payload[offset..offset + 2].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Returns whether the transport checksum is valid (TCP and UDP).
    pub fn checksum_ok(&self) -> bool {
        self.pseudo().join(sum(&self.payload), false).is_valid()
    }
}

/// A TCP segment, with the numbers of its header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireSegment {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Flag bits, AE included.
    pub flags: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Window field, not scaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options in order, padding included.
    pub options: Vec<TcpOption>,
    /// Payload.
    pub data: Vec<u8>,
}

impl WireSegment {
    /// Parses a segment; `None` if its header does not fit the bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, _) = bytes.split_first_chunk::<{ tcp::HEADER_LEN }>()?;
        let header_len = usize::from(fixed[12] >> 4) * 4;
        let options = bytes.get(tcp::HEADER_LEN..header_len)?;
        let be16 = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let be32 = |at: usize| u32::from(be16(at)) << 16 | u32::from(be16(at + 2));
        Some(Self {
            src_port: be16(0),
            dst_port: be16(2),
            seq: be32(4),
            ack: be32(8),
            flags: be16(12) & 0x1ff,
            window: be16(14),
            urgent: be16(18),
            options: TcpOption::parse_all(options),
            data: bytes[header_len..].to_vec(),
        })
    }

    /// Returns the segment's bytes, without a checksum. Options are padded with zeros.
    pub fn emit(&self) -> Vec<u8> {
        let mut options = Vec::new();
        self.options.iter().for_each(|o| o.emit(&mut options));
        options.resize(options.len().next_multiple_of(4), 0);
        let words = (tcp::HEADER_LEN + options.len()) as u16 / 4;
        let mut out = Vec::with_capacity(tcp::HEADER_LEN + options.len() + self.data.len());
        out.extend(self.src_port.to_be_bytes());
        out.extend(self.dst_port.to_be_bytes());
        out.extend(self.seq.to_be_bytes());
        out.extend(self.ack.to_be_bytes());
        out.extend((words << 12 | self.flags).to_be_bytes());
        out.extend(self.window.to_be_bytes());
        out.extend([0, 0]);
        out.extend(self.urgent.to_be_bytes());
        out.extend(options);
        out.extend(&self.data);
        out
    }
}
