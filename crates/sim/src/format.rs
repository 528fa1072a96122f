//! Packets as text, one line each, in the format of tcpdump.

use std::fmt::Write as _;
use std::net::IpAddr;

use fullsend_offload::{Link, Packet};
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::Ipv6View;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr};

use crate::{Loss, TraceEvent, TracePoint};

/// Formats a packet as one line without a line break:
///
/// `0.020000000 h0 sent    IP 10.0.0.1.40000 > 10.0.0.2.80: Flags [P.], seq 1:4097, ack 1, …`
///
/// Sequence numbers are absolute. `link` is the link layer of the frames.
pub fn format_packet(event: &TraceEvent<'_>, link: Link) -> String {
    let point = match event.point {
        TracePoint::Queued => "queued ",
        TracePoint::Sent => "sent   ",
        TracePoint::Arrived => "arrived",
        TracePoint::Lost(Loss::Random) => "lost   ",
        TracePoint::Lost(Loss::QueueFull) => "dropped",
        TracePoint::Lost(Loss::TooBig) => "too big",
        TracePoint::Lost(Loss::LinkDown) => "cut off",
    };
    let ns = event.at.as_nanos();
    let (secs, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let packet = describe(event.packet.clone(), link);
    format!("{secs}.{rest:09} h{} {point} {packet}", event.host.0)
}

fn describe(mut packet: Packet, link: Link) -> String {
    let len = packet.len();
    if packet.parse(link).is_err() {
        return format!("malformed, length {len}");
    }
    let network = packet.network_header();
    let addresses: Option<(&str, IpAddr, IpAddr)> = match packet.layers.ethertype {
        ethertype::IPV4 => Ipv4View::new(network)
            .ok()
            .map(|ip| ("IP", ip.src().into(), ip.dst().into())),
        ethertype::IPV6 => Ipv6View::new(network)
            .ok()
            .map(|ip| ("IP6", ip.src().into(), ip.dst().into())),
        _ => None,
    };
    let Some((version, src, dst)) = addresses else {
        return format!("ethertype {:#06x}, length {len}", packet.layers.ethertype);
    };
    match (
        packet.layers.protocol,
        TcpRepr::parse(packet.transport_header()),
    ) {
        (protocol::TCP, Ok((tcp, _))) if !packet.layers.fragment => {
            let ports = (tcp.src_port, tcp.dst_port);
            format!(
                "{version} {src}.{} > {dst}.{}: {}",
                ports.0,
                ports.1,
                segment(&tcp, &packet)
            )
        }
        (number, _) => {
            let fragment = if packet.layers.fragment {
                " fragment"
            } else {
                ""
            };
            let len = packet.payload.len();
            format!("{version} {src} > {dst}: protocol {number}{fragment}, length {len}")
        }
    }
}

fn segment(tcp: &TcpRepr, packet: &Packet) -> String {
    let len = packet.payload.len();
    let mut out = format!("Flags [{}], seq {}", flags(tcp.flags), tcp.seq);
    if len > 0 {
        let _ = write!(out, ":{}", tcp.seq + len as u32);
    }
    if tcp.flags.contains(TcpFlags::ACK) {
        let _ = write!(out, ", ack {}", tcp.ack);
    }
    let _ = write!(out, ", win {}", tcp.window.0);
    let options = options(&tcp.options);
    if !options.is_empty() {
        let _ = write!(out, ", options [{}]", options.join(","));
    }
    let _ = write!(out, ", length {len}");
    if packet.segments() > 1 {
        let _ = write!(
            out,
            " ({} of {})",
            packet.segments(),
            packet.offload.gso_size
        );
    }
    out
}

fn flags(flags: TcpFlags) -> String {
    let letters = [
        (TcpFlags::FIN, 'F'),
        (TcpFlags::SYN, 'S'),
        (TcpFlags::RST, 'R'),
        (TcpFlags::PSH, 'P'),
        (TcpFlags::ACK, '.'),
        (TcpFlags::URG, 'U'),
        (TcpFlags::ECE, 'E'),
        (TcpFlags::CWR, 'W'),
    ];
    let set = letters.iter().filter(|(flag, _)| flags.contains(*flag));
    set.map(|(_, letter)| letter).collect()
}

fn options(options: &TcpOptions) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(mss) = options.mss {
        out.push(format!("mss {mss}"));
    }
    if options.sack_permitted {
        out.push("sackOK".to_owned());
    }
    if let Some(ts) = options.timestamps {
        out.push(format!("TS val {} ecr {}", ts.val, ts.ecr));
    }
    if let Some(shift) = options.window_scale {
        out.push(format!("wscale {shift}"));
    }
    for block in options.sack.as_slice() {
        out.push(format!("sack {}:{}", block.left, block.right));
    }
    out
}
