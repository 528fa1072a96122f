//! Packetization layer path MTU discovery (RFC 4821, RFC 8899): data segments probe the path MTU
//! where no ICMP message reports it (RFC 2923 2.1).

use alloc::boxed::Box;

use fullsend_wire::{Instant, Nanos, SeqNum};

use super::Connection;
use super::timers::retries_time;
use crate::Cx;
use crate::recovery::CaState;

/// `tcp_mtu_probing`: only after a suspected black hole.
pub(crate) const ON_BLACK_HOLE: u32 = 1;
/// `tcp_mtu_probing`: from the start.
pub(crate) const ALWAYS: u32 = 2;

/// No probe is sent below this cwnd: its loss would leave too few duplicate ACKs.
const MIN_PROBE_CWND: u32 = 11;

/// Further consecutive timeouts before a size that was delivered is given up.
const PROVEN_RETRIES: u32 = 2;

/// The minimum link MTU of IPv6 (RFC 8201 4: the path MTU cannot be smaller).
const MIN_MTU_V6: u32 = 1280;

/// The search for the path MTU; sizes are bytes of IP packets.
#[derive(Debug)]
pub(crate) struct MtuSearch {
    /// The largest size known to be delivered.
    low: u32,
    /// The largest size not known to be dropped.
    high: u32,
    /// The time at which the present search began.
    since: Instant,
    /// Bytes acknowledged when `low` was last reduced.
    acked: u64,
    /// `low` was reduced because timeouts continued, and nothing has been acknowledged since.
    suspected: bool,
    probe: Option<MtuProbe>,
}

/// A probe in flight.
#[derive(Clone, Copy, Debug)]
struct MtuProbe {
    mtu: u32,
    start: SeqNum,
    end: SeqNum,
}

/// The decision whether a probe is sent now.
pub(crate) enum MtuProbeDecision {
    Skip,
    /// Wait until more data in flight is acknowledged.
    Wait,
    /// Send a probe with this payload in bytes.
    Send(u32),
}

impl MtuSearch {
    /// Returns the largest size of ordinary segments.
    pub(crate) fn known_mtu(&self) -> u32 {
        self.low
    }

    /// Limits the search to a path MTU that ICMP reported.
    pub(crate) fn bound(&mut self, mtu: u32) {
        self.high = self.high.min(mtu);
        self.low = self.low.min(mtu);
    }
}

impl Connection {
    fn mtu_search(&mut self) -> Option<&mut MtuSearch> {
        self.uncommon.as_mut()?.mtu.as_deref_mut()
    }

    /// Returns the largest packet that the peer, the path and the device accept.
    fn highest_mtu(&self, cx: &Cx<'_>) -> u32 {
        let peer = u32::from(self.snd.mss_clamp()) + self.headers();
        peer.min(self.snd.pmtu()).min(cx.device.mtu)
    }

    fn begin_mtu_search(&mut self, cx: &Cx<'_>) {
        let high = self.highest_mtu(cx);
        let suspected = cx.sysctl.tcp_mtu_probing != ALWAYS;
        let least = match self.snd.ip_header_len() {
            40.. if suspected => MIN_MTU_V6,
            _ => 0,
        };
        let low = (cx.sysctl.tcp_base_mss + self.headers())
            .max(least)
            .min(high);
        self.uncommon_mut().mtu = Some(Box::new(MtuSearch {
            low,
            high,
            since: cx.now,
            acked: self.stats.bytes_acked,
            suspected,
            probe: None,
        }));
        self.sync_mss(cx);
    }

    /// Begins the search with small segments in ESTABLISHED if `tcp_mtu_probing` is 2.
    #[inline]
    pub(super) fn begin_mtu_probing(&mut self, cx: &Cx<'_>) {
        if cx.sysctl.tcp_mtu_probing == ALWAYS {
            self.begin_mtu_search(cx);
        }
    }

    /// Reduces the segment size after repeated retransmission timeouts, as large segments may be
    /// dropped silently (RFC 4821 7.7).
    pub(super) fn suspect_black_hole(&mut self, cx: &Cx<'_>) {
        self.forget_mtu_probe();
        let stalled = cx.now.since(self.timers.progress_at);
        let mut retries = cx.sysctl.tcp_retries1;
        if self.is_size_proven() {
            retries += PROVEN_RETRIES;
        }
        if cx.sysctl.tcp_mtu_probing < ON_BLACK_HOLE
            || stalled < retries_time(retries, self.rtt.rto_max())
        {
            return;
        }
        let (headers, acked) = (self.headers(), self.stats.bytes_acked);
        let least = cx.sysctl.tcp_mtu_probe_floor.max(cx.sysctl.tcp_min_snd_mss);
        let least = if self.snd.ip_header_len() >= 40 {
            least.max(MIN_MTU_V6 - headers)
        } else {
            least
        };
        let base = cx.sysctl.tcp_base_mss;
        let Some(search) = self.mtu_search() else {
            return self.begin_mtu_search(cx);
        };
        let half = search.low.saturating_sub(headers) / 2;
        search.low = half.min(base).max(least).min(search.low - headers) + headers;
        search.acked = acked;
        search.suspected = true;
        self.sync_mss(cx);
    }

