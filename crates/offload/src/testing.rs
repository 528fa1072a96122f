//! Test packets, written byte by byte, with a separate implementation of the checksum.

use alloc::vec;
use alloc::vec::Vec;

use crate::{Link, Packet, Slice, Tunnels};

pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const ACK: u16 = 0x10;
pub(crate) const URG: u16 = 0x20;
pub(crate) const ECE: u16 = 0x40;
pub(crate) const CWR: u16 = 0x80;

/// The fields of a test packet.
#[derive(Clone, Debug)]
pub(crate) struct TestPacket {
    pub(crate) link: Link,
    pub(crate) vlan: Option<u16>,
    pub(crate) service_vlan: Option<u16>,
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
    /// IPv6 extension headers: type, and bytes without the next-header field.
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
    /// Whether the packet is a UDP datagram, without a checksum if `no_checksum` is set.
    pub(crate) udp: bool,
    pub(crate) no_checksum: bool,
    pub(crate) outer: Option<OuterHeaders>,
}

/// The outer headers of a tunnelled packet.
#[derive(Clone, Debug)]
pub(crate) struct OuterHeaders {
    pub(crate) kind: TunnelKind,
    pub(crate) v6: bool,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) df: bool,
    pub(crate) ip_id: u16,
    pub(crate) label: u32,
    pub(crate) host: u8,
    pub(crate) port: u16,
    /// The network identifier of VXLAN and Geneve, the key of GRE.
    pub(crate) key: u8,
    /// Whether a UDP tunnel has a checksum; with `break_checksum`, a wrong one.
    pub(crate) summed: bool,
    pub(crate) break_checksum: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TunnelKind {
    Ip,
    Gre,
    GreKey,
    GreSequence,
    GreEthernet,
    Vxlan,
    Geneve,
    Fou,
    Gue,
}

impl TunnelKind {
    pub(crate) const COALESCED: [Self; 8] = [
        Self::Ip,
        Self::Gre,
        Self::GreKey,
        Self::GreEthernet,
        Self::Vxlan,
        Self::Geneve,
        Self::Fou,
        Self::Gue,
    ];
}

/// All tunnels that the tests use. FOU carries GRE.
pub(crate) const TUNNELS: Tunnels = Tunnels {
    fou: Some((5555, 47)),
    gue: Some(6080),
    ..Tunnels::STANDARD
};

impl OuterHeaders {
    pub(crate) fn new(kind: TunnelKind, v6: bool) -> Self {
        Self {
            kind,
            v6,
            tos: 0,
            ttl: 60,
            df: false,
            ip_id: if v6 { 0 } else { 0xffff },
            label: 7,
            host: 9,
            port: 50_000,
            key: 42,
            summed: false,
            break_checksum: false,
        }
    }

    /// Returns whether the tunnel has a UDP header with a checksum.
    fn has_udp_checksum(&self) -> bool {
        self.summed
            && matches!(
                self.kind,
                TunnelKind::Vxlan | TunnelKind::Geneve | TunnelKind::Fou | TunnelKind::Gue
            )
    }

    pub(crate) fn around(&self, inner: &[u8], inner_v6: bool) -> Vec<u8> {
        let mut out = Vec::new();
        self.wrap(inner, inner_v6, &mut out);
        out
    }

