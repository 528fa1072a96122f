//! Packets in tcpdump's format, as the references quote it:
//!
//! `IP A > B: P 94209:98305(4096) ack 98304 win 2783 <nop,nop,timestamp 1 2>`

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddrV4;

use fullsend_offload::Packet;
use fullsend_wire::Instant;
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

/// The initial sequence numbers of each flow, as numbers are shown relative to them.
#[derive(Debug, Default)]
pub(crate) struct Tcpdump {
    /// ISN by direction.
    first: BTreeMap<(SocketAddrV4, SocketAddrV4), u32>,
}

impl Tcpdump {
    /// Formats a packet as one line without a line break; `None` if it is not TCP over IPv4.
    pub(crate) fn line(&mut self, at: Instant, packet: &Packet) -> Option<String> {
        let ip = Ipv4View::new(packet.network_header()).ok()?;
        let header = packet.transport_header();
        let (tcp, _) = TcpRepr::parse(header).ok()?;
        let src = SocketAddrV4::new(ip.src(), tcp.src_port);
        let dst = SocketAddrV4::new(ip.dst(), tcp.dst_port);
        let seq = tcp.seq.raw();
        let syn = tcp.flags.contains(TcpFlags::SYN);
        if syn {
            self.first.insert((src, dst), seq);
        }
        let base = |from, to| match (syn, self.first.get(&(from, to))) {
            (false, Some(first)) => *first,
            _ => 0,
        };
        let (ours, theirs) = (base(src, dst), base(dst, src));
        let len = packet.payload.len() as u32;
        let mut out = clock(at);
        let show = |addr: SocketAddrV4| format!("{}.{}", addr.ip(), addr.port());
        let _ = write!(
            out,
            " IP {} > {}: {}",
            show(src),
            show(dst),
            flags(tcp.flags)
        );
        let unusual = TcpFlags::SYN.union(TcpFlags::FIN).union(TcpFlags::RST);
        if len > 0 || tcp.flags.intersects(unusual) {
            let first = seq.wrapping_sub(ours);
            let _ = write!(out, " {first}:{}({len})", first.wrapping_add(len));
        }
        if tcp.flags.contains(TcpFlags::ACK) {
            let ack = tcp.ack.raw();
            let _ = write!(out, " ack {}", ack.wrapping_sub(theirs));
        }
        let _ = write!(out, " win {}", tcp.window.0);
        let options = header.get(20..tcp.header_len()).unwrap_or(&[]);
        if !options.is_empty() {
            let _ = write!(out, " <{}>", show_options(options, theirs));
        }
        Some(out)
    }
}

/// Formats the time of day of a run that starts at midnight.
fn clock(at: Instant) -> String {
    let us = at.as_micros();
    let (seconds, us) = (us / 1_000_000, us % 1_000_000);
    let (minutes, s) = (seconds / 60, seconds % 60);
    format!("{:02}:{:02}:{s:02}.{us:06}", minutes / 60, minutes % 60)
}

fn flags(flags: TcpFlags) -> String {
    let letters = [
        (TcpFlags::SYN, 'S'),
        (TcpFlags::FIN, 'F'),
        (TcpFlags::RST, 'R'),
        (TcpFlags::PSH, 'P'),
        (TcpFlags::CWR, 'W'),
        (TcpFlags::ECE, 'E'),
    ];
    let set = letters.iter().filter(|(flag, _)| flags.contains(*flag));
    let text: String = set.map(|(_, letter)| letter).collect();
    if text.is_empty() {
        ".".to_owned()
    } else {
        text
    }
}

/// Formats the options in their order, padding included.
fn show_options(mut options: &[u8], theirs: u32) -> String {
    let be = |bytes: &[u8]| bytes.iter().fold(0u32, |n, b| n << 8 | u32::from(*b));
    let mut out = Vec::new();
    while let [kind, rest @ ..] = options {
        let len = match kind {
            0 | 1 => 1,
            _ => usize::from(rest.first().copied().unwrap_or(2)).max(2),
        };
        let body = options.get(2..len).unwrap_or(&[]);
        out.push(match (kind, body) {
            (0, _) => "eol".to_owned(),
            (1, _) => "nop".to_owned(),
            (2, [_, _]) => format!("mss {}", be(body)),
            (3, [shift]) => format!("wscale {shift}"),
            (4, []) => "sackOK".to_owned(),
            (5, blocks) if !blocks.is_empty() => show_sack(blocks, theirs),
            (8, [_, _, _, _, _, _, _, _]) => {
                format!("timestamp {} {}", be(&body[..4]), be(&body[4..]))
            }
            _ => format!("opt-{kind}"),
        });
        options = options.get(len..).unwrap_or(&[]);
    }
    out.join(",")
}

fn show_sack(blocks: &[u8], theirs: u32) -> String {
    let (edges, _) = blocks.as_chunks::<4>();
    let edge = |at: &[u8; 4]| u32::from_be_bytes(*at).wrapping_sub(theirs);
    let (pairs, _) = edges.as_chunks::<2>();
    let shown = pairs
        .iter()
        .map(|[left, right]| format!("{{{}:{}}}", edge(left), edge(right)));
    format!("sack {} {}", pairs.len(), shown.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::{clock, show_options};
    use fullsend_wire::Instant;

    #[test]
    fn options_keep_their_order_and_padding() {
        let syn = [
            2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 3, 3, 7,
        ];
        assert_eq!(
            show_options(&syn, 0),
            "mss 1460,sackOK,timestamp 7 0,nop,wscale 7"
        );
        let sack = [1, 1, 5, 10, 0, 0, 0, 100, 0, 0, 0, 200];
        assert_eq!(show_options(&sack, 50), "nop,nop,sack 1 {50:150}");
    }

    #[test]
    fn malformed_options_end_the_list() {
        assert_eq!(show_options(&[8, 10, 1], 0), "opt-8");
        assert_eq!(show_options(&[8], 0), "opt-8");
        assert_eq!(show_options(&[99, 0, 1], 0), "opt-99,nop");
    }

    #[test]
    fn the_clock_starts_at_midnight() {
        assert_eq!(
            clock(Instant::from_nanos(3_723_000_004_999)),
            "01:02:03.000004"
        );
    }
}
