//! The policy of acknowledgements (RFC 9293 3.8.6.3, RFC 5681 4.2): every second full segment, at once
//! after loss or reordering, and with data of our own where that will follow soon.

use fullsend_wire::{Instant, Mss, Nanos, SeqNum, Window};

/// Longest delay of an acknowledgement. RFC 9293 3.8.6.3 allows 500 ms.
const DELAYED_ACK: Nanos = Nanos::from_millis(40);
/// Delay of the acknowledgement of a whole request, on a connection where an answer that can carry it
/// usually follows.
const REPLY_DELAY: Nanos = Nanos::from_millis(1);
/// Most segments that are acknowledged one by one at the start of a connection, for the sender's slow
/// start.
const QUICK_SEGS: u32 = 16;

/// In place of a count: an acknowledgement waits until the application has read.
const WITHHELD: u8 = u8::MAX;

/// The state of delayed acknowledgements.
#[derive(Clone, Debug)]
pub(crate) struct AckPolicy {
    /// The latest time to send the acknowledgement. [`DUE`](Self::DUE): at once, in a pure ACK if there
    /// is no other segment. `FAR_FUTURE`: no acknowledgement is owed.
    ack_at: Instant,
    /// The time at which data last arrived.
    last_data: Instant,
    /// `rcv_nxt` as last acknowledged (`Last.ACK.sent` of RFC 7323).
    acked: SeqNum,
    /// Payload of a full segment, as observed, in bytes.
    rcv_mss: u16,
    /// Segments that are still acknowledged one by one, or [`WITHHELD`].
    quick_segs: u8,
    pattern: TrafficPattern,
}

/// The pattern of the peer's traffic, from which it follows what the peer waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TrafficPattern {
    /// The peer sends in bulk and waits for nothing.
    Bulk,
    /// The peer may wait for the acknowledgement: its last segment was full and had PSH, so it was the
    /// end of a write, or all that the window allows.
    Pushed,
    /// The peer waits for an answer: data of ours usually follows received data.
    Interactive,
}

impl AckPolicy {
    const DUE: Instant = Instant::ZERO;

    pub(crate) const fn new() -> Self {
        Self {
            ack_at: Instant::FAR_FUTURE,
            last_data: Instant::ZERO,
            acked: SeqNum::new(0),
            rcv_mss: 0,
            quick_segs: 0,
            pattern: TrafficPattern::Bulk,
        }
    }

    /// Begins with the connection, whose first received byte will be `rcv_nxt`.
    pub(crate) fn start(&mut self, rcv_nxt: SeqNum, mss: Mss, window: Window) {
        self.acked = rcv_nxt;
        // A full segment is as large as the largest received; 536 bytes at first.
        self.rcv_mss = mss.get().min(536);
        self.quick_segs = (window.0 / (2 * mss.bytes())).clamp(2, QUICK_SEGS) as u8;
    }

    /// Records the arrival of segments of `len` bytes. Returns whether they are larger than all before.
    #[inline]
    pub(crate) fn on_segment(&mut self, len: u32, adv_mss: Mss) -> bool {
        let larger = len > u32::from(self.rcv_mss);
        if larger {
            self.rcv_mss = len.min(adv_mss.bytes()) as u16;
        }
        larger
    }

    /// Processes data that arrived in order, without holes; `pushed`: with PSH. `lagging`: the sender
    /// has used up the window, and more than half of the buffer waits for the application, whose
    /// reading will open the window.
    pub(crate) fn on_data(
        &mut self,
        now: Instant,
        rcv_nxt: SeqNum,
        segs: u32,
        (pushed, lagging): (bool, bool),
    ) {
        self.last_data = now;
        if lagging || self.quick_segs == WITHHELD {
            self.quick_segs = 0;
        }
        let unacked = rcv_nxt.since(self.acked);
        let interactive = self.pattern == TrafficPattern::Interactive;
        if self.quick_segs > 0 && !interactive {
            self.quick_segs = self.quick_segs.saturating_sub(segs.min(255) as u8);
            self.ack_now();
        } else if unacked <= u32::from(self.rcv_mss) {
            self.delay_until(now + DELAYED_ACK);
            if !interactive {
                let full = pushed && unacked == u32::from(self.rcv_mss);
                self.pattern = if full {
                    TrafficPattern::Pushed
                } else {
                    TrafficPattern::Bulk
                };
            }
        } else if interactive {
            self.delay_until(now + REPLY_DELAY);
        } else if lagging {
            self.quick_segs = WITHHELD;
            self.delay_until(now + DELAYED_ACK);
        } else {
            self.ack_now();
        }
    }

    /// Processes a read. Returns whether it made an acknowledgement due.
    #[inline]
    pub(crate) fn on_read(&mut self) -> bool {
        if self.quick_segs != WITHHELD {
            return false;
        }
        self.quick_segs = 0;
        let is_scheduled = self.is_scheduled();
        if is_scheduled {
            self.ack_now();
        }
        is_scheduled
    }