    /// Appends the inner packet, an IP packet of this version, with the outer headers before it.
    fn wrap(&self, inner: &[u8], inner_v6: bool, out: &mut Vec<u8>) {
        let ether = if inner_v6 { [0x86, 0xdd] } else { [8, 0] };
        let mac = [&[2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 4][..], &ether].concat();
        let proto = if inner_v6 { 41 } else { 4 };
        let (k, e) = (self.key, ether);
        let (protocol, head) = match self.kind {
            TunnelKind::Ip => (proto, vec![]),
            TunnelKind::Gre => (47, vec![0, 0, e[0], e[1]]),
            TunnelKind::GreKey => (47, vec![0x20, 0, e[0], e[1], 0, 0, 0, k]),
            TunnelKind::GreSequence => (47, vec![0x10, 0, e[0], e[1], 0, 0, 0, 1]),
            TunnelKind::GreEthernet => (47, [&[0, 0, 0x65, 0x58], &mac[..]].concat()),
            TunnelKind::Vxlan => {
                self.udp(4789, &[&[8, 0, 0, 0, 0, 0, k, 0], &mac[..]].concat(), inner)
            }
            TunnelKind::Geneve => {
                let options = [1, 0, 0x65, 0x58, 0, 0, k, 0, 1, 2, 3, 0];
                self.udp(6081, &[&options, &mac[..]].concat(), inner)
            }
            TunnelKind::Fou => self.udp(5555, &[0, 0, e[0], e[1]], inner),
            TunnelKind::Gue => self.udp(6080, &[0, proto, 0, 0], inner),
        };
        let body = [&head, inner].concat();
        let addresses = self.addresses();
        if self.v6 {
            out.extend((6 << 28 | u32::from(self.tos) << 20 | self.label).to_be_bytes());
            out.extend((body.len() as u16).to_be_bytes());
            out.extend([protocol, self.ttl]);
            out.extend(addresses);
        } else {
            let mut ip = vec![0x45, self.tos];
            ip.extend((20 + body.len() as u16).to_be_bytes());
            ip.extend(self.ip_id.to_be_bytes());
            ip.extend([u8::from(self.df) << 6, 0, self.ttl, protocol, 0, 0]);
            ip.extend(addresses);
            let value = checksum(&ip);
            ip[10..12].copy_from_slice(&value.to_be_bytes());
            out.extend(ip);
        }
        out.extend(body);
    }

    fn addresses(&self) -> Vec<u8> {
        if self.v6 {
            let mut both = vec![0xfc; 32];
            (both[15], both[31]) = (self.host, 3);
            both
        } else {
            vec![192, 0, 2, self.host, 192, 0, 2, 3]
        }
    }

    fn udp(&self, to: u16, head: &[u8], inner: &[u8]) -> (u8, Vec<u8>) {
        let len = (8 + head.len() + inner.len()) as u16;
        let mut udp = [self.port, to, len, 0].map(u16::to_be_bytes).concat();
        udp.extend(head);
        if self.summed {
            let pseudo = [self.addresses(), vec![0, 17], len.to_be_bytes().to_vec()].concat();
            let value = checksum(&[&pseudo, &udp[..], inner].concat());
            let value = if value == 0 { 0xffff } else { value } ^ u16::from(self.break_checksum);
            udp[6..8].copy_from_slice(&value.to_be_bytes());
        }
        (17, udp)
    }
}

fn fix_ip_checksum(frame: &mut [u8], at: usize, end: usize, v6: bool) {
    if !v6 {
        frame[at + 10..at + 12].fill(0);
        let value = checksum(&frame[at..end]);
        frame[at + 10..at + 12].copy_from_slice(&value.to_be_bytes());
    }
}

/// Recomputes the checksum at `field` of the TCP or UDP header at `upper`.
fn fix_transport_checksum(
    frame: &mut [u8],
    ip: usize,
    v6: bool,
    upper: usize,
    field: usize,
    protocol: u8,
) {
    let addresses = if v6 {
        ip + 8..ip + 40
    } else {
        ip + 12..ip + 20
    };
    frame[field..field + 2].fill(0);
    let len = ((frame.len() - upper) as u16).to_be_bytes();
    let pseudo = [&frame[addresses], &[0, protocol], &len].concat();
    let value = match checksum(&[&pseudo, &frame[upper..]].concat()) {
        0 if protocol == 17 => 0xffff,
        value => value,
    };
    frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
}

impl Default for TestPacket {
    fn default() -> Self {
        Self {
            link: Link::Ip,
            vlan: None,
            service_vlan: None,
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
            udp: false,
            no_checksum: false,
            outer: None,
        }
    }
}

/// Returns stream data whose bytes depend on their sequence number.
pub(crate) fn payload(seq: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (seq.wrapping_add(i).wrapping_mul(0x9e37_79b1) >> 13) as u8)
        .collect()
}

/// Computes the checksum of RFC 1071 in the simplest way.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

impl TestPacket {
    pub(crate) fn v6() -> Self {
        Self {
            v6: true,
            ip_id: 0,
            ..Self::default()
        }
    }

