//! When to acknowledge (RFC 9293 3.8.6.3, RFC 5681 4.2): at every second full segment, at once
//! when the sender needs to know, with our own text whenever that will follow soon.

use fullsend_units::{Instant, Mss, Nanos, SeqNum, Window};

/// How long an acknowledgement waits for company. RFC 9293 3.8.6.3 allows 500 ms.
const DELAY: Nanos = Nanos::from_millis(40);
/// How long the acknowledgement of a whole request waits for the answer that will carry it, on a
/// connection where an answer usually follows.
const ANSWER_GRACE: Nanos = Nanos::from_millis(1);
/// Acknowledge this many segments one by one as a connection starts, so that the sender's slow
/// start is not slowed down.
const QUICK_SEGS: u32 = 16;

/// In place of a count: an acknowledgement waits for the reader, who has a lot to read.
const WITHHELD: u8 = u8::MAX;

/// What is owed to the sender.
#[derive(Clone, Debug)]
pub(crate) struct AckPolicy {
    /// When the acknowledgement goes at the latest. [`DUE`](Self::DUE): with the next segment,
    /// which is made if there is none. `FAR_FUTURE`: none is owed.
    at: Instant,
    /// When text last arrived.
    last_data: Instant,
    /// `rcv_nxt` as last acknowledged (`Last.ACK.sent` of RFC 7323).
    acked: SeqNum,
    /// Text of a full segment as the peer sends them.
    rcv_mss: u16,
    /// How many more are acknowledged one by one, or [`WITHHELD`].
    quick_segs: u8,
    habit: Habit,
}

/// What the peer is taken to wait for, behind what it sent last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    /// For no more than its turn.
    Bulk,
    /// Its last segment was full and had PSH: the end of a write, or all that its window allows. It
    /// may wait for the acknowledgement itself.
    Pushed,
    /// For an answer: text of ours usually follows what arrives.
    Interactive,
}

impl AckPolicy {
    const DUE: Instant = Instant::ZERO;

    pub(crate) const fn new() -> Self {
        Self {
            at: Instant::FAR_FUTURE,
            last_data: Instant::ZERO,
            acked: SeqNum::new(0),
            rcv_mss: 0,
            quick_segs: 0,
            habit: Habit::Bulk,
        }
    }

    /// The peer's first byte will be `rcv_nxt`.
    pub(crate) fn start(&mut self, rcv_nxt: SeqNum, mss: Mss, window: Window) {
        self.acked = rcv_nxt;
        // A full segment is whatever the largest has been; 536 until we know.
        self.rcv_mss = mss.get().min(536);
        self.quick_segs = (window.0 / (2 * mss.bytes())).clamp(2, QUICK_SEGS) as u8;
    }

    /// Text arrived in segments of `len` bytes; true if they are larger than all before.
    #[inline]
    pub(crate) fn on_segment(&mut self, len: u32, adv_mss: Mss) -> bool {
        let larger = len > u32::from(self.rcv_mss);
        if larger {
            self.rcv_mss = len.min(adv_mss.bytes()) as u16;
        }
        larger
    }

    /// Text arrived in order, without a hole before or behind it, `pushed` or not. `lagging`: the
    /// sender has used up the window, and the reader has so much to read that there is little to
    /// tell; what he reads will change that.
    pub(crate) fn on_text(
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
        let owed = rcv_nxt.since(self.acked);
        let interactive = self.habit == Habit::Interactive;
        if self.quick_segs > 0 && !interactive {
            self.quick_segs = self.quick_segs.saturating_sub(segs.min(255) as u8);
            self.now();
        } else if owed <= u32::from(self.rcv_mss) {
            self.delay(now + DELAY);
            if !interactive {
                let full = pushed && owed == u32::from(self.rcv_mss);
                self.habit = if full { Habit::Pushed } else { Habit::Bulk };
            }
        } else if interactive {
            self.delay(now + ANSWER_GRACE);
        } else if lagging {
            self.quick_segs = WITHHELD;
            self.delay(now + DELAY);
        } else {
            self.now();
        }
    }

    /// The reader took something: true if an acknowledgement is due now because of it.
    #[inline]
    pub(crate) fn on_read(&mut self) -> bool {
        if self.quick_segs != WITHHELD {
            return false;
        }
        self.quick_segs = 0;
        let owed = self.is_owed();
        if owed {
            self.now();
        }
        owed
    }

