//! `TCP_INFO` under Linux's field names.

use fullsend_wire::{Instant, Nanos};

use crate::recovery::{CaState, DeliverySampler};
use crate::{Connection, Cx, SendLimit, State};

/// Declares the struct and an iterator over its fields.
macro_rules! tcp_info {
    ($(#[$meta:meta])* pub struct TcpInfo { $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        pub struct TcpInfo { $($(#[$field_meta])* pub $field: $ty,)* }

        impl TcpInfo {
            /// Returns the name and value of each field.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), u64::from(self.$field))),*].into_iter()
            }
        }
    };
}

tcp_info! {
    /// The fields of `tcp_info()`. Times are in microseconds (`tcpi_last_*`: milliseconds), rates
    /// in bytes per second, as on Linux.
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
        /// Always 0, as on Linux.
        pub tcpi_fackets: u32,
        pub tcpi_last_data_sent: u32,
        /// Always 0, as on Linux.
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
        /// Zero unless the congestion control takes rate samples (BBR does).
        pub tcpi_delivery_rate: u64,
        pub tcpi_delivery_rate_app_limited: bool,
        pub tcpi_delivered: u32,
        pub tcpi_delivered_ce: u32,
        /// Time during which data was in flight or waited to be sent.
        pub tcpi_busy_time: u64,
        /// Part of `tcpi_busy_time`: the application waited for room in the send buffer, and
        /// everything else was sent.
        pub tcpi_sndbuf_limited: u64,
        /// Part of `tcpi_busy_time`: the peer's window was the limit. [`Connection::flow_report`]
        /// has the other limits and their times.
        pub tcpi_rwnd_limited: u64,
        pub tcpi_bytes_sent: u64,
        pub tcpi_bytes_retrans: u64,
        pub tcpi_dsack_dups: u32,
        pub tcpi_reord_seen: u32,
        pub tcpi_rcv_ooopack: u32,
        pub tcpi_snd_wnd: u32,
        pub tcpi_rcv_wnd: u32,
        /// 1: no cookie; 2: the data in the SYN was not acknowledged; 3: nor was the first SYN.
        pub tcpi_fastopen_client_fail: u8,
        /// Always 0: no path is chosen by a hash of the flow here.
        pub tcpi_rehash: u32,
        pub tcpi_total_rto: u16,
        pub tcpi_total_rto_recoveries: u16,
        /// Milliseconds.
        pub tcpi_total_rto_time: u32,
        /// Packets received with a CE mark. This field and the six below are those of Accurate ECN.
        pub tcpi_received_ce: u32,
        /// Bytes sent that the peer's option reports as received with ECT(1), ECT(0) and CE.
        pub tcpi_delivered_e1_bytes: u32,
        pub tcpi_delivered_e0_bytes: u32,
        pub tcpi_delivered_ce_bytes: u32,
        /// Bytes received with each codepoint.
        pub tcpi_received_e1_bytes: u32,
        pub tcpi_received_e0_bytes: u32,
        pub tcpi_received_ce_bytes: u32,
        /// 0: none, 1: RFC 3168, 2: Accurate ECN, 3: requested.
        pub tcpi_ecn_mode: u8,
        /// The peer's AccECN option: 0: not seen, 1: empty, 2: with counters, 3: zeroed.
        pub tcpi_accecn_opt_seen: u8,
        /// Bits. 1: the peer may not understand the flags, 2: the flags are mangled, 4: the option
        /// is lost, 8: the option is mangled.
        pub tcpi_accecn_fail_mode: u8,
    }
}

/// The ssthresh that Linux reports before the first reduction.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// Bits of `tcpi_options`.
const OPT_TIMESTAMPS: u8 = 1;
const OPT_SACK: u8 = 2;
const OPT_WSCALE: u8 = 4;
/// The data in the SYN was acknowledged.
const OPT_SYN_DATA: u8 = 32;
/// The connection was opened by a SYN with a valid cookie, or without one where none was needed.
const OPT_TFO_CHILD: u8 = 128;
const OPT_ECN: u8 = 8;
const OPT_ECN_SEEN: u8 = 16;

/// Returns Linux's number of a recovery phase for `tcpi_ca_state` (`TCP_CA_Open` and so on).
fn ca_state(ca_state: CaState) -> u8 {
    match ca_state {
        CaState::Open => 0,
        CaState::Disorder => 1,
        CaState::Cwr => 2,
        CaState::Recovery => 3,
        CaState::Loss => 4,
    }
}

/// Returns `tcpi_options`: the options agreed on, and the results of Fast Open and ECN.
fn options(c: &Connection) -> u8 {
    let fastopen = c.fastopen();
    [
        (c.negotiated.timestamps, OPT_TIMESTAMPS),
        (c.negotiated.sack, OPT_SACK),
        (c.negotiated.window_scale, OPT_WSCALE),
        (fastopen.is_some_and(|f| f.syn_data_acked), OPT_SYN_DATA),
        (fastopen.is_some_and(|f| f.opened_early), OPT_TFO_CHILD),
        (c.ecn.is_some(), OPT_ECN),
        (
            c.ecn.as_ref().is_some_and(|e| e.is_ect_seen()),
            OPT_ECN_SEEN,
        ),
    ]
    .into_iter()
    .fold(0, |bits, (on, bit)| if on { bits | bit } else { bits })
}

