//! How large the buffer is to be: as the reader takes text, and the path brings it.

use fullsend_units::{Instant, Mss, SeqNum};

use super::{FIRST_SEGS, RecvWindow, Tuning, micros};

impl RecvWindow {
    /// The user took `bytes` out and left `held`: grows the buffer to twice what is read per round
    /// trip, up to `most` (`tcp_rmem[2]`), unless locked or memory is scarce (dynamic right-sizing).
    #[inline(always)]
    pub(crate) fn on_read(
        &mut self,
        now: Instant,
        (bytes, held): (usize, usize),
        mss: Mss,
        most: u32,
        may_grow: bool,
    ) {
        match self.tuning {
            Tuning::Exhausted if held == 0 => self.on_exhausted(most, may_grow),
            Tuning::Auto | Tuning::Exhausted => {}
            Tuning::Waiting | Tuning::Locked | Tuning::Clamped => return,
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.read_this_rtt = self.read_this_rtt.saturating_add(bytes);
        let passed = micros(now).wrapping_sub(self.round_us);
        if passed >= self.rtt_us && passed > 0 {
            self.end_round(now, mss, most, may_grow);
        }
    }

    /// A round trip of reading is over.
    #[inline(never)]
    fn end_round(&mut self, now: Instant, mss: Mss, most: u32, may_grow: bool) {
        let first = (FIRST_SEGS * mss.bytes()).min(self.limit() / 2);
        let before = self.read_per_rtt.max(first);
        if self.read_this_rtt > before {
            if may_grow {
                self.grow(mss, before, most);
            }
            self.read_per_rtt = self.read_this_rtt;
        }
        self.read_this_rtt = 0;
        self.round_us = micros(now);
    }

    /// The sender waits for the window, and the user for the sender: only a larger window lets
    /// either go on. Rounds do not tell that where the round trip is mostly the time that both
    /// ends take for a window, and grows with it (one thread, one machine).
    #[cold]
    fn on_exhausted(&mut self, most: u32, may_grow: bool) {
        self.tuning = Tuning::Auto;
        if may_grow {
            self.rcvbuf = self.rcvbuf.max(self.rcvbuf.saturating_mul(2).min(most));
            self.ssthresh = self.limit();
        }
    }

    /// Room for twice what was read in the round trip, so that a sender in slow start is not
    /// held back; more by as much as the rate has just grown, as the next round will.
    fn grow(&mut self, mss: Mss, before: u32, most: u32) {
        let read = u64::from(self.read_this_rtt);
        let before = u64::from(before);
        let wanted = 2 * read + 16 * u64::from(mss.bytes());
        let growth = wanted.saturating_mul(read - before).checked_div(before);
        let growth = growth.unwrap_or(0);
        let wanted = wanted.saturating_add(growth);
        let rcvbuf = self.density.memory_for(wanted).min(most);
        if rcvbuf > self.rcvbuf {
            self.rcvbuf = rcvbuf;
            let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
            self.ssthresh = self.ssthresh.max(wanted.min(self.limit()));
        }
    }

    /// Text waits behind a hole, up to `end`. The reader gets nothing until the hole is closed, and
    /// the rounds of [`on_read`](Self::on_read) tell nothing meanwhile: there is room for twice what
    /// waits, beside what is read in two round trips, or the sender would stop for each loss.
    #[cold]
    pub(crate) fn on_out_of_order(&mut self, (rcv_nxt, end): (SeqNum, SeqNum), most: u32) {
        if !matches!(self.tuning, Tuning::Auto | Tuning::Exhausted) {
            return;
        }
        let waiting = end.distance(rcv_nxt).max(0) as u32;
        let wanted = 2 * (u64::from(self.read_per_rtt) + u64::from(waiting));
        let rcvbuf = self.density.memory_for(wanted);
        let rcvbuf = rcvbuf.saturating_add(self.held).min(most);
        if rcvbuf > self.rcvbuf {
            self.rcvbuf = rcvbuf;
            self.ssthresh = self.limit();
        }
    }
}
