//! `TCP_INFO` under Linux's field names.

use fullsend_units::{Instant, Nanos};

use crate::recovery::{Delivery, Phase};
use crate::{Connection, Cx, SendLimit, State};

/// Declares the struct, and a way to list its fields.
macro_rules! tcp_info {
    ($(#[$meta:meta])* pub struct TcpInfo { $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        pub struct TcpInfo { $($(#[$field_meta])* pub $field: $ty,)* }

        impl TcpInfo {
            /// Each field's name and value.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), u64::from(self.$field))),*].into_iter()
            }
        }
    };
}

tcp_info! {
    /// What `tcp_info()` reports. Times in microseconds (`tcpi_last_*`: milliseconds), rates in bytes
    /// per second, as Linux has them.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    #[allow(missing_docs, reason = "each is Linux's field of that name")]
    pub struct TcpInfo {
        pub tcpi_state: u8,
        pub tcpi_ca_state: u8,
        pub tcpi_retransmits: u8,
        pub tcpi_probes: u8,
        pub tcpi_backoff: u8,
        pub tcpi_options: u8,
        pub tcpi_snd_wscale: u8,
        pub tcpi_rcv_wscale: u8,
        pub tcpi_rto: u32,
        pub tcpi_ato: u32,
        pub tcpi_snd_mss: u32,
        pub tcpi_rcv_mss: u32,
        pub tcpi_unacked: u32,
        pub tcpi_sacked: u32,
        pub tcpi_lost: u32,
        pub tcpi_retrans: u32,
        /// As Linux: not kept.
        pub tcpi_fackets: u32,
        pub tcpi_last_data_sent: u32,
        /// As Linux: not kept.
        pub tcpi_last_ack_sent: u32,
        pub tcpi_last_data_recv: u32,
        pub tcpi_last_ack_recv: u32,
        pub tcpi_pmtu: u32,
        pub tcpi_rcv_ssthresh: u32,
        pub tcpi_rtt: u32,
        pub tcpi_rttvar: u32,
        pub tcpi_snd_ssthresh: u32,
        pub tcpi_snd_cwnd: u32,
        pub tcpi_advmss: u32,
        pub tcpi_reordering: u32,
        pub tcpi_rcv_rtt: u32,
        pub tcpi_rcv_space: u32,
        pub tcpi_total_retrans: u32,
        pub tcpi_pacing_rate: u64,
        pub tcpi_max_pacing_rate: u64,
        pub tcpi_bytes_acked: u64,
        pub tcpi_bytes_received: u64,
        pub tcpi_segs_out: u32,
        pub tcpi_segs_in: u32,
        pub tcpi_notsent_bytes: u32,
        pub tcpi_min_rtt: u32,
        pub tcpi_data_segs_in: u32,
        pub tcpi_data_segs_out: u32,
        /// Zero unless the congestion control samples it (BBR does).
        pub tcpi_delivery_rate: u64,
        pub tcpi_delivery_rate_app_limited: bool,
        pub tcpi_delivered: u32,
        pub tcpi_delivered_ce: u32,
        /// Something was in flight or waited to be sent.
        pub tcpi_busy_time: u64,
        /// Of that, the user waited for room in the send buffer, and all else was sent.
        pub tcpi_sndbuf_limited: u64,
        /// The peer's window held the flow back; what else did, and for how long, is in
        /// [`Connection::flow_report`].
        pub tcpi_rwnd_limited: u64,
        pub tcpi_bytes_sent: u64,
        pub tcpi_bytes_retrans: u64,
        pub tcpi_dsack_dups: u32,
        pub tcpi_reord_seen: u32,
        pub tcpi_rcv_ooopack: u32,
        pub tcpi_snd_wnd: u32,
        pub tcpi_rcv_wnd: u32,
        /// 1: no cookie; 2: text in the SYN was not acknowledged; 3: nor the SYN at first.
        pub tcpi_fastopen_client_fail: u8,
        /// As nobody chooses among paths by the flow's hash here: none.
        pub tcpi_rehash: u32,
        pub tcpi_total_rto: u16,
        pub tcpi_total_rto_recoveries: u16,
        /// Milliseconds.
        pub tcpi_total_rto_time: u32,
        /// Packets that came marked (CE), of Accurate ECN's connections; so are those below.
        pub tcpi_received_ce: u32,
        /// Bytes of ours that arrived as ECT(1), ECT(0), CE by the peer's option.
        pub tcpi_delivered_e1_bytes: u32,
        pub tcpi_delivered_e0_bytes: u32,
        pub tcpi_delivered_ce_bytes: u32,
        /// Bytes that came as such.
        pub tcpi_received_e1_bytes: u32,
        pub tcpi_received_e0_bytes: u32,
        pub tcpi_received_ce_bytes: u32,
        /// 0 none, 1 of RFC 3168, 2 accurate, 3 asked for.
        pub tcpi_ecn_mode: u8,
        /// The peer's option: 0 not seen, 1 empty, 2 with counters, 3 zeroed.
        pub tcpi_accecn_opt_seen: u8,
        /// Bits: 1 the flags may not be understood, 2 are mangled; 4 the option is lost, 8 mangled.
        pub tcpi_accecn_fail_mode: u8,
    }
}