    /// The peer's text ends, up to `rcv_nxt`, FIN included: our own end will often follow at once,
    /// and can carry the acknowledgement. Not of a peer that sent nothing: as on Linux, nobody
    /// waits then.
    pub(crate) fn on_end(&mut self, now: Instant, rcv_nxt: SeqNum) {
        let owed = rcv_nxt.since(self.acked);
        if self.last_data == Instant::ZERO || owed > u32::from(self.rcv_mss) {
            self.now();
        } else {
            self.habit = Habit::Interactive;
            self.delay(now + DELAY);
        }
    }

    /// The reader has taken all there is: true if an acknowledgement is due now because of it.
    #[inline]
    pub(crate) fn on_all_read(&mut self) -> bool {
        let due = self.habit == Habit::Pushed && self.is_owed();
        if due {
            self.now();
        }
        due
    }

    /// The user is about to write, and what it writes acknowledges too.
    pub(crate) fn with_text(&mut self, now: Instant) {
        // Linux: this counts as text of the peer's, which the user's text answers.
        self.last_data = now;
        self.delay(now + DELAY);
    }

    fn delay(&mut self, until: Instant) {
        self.at = self.at.min(until);
    }

    /// Acknowledge with the next segment, and make one if there is none.
    #[inline]
    pub(crate) fn now(&mut self) {
        self.at = Self::DUE;
    }

    /// The same, and for the next segments too: something is amiss on the path.
    pub(crate) fn quick(&mut self) {
        self.now();
        self.habit = Habit::Bulk;
        self.quick_segs %= WITHHELD;
        self.quick_segs = self.quick_segs.max(2);
    }

    /// `TCP_QUICKACK`.
    pub(crate) fn is_quick(&self) -> bool {
        self.habit != Habit::Interactive
    }

    /// `TCP_QUICKACK`.
    pub(crate) fn set_quick(&mut self, on: bool) {
        self.habit = if on { Habit::Bulk } else { Habit::Interactive };
        self.quick_segs = if on { QUICK_SEGS as u8 } else { 0 };
        if on && self.is_owed() {
            self.now();
        }
    }

