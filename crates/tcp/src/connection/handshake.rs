//! Opening: SYN-SENT and SYN-RECEIVED (RFC 9293 3.5), and the negotiation of options.

use fullsend_offload::Chain;
use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr, Timestamps};
use fullsend_wire::{EcnField, Instant, Mss, Nanos, SeqNum, Window, WindowScale};

use super::{Connection, NegotiatedOptions, Settings, State, Stats, Timers, TsState, UserState};
use crate::congestion::Congestion;
use crate::ecn::Ecn;
use crate::recovery::{Recovery, SuperSegment};
use crate::recv::Receiver;
use crate::rtt::RttEstimator;
use crate::send::{Reset, Sender};
use crate::{Cx, SegmentIn, SegmentOut, TcpError};

/// Delay between a RST to a half-open peer and the SYN that follows it: the RST must arrive first.
const SYN_AFTER_RESET: Nanos = Nanos::from_millis(2);

impl Connection {
    /// Creates a connection by active open, in SYN-SENT; `poll_transmit` returns the SYN first.
    ///
    /// `mss` is the largest segment that we can receive (MTU less IP and TCP headers, no options).
    pub fn connect(
        cx: &mut Cx<'_>,
        local_port: u16,
        remote_port: u16,
        iss: SeqNum,
        mss: Mss,
        ip_header_len: u16,
    ) -> Self {
        cx.mib.active_opens += 1;
        let ports = (local_port, remote_port);
        let mut this = Self::new(cx, State::SynSent, ports, iss, mss, ip_header_len);
        this.user.active_open = true;
        this.adapt_ecn(cx);
        this
    }

    /// Creates a connection by passive open, in SYN-RECEIVED, from a SYN that the host has
    /// accepted; `poll_transmit` returns the SYN-ACK first.
    ///
    /// `syn_ecn` is the ECN field of the SYN's IP header. The host counts the open
    /// (`TcpPassiveOpens`) if it keeps the connection beyond this call.
    pub fn accept(
        cx: &mut Cx<'_>,
        syn: &TcpRepr,
        syn_ecn: EcnField,
        iss: SeqNum,
        mss: Mss,
        ip_header_len: u16,
    ) -> Self {
        let ports = (syn.dst_port, syn.src_port);
        let mut this = Self::new(cx, State::SynReceived, ports, iss, mss, ip_header_len);
        this.ecn = Ecn::for_accept(
            cx.sysctl,
            (syn, syn_ecn),
            this.congestion.algorithm().needs_ecn(),
        );
        this.negotiate(cx, syn);
        this
    }

    fn new(
        cx: &mut Cx<'_>,
        state: State,
        (local_port, remote_port): (u16, u16),
        iss: SeqNum,
        mss: Mss,
        ip_header_len: u16,
    ) -> Self {
        let mut this = Self {
            state,
            local_port,
            remote_port,
            negotiated: NegotiatedOptions {
                timestamps: cx.sysctl.tcp_timestamps,
                sack: cx.sysctl.tcp_sack,
                window_scale: cx.sysctl.tcp_window_scaling,
            },
            user: UserState::default(),
            snd: Sender::new(cx, iss, mss, ip_header_len),
            rcv: Receiver::new(cx.sysctl),
            adv_mss: mss,
            ts: TsState {
                offset: cx.ts_offset,
                ..TsState::default()
            },
            congestion: Congestion::new(cx.sysctl.tcp_congestion_control),
            rtt: RttEstimator::new(cx.sysctl.tcp_rto_min_us, cx.sysctl.tcp_rto_max_ms),
            recovery: Recovery::new(mss, cx.sysctl.tcp_reordering),
            ecn: None,
            timers: Timers::new(cx.now),
            settings: Settings::default(),
            stats: Stats::default(),
            time_wait: None,
            uncommon: None,
            mem_units: 0,
            mem_window: 0,
        };
        this.init_congestion(cx.now);
        this
    }

    /// Returns the sequence numbers that our SYN occupies between `snd_una` and `snd_nxt`: 1 or 0.
    pub(crate) fn syn_in_flight(&self) -> u32 {
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        u32::from(opening && self.snd.una() != self.snd.nxt())
    }

    /// Returns a SYN or SYN-ACK if one is pending, for the first time or as a retransmission.
    pub(crate) fn syn_segment(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if !self.snd.pending_mut().take_syn() {
            return None;
        }
        let iss = self.snd.una();
        let first = self.recovery.rtx.is_empty();
        if first && self.state == State::SynSent {
            // Fast Open may have deferred the SYN.
            self.timers.progress_at = cx.now;
        }
        let (mut cookie, mut payload) = (None, Chain::new());
        if first {
            self.recovery.rtx.push(SuperSegment {
                seq: iss,
                payload: Chain::new(),
                syn: true,
                fin: false,
                push: false,
                sent_at: cx.now,
                truesize: 0,
                number: 0,
            });
            self.snd.on_syn_sent();
            cx.mib.out_segs += 1;
            if self.uncommon.is_some() {
                (cookie, payload) = self.fastopen_syn(cx);
            }
        } else {
            self.recovery.rtx.retransmit_head(cx.now, 1)?;
            cx.mib.retrans_segs += 1;
            cx.mib.syn_retrans += 1;
            self.stats.total_retrans += 1;
        }
        self.stats.segs_out += 1;
        self.arm_rto(cx);
        let mut segment = self.build_syn(cx, iss, self.stats.total_retrans);
        segment.repr.options.fastopen = cookie;
        segment.payload = payload;
        Some(segment)
    }