    /// Returns whether segments of the present size were delivered since it was set: timeouts then
    /// indicate congestion rather than a black hole.
    fn is_size_proven(&self) -> bool {
        let mtu = self
            .uncommon
            .as_ref()
            .and_then(|uncommon| uncommon.mtu.as_deref());
        let since = mtu.map(|search| search.acked + u64::from(self.snd.mss().bytes()));
        since.is_some_and(|acked| self.stats.bytes_acked > acked)
    }

    /// Returns whether the next data is sent as a probe (RFC 4821 7.2, 7.4): one segment, larger
    /// than the largest known to be delivered, and with enough data after it that its loss is
    /// detected.
    #[cold]
    pub(crate) fn decide_mtu_probe(&mut self, cx: &Cx<'_>) -> MtuProbeDecision {
        let in_flight = self.recovery.rtx.in_flight();
        let reordering = self.recovery.reordering_segs();
        let can_probe = self.recovery.ca_state() == CaState::Open
            && self.recovery.rtx.sacked_out() == 0
            && self.rcv.is_in_order()
            && self.congestion.cwnd() >= MIN_PROBE_CWND;
        let (low, high, probing) = match self.mtu_search() {
            Some(search) => (search.low, search.high, search.probe.is_some()),
            None => return MtuProbeDecision::Skip,
        };
        if probing || !can_probe {
            return MtuProbeDecision::Skip;
        }
        if high.saturating_sub(low) < cx.sysctl.tcp_probe_threshold.max(1) {
            self.restart_mtu_search(cx);
            return MtuProbeDecision::Skip;
        }
        let len = self.payload_of_mtu(u32::midpoint(low, high));
        let needed = len + (reordering + 1) * self.snd.mss().bytes();
        let queued = self.snd.unsent_bytes() as u32;
        if queued < needed || self.snd.wnd() < needed || self.record_left() < len {
            return MtuProbeDecision::Skip;
        }
        if self.snd.usable_window() < needed {
            return MtuProbeDecision::Wait;
        }
        match in_flight {
            0 => MtuProbeDecision::Send(len),
            n if n + 2 > self.congestion.cwnd() => MtuProbeDecision::Wait,
            _ => MtuProbeDecision::Send(len),
        }
    }

    /// Restarts the search after an interval, as paths change (RFC 4821 7.8.1).
    fn restart_mtu_search(&mut self, cx: &Cx<'_>) {
        let high = self.highest_mtu(cx);
        let interval = Nanos::from_secs(cx.sysctl.tcp_probe_interval.into());
        if let Some(search) = self.mtu_search()
            && cx.now.since(search.since) >= interval
        {
            search.high = high;
            search.since = cx.now;
        }
    }

    /// Records that `len` bytes from `start` on were sent as a probe.
    #[cold]
    pub(crate) fn on_mtu_probe_sent(&mut self, start: SeqNum, len: u32) {
        let mtu = len + self.headers() + self.option_bytes();
        let end = start + len;
        if let Some(search) = self.mtu_search() {
            search.probe = Some(MtuProbe { mtu, start, end });
        }
    }

    /// Forgets the probe in flight when data is retransmitted: its acknowledgement would prove
    /// nothing.
    #[cold]
    pub(crate) fn forget_mtu_probe(&mut self) {
        if let Some(search) = self.mtu_search() {
            search.probe = None;
        }
    }

    /// Processes the acknowledgement of a probe after `snd_una` advanced.
    #[cold]
    pub(super) fn check_mtu_probe(&mut self, cx: &mut Cx<'_>) {
        let (una, mss) = (self.snd.una(), self.snd.mss().bytes());
        let now_mtu = mss + self.headers() + self.option_bytes();
        let acked = self.stats.bytes_acked;
        let Some(search) = self.mtu_search() else {
            return;
        };
        if search.suspected && acked > search.acked {
            search.suspected = false;
            cx.mib.black_holes += 1;
        }
        let Some(probe) = search.probe.filter(|probe| probe.end.before_eq(una)) else {
            return;
        };
        search.probe = None;
        search.low = probe.mtu;
        cx.mib.mtup_success += 1;
        // Keeps cwnd the same in bytes.
        let cwnd =
            u64::from(self.congestion.cwnd()) * u64::from(now_mtu) / u64::from(probe.mtu.max(1));
        self.congestion.set_cwnd((cwnd as u32).max(1));
        self.sync_mss(cx);
    }

    /// Returns the sequence number at which the probe in flight begins.
    pub(super) fn mtu_probe_start(&self) -> Option<SeqNum> {
        let search = self.uncommon.as_ref()?.mtu.as_deref()?;
        search.probe.map(|probe| probe.start)
    }

    /// Processes the loss of the probe (RFC 4821 7.3). Its data is retransmitted in smaller
    /// segments.
    #[cold]
    pub(super) fn on_mtu_probe_lost(&mut self, cx: &mut Cx<'_>) {
        if let Some(search) = self.mtu_search()
            && let Some(probe) = search.probe.take()
        {
            search.high = probe.mtu - 1;
            cx.mib.mtup_fail += 1;
        }
    }
}
