//! Packetization layer path MTU discovery (RFC 4821, RFC 8899): segments of text tell what the
//! path carries, where no ICMP message does (RFC 2923 2.1).

use alloc::boxed::Box;

use fullsend_units::{Instant, Nanos, SeqNum};

use super::Connection;
use super::timers::retries_time;
use crate::Cx;
use crate::recovery::Phase;

/// `tcp_mtu_probing`: only where a black hole is suspected.
pub(crate) const ON_BLACK_HOLE: u32 = 1;
/// `tcp_mtu_probing`: from the start.
pub(crate) const ALWAYS: u32 = 2;

/// No probe while cwnd is this small: its loss would leave too few duplicate ACKs.
const LEAST_CWND: u32 = 11;

/// Further timeouts in a row before a size that got through is given up.
const PROVEN_RETRIES: u32 = 2;

/// The least link of IPv6 (RFC 8201 4: there is no going below).
const LEAST_V6: u32 = 1280;

/// The search for the path's MTU, in bytes of IP packets.
#[derive(Debug)]
pub(crate) struct MtuSearch {
    /// Known to get through.
    low: u32,
    /// Not known not to.
    high: u32,
    /// When the range was last begun with.
    since: Instant,
    /// What had been acknowledged when `low` was last lowered.
    acked: u64,
    /// `low` was lowered because timeouts went on, and nothing has been acknowledged since.
    suspected: bool,
    probe: Option<Probe>,
}

/// A probe in flight.
#[derive(Clone, Copy, Debug)]
struct Probe {
    mtu: u32,
    start: SeqNum,
    end: SeqNum,
}

/// Whether a probe is to be sent.
pub(crate) enum ProbeNow {
    No,
    /// It could be, once what is in flight is acknowledged.
    Wait,
    /// With this many bytes of text.
    Send(u32),
}

impl MtuSearch {
    /// What segments may be as large as.
    pub(crate) fn known_mtu(&self) -> u32 {
        self.low
    }

    /// The path was said to carry no more.
    pub(crate) fn bound(&mut self, mtu: u32) {
        self.high = self.high.min(mtu);
        self.low = self.low.min(mtu);
    }
}

impl Connection {
    fn mtu_search(&mut self) -> Option<&mut MtuSearch> {
        self.extras.as_mut()?.mtu.as_deref_mut()
    }

    /// The largest packet that peer and device take.
    fn highest_mtu(&self, cx: &Cx<'_>) -> u32 {
        let peer = u32::from(self.snd.mss_clamp) + self.headers();
        peer.min(self.snd.pmtu).min(cx.device.mtu)
    }

    fn begin_search(&mut self, cx: &Cx<'_>) {
        let high = self.highest_mtu(cx);
        let suspected = cx.sysctl.tcp_mtu_probing != ALWAYS;
        let least = match self.snd.ip_header_len {
            40.. if suspected => LEAST_V6,
            _ => 0,
        };
        let low = (cx.sysctl.tcp_base_mss + self.headers())
            .max(least)
            .min(high);
        self.extras_mut().mtu = Some(Box::new(MtuSearch {
            low,
            high,
            since: cx.now,
            acked: self.stats.bytes_acked,
            suspected,
            probe: None,
        }));
        self.sync_mss(cx);
    }

    /// ESTABLISHED: `tcp_mtu_probing` 2 begins with small segments.
    #[inline]
    pub(super) fn begin_mtu_probing(&mut self, cx: &Cx<'_>) {
        if cx.sysctl.tcp_mtu_probing == ALWAYS {
            self.begin_search(cx);
        }
    }

    /// The retransmission timer fired: what is large may be swallowed without a word
    /// (RFC 4821 7.7).
    pub(super) fn suspect_black_hole(&mut self, cx: &Cx<'_>) {
        self.forget_mtu_probe();
        let stalled = cx.now.since(self.timers.progress_at);
        let mut retries = cx.sysctl.tcp_retries1;
        if self.size_is_proven() {
            retries += PROVEN_RETRIES;
        }
        if cx.sysctl.tcp_mtu_probing < ON_BLACK_HOLE
            || stalled < retries_time(retries, self.rtt.rto_max())
        {
            return;
        }
        let (headers, acked) = (self.headers(), self.stats.bytes_acked);
        let least = cx.sysctl.tcp_mtu_probe_floor.max(cx.sysctl.tcp_min_snd_mss);
        let least = if self.snd.ip_header_len >= 40 {
            least.max(LEAST_V6 - headers)
        } else {
            least
        };
        let base = cx.sysctl.tcp_base_mss;
        let Some(search) = self.mtu_search() else {
            return self.begin_search(cx);
        };
        let half = search.low.saturating_sub(headers) / 2;
        search.low = half.min(base).max(least).min(search.low - headers) + headers;
        search.acked = acked;
        search.suspected = true;
        self.sync_mss(cx);
    }