    /// Processes the peer's FIN, up to `rcv_nxt`: our own FIN often follows at once and can carry the
    /// acknowledgement. For a peer that sent no data it is not delayed, as on Linux.
    pub(crate) fn on_fin(&mut self, now: Instant, rcv_nxt: SeqNum) {
        let unacked = rcv_nxt.since(self.acked);
        if self.last_data == Instant::ZERO || unacked > u32::from(self.rcv_mss) {
            self.ack_now();
        } else {
            self.pattern = TrafficPattern::Interactive;
            self.delay_until(now + DELAYED_ACK);
        }
    }

    /// Processes a read of all data. Returns whether it made an acknowledgement due.
    #[inline]
    pub(crate) fn on_all_read(&mut self) -> bool {
        let due = self.pattern == TrafficPattern::Pushed && self.is_scheduled();
        if due {
            self.ack_now();
        }
        due
    }

    /// Delays the acknowledgement for a write that will follow and carry it.
    pub(crate) fn delay_for_write(&mut self, now: Instant) {
        // As on Linux, the write counts as an answer to data that arrives now.
        self.last_data = now;
        self.delay_until(now + DELAYED_ACK);
    }

    fn delay_until(&mut self, until: Instant) {
        self.ack_at = self.ack_at.min(until);
    }

    /// Makes an acknowledgement due at once.
    #[inline]
    pub(crate) fn ack_now(&mut self) {
        self.ack_at = Self::DUE;
    }

    /// Makes an acknowledgement due at once, and for each of the next segments, after loss or
    /// reordering.
    pub(crate) fn enter_quickack(&mut self) {
        self.ack_now();
        self.pattern = TrafficPattern::Bulk;
        self.quick_segs %= WITHHELD;
        self.quick_segs = self.quick_segs.max(2);
    }

    /// Returns `TCP_QUICKACK`.
    pub(crate) fn is_quickack(&self) -> bool {
        self.pattern != TrafficPattern::Interactive
    }

    /// Sets `TCP_QUICKACK`.
    pub(crate) fn set_quickack(&mut self, on: bool) {
        self.pattern = if on {
            TrafficPattern::Bulk
        } else {
            TrafficPattern::Interactive
        };
        self.quick_segs = if on { QUICK_SEGS as u8 } else { 0 };
        if on && self.is_scheduled() {
            self.ack_now();
        }
    }

