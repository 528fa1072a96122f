//! The values of `tcp_info`.

use fullsend_wire::{Instant, Nanos};

use super::{Connection, State};
use crate::recovery::{CaState, DeliverySampler};
use crate::{Cx, SendLimit, TcpInfo};

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

impl Connection {
    /// Returns `tcpi_options`: the options agreed on, and the results of Fast Open and ECN.
    fn info_options(&self) -> u8 {
        let fastopen = self.fastopen();
        [
            (self.negotiated.timestamps, OPT_TIMESTAMPS),
            (self.negotiated.sack, OPT_SACK),
            (self.negotiated.window_scale, OPT_WSCALE),
            (fastopen.is_some_and(|f| f.syn_data_acked), OPT_SYN_DATA),
            (fastopen.is_some_and(|f| f.opened_early), OPT_TFO_CHILD),
            (self.ecn.is_some(), OPT_ECN),
            (
                self.ecn.as_ref().is_some_and(|e| e.is_ect_seen()),
                OPT_ECN_SEEN,
            ),
        ]
        .into_iter()
        .fold(0, |bits, (on, bit)| if on { bits | bit } else { bits })
    }

    /// Returns `TCP_INFO`.
    pub fn info(&self, cx: &Cx<'_>) -> TcpInfo {
        let us = |span: Nanos| span.as_micros().min(u64::from(u32::MAX)) as u32;
        let ms_since = |at: Instant| cx.now.since(at).as_millis() as u32;
        let (busy, sndbuf) = self.snd.busy_times(cx.now);
        let (total_rto, rto_recoveries, rto_time) = self.rto_totals(cx.now);
        let (snd, rtx, stats) = (&self.snd, &self.recovery.rtx, &self.stats);
        // Before the first data: since the connection was established.
        let last_data = self.rcv.last_data();
        let (rate_segs, rate_interval, app_limited) = rtx
            .delivery()
            .map_or((0, Nanos::ZERO, false), DeliverySampler::reported_rate);
        let (reord_seen, dsack_dups) = self.recovery.reordering_stats();
        let rate_bytes = u128::from(rate_segs) * u128::from(snd.mss().bytes()) * 1_000_000_000;
        let mut info = TcpInfo {
            tcpi_state: self.state.number(),
            tcpi_ca_state: ca_state(self.recovery.ca_state()),
            tcpi_retransmits: self.timers.retransmits,
            tcpi_probes: self.timers.probes,
            tcpi_backoff: self.rtt.backoff(),
            tcpi_options: self.info_options(),
            tcpi_snd_wscale: snd.scale().shift(),
            tcpi_rcv_wscale: if self.negotiated.window_scale {
                self.rcv.scale().shift()
            } else {
                0
            },
            tcpi_rto: us(self.rtt.rto().nanos()),
            tcpi_snd_mss: snd.mss().bytes(),
            tcpi_rcv_mss: self.rcv.rcv_mss(),
            tcpi_unacked: rtx.packets_out(),
            tcpi_sacked: rtx.sacked_out(),
            tcpi_lost: rtx.lost_out(),
            tcpi_retrans: rtx.retrans_out(),
            tcpi_last_data_sent: ms_since(snd.last_sent()),
            tcpi_last_data_recv: ms_since(last_data),
            tcpi_last_ack_recv: ms_since(self.timers.received_at),
            tcpi_pmtu: snd.pmtu(),
            tcpi_rtt: us(self.rtt.srtt().unwrap_or(Nanos::ZERO)),
            tcpi_rttvar: us(self.rtt.rttvar()),
            tcpi_snd_ssthresh: self.congestion.ssthresh().min(INFINITE_SSTHRESH),
            tcpi_snd_cwnd: self.congestion.cwnd(),
            tcpi_advmss: self.adv_mss.bytes(),
            tcpi_reordering: self.recovery.reordering_segs(),
            tcpi_fackets: 0,
            tcpi_last_ack_sent: 0,
            tcpi_rcv_ssthresh: self.rcv.rcv_ssthresh(),
            tcpi_rcv_rtt: us(self.rcv.rtt().unwrap_or(Nanos::ZERO)),
            tcpi_rcv_space: self.rcv.rcv_space(self.adv_mss),
            tcpi_total_retrans: stats.total_retrans,
            tcpi_pacing_rate: self.snd.pacing_rate(self.path(), cx.sysctl).0,
            tcpi_max_pacing_rate: snd.max_pacing_rate().0,
            tcpi_bytes_acked: stats.bytes_acked,
            tcpi_bytes_received: stats.bytes_received,
            tcpi_segs_out: stats.segs_out,
            tcpi_segs_in: stats.segs_in,
            tcpi_notsent_bytes: snd.unsent_bytes() as u32,
            tcpi_min_rtt: us(self.rtt.min_rtt().unwrap_or(Nanos::ZERO)),
            tcpi_data_segs_in: stats.data_segs_in,
            tcpi_data_segs_out: stats.data_segs_out,
            tcpi_delivery_rate: (rate_bytes / u128::from(rate_interval.as_nanos().max(1))) as u64,
            tcpi_delivery_rate_app_limited: app_limited,
            tcpi_delivered: stats.delivered,
            tcpi_rwnd_limited: self
                .snd
                .flow_report(cx.now)
                .time(SendLimit::Rwnd)
                .as_micros(),
            tcpi_bytes_sent: stats.bytes_acked
                + u64::from(snd.bytes_in_flight() - self.syn_in_flight())
                + stats.bytes_retrans,
            tcpi_bytes_retrans: stats.bytes_retrans,
            tcpi_dsack_dups: dsack_dups,
            tcpi_reord_seen: reord_seen,
            // The window of a Fast Open server counts from its SYN.
            tcpi_snd_wnd: snd.wnd().saturating_sub(self.syn_in_flight()),
            tcpi_rcv_wnd: self.rcv.current_window().0,
            // Linux reports 40 ms once data was received.
            tcpi_ato: if stats.data_segs_in > 0 { 40_000 } else { 0 },
            tcpi_busy_time: busy.as_micros(),
            tcpi_sndbuf_limited: sndbuf.as_micros(),
            tcpi_rcv_ooopack: self
                .uncommon
                .as_ref()
                .map_or(0, |uncommon| uncommon.rcv_ooopack),
            tcpi_rehash: 0,
            tcpi_total_rto: total_rto,
            tcpi_total_rto_recoveries: rto_recoveries,
            tcpi_total_rto_time: rto_time,
            tcpi_fastopen_client_fail: self.fastopen().map_or(0, |f| f.fail as u8),
            ..TcpInfo::default()
        };
        if let Some(ecn) = &self.ecn {
            ecn.report(&mut info, self.state == State::SynSent);
        }
        info
    }
}