    fn build_syn(&self, cx: &Cx<'_>, iss: SeqNum, earlier: u32) -> SegmentOut {
        let syn_ack = self.state == State::SynReceived;
        let (flags, ack) = if syn_ack {
            (TcpFlags::SYN.union(TcpFlags::ACK), self.rcv.nxt())
        } else {
            (TcpFlags::SYN, SeqNum::new(0))
        };
        let flags = match &self.ecn {
            Some(ecn) => flags.union(ecn.syn_flags(cx.sysctl, syn_ack, earlier)),
            None => flags,
        };
        let ecn = self.ecn.as_ref();
        let options = TcpOptions {
            acc_ecn: ecn
                .filter(|_| syn_ack)
                .and_then(|ecn| ecn.syn_ack_option(cx.sysctl, earlier)),
            mss: Some(self.adv_mss.get()),
            window_scale: self
                .negotiated
                .window_scale
                .then(|| self.rcv.scale().shift()),
            sack_permitted: self.negotiated.sack,
            timestamps: self.negotiated.timestamps.then(|| Timestamps {
                val: self.ts.value(cx.now),
                ecr: self.ts.recent,
            }),
            ..TcpOptions::default()
        };
        SegmentOut {
            repr: TcpRepr {
                src_port: self.local_port,
                dst_port: self.remote_port,
                seq: iss,
                ack,
                flags,
                window: self.rcv.syn_window(self.syn_segment_size()),
                urgent: 0,
                options,
            },
            payload: Chain::new(),
            gso_size: 0,
            gso_segs: 1,
            ecn: ecn.map_or(EcnField::NotEct, |ecn| ecn.syn_field(flags)),
            repeats_cwr: false,
            departure: Instant::ZERO,
            truesize: 0,
        }
    }

    /// Applies the options of the peer's SYN; an option is in use only if both sides sent it.
    fn negotiate(&mut self, cx: &mut Cx<'_>, syn: &TcpRepr) {
        let options = &syn.options;
        self.negotiated.sack &= options.sack_permitted;
        self.negotiated.window_scale &= options.window_scale.is_some();
        self.negotiated.timestamps &= options.timestamps.is_some();
        if let (true, Some(ts)) = (self.negotiated.timestamps, options.timestamps) {
            self.ts.update_recent(cx.now, ts.val);
        }
        let scale = options.window_scale.map(WindowScale::clamped);
        let scale = scale.filter(|_| self.negotiated.window_scale);
        let default = if self.snd.ip_header_len() >= 40 {
            Mss::DEFAULT_V6
        } else {
            Mss::DEFAULT_V4
        };
        let offered = options.mss.unwrap_or(default.get());
        self.snd.limit_mss_clamp(offered);
        self.snd.on_peer_syn(syn.seq, syn.window.0, scale);
        let rcv_nxt = syn.seq + 1;
        let (scaled, segment_size) = (self.negotiated.window_scale, self.syn_segment_size());
        self.rcv.on_peer_syn(cx.now, rcv_nxt, scaled, segment_size);
        self.sync_mss(cx);
    }

    /// Returns the segment size of which the window in our SYN is a multiple: our MSS, and the
    /// option bytes that reduce it as far as the peer has agreed to them.
    pub(crate) fn syn_segment_size(&self) -> (Mss, u32) {
        const TIMESTAMPS: u32 = 12;
        let negotiated = self.state == State::SynReceived && self.negotiated.timestamps;
        (self.adv_mss, if negotiated { TIMESTAMPS } else { 0 })
    }

    /// Processes a segment in SYN-SENT (RFC 9293 3.10.7.3).
    pub(crate) fn segment_in_syn_sent(&mut self, cx: &mut Cx<'_>, segment: &mut SegmentIn) {
        let repr = &segment.repr;
        let flags = repr.flags;
        let acks = flags.contains(TcpFlags::ACK);
        if acks && !self.acks_our_syn(cx, repr) {
            if !flags.contains(TcpFlags::RST) {
                self.reset_half_open_peer(cx, repr.ack);
            }
            return;
        }
        if flags.contains(TcpFlags::RST) {
            if acks {
                cx.mib.attempt_fails += 1;
                self.fail(TcpError::ConnectionRefused);
            }
            return;
        }
        if !flags.contains(TcpFlags::SYN) {
            return;
        }
        self.ecn
            .take_if(|ecn| !ecn.on_syn_answer(cx.sysctl, repr, segment.ecn));
        self.negotiate(cx, repr);
        if acks {
            if self.uncommon.is_some() && self.is_write_expected() {
                self.rcv.delay_ack_for_write(cx.now);
            } else {
                self.rcv.ack_now();
            }
            self.establish(cx, repr, Window(self.snd.wnd()));
            let fin = flags.contains(TcpFlags::FIN);
            if self.uncommon.is_some() && (fin || !segment.payload.is_empty()) {
                self.on_syn_ack_payload(cx, segment);
            }
        } else {
            // RFC 9293 3.5, figure 7: simultaneous open.
            self.transition(State::SynReceived);
            self.snd.pending_mut().request_syn();
            if self.recovery.rtx.len() == 1 {
                // The SYN-ACK replaces the SYN. It is not a retransmission of it, and its answer
                // gives an RTT sample.
                self.recovery.rtx.clear();
            }
        }
    }