    /// Returns whether an acknowledgement is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.ack_at == Self::DUE
    }

    /// Returns whether an acknowledgement is due or delayed.
    #[inline]
    pub(crate) fn is_scheduled(&self) -> bool {
        self.ack_at != Instant::FAR_FUTURE
    }

    /// Returns when [`on_timer`](Self::on_timer) is to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        if self.is_due() {
            Instant::FAR_FUTURE
        } else {
            self.ack_at
        }
    }

    /// Processes the end of the delay. Returns whether it made an acknowledgement due.
    pub(crate) fn on_timer(&mut self, now: Instant) -> bool {
        if self.is_due() || now < self.ack_at {
            return false;
        }
        self.ack_now();
        // No answer came in time, so none is expected next time.
        self.pattern = TrafficPattern::Bulk;
        true
    }

    /// Cancels a delayed acknowledgement at the connection's end; a due one stays due.
    pub(crate) fn cancel_delay(&mut self) {
        if !self.is_due() {
            self.ack_at = Instant::FAR_FUTURE;
        }
    }

    /// Cancels the acknowledgement, due or delayed: the connection has ended.
    pub(crate) fn cancel(&mut self) {
        self.ack_at = Instant::FAR_FUTURE;
    }

    /// Records that a segment that acknowledges `rcv_nxt` leaves.
    #[inline]
    pub(crate) fn on_sent(&mut self, rcv_nxt: SeqNum) {
        self.acked = rcv_nxt;
        self.ack_at = Instant::FAR_FUTURE;
    }

    /// Records that new data of ours is sent.
    #[inline]
    pub(crate) fn on_data_sent(&mut self, now: Instant) {
        if now.since(self.last_data) < DELAYED_ACK {
            self.pattern = TrafficPattern::Interactive;
        }
    }

    /// Returns `Last.ACK.sent` (RFC 7323 4.3).
    #[inline]
    pub(crate) fn last_acked(&self) -> SeqNum {
        self.acked
    }

    /// Records that no more data of ours will follow.
    pub(crate) fn end_interactive(&mut self) {
        self.pattern = TrafficPattern::Bulk;
    }

    /// Returns when data last arrived.
    pub(crate) fn last_data(&self) -> Instant {
        self.last_data
    }

    /// Returns the payload of a full segment, as observed, in bytes.
    #[inline]
    pub(crate) fn rcv_mss(&self) -> u32 {
        self.rcv_mss.into()
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Mss, Nanos, SeqNum, Window};

    use super::AckPolicy;

    const MSS: u32 = 1000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Returns a policy after the first segments, which are acknowledged one by one.
    fn policy() -> AckPolicy {
        let mut policy = AckPolicy::new();
        policy.start(SeqNum::new(0), Mss::clamped(1000), Window(65_535));
        assert!(policy.on_segment(MSS, Mss::clamped(1000)));
        policy.on_data(at(1), SeqNum::new(16_000), 16, (false, false));
        assert!(policy.is_due());
        policy.on_sent(SeqNum::new(16_000));
        policy
    }

    #[test]
    fn a_full_segment_with_psh_is_acknowledged_as_soon_as_it_is_read() {
        // Length, PSH, and whether reading the data makes the acknowledgement due.
        for (len, pushed, at_once) in [
            (MSS, true, true),
            (MSS, false, false),
            (MSS - 1, true, false),
        ] {
            let mut policy = policy();
            let end = SeqNum::new(16_000 + len);
            policy.on_data(at(2), end, 1, (pushed, false));
            assert_eq!(policy.deadline(), at(42));
            assert_eq!(policy.on_all_read(), at_once, "{len} {pushed}");
            assert_eq!(policy.is_due(), at_once);
            policy.on_sent(end);
            assert!(!policy.on_all_read(), "nothing is owed");
        }
    }

    #[test]
    fn an_interactive_connection_waits_for_the_reply() {
        let mut policy = policy();
        policy.on_data_sent(at(1) + Nanos::from_micros(1));
        policy.on_data(at(2), SeqNum::new(17_000), 1, (true, false));
        assert!(!policy.on_all_read() && policy.deadline() == at(42));
    }

    #[test]
    fn the_first_segments_are_acknowledged_one_by_one() {
        for (window, segs) in [(1000, 2), (20_000, 10), (65_535, 16)] {
            let mut policy = AckPolicy::new();
            policy.start(SeqNum::new(0), Mss::clamped(1000), Window(window));
            assert_eq!(policy.quick_segs, segs, "{window}");
            // A request for quick ACKs does not lower the number that is left.
            policy.enter_quickack();
            assert_eq!(policy.quick_segs, segs, "{window}");
        }
        let mut policy = policy();
        policy.enter_quickack();
        assert_eq!(policy.quick_segs, 2);
    }

    #[test]
    fn rcv_mss_is_the_largest_segment_received() {
        let mut policy = policy();
        let mss = Mss::clamped(1000);
        assert!(!policy.on_segment(MSS, mss) && !policy.on_segment(MSS - 1, mss));
        assert_eq!(policy.rcv_mss(), MSS);
    }

    /// RFC 9293 3.8.6.2.2: an ACK that does not open the window is delayed until data is read, and
    /// no longer than other delayed ACKs.
    #[test]
    fn a_lagging_reader_withholds_acknowledgements() {
        let mut policy = AckPolicy::new();
        policy.start(SeqNum::new(0), Mss::clamped(1000), Window(65_535));
        policy.on_segment(MSS, Mss::clamped(1000));
        policy.on_data(at(1), SeqNum::new(2000), 2, (false, true));
        assert_eq!((policy.is_due(), policy.deadline()), (false, at(41)));
        assert!(policy.on_read() && policy.is_due());
        // Reading makes an ACK due once, and only if one is owed.
        assert!(!policy.on_read());
        policy.on_sent(SeqNum::new(2000));
        policy.on_data(at(2), SeqNum::new(4000), 2, (false, true));
        policy.on_sent(SeqNum::new(4000));
        assert!(!policy.on_read() && !policy.is_scheduled());
        // Once the application has caught up every second segment is acknowledged again.
        policy.on_data(at(3), SeqNum::new(6000), 2, (false, true));
        policy.on_data(at(4), SeqNum::new(8000), 2, (false, false));
        assert!(policy.is_due() && !policy.on_read());
    }

    /// RFC 9293 3.8.6.3: at least every second full segment is acknowledged, including the one with
    /// the FIN.
    #[test]
    fn a_fin_is_delayed_after_at_most_one_segment() {
        for (len, deadline) in [(MSS, Some(at(42))), (MSS + 1, None)] {
            let mut policy = policy();
            policy.on_fin(at(2), SeqNum::new(16_000 + len));
            let waits = (!policy.is_due()).then(|| policy.deadline());
            assert_eq!(waits, deadline, "{len}");
        }
    }

    #[test]
    fn an_ack_waits_for_a_write_no_longer_than_40_ms() {
        let mut policy = policy();
        policy.delay_for_write(at(5));
        assert_eq!(policy.deadline(), at(45));
        policy.cancel_delay();
        assert!(!policy.is_scheduled());
        policy.ack_now();
        policy.cancel_delay();
        assert!(policy.is_due());
    }

    /// Data that we send within 40 ms counts as a reply.
    #[test]
    fn a_late_reply_does_not_make_the_connection_interactive() {
        for (ms, quick) in [(40, false), (41, true)] {
            let mut policy = policy();
            assert!(policy.is_quickack());
            policy.on_data_sent(at(ms));
            assert_eq!(policy.is_quickack(), quick, "{ms}");
        }
    }
}