/// Returns the `tcp_info` of a connection.
pub(crate) fn collect(c: &Connection, cx: &Cx<'_>) -> TcpInfo {
    let us = |span: Nanos| span.as_micros().min(u64::from(u32::MAX)) as u32;
    let ms_since = |at: Instant| cx.now.since(at).as_millis() as u32;
    let (busy, sndbuf) = c.snd.busy_times(cx.now);
    let (total_rto, rto_recoveries, rto_time) = c.rto_totals(cx.now);
    let (snd, rtx, stats) = (&c.snd, &c.recovery.rtx, &c.stats);
    // Before the first data: since the connection was established.
    let last_data = c.rcv.last_data();
    let (rate_segs, rate_interval, app_limited) = rtx
        .delivery()
        .map_or((0, Nanos::ZERO, false), DeliverySampler::reported_rate);
    let (reord_seen, dsack_dups) = c.recovery.reordering_stats();
    let rate_bytes = u128::from(rate_segs) * u128::from(snd.mss().bytes()) * 1_000_000_000;
    let mut info = TcpInfo {
        tcpi_state: c.state.number(),
        tcpi_ca_state: ca_state(c.recovery.ca_state()),
        tcpi_retransmits: c.timers.retransmits,
        tcpi_probes: c.timers.probes,
        tcpi_backoff: c.rtt.backoff(),
        tcpi_options: options(c),
        tcpi_snd_wscale: snd.scale().shift(),
        tcpi_rcv_wscale: if c.negotiated.window_scale {
            c.rcv.scale().shift()
        } else {
            0
        },
        tcpi_rto: us(c.rtt.rto().nanos()),
        tcpi_snd_mss: snd.mss().bytes(),
        tcpi_rcv_mss: c.rcv.rcv_mss(),
        tcpi_unacked: rtx.packets_out(),
        tcpi_sacked: rtx.sacked_out(),
        tcpi_lost: rtx.lost_out(),
        tcpi_retrans: rtx.retrans_out(),
        tcpi_last_data_sent: ms_since(snd.last_sent()),
        tcpi_last_data_recv: ms_since(last_data),
        tcpi_last_ack_recv: ms_since(c.timers.received_at),
        tcpi_pmtu: snd.pmtu(),
        tcpi_rtt: us(c.rtt.srtt().unwrap_or(Nanos::ZERO)),
        tcpi_rttvar: us(c.rtt.rttvar()),
        tcpi_snd_ssthresh: c.congestion.ssthresh().min(INFINITE_SSTHRESH),
        tcpi_snd_cwnd: c.congestion.cwnd(),
        tcpi_advmss: c.adv_mss.bytes(),
        tcpi_reordering: c.recovery.reordering_segs(),
        tcpi_fackets: 0,
        tcpi_last_ack_sent: 0,
        tcpi_rcv_ssthresh: c.rcv.rcv_ssthresh(),
        tcpi_rcv_rtt: us(c.rcv.rtt().unwrap_or(Nanos::ZERO)),
        tcpi_rcv_space: c.rcv.rcv_space(c.adv_mss),
        tcpi_total_retrans: stats.total_retrans,
        tcpi_pacing_rate: c.snd.pacing_rate(c.path(), cx.sysctl).0,
        tcpi_max_pacing_rate: snd.max_pacing_rate().0,
        tcpi_bytes_acked: stats.bytes_acked,
        tcpi_bytes_received: stats.bytes_received,
        tcpi_segs_out: stats.segs_out,
        tcpi_segs_in: stats.segs_in,
        tcpi_notsent_bytes: snd.unsent_bytes() as u32,
        tcpi_min_rtt: us(c.rtt.min_rtt().unwrap_or(Nanos::ZERO)),
        tcpi_data_segs_in: stats.data_segs_in,
        tcpi_data_segs_out: stats.data_segs_out,
        tcpi_delivery_rate: (rate_bytes / u128::from(rate_interval.as_nanos().max(1))) as u64,
        tcpi_delivery_rate_app_limited: app_limited,
        tcpi_delivered: stats.delivered,
        tcpi_rwnd_limited: c.snd.flow_report(cx.now).time(SendLimit::Rwnd).as_micros(),
        tcpi_bytes_sent: stats.bytes_acked
            + u64::from(snd.bytes_in_flight() - c.syn_in_flight())
            + stats.bytes_retrans,
        tcpi_bytes_retrans: stats.bytes_retrans,
        tcpi_dsack_dups: dsack_dups,
        tcpi_reord_seen: reord_seen,
        // The window of a Fast Open server counts from its SYN.
        tcpi_snd_wnd: snd.wnd().saturating_sub(c.syn_in_flight()),
        tcpi_rcv_wnd: c.rcv.current_window().0,
        // Linux reports 40 ms once data was received.
        tcpi_ato: if stats.data_segs_in > 0 { 40_000 } else { 0 },
        tcpi_busy_time: busy.as_micros(),
        tcpi_sndbuf_limited: sndbuf.as_micros(),
        tcpi_rcv_ooopack: c
            .uncommon
            .as_ref()
            .map_or(0, |uncommon| uncommon.rcv_ooopack),
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
