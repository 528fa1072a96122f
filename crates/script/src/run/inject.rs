//! Packets that the remote end sends.

use fullsend_wire::numbers::protocol;
use fullsend_wire::{tcp, udp};

use super::ScriptRunner;
use super::flow::{Flow, segment_text};
use super::wire::{IpPacket, WireSegment};
use crate::error::{Pos, ScriptError};
use crate::script::{Body, EcnSpec, Icmp, IpSpec, Packet, Quoted, Segment};

const SYN: u16 = 0x02;
const RST: u16 = 0x04;
const ACK: u16 = 0x10;
const URG: u16 = 0x20;

/// Returns the byte at an offset of a stream, given by its relative sequence number, so that the
/// receiver can check it.
pub(crate) fn pattern(seq: u32) -> u8 {
    (seq ^ seq >> 8 ^ seq >> 16) as u8
}

/// Returns the relative sequence number of a segment's first byte; that of a SYN is an ISN.
pub(crate) fn first_byte(seq: u32, flags: u16) -> u32 {
    if flags & SYN != 0 { 1 } else { seq }
}

/// Returns `len` bytes of the stream from `seq`.
pub(crate) fn pattern_bytes(seq: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| pattern(seq.wrapping_add(i)))
        .collect()
}

impl ScriptRunner<'_> {
    /// Sends a packet of the remote end to the stack.
    pub(super) fn inject(&mut self, pos: Pos, packet: &Packet) -> Result<(), ScriptError> {
        let datagram = match &packet.body {
            Body::Tcp(segment) => self.segment(pos, packet.ip, segment)?,
            Body::Udp(len) => self.datagram(pos, packet.ip, *len)?,
            Body::Icmp(icmp) => self.icmp(pos, packet.ip, icmp)?,
        };
        if datagram.payload.len() > usize::from(u16::MAX) - 20 {
            return Err(ScriptError::new(
                pos,
                "the packet is too long for an IP packet; write a shorter payload",
            ));
        }
        self.target.receive(&datagram.emit());
        Ok(())
    }

    fn header(&self, ip: IpSpec, protocol: u8) -> IpPacket {
        let ecn = match ip.ecn {
            Some(EcnSpec::Is(bits)) => bits,
            Some(EcnSpec::Ect01) => 2,
            None => 0,
        };
        IpPacket {
            src: self.settings.remote,
            dst: self.settings.local,
            protocol,
            tos: ip.tos.unwrap_or(ecn),
            ttl: ip.ttl.unwrap_or(255),
            flow_label: ip.flow_label.unwrap_or(0),
            payload: Vec::new(),
        }
    }

    fn segment(
        &mut self,
        pos: Pos,
        ip: IpSpec,
        segment: &Segment,
    ) -> Result<IpPacket, ScriptError> {
        let Some(options) = &segment.options else {
            return Err(ScriptError::new(
                pos,
                "<...> applies to packets of the stack; write the options of an injected packet",
            ));
        };
        let window = match segment.window {
            Some(window) => window,
            None if segment.flags & RST != 0 => 0,
            None => return Err(ScriptError::new(pos, "expected \"win\" and a window")),
        };
        let index = self.inbound_flow(pos, segment.flags)?;
        self.skip_payload_check |= segment.flags & URG != 0;
        let live = WireSegment {
            src_port: 0,
            dst_port: 0,
            flags: segment.flags,
            seq: segment.seq,
            ack: segment.ack.unwrap_or(0),
            window,
            urgent: segment.urgent.unwrap_or(0),
            options: options.clone(),
            data: pattern_bytes(first_byte(segment.seq, segment.flags), segment.len as usize),
        };
        self.log(&format!("< {}", segment_text(&live)));
        let flow = &mut self.flows[index];
        if segment.flags & RST != 0 {
            flow.is_closed = true;
        }
        let mut datagram = self.header(ip, protocol::TCP);
        datagram.payload = self.flows[index].wire_segment(live).emit();
        datagram.fill_checksum(tcp::CHECKSUM_OFFSET);
        Ok(datagram)
    }

    /// Returns the flow of a packet from the remote end. A SYN to a listening socket creates one,
    /// unless a flow under test exists.
    fn inbound_flow(&mut self, pos: Pos, flags: u16) -> Result<usize, ScriptError> {
        let new = match self.under_test {
            None => true,
            Some(index) => flags & (SYN | ACK) == SYN && self.flows[index].is_closed,
        };
        if !new {
            return Ok(self.under_test.unwrap_or(0));
        }
        let Some(local_port) = self.listening else {
            if let Some(index) = self.under_test {
                return Ok(index);
            }
            let message = "the packet has no receiver, as no socket listens or connects; call \
                           listen() or connect() first";
            return Err(ScriptError::new(pos, message));
        };
        let flow = Flow {
            local_port,
            remote_port: self.next_remote_port,
            ..Flow::default()
        };
        self.next_remote_port += 1;
        Ok(self.set_flow_under_test(flow))
    }

    /// Makes `flow` the flow under test, and returns its index.
    pub(super) fn set_flow_under_test(&mut self, flow: Flow) -> usize {
        self.flows.push(flow);
        let index = self.flows.len() - 1;
        self.under_test = Some(index);
        index
    }

    fn datagram(&mut self, pos: Pos, ip: IpSpec, len: u16) -> Result<IpPacket, ScriptError> {
        // The data of datagrams is not checked against the pattern.
        self.skip_payload_check = true;
        let index = match (self.under_test, self.listening) {
            (Some(index), _) => index,
            (None, Some(_)) => self.inbound_flow(pos, SYN)?,
            (None, None) => {
                return Err(ScriptError::new(
                    pos,
                    "the datagram has no receiver; call bind() or connect() on a UDP socket first",
                ));
            }
        };
        let flow = &self.flows[index];
        let repr = udp::UdpRepr {
            src_port: flow.remote_port,
            dst_port: flow.local_port,
            payload_len: len,
        };
        let mut datagram = self.header(ip, protocol::UDP);
        datagram.payload = vec![0; udp::HEADER_LEN];
        repr.emit(&mut datagram.payload);
        datagram.payload.extend(pattern_bytes(0, len.into()));
        datagram.fill_checksum(udp::CHECKSUM_OFFSET);
        self.log(&format!("< udp ({len})"));
        Ok(datagram)
    }

    fn icmp(&mut self, pos: Pos, ip: IpSpec, icmp: &Icmp) -> Result<IpPacket, ScriptError> {
        let v6 = self.settings.family.is_v6_wire();
        let code = icmp.code.as_deref().unwrap_or("");
        let Some((kind, code)) = icmp_numbers(v6, &icmp.kind, code) else {
            let message = format!(
                "ICMP {} {code} is not a known type and code of this IP version",
                icmp.kind
            );
            return Err(ScriptError::new(pos, message));
        };
        let quoted = self.quoted(pos, icmp.quoted.unwrap_or(Quoted::Tcp(0, 0)))?;
        // The quote is the original IP header, with the length of the whole packet, and 8 bytes or
        // more.
        let mut quoted = quoted.emit();
        quoted.truncate(if v6 { 1232 } else { 548 });
        let mut datagram = self.header(ip, if v6 { protocol::ICMPV6 } else { protocol::ICMP });
        let mtu = icmp.mtu.unwrap_or(0);
        datagram.payload = [&[kind, code, 0, 0][..], &mtu.to_be_bytes(), &quoted].concat();
        if v6 {
            datagram.fill_checksum(2);
        } else {
            let checksum = fullsend_wire::checksum::sum(&datagram.payload).checksum();
            datagram.payload[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
        self.log(&format!("< icmp {} {code} mtu {mtu}", icmp.kind));
        Ok(datagram)
    }

    /// Returns a packet that the stack may have sent.
    fn quoted(&self, pos: Pos, quoted: Quoted) -> Result<IpPacket, ScriptError> {
        let Some(flow) = self.under_test.map(|index| &self.flows[index]) else {
            return Err(ScriptError::new(
                pos,
                "the ICMP message has no packet to quote, as there is no connection; connect first",
            ));
        };
        let mut datagram = IpPacket {
            src: self.settings.local,
            dst: self.settings.remote,
            ttl: 64,
            ..self.header(IpSpec::default(), protocol::TCP)
        };
        match quoted {
            Quoted::Tcp(seq, len) => {
                let live = WireSegment {
                    src_port: flow.local_port,
                    dst_port: flow.remote_port,
                    flags: ACK,
                    seq: seq.wrapping_add(flow.local_isn.unwrap_or(0)),
                    ack: 0,
                    window: 0,
                    urgent: 0,
                    options: Vec::new(),
                    data: vec![0; len as usize],
                };
                datagram.payload = live.emit();
            }
            Quoted::Udp(len) => {
                let repr = udp::UdpRepr {
                    src_port: flow.local_port,
                    dst_port: flow.remote_port,
                    payload_len: len,
                };
                datagram.protocol = protocol::UDP;
                datagram.payload = vec![0; udp::HEADER_LEN + usize::from(len)];
                repr.emit(&mut datagram.payload);
            }
        }
        Ok(datagram)
    }
}

/// Returns type and code. Names of the other IP version are translated if there is a counterpart.
pub(super) fn icmp_numbers(v6: bool, kind: &str, code: &str) -> Option<(u8, u8)> {
    Some(if v6 {
        match (kind, code) {
            ("packet_too_big", "") | ("unreachable", "frag_needed") => (2, 0),
            ("unreachable", "" | "no_route" | "net_unreachable") => (1, 0),
            ("unreachable", "admin_prohibited") => (1, 1),
            ("unreachable", "addr_unreachable" | "host_unreachable") => (1, 3),
            ("unreachable", "port_unreachable") => (1, 4),
            ("time_exceeded", "" | "exceed_ttl") => (3, 0),
            ("time_exceeded", "exceed_fragtime") => (3, 1),
            ("parameter_problem", "") => (4, 0),
            _ => return None,
        }
    } else {
        match (kind, code) {
            ("unreachable", "" | "net_unreachable") => (3, 0),
            ("unreachable", "host_unreachable") => (3, 1),
            ("unreachable", "protocol_unreachable") => (3, 2),
            ("unreachable", "port_unreachable") => (3, 3),
            ("unreachable", "frag_needed") | ("packet_too_big", "") => (3, 4),
            ("unreachable", "source_route_failed") => (3, 5),
            ("unreachable", "net_unknown") => (3, 6),
            ("unreachable", "host_unknown") => (3, 7),
            ("unreachable", "net_prohibited") => (3, 9),
            ("unreachable", "host_prohibited") => (3, 10),
            ("unreachable", "packet_filtered" | "admin_prohibited") => (3, 13),
            ("source_quench", "") => (4, 0),
            ("time_exceeded", "" | "exceed_ttl") => (11, 0),
            ("time_exceeded", "exceed_fragtime") => (11, 1),
            ("parameter_problem", "") => (12, 0),
            _ => return None,
        }
    })
}