    /// Returns `n` consecutive packets of a flow with `len` payload bytes each.
    pub(crate) fn run(&self, n: usize, len: usize) -> Vec<Self> {
        (0..n)
            .map(|i| {
                let seq = self.seq.wrapping_add((i * len) as u32);
                Self {
                    seq,
                    ip_id: self.ip_id.wrapping_add(if self.v6 { 0 } else { i as u16 }),
                    payload: payload(seq, len),
                    outer: self.outer.clone().map(|outer| OuterHeaders {
                        ip_id: outer
                            .ip_id
                            .wrapping_add(if outer.v6 { 0 } else { i as u16 }),
                        ..outer
                    }),
                    ..self.clone()
                }
            })
            .collect()
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let addresses = self.addresses();
        let tcp = self.segment(&addresses);
        let (mut out, mut ip) = (self.link_header(), Vec::new());
        if self.v6 {
            self.ipv6(&addresses, &tcp, &mut ip);
        } else {
            self.ipv4(&addresses, &tcp, &mut ip);
        }
        match &self.outer {
            None => out.extend(ip),
            Some(outer) => outer.wrap(&ip, self.v6, &mut out),
        }
        out.extend(vec![0xee; self.padding]);
        out
    }

    pub(crate) fn packet(&self) -> Packet {
        Packet::from_frame(Slice::copied_from(&self.frame()))
    }

    /// Recomputes all checksums of a frame of this shape, from the innermost to the outermost.
    pub(crate) fn fix_checksums(&self, frame: &mut [u8]) {
        let mut packet = self.packet();
        packet.parse_with_tunnels(self.link, &TUNNELS).unwrap();
        let layers = packet.layers;
        let [outer, inner] = layers.network.map(usize::from);
        let (tunnel, transport) = (usize::from(layers.tunnel), usize::from(layers.transport));
        let field = transport + if self.udp { 6 } else { 16 };
        fix_ip_checksum(frame, inner, transport, self.v6);
        fix_transport_checksum(frame, inner, self.v6, transport, field, layers.protocol);
        if let Some(around) = &self.outer {
            fix_ip_checksum(frame, outer, tunnel, around.v6);
            if around.has_udp_checksum() {
                fix_transport_checksum(frame, outer, around.v6, tunnel, tunnel + 6, 17);
            }
        }
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
        if self.udp {
            return self.datagram(addresses);
        }
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

    fn datagram(&self, addresses: &[u8]) -> Vec<u8> {
        let len = (8 + self.payload.len()) as u16;
        let mut udp = [self.port, 443, len, 0].map(u16::to_be_bytes).concat();
        udp.extend(&self.payload);
        if !self.no_checksum {
            let pseudo = [addresses, &[0, 17], &len.to_be_bytes()].concat();
            let value = match checksum(&[&pseudo[..], &udp].concat()) {
                0 => 0xffff,
                value => value,
            };
            let value = value ^ u16::from(self.break_checksum);
            udp[6..8].copy_from_slice(&value.to_be_bytes());
        }
        udp
    }

    fn protocol(&self) -> u8 {
        if self.udp { 17 } else { 6 }
    }

    fn link_header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.link == Link::Ethernet {
            out.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, self.host]);
            if let Some(tag) = self.service_vlan {
                out.extend([0x88, 0xa8]);
                out.extend(tag.to_be_bytes());
            }
            if let Some(tag) = self.vlan {
                out.extend([0x81, 0]);
                out.extend(tag.to_be_bytes());
            }
            let v6 = self.outer.as_ref().map_or(self.v6, |outer| outer.v6);
            out.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
        }
        out
    }

    fn ipv4(&self, addresses: &[u8], tcp: &[u8], out: &mut Vec<u8>) {
        let header_len = 20 + self.ip_options.len();
        let mut ip = vec![0x40 | (header_len / 4) as u8, self.tos];
        ip.extend(((header_len + tcp.len()) as u16).to_be_bytes());
        ip.extend(self.ip_id.to_be_bytes());
        ip.extend((u16::from(self.df) << 14 | self.fragment).to_be_bytes());
        ip.extend([self.ttl, self.protocol(), 0, 0]);
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
        out.push(
            self.extensions
                .first()
                .map_or(self.protocol(), |(kind, _)| *kind),
        );
        out.push(self.ttl);
        out.extend(addresses);
        for (i, (_, rest)) in self.extensions.iter().enumerate() {
            out.push(
                self.extensions
                    .get(i + 1)
                    .map_or(self.protocol(), |(kind, _)| *kind),
            );
            out.extend(rest);
        }
        out.extend(tcp);
    }
}