    /// Segments of the present size got through since it became that: a silence is congestion
    /// rather than a black hole.
    fn size_is_proven(&self) -> bool {
        let mtu = self
            .extras
            .as_ref()
            .and_then(|extras| extras.mtu.as_deref());
        let since = mtu.map(|search| search.acked + u64::from(self.snd.mss.bytes()));
        since.is_some_and(|acked| self.stats.bytes_acked > acked)
    }

    /// Whether the next text goes as a probe (RFC 4821 7.2, 7.4): one segment, larger than those
    /// known to get through, and with enough behind it that its loss is seen.
    #[cold]
    pub(crate) fn mtu_probe_now(&mut self, cx: &Cx<'_>) -> ProbeNow {
        let in_flight = self.snd.rtx.in_flight();
        let reordering = self.recovery.reordering_segs();
        let quiet = self.recovery.phase() == Phase::Open
            && self.snd.rtx.sacked_out() == 0
            && self.rcv.queue.is_in_order()
            && self.cwnd.cwnd >= LEAST_CWND;
        let (low, high, probing) = match self.mtu_search() {
            Some(search) => (search.low, search.high, search.probe.is_some()),
            None => return ProbeNow::No,
        };
        if probing || !quiet {
            return ProbeNow::No;
        }
        if high.saturating_sub(low) < cx.sysctl.tcp_probe_threshold.max(1) {
            self.search_again(cx);
            return ProbeNow::No;
        }
        let len = self.text_of_mtu(u32::midpoint(low, high));
        let needed = len + (reordering + 1) * self.snd.mss.bytes();
        let queued = self.snd.queue.len() as u32;
        if queued < needed || self.snd.wnd < needed || self.record_left() < len {
            return ProbeNow::No;
        }
        if self.snd.usable_window() < needed {
            return ProbeNow::Wait;
        }
        match in_flight {
            0 => ProbeNow::Send(len),
            n if n + 2 > self.cwnd.cwnd => ProbeNow::Wait,
            _ => ProbeNow::Send(len),
        }
    }

    /// RFC 4821 7.8.1: paths change, so the search begins anew after a time.
    fn search_again(&mut self, cx: &Cx<'_>) {
        let high = self.highest_mtu(cx);
        let interval = Nanos::from_secs(cx.sysctl.tcp_probe_interval.into());
        if let Some(search) = self.mtu_search()
            && cx.now.since(search.since) >= interval
        {
            search.high = high;
            search.since = cx.now;
        }
    }

    /// `len` bytes from `start` on left as a probe.
    #[cold]
    pub(crate) fn on_mtu_probe_sent(&mut self, start: SeqNum, len: u32) {
        let mtu = len + self.headers() + self.option_bytes();
        let end = start + len;
        if let Some(search) = self.mtu_search() {
            search.probe = Some(Probe { mtu, start, end });
        }
    }

    /// Something is sent again: nothing follows any more from what is acknowledged.
    #[cold]
    pub(crate) fn forget_mtu_probe(&mut self) {
        if let Some(search) = self.mtu_search() {
            search.probe = None;
        }
    }

    /// `snd_una` moved: a probe may have arrived.
    #[cold]
    pub(super) fn check_mtu_probe(&mut self, cx: &mut Cx<'_>) {
        let (una, mss) = (self.snd.una, self.snd.mss.bytes());
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
        // As many bytes as before.
        let cwnd = u64::from(self.cwnd.cwnd) * u64::from(now_mtu) / u64::from(probe.mtu.max(1));
        self.cwnd.cwnd = (cwnd as u32).max(1);
        self.sync_mss(cx);
    }

    /// Something is lost: true if that is the probe (RFC 4821 7.3), which says nothing of
    /// congestion. It is sent again in smaller pieces.
    #[cold]
    pub(crate) fn mtu_probe_lost(&mut self, cx: &mut Cx<'_>) -> bool {
        let una = self.snd.una;
        let Some(search) = self.mtu_search() else {
            return false;
        };
        let Some(probe) = search.probe.filter(|probe| probe.start == una) else {
            return false;
        };
        search.probe = None;
        search.high = probe.mtu - 1;
        cx.mib.mtup_fail += 1;
        true
    }
}
