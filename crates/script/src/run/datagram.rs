//! Expected datagrams and ICMP messages.

use fullsend_wire::checksum::sum;
use fullsend_wire::numbers::protocol;
use fullsend_wire::{ipv6, tcp, udp};

use super::expect::{check_time, compare_ip, same};
use super::inject::icmp_numbers;
use super::wire::IpPacket;
use super::{ScriptRunner, TimeWindow};
use crate::error::{Pos, ScriptError};
use crate::script::{Body, Icmp, Nanos, Packet, Quoted, Seconds};

/// Length of an ICMP message's header, before the packet it quotes, in bytes.
const ICMP_HEADER: usize = 8;

impl ScriptRunner<'_> {
    /// Checks that the next packet of its protocol is this one; returns the time when it was sent.
    pub(super) fn expect_datagram(
        &mut self,
        pos: Pos,
        packet: &Packet,
        window: TimeWindow,
    ) -> Result<Nanos, ScriptError> {
        let error_at = |what: String| ScriptError::new(pos, what);
        let protocol = match packet.body {
            Body::Udp(_) => protocol::UDP,
            _ if self.settings.family.is_v6_wire() => protocol::ICMPV6,
            _ => protocol::ICMP,
        };
        while let Some(sent) = self.next_sent(window.to + window.tolerance)? {
            let ip = IpPacket::parse(&sent.bytes).map_err(error_at)?;
            let text = text(&ip);
            self.log_at(sent.at, &format!("> {text}"));
            if ip.protocol != protocol || ip.dst != self.settings.remote {
                continue;
            }
            check_time(pos, window, sent.at)?;
            let same = match &packet.body {
                Body::Icmp(icmp) => self.compare_icmp(icmp, &ip.payload),
                Body::Udp(len) => self.compare_udp(*len, &ip.payload),
                Body::Tcp(_) => Ok(()),
            };
            let sum_ok = match protocol {
                protocol::ICMP => sum(&ip.payload).is_valid(),
                _ => ip.checksum_ok(),
            };
            let summed = if sum_ok {
                Ok(())
            } else {
                Err("the checksum is wrong".to_owned())
            };
            let done = summed.and(same).and_then(|()| compare_ip(packet.ip, &ip));
            done.map_err(|what| error_at(format!("{what}\n  actual: > {text}")))?;
            return Ok(sent.at);
        }
        let at = Seconds(window.from);
        Err(error_at(format!(
            "no such packet was sent, expected one at {at}"
        )))
    }

    fn compare_udp(&mut self, len: u16, bytes: &[u8]) -> Result<(), String> {
        let (source, dest) = (be16(bytes, 0), be16(bytes, 2));
        if let Some(flow) = self.under_test.map(|index| &mut self.flows[index]) {
            if flow.local_port == 0 {
                flow.local_port = source;
            }
            same("the source port", source.into(), flow.local_port.into())?;
            same("the destination port", dest.into(), flow.remote_port.into())?;
        }
        let actual = bytes.len().saturating_sub(udp::HEADER_LEN);
        same("payload", actual as u32, len.into())
    }

    fn compare_icmp(&self, spec: &Icmp, bytes: &[u8]) -> Result<(), String> {
        let v6 = self.settings.family.is_v6_wire();
        let code = spec.code.as_deref().unwrap_or("");
        let Some((kind, code)) = icmp_numbers(v6, &spec.kind, code) else {
            return Err(format!(
                "ICMP {} {code} is not a known type and code of this IP version",
                spec.kind
            ));
        };
        let (header, quoted) = bytes
            .split_at_checked(ICMP_HEADER)
            .ok_or("the ICMP message is too short")?;
        same("the type", header[0].into(), kind.into())?;
        same("the code", header[1].into(), code.into())?;
        if let Some(mtu) = spec.mtu {
            same("the MTU", be32(header, 4), mtu)?;
        }
        match spec.quoted {
            Some(spec) => self.compare_quoted(spec, quoted),
            None => Ok(()),
        }
    }

    /// Compares the quoted packet of the remote end, which may be truncated.
    fn compare_quoted(&self, spec: Quoted, bytes: &[u8]) -> Result<(), String> {
        let first = bytes.first().copied().unwrap_or(0);
        let (header, carried) = if first >> 4 == 6 {
            (ipv6::HEADER_LEN, usize::from(be16(bytes, 4)))
        } else {
            let header = usize::from(first & 15) * 4;
            (header, usize::from(be16(bytes, 2)).saturating_sub(header))
        };
        let inner = bytes.get(header..).unwrap_or(&[]);
        match spec {
            Quoted::Udp(len) => {
                let actual = carried.saturating_sub(udp::HEADER_LEN);
                same("the length quoted", actual as u32, len.into())
            }
            Quoted::Tcp(seq, len) => {
                let flow = self.under_test.map(|index| &self.flows[index]);
                let isn = flow.and_then(|flow| flow.remote_isn).unwrap_or(0);
                same(
                    "the quoted sequence number",
                    be32(inner, 4).wrapping_sub(isn),
                    seq,
                )?;
                let offset = inner
                    .get(12)
                    .map_or(tcp::HEADER_LEN, |b| usize::from(b >> 4) * 4);
                same(
                    "the length quoted",
                    carried.saturating_sub(offset) as u32,
                    len,
                )
            }
        }
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u16::from_be_bytes(*word))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

/// Formats a packet similar to a script's syntax.
fn text(ip: &IpPacket) -> String {
    let bytes = &ip.payload;
    match ip.protocol {
        protocol::UDP => format!("udp ({})", bytes.len().saturating_sub(udp::HEADER_LEN)),
        protocol::ICMP | protocol::ICMPV6 => {
            let mtu = be32(bytes, 4);
            format!(
                "icmp type {} code {} mtu {mtu}",
                be16(bytes, 0) >> 8,
                be16(bytes, 0) & 255
            )
        }
        other => format!("protocol {other} (not compared)"),
    }
}
