//! ICMP errors about segments of ours, and the segment size that they lead to (RFC 5927, RFC 6691,
//! RFC 1191, RFC 8201).

use fullsend_wire::{Mss, SeqNum};

use super::mtu_probing::MtuSearch;
use super::{Connection, State};
use crate::recovery::CaState;
use crate::{Cx, IcmpError, MtuDiscover, TcpError};

/// Bytes of the TCP header without options.
const TCP_HEADER: u32 = 20;
/// Bytes of the timestamps option with two NOPs.
const TS_OPTION: u32 = 12;

impl Connection {
    /// Processes an ICMP error that quotes a segment of ours with the sequence number `seq`.
    /// Returns whether the error is plausible because that segment is in flight.
    pub fn handle_icmp(&mut self, cx: &mut Cx<'_>, seq: SeqNum, error: IcmpError) -> bool {
        // RFC 5927 4: only a segment in flight can have caused it.
        let in_flight = seq.after_eq(self.snd.una()) && seq.before(self.snd.nxt());
        if self.state == State::Closed || !in_flight {
            cx.mib.out_of_window_icmps += 1;
            return false;
        }
        match error {
            IcmpError::TooBig { .. } if self.contradicts_too_big() => {
                cx.mib.too_big_doubted += 1;
                return false;
            }
            IcmpError::TooBig { mtu } => match self.settings.mtu_discover() {
                MtuDiscover::Dont | MtuDiscover::Probe => {}
                MtuDiscover::Want | MtuDiscover::Do => self.shrink_mtu(cx, mtu),
            },
            // RFC 1122 4.2.3.9: a hard error only before the connection is established.
            IcmpError::Unreachable(error) if !self.state.is_synchronized() => {
                cx.mib.attempt_fails += 1;
                self.fail(error);
                self.charge(cx);
            }
            IcmpError::Unreachable(TcpError::TimedOut) => {}
            IcmpError::Unreachable(error) if self.settings.recverr() => {
                self.user.error = Some(error);
                self.wake_reader();
                self.wake_writer();
            }
            IcmpError::Unreachable(error) => self.user.soft_error = Some(error),
        }
        true
    }

    /// Returns whether a too-big error contradicts the deliveries of the path (RFC 5927 7.2):
    /// segments of the present size are being acknowledged. If the path has changed, the data in
    /// flight is lost, and the router repeats the error for the retransmission.
    fn contradicts_too_big(&self) -> bool {
        let full_size = self.stats.bytes_acked > u64::from(self.snd.mss().bytes());
        let in_recovery = matches!(self.recovery.ca_state(), CaState::Recovery | CaState::Loss);
        full_size && !in_recovery && self.rtt.backoff() == 0
    }

    fn shrink_mtu(&mut self, cx: &mut Cx<'_>, mtu: u32) {
        let headers = u32::from(self.snd.ip_header_len()) + TCP_HEADER;
        let least = cx.sysctl.tcp_min_snd_mss + headers;
        let mtu = mtu.max(least);
        if !self.snd.shrink_pmtu(mtu) {
            return;
        }
        if let Some(search) = self
            .uncommon
            .as_mut()
            .and_then(|uncommon| uncommon.mtu.as_deref_mut())
        {
            search.bound(mtu);
        }
        let before = self.snd.mss();
        self.sync_mss(cx);
        if self.state == State::SynSent {
            // Linux: the retransmitted SYN advertises segments that fit the path in both
            // directions.
            let most = Mss::clamped((mtu - headers).min(0xffff) as u16);
            self.adv_mss = self.adv_mss.min(most);
            self.fastopen_too_big();
        }
        if self.snd.mss() < before && self.state.is_synchronized() && !self.recovery.rtx.is_empty()
        {
            self.recovery.retransmit_too_big(self.snd.nxt());
            self.snd.pending_mut().retry();
        }
    }

    /// Returns the bytes of IP and TCP headers without options.
    pub(super) fn headers(&self) -> u32 {
        u32::from(self.snd.ip_header_len()) + TCP_HEADER
    }

    /// Returns the bytes of the options that every segment has.
    pub(super) fn option_bytes(&self) -> u32 {
        let timestamps = if self.negotiated.timestamps {
            TS_OPTION
        } else {
            0
        };
        timestamps + self.ecn.as_ref().map_or(0, |ecn| ecn.option_bytes())
    }

    /// Returns the payload bytes of a packet of `mtu` bytes.
    pub(super) fn payload_of_mtu(&self, mtu: u32) -> u32 {
        let whole = mtu.saturating_sub(self.headers());
        whole
            .min(self.snd.mss_clamp().into())
            .saturating_sub(self.option_bytes())
    }

    /// Derives the payload bytes of a full segment from the limits of path, peer and application,
    /// and updates everything that depends on it.
    pub(crate) fn sync_mss(&mut self, cx: &Cx<'_>) {
        let headers = self.headers();
        let searched = self
            .uncommon
            .as_ref()
            .and_then(|uncommon| uncommon.mtu.as_deref());
        let known = searched.map_or(u32::MAX, MtuSearch::known_mtu);
        let path = self.snd.pmtu().min(cx.device.mtu.max(headers)).min(known);
        let path = path.saturating_sub(headers);
        // RFC 6691: the MSS option includes neither IP nor TCP options.
        let whole = path
            .min(self.snd.mss_clamp().into())
            .max(cx.sysctl.tcp_min_snd_mss);
        let payload = whole.saturating_sub(self.option_bytes());
        let bounded = self.limit_to_half_window(payload);
        let mss = Mss::clamped(bounded.min(0xffff) as u16);
        if self.snd.set_mss(mss) {
            self.recovery.rtx.set_mss(mss);
            self.congestion.on_mss(mss);
        }
        self.snd.sync_size_goal(&cx.device);
    }

    /// Returns the segment size for a peer with a tiny buffer: half of its largest window, so that
    /// two fit and it acknowledges one while we send the other (RFC 9293 3.8.6.2.1).
    fn limit_to_half_window(&self, mss: u32) -> u32 {
        match self.snd.max_wnd() {
            0 => mss,
            window if window > Mss::DEFAULT_V4.bytes() => mss.min(window / 2),
            window => mss.min(window),
        }
    }
}
