//! `stat ss`: sockets in the format of `ss -tinmo`.

use std::fmt::Write as _;

use anyhow::Result;
use fullsend::control::{FlowReportView, Request, SkMemView, SocketView, TimerView};
use serde_json::Value;

use super::args::SsArgs;
use super::connection::Connection;
use states::States;

pub(super) mod states;
mod summary;

pub(super) fn run(stack: &mut Connection, args: &SsArgs, json: bool) -> Result<()> {
    let sockets: Vec<SocketView> = stack.request_list(&Request::Sockets)?;
    if args.summary {
        return summary::print(&sockets, json);
    }
    let states = match &args.filter[..] {
        [] => None,
        filter => Some(States::parse(filter)?),
    };
    let shown = |socket: &&SocketView| match &states {
        Some(states) => states.contains(&socket.state),
        None => args.all || socket.peer.is_none() == args.listening,
    };
    let sockets: Vec<_> = sockets.iter().filter(shown).collect();
    if json {
        outln!("{}", serde_json::to_string(&sockets)?);
    } else {
        out!("{}", table(&sockets, args.why));
    }
    Ok(())
}

fn table(sockets: &[&SocketView], why: bool) -> String {
    let peer = |socket: &SocketView| socket.peer.clone().unwrap_or_else(|| "*:*".to_owned());
    let width = |text: fn(&SocketView) -> usize, least: usize| {
        sockets
            .iter()
            .map(|s| text(s))
            .max()
            .unwrap_or(0)
            .max(least)
    };
    let local_width = width(|s| s.local.len(), "Local Address:Port".len());
    let peer_width = width(
        |s| s.peer.as_ref().map_or(3, String::len),
        "Peer Address:Port".len(),
    );
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<11}{:<8}{:<8}{:>local_width$} {:>peer_width$}",
        "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port"
    );
    for socket in sockets {
        let _ = write!(
            out,
            "{:<11}{:<8}{:<8}{:>local_width$} {:>peer_width$}",
            socket.state,
            socket.recv_q,
            socket.send_q,
            socket.local,
            peer(socket)
        );
        if let Some(timer) = &socket.timer {
            let _ = write!(out, " {}", timer_text(timer));
        }
        if socket.owner != "user" {
            let _ = write!(out, " {}", socket.owner);
        }
        if !socket.id.is_empty() {
            let _ = write!(out, " sk:{}", socket.id);
        }
        out.push('\n');
        if let Some(info) = &socket.tcp_info {
            let _ = writeln!(out, "\t {}", info_line(socket, &TcpInfoFields(info)));
        }
        if let (true, Some(why)) = (why, &socket.why) {
            out.push_str(&limits_text(why));
        }
    }
    out
}

fn timer_text(timer: &TimerView) -> String {
    let (seconds, ms) = (timer.left_ms / 1000, timer.left_ms % 1000);
    let left = match seconds {
        0 => format!("{ms}ms"),
        1..10 => format!("{seconds}.{ms:03}sec"),
        10..60 => format!("{seconds}sec"),
        _ => match (seconds / 60, seconds % 60) {
            (minutes, 0) => format!("{minutes}min"),
            (minutes, rest) => format!("{minutes}min{rest}sec"),
        },
    };
    format!("timer:({},{left},{})", timer.kind, timer.retransmits)
}

/// The fields of `TCP_INFO`, by name.
struct TcpInfoFields<'a>(&'a serde_json::Map<String, Value>);

impl TcpInfoFields<'_> {
    /// Returns the field `tcpi_NAME`, or 0 if the stack does not have it.
    fn get(&self, name: &str) -> u64 {
        let value = self.0.get(&format!("tcpi_{name}"));
        value.and_then(Value::as_u64).unwrap_or(0)
    }

    /// Returns the field `tcpi_NAME`, which is in microseconds, in milliseconds.
    fn ms(&self, name: &str) -> f64 {
        self.get(name) as f64 / 1000.0
    }
}