/// What Linux shows as long as slow start has no end.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// Bits of `tcpi_options`.
const OPT_TIMESTAMPS: u8 = 1;
const OPT_SACK: u8 = 2;
const OPT_WSCALE: u8 = 4;
/// Text in the SYN was acknowledged.
const OPT_SYN_DATA: u8 = 32;
/// Opened by a SYN with a cookie, or where none was needed.
const OPT_TFO_CHILD: u8 = 128;
const OPT_ECN: u8 = 8;
const OPT_ECN_SEEN: u8 = 16;

/// `tcpi_ca_state`: Linux's number (`TCP_CA_Open` and so on).
fn ca_state(phase: Phase) -> u8 {
    match phase {
        Phase::Open => 0,
        Phase::Disorder => 1,
        Phase::Cwr => 2,
        Phase::Recovery => 3,
        Phase::Loss => 4,
    }
}

/// `tcpi_options`: what the handshake agreed on, and what came of it.
fn options(c: &Connection) -> u8 {
    let fastopen = c.fastopen();
    [
        (c.agreed.timestamps, OPT_TIMESTAMPS),
        (c.agreed.sack, OPT_SACK),
        (c.agreed.window_scale, OPT_WSCALE),
        (fastopen.is_some_and(|f| f.syn_text_taken), OPT_SYN_DATA),
        (fastopen.is_some_and(|f| f.opened_at_once), OPT_TFO_CHILD),
        (c.ecn.is_some(), OPT_ECN),
        (c.ecn.as_ref().is_some_and(|e| e.is_seen()), OPT_ECN_SEEN),
    ]
    .into_iter()
    .fold(0, |bits, (on, bit)| if on { bits | bit } else { bits })
}