    /// An acknowledgement is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.at == Self::DUE
    }

    /// An acknowledgement is owed, sooner or later.
    #[inline]
    pub(crate) fn is_owed(&self) -> bool {
        self.at != Instant::FAR_FUTURE
    }

    /// When [`on_timer`](Self::on_timer) is to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        if self.is_due() {
            Instant::FAR_FUTURE
        } else {
            self.at
        }
    }

    /// The delay is over: true if an acknowledgement is due now because of it.
    pub(crate) fn on_timer(&mut self, now: Instant) -> bool {
        if self.is_due() || now < self.at {
            return false;
        }
        self.now();
        // No answer came in time, so none is to be expected next time.
        self.habit = Habit::Bulk;
        true
    }

    /// The connection is over: what is due stays due, what is delayed is not sent.
    pub(crate) fn cancel_delay(&mut self) {
        if !self.is_due() {
            self.at = Instant::FAR_FUTURE;
        }
    }

    /// A segment with `rcv_nxt` as its acknowledgement leaves.
    #[inline]
    pub(crate) fn on_sent(&mut self, rcv_nxt: SeqNum) {
        self.acked = rcv_nxt;
        self.at = Instant::FAR_FUTURE;
    }

    /// Text of ours leaves for the first time.
    #[inline]
    pub(crate) fn on_text_sent(&mut self, now: Instant) {
        if now.since(self.last_data) < DELAY {
            self.habit = Habit::Interactive;
        }
    }

    /// `Last.ACK.sent` (RFC 7323 4.3).
    #[inline]
    pub(crate) fn last_acked(&self) -> SeqNum {
        self.acked
    }

    /// No text of ours will follow any more.
    pub(crate) fn expect_no_answers(&mut self) {
        self.habit = Habit::Bulk;
    }

    /// When text last arrived.
    pub(crate) fn last_data(&self) -> Instant {
        self.last_data
    }

    /// Text of a full segment as the peer sends them.
    #[inline]
    pub(crate) fn rcv_mss(&self) -> u32 {
        self.rcv_mss.into()
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::{Instant, Mss, Nanos, SeqNum, Window};

    use super::AckPolicy;

    const MSS: u32 = 1000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Behind its first segments, which are acknowledged one by one.
    fn policy() -> AckPolicy {
        let mut policy = AckPolicy::new();
        policy.start(SeqNum::new(0), Mss::clamped(1000), Window(65_535));
        assert!(policy.on_segment(MSS, Mss::clamped(1000)));
        policy.on_text(at(1), SeqNum::new(16_000), 16, (false, false));
        assert!(policy.is_due());
        policy.on_sent(SeqNum::new(16_000));
        policy
    }

    #[test]
    fn a_full_segment_with_psh_is_acknowledged_as_soon_as_it_is_read() {
        // Length, PSH, and whether the reader's taking it makes the acknowledgement due.
        for (len, pushed, at_once) in [
            (MSS, true, true),
            (MSS, false, false),
            (MSS - 1, true, false),
        ] {
            let mut policy = policy();
            let end = SeqNum::new(16_000 + len);
            policy.on_text(at(2), end, 1, (pushed, false));
            assert_eq!(policy.deadline(), at(42));
            assert_eq!(policy.on_all_read(), at_once, "{len} {pushed}");
            assert_eq!(policy.is_due(), at_once);
            policy.on_sent(end);
            assert!(!policy.on_all_read(), "nothing is owed");
        }
    }

    #[test]
    fn where_answers_follow_it_waits_for_them() {
        let mut policy = policy();
        policy.on_text_sent(at(1) + Nanos::from_micros(1));
        policy.on_text(at(2), SeqNum::new(17_000), 1, (true, false));
        assert!(!policy.on_all_read() && policy.deadline() == at(42));
    }

    #[test]
    fn a_window_of_segments_is_acknowledged_one_by_one_at_first() {
        for (window, segs) in [(1000, 2), (20_000, 10), (65_535, 16)] {
            let mut policy = AckPolicy::new();
            policy.start(SeqNum::new(0), Mss::clamped(1000), Window(window));
            assert_eq!(policy.quick_segs, segs, "{window}");
            // What asks for quick acknowledgements does not end them sooner.
            policy.quick();
            assert_eq!(policy.quick_segs, segs, "{window}");
        }
        let mut policy = policy();
        policy.quick();
        assert_eq!(policy.quick_segs, 2);
    }

    #[test]
    fn a_full_segment_is_the_largest_that_came() {
        let mut policy = policy();
        let mss = Mss::clamped(1000);
        assert!(!policy.on_segment(MSS, mss) && !policy.on_segment(MSS - 1, mss));
        assert_eq!(policy.rcv_mss(), MSS);
    }

    /// RFC 9293 3.8.6.2.2: an acknowledgement that opens no window says nothing new. It waits for the
    /// reader, though not for longer than any other.
    #[test]
    fn a_lagging_reader_withholds_acknowledgements() {
        let mut policy = AckPolicy::new();
        policy.start(SeqNum::new(0), Mss::clamped(1000), Window(65_535));
        policy.on_segment(MSS, Mss::clamped(1000));
        policy.on_text(at(1), SeqNum::new(2000), 2, (false, true));
        assert_eq!((policy.is_due(), policy.deadline()), (false, at(41)));
        assert!(policy.on_read() && policy.is_due());
        // Once only, and not without anything owed.
        assert!(!policy.on_read());
        policy.on_sent(SeqNum::new(2000));
        policy.on_text(at(2), SeqNum::new(4000), 2, (false, true));
        policy.on_sent(SeqNum::new(4000));
        assert!(!policy.on_read() && !policy.is_owed());
        // A reader who has caught up: every second segment is acknowledged again.
        policy.on_text(at(3), SeqNum::new(6000), 2, (false, true));
        policy.on_text(at(4), SeqNum::new(8000), 2, (false, false));
        assert!(policy.is_due() && !policy.on_read());
    }

    /// RFC 9293 3.8.6.3: at least every second full segment, the one with the FIN included.
    #[test]
    fn a_fin_waits_for_an_answer_behind_one_segment_at_most() {
        for (len, deadline) in [(MSS, Some(at(42))), (MSS + 1, None)] {
            let mut policy = policy();
            policy.on_end(at(2), SeqNum::new(16_000 + len));
            let waits = (!policy.is_due()).then(|| policy.deadline());
            assert_eq!(waits, deadline, "{len}");
        }
    }

    #[test]
    fn what_waits_for_data_of_ours_waits_no_longer_than_40_ms() {
        let mut policy = policy();
        policy.with_text(at(5));
        assert_eq!(policy.deadline(), at(45));
        policy.cancel_delay();
        assert!(!policy.is_owed());
        policy.now();
        policy.cancel_delay();
        assert!(policy.is_due());
    }

    /// Data of ours within 40 ms is an answer.
    #[test]
    fn a_late_answer_makes_no_habit() {
        for (ms, quick) in [(40, false), (41, true)] {
            let mut policy = policy();
            assert!(policy.is_quick());
            policy.on_text_sent(at(ms));
            assert_eq!(policy.is_quick(), quick, "{ms}");
        }
    }
}