/// The bits of `tcpi_options`, with the words of `ss`.
const OPTIONS: [(u64, &str); 4] = [(1, "ts"), (2, "sack"), (8, "ecn"), (16, "ecnseen")];
const WSCALE: u64 = 4;

fn info_line(socket: &SocketView, info: &TcpInfoFields<'_>) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(socket.skmem.map(skmem_text));
    let options = info.get("options");
    let negotiated = OPTIONS.iter().filter(|(bit, _)| options & bit != 0);
    parts.extend(negotiated.map(|(_, name)| (*name).to_owned()));
    parts.extend(socket.congestion.clone());
    if options & WSCALE != 0 {
        let (snd, rcv) = (info.get("snd_wscale"), info.get("rcv_wscale"));
        parts.push(format!("wscale:{snd},{rcv}"));
    }
    parts.push(format!("rto:{}", info.ms("rto")));
    if info.get("backoff") > 0 {
        parts.push(format!("backoff:{}", info.get("backoff")));
    }
    if info.get("rtt") > 0 {
        parts.push(format!("rtt:{}/{}", info.ms("rtt"), info.ms("rttvar")));
    }
    if info.get("ato") > 0 {
        parts.push(format!("ato:{}", info.ms("ato")));
    }
    parts.push(format!("mss:{}", info.get("snd_mss")));
    push_nonzero(
        info,
        &mut parts,
        &[
            ("pmtu", "pmtu"),
            ("rcvmss", "rcv_mss"),
            ("advmss", "advmss"),
        ],
    );
    parts.push(format!("cwnd:{}", info.get("snd_cwnd")));
    // The threshold is shown only after a loss has set it.
    if info.get("snd_ssthresh") < 0x7fff_ffff {
        parts.push(format!("ssthresh:{}", info.get("snd_ssthresh")));
    }
    push_nonzero(info, &mut parts, COUNTERS);
    parts.extend(socket.congestion_info.clone());
    rates(info, &mut parts);
    push_nonzero(info, &mut parts, TAIL);
    if info.get("retrans") > 0 || info.get("total_retrans") > 0 {
        parts.push(format!(
            "retrans:{}/{}",
            info.get("retrans"),
            info.get("total_retrans")
        ));
    }
    if info.get("rwnd_limited") > 0 {
        parts.push(format!(
            "rwnd_limited:{}ms",
            info.ms("rwnd_limited").round()
        ));
    }
    if info.get("min_rtt") > 0 {
        parts.push(format!("minrtt:{}", info.ms("min_rtt")));
    }
    push_nonzero(
        info,
        &mut parts,
        &[("snd_wnd", "snd_wnd"), ("rcv_wnd", "rcv_wnd")],
    );
    parts.extend(socket.nodelay.then(|| "nodelay".to_owned()));
    parts.extend(socket.cork.then(|| "cork".to_owned()));
    parts.join(" ")
}

/// The word of `ss` for a field, and the field's name.
type NamedField = (&'static str, &'static str);

const COUNTERS: &[NamedField] = &[
    ("bytes_sent", "bytes_sent"),
    ("bytes_retrans", "bytes_retrans"),
    ("bytes_acked", "bytes_acked"),
    ("bytes_received", "bytes_received"),
    ("segs_out", "segs_out"),
    ("segs_in", "segs_in"),
    ("data_segs_out", "data_segs_out"),
    ("data_segs_in", "data_segs_in"),
];

const TAIL: &[NamedField] = &[
    ("delivered", "delivered"),
    ("unacked", "unacked"),
    ("sacked", "sacked"),
    ("lost", "lost"),
    ("rcv_space", "rcv_space"),
    ("notsent", "notsent_bytes"),
];

/// Adds `word:value` for each field that is not zero.
fn push_nonzero(info: &TcpInfoFields<'_>, parts: &mut Vec<String>, fields: &[NamedField]) {
    for (word, field) in fields {
        match info.get(field) {
            0 => {}
            value => parts.push(format!("{word}:{value}")),
        }
    }
}