/// Reads a connection's state out.
pub(crate) fn collect(c: &Connection, cx: &Cx<'_>) -> TcpInfo {
    let us = |span: Nanos| span.as_micros().min(u64::from(u32::MAX)) as u32;
    let ms_since = |at: Instant| cx.now.since(at).as_millis() as u32;
    let flow = c.snd.flow.as_ref();
    let (busy, sndbuf) = flow.map_or((Nanos::ZERO, Nanos::ZERO), |flow| flow.times(cx.now));
    let (total_rto, rto_recoveries, rto_time) = c.rto_totals(cx.now);
    let (snd, rtx, stats) = (&c.snd, &c.snd.rtx, &c.stats);
    let rcv_nxt = c.rcv.queue.rcv_nxt();
    // Before any came: since the connection stands.
    let last_data = c.rcv.ack.last_data().max(c.rcv.window.timed_since());
    let (rate_segs, rate_interval, app_limited) = rtx
        .delivery()
        .map_or((0, Nanos::ZERO, false), Delivery::told_rate);
    let (reord_seen, dsack_dups) = c.reordering_seen();
    let rate_bytes = u128::from(rate_segs) * u128::from(snd.mss.bytes()) * 1_000_000_000;
    let mut info = TcpInfo {
        tcpi_state: c.state.number(),
        tcpi_ca_state: ca_state(c.recovery.phase()),
        tcpi_retransmits: c.timers.retransmits,
        tcpi_probes: c.timers.probes,
        tcpi_backoff: c.rtt.backoff(),
        tcpi_options: options(c),
        tcpi_snd_wscale: snd.scale.shift(),
        tcpi_rcv_wscale: if c.agreed.window_scale {
            c.rcv.window.scale().shift()
        } else {
            0
        },
        tcpi_rto: us(c.rtt.rto().nanos()),
        tcpi_snd_mss: snd.mss.bytes(),
        tcpi_rcv_mss: c.rcv.ack.rcv_mss(),
        tcpi_unacked: rtx.packets_out(),
        tcpi_sacked: rtx.sacked_out(),
        tcpi_lost: rtx.lost_out(),
        tcpi_retrans: rtx.retrans_out(),
        tcpi_last_data_sent: ms_since(snd.last_sent),
        tcpi_last_data_recv: ms_since(last_data),
        tcpi_last_ack_recv: ms_since(c.timers.heard_at),
        tcpi_pmtu: snd.pmtu,
        tcpi_rtt: us(c.rtt.srtt().unwrap_or(Nanos::ZERO)),
        tcpi_rttvar: us(c.rtt.rttvar()),
        tcpi_snd_ssthresh: c.cwnd.ssthresh.min(INFINITE_SSTHRESH),
        tcpi_snd_cwnd: c.cwnd.cwnd,
        tcpi_advmss: c.adv_mss.bytes(),
        tcpi_reordering: c.recovery.reordering_segs(),
        tcpi_fackets: 0,
        tcpi_last_ack_sent: 0,
        tcpi_rcv_ssthresh: c.rcv.window.most_offered(),
        tcpi_rcv_rtt: us(c.rcv.window.rtt().unwrap_or(Nanos::ZERO)),
        tcpi_rcv_space: c.rcv.window.wanted_per_rtt(c.adv_mss),
        tcpi_total_retrans: stats.total_retrans,
        tcpi_pacing_rate: c.pacing_rate(cx.sysctl).0,
        tcpi_max_pacing_rate: snd.pacing.as_ref().map_or(u64::MAX, |p| p.max_rate.0),
        tcpi_bytes_acked: stats.bytes_acked,
        tcpi_bytes_received: stats.bytes_received,
        tcpi_segs_out: stats.segs_out,
        tcpi_segs_in: stats.segs_in,
        tcpi_notsent_bytes: snd.queue.len() as u32,
        tcpi_min_rtt: us(c.rtt.min_rtt().unwrap_or(Nanos::ZERO)),
        tcpi_data_segs_in: stats.data_segs_in,
        tcpi_data_segs_out: stats.data_segs_out,
        tcpi_delivery_rate: (rate_bytes / u128::from(rate_interval.as_nanos().max(1))) as u64,
        tcpi_delivery_rate_app_limited: app_limited,
        tcpi_delivered: stats.delivered,
        tcpi_rwnd_limited: c.flow_report(cx.now).time(SendLimit::Rwnd).as_micros(),
        tcpi_bytes_sent: stats.bytes_acked
            + u64::from(snd.text_in_flight() - c.syn_in_flight())
            + stats.bytes_retrans,
        tcpi_bytes_retrans: stats.bytes_retrans,
        tcpi_dsack_dups: dsack_dups,
        tcpi_reord_seen: reord_seen,
        // A Fast Open server's counts from its SYN.
        tcpi_snd_wnd: snd.wnd.saturating_sub(c.syn_in_flight()),
        tcpi_rcv_wnd: c.rcv.window.current(rcv_nxt).0,
        // Linux: 40 ms once text has arrived.
        tcpi_ato: if stats.data_segs_in > 0 { 40_000 } else { 0 },
        tcpi_busy_time: busy.as_micros(),
        tcpi_sndbuf_limited: sndbuf.as_micros(),
        tcpi_rcv_ooopack: c.extras.as_ref().map_or(0, |extras| extras.rcv_ooopack),
        tcpi_rehash: 0,
        tcpi_total_rto: total_rto,
        tcpi_total_rto_recoveries: rto_recoveries,
        tcpi_total_rto_time: rto_time,
        tcpi_fastopen_client_fail: c.fastopen().map_or(0, |f| f.fail as u8),
        ..TcpInfo::default()
    };
    if let Some(ecn) = &c.ecn {
        ecn.report(&mut info, c.state == State::SynSent);
    }
    info
}