    /// Answers an ACK that does not belong to our SYN with a RST. If the peer has an older
    /// connection with these ports, the RST ends it (RFC 9293 3.5.1, figure 9). As on Linux the
    /// first SYN is then repeated immediately instead of after the retransmission timeout.
    #[cold]
    fn reset_half_open_peer(&mut self, cx: &Cx<'_>, ack: SeqNum) {
        self.snd.pending_mut().request_reset(Reset::WithSeq(ack));
        if !self.is_acceptable_ack(ack)
            && self.timers.retransmits == 0
            && !self.recovery.rtx.is_empty()
        {
            self.advance_syn_timer(cx, cx.now + SYN_AFTER_RESET);
        }
    }

    fn is_acceptable_ack(&self, ack: SeqNum) -> bool {
        ack.after(self.snd.una()) && ack.before_eq(self.snd.nxt())
    }

    /// Returns whether a segment acknowledges our SYN and echoes its timestamp.
    fn acks_our_syn(&self, cx: &Cx<'_>, repr: &TcpRepr) -> bool {
        let in_range = self.is_acceptable_ack(repr.ack);
        let Some(ts) = repr
            .options
            .timestamps
            .filter(|_| self.negotiated.timestamps)
        else {
            return in_range;
        };
        // No segment was received yet, so `received_at` is the time of creation.
        let (created_at, now) = (
            self.ts.value(self.timers.received_at),
            self.ts.value(cx.now),
        );
        let is_ours = ts.ecr.wrapping_sub(created_at) <= now.wrapping_sub(created_at);
        in_range && (ts.ecr == 0 || is_ours)
    }

    /// Returns the RTT from the timestamp echoed by the handshake's last segment, at most the time
    /// since the first SYN or SYN-ACK was sent.
    fn handshake_rtt(&self, cx: &Cx<'_>, repr: &TcpRepr) -> Option<Nanos> {
        // Nothing was acknowledged since the first one was sent, so `progress_at` is its time.
        let first = self.timers.progress_at;
        // The age of a connection created from a cookie is unknown: the time of the SYN-ACK is not
        // recorded, and the low bits of its timestamp encode options.
        let measurable = (first < cx.now).then_some(first);
        self.echoed_rtt(cx, repr, measurable)
    }

    /// Enters ESTABLISHED once our SYN is acknowledged and the peer's was received, and the next
    /// state if the application has closed already.
    pub(crate) fn establish(&mut self, cx: &mut Cx<'_>, repr: &TcpRepr, window: Window) {
        let syn_timeouts = self.syn_timeouts(repr);
        let outcome = self.recovery.rtx.ack(cx.now, repr.ack);
        self.snd.on_established(cx.now, repr.ack, repr.seq, window);
        self.rtt.reset_backoff();
        self.timers.retransmits = 0;
        let rtt = outcome.rtt.or_else(|| self.handshake_rtt(cx, repr));
        if let Some(rtt) = rtt {
            self.on_rtt_sample(cx, rtt, false);
        }
        self.begin_transfer(cx, syn_timeouts);
        self.stats.bytes_acked += u64::from(outcome.acked_bytes);
        // The SYN and the data that it carried count as one segment.
        self.stats.delivered = self.stats.delivered.wrapping_add(1);
        self.timers.stop_rtx();
        if self.recovery.rtx.is_empty() {
            // Frees the SYN's entry, so that a connection that never sends holds no memory for it.
            self.recovery.rtx.clear();
        } else {
            self.arm_rto(cx);
        }
        if self.uncommon.is_some() {
            self.watch_acked(cx);
            self.fastopen_established(cx, repr);
            self.end_rto_recovery(cx.now);
        }
        self.timers.progress_at = cx.now;
        self.timers.received_at = cx.now;
        self.sync_mss(cx);
        self.grow_sndbuf(cx);
        self.transition(State::Established);
        if self.congestion.algorithm().needs_ecn() {
            self.adapt_ecn(cx);
        }
        if self.snd.has_fin() {
            self.transition(State::FinWait1);
        }
        if outcome.fin {
            self.on_fin_acked(cx);
        }
        self.begin_mtu_probing(cx);
        self.arm_keepalive(cx);
        self.wake_reader();
        self.wake_writer_if_room(cx);
        self.snd.on_limits_changed(self.recovery.rtx.has_lost());
    }
}