/// Adds rates in bits per second, and milliseconds since data was last sent or received.
fn rates(info: &TcpInfoFields<'_>, parts: &mut Vec<String>) {
    let window = info.get("snd_cwnd") * info.get("snd_mss") * 8;
    let rate = window
        .saturating_mul(1_000_000)
        .checked_div(info.get("rtt"));
    parts.extend(rate.map(|rate| format!("send {rate}bps")));
    push_nonzero(
        info,
        parts,
        &[
            ("lastsnd", "last_data_sent"),
            ("lastrcv", "last_data_recv"),
            ("lastack", "last_ack_recv"),
        ],
    );
    for (word, field) in [
        ("pacing_rate", "pacing_rate"),
        ("delivery_rate", "delivery_rate"),
    ] {
        let rate = info.get(field);
        if rate > 0 && rate < u64::MAX {
            parts.push(format!("{word} {}bps", rate.saturating_mul(8)));
        }
    }
    let most = info.get("max_pacing_rate");
    if most > 0 && most < u64::MAX {
        parts.push(format!("max_pacing_rate {}bps", most.saturating_mul(8)));
    }
    if info.get("delivery_rate_app_limited") > 0 {
        parts.push("app_limited".to_owned());
    }
}

/// Formats the socket's memory, without four figures of Linux that this stack does not count.
fn skmem_text(memory: SkMemView) -> String {
    let SkMemView {
        rmem_alloc,
        rcvbuf,
        wmem_alloc,
        sndbuf,
        wmem_queued,
    } = memory;
    format!("skmem:(r{rmem_alloc},rb{rcvbuf},t{wmem_alloc},tb{sndbuf},f0,w{wmem_queued},o0,bl0,d0)")
}

/// Most characters in a histogram's bar.
const BAR: u64 = 40;

fn limits_text(why: &FlowReportView) -> String {
    let mut out = String::new();
    let sends: u64 = why.limits.iter().map(|part| u64::from(part.sends)).sum();
    let time: u64 = why.limits.iter().map(|part| part.time_ns).sum();
    if sends == 0 {
        out.push_str("\t no data sent yet\n");
        return out;
    }
    let _ = writeln!(out, "\t {:<12} {:>8} {:>8}", "limited by", "sends", "time");
    let share = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    for part in &why.limits {
        if part.sends == 0 && part.time_ns == 0 {
            continue;
        }
        let now = if why.held_by.as_ref() == Some(&part.limit) {
            "  now"
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "\t {:<12} {:>7.1}% {:>7.1}%{now}",
            part.limit,
            share(part.sends.into(), sends),
            share(part.time_ns, time)
        );
    }
    histogram(&mut out, "bytes per send", &why.send_size);
    histogram(&mut out, "head-room per send, bytes", &why.headroom);
    out
}

fn histogram(out: &mut String, title: &str, buckets: &[(u32, u32)]) {
    let most = buckets.iter().map(|bucket| bucket.1).max().unwrap_or(1);
    let _ = writeln!(out, "\t {title}");
    for &(least, count) in buckets {
        let bar = (u64::from(count) * BAR / u64::from(most.max(1))).max(1);
        let _ = writeln!(
            out,
            "\t {least:>12} {:<40} {count}",
            "@".repeat(bar as usize)
        );
    }
}

#[cfg(test)]
mod tests {
    use fullsend::control::TimerView;

    use super::timer_text;

    #[test]
    fn timers_in_ss_format() {
        let text = |left_ms| {
            timer_text(&TimerView {
                kind: "on".into(),
                left_ms,
                retransmits: 2,
            })
        };
        assert_eq!(text(204), "timer:(on,204ms,2)");
        assert_eq!(text(1628), "timer:(on,1.628sec,2)");
        assert_eq!(text(59_000), "timer:(on,59sec,2)");
        assert_eq!(text(7_200_000), "timer:(on,120min,2)");
        assert_eq!(text(116_000), "timer:(on,1min56sec,2)");
    }
}
