//! Receive-buffer autotuning (dynamic right-sizing).

use fullsend_wire::{Instant, Mss, SeqNum, cold_path};

use super::{FIRST_SEGS, RecvWindow, Tuning, micros};

impl RecvWindow {
    /// Records that the application read `bytes` and left `held`. Grows the buffer to twice the data
    /// read in a round trip, up to `most` (`tcp_rmem[2]`), unless it is locked or memory is scarce.
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
            Tuning::AwaitingAccept | Tuning::Locked | Tuning::Clamped => return,
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.read_this_rtt = self.read_this_rtt.saturating_add(bytes);
        let passed = micros(now).wrapping_sub(self.round_us);
        if passed >= self.rtt_us && passed > 0 {
            self.end_round(now, mss, most, may_grow);
        }
    }

    /// Ends a round trip of reading.
    fn end_round(&mut self, now: Instant, mss: Mss, most: u32, may_grow: bool) {
        let first = (FIRST_SEGS * mss.bytes()).min(self.limit() / 2);
        let before = self.read_per_rtt.max(first);
        if self.read_this_rtt > before {
            cold_path();
            if may_grow {
                self.grow(mss, before, most);
            }
            self.read_per_rtt = self.read_this_rtt;
        }
        self.read_this_rtt = 0;
        self.round_us = micros(now);
    }

    /// Doubles the buffer after the sender used up the window and the application read all data. The
    /// rounds of [`on_read`](Self::on_read) do not show this where the round trip is mostly the time
    /// that both ends take for a window, and grows with it (one thread, one machine).
    #[cold]
    fn on_exhausted(&mut self, most: u32, may_grow: bool) {
        self.tuning = Tuning::Auto;
        if may_grow {
            self.rcvbuf = self.rcvbuf.max(self.rcvbuf.saturating_mul(2).min(most));
            self.ssthresh = self.limit();
        }
    }

    /// Grows the buffer to twice the data read in the round trip, so that it does not limit slow start,
    /// plus the growth since the round trip before, which the next one will repeat.
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

    /// Returns whether the application determines the buffer or its window.
    pub(crate) fn is_fixed(&self) -> bool {
        matches!(self.tuning, Tuning::Locked | Tuning::Clamped)
    }

    /// Grows the buffer to hold `lowat` bytes that the application wants to read at once
    /// (`SO_RCVLOWAT`), up to `most`, unless it is fixed. The window grows as data arrives.
    pub(crate) fn grow_for_lowat(&mut self, lowat: u32, most: u32) {
        if !self.is_fixed() {
            let wanted = self.density.memory_for(lowat.into()).min(most);
            self.rcvbuf = self.rcvbuf.max(wanted);
        }
    }

    /// Grows the buffer for out-of-order data up to `end`. The application cannot read until the hole
    /// is closed, so [`on_read`](Self::on_read) does not grow it. The buffer holds twice the data that
    /// waits and the data read in two round trips, else the sender would stop at each loss.
    #[cold]
    pub(crate) fn on_out_of_order(&mut self, (rcv_nxt, end): (SeqNum, SeqNum), most: u32) {
        if !matches!(self.tuning, Tuning::Auto | Tuning::Exhausted) {
            return;
        }
        let waiting = end.distance(rcv_nxt).max(0) as u32;
        let wanted = 2 * (u64::from(self.read_per_rtt) + u64::from(waiting));
        let rcvbuf = self.density.memory_for(wanted);
        let rcvbuf = rcvbuf.saturating_add(self.rmem_alloc).min(most);
        if rcvbuf > self.rcvbuf {
            self.rcvbuf = rcvbuf;
            self.ssthresh = self.limit();
        }
    }
}
