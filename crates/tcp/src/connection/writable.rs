//! The limits of the send buffer, and the wake-up of waiting writers (`TCP_NOTSENT_LOWAT`).
//!
//! A write is accepted up to the limits; a writer that reached one is woken only at half of it, so
//! that it finds room for more than one segment.

use fullsend_wire::{Instant, cold_path};

use super::{Connection, State};
use crate::Cx;

impl Connection {
    /// Ends a record after the data written so far (`MSG_EOR`).
    #[cold]
    pub(crate) fn end_record(&mut self) {
        let (end, nxt) = (self.snd.write_seq(), self.snd.nxt());
        let records = self.uncommon_mut().records.get_or_insert_default();
        if records.end(nxt, end) {
            self.snd.end_super_segment();
        }
    }

    /// Returns the bytes from `snd_nxt` to the end of the first record; `u32::MAX` without records.
    #[inline]
    pub(crate) fn record_left(&self) -> u32 {
        let Some(uncommon) = &self.uncommon else {
            return u32::MAX;
        };
        cold_path();
        let records = uncommon.records.as_ref();
        records.map_or(u32::MAX, |records| records.left(self.snd.nxt()))
    }

    /// Returns the bytes that `SO_SNDBUF` bounds (`sk_wmem_queued`).
    #[inline]
    pub(crate) fn wmem_queued(&self) -> usize {
        let mut super_segments = self.recovery.rtx.len();
        if let Some(uncommon) = &self.uncommon {
            cold_path();
            let records = uncommon.records.as_ref();
            super_segments += records.map_or(0, |records| records.unsent());
        }
        self.snd.wmem_queued(super_segments)
    }

    /// Returns whether the connection is writable in the sense of `poll(2)`, with enough room to
    /// wake a writer. Registers interest (NOSPACE) if not.
    pub fn poll_writable(&mut self, cx: &mut Cx<'_>) -> bool {
        let ready = self.is_writable(cx);
        self.user.writer_waiting = !ready;
        ready
    }

    pub(super) fn is_writable(&self, cx: &Cx<'_>) -> bool {
        match self.state {
            State::SynSent => self.is_syn_deferred(),
            State::SynReceived => self.is_fastopen_child() && self.has_room(cx),
            State::Established | State::CloseWait => self.has_room(cx),
            // The write returns the error.
            _ => true,
        }
    }

    /// Returns whether a write may begin a new super-segment (`wake = 0`). `pushed_bytes` of the queued
    /// bytes will be sent when the call ends.
    #[inline]
    fn may_add_memory(&self, cx: &Cx<'_>, pushed_bytes: u32) -> bool {
        let queued = self.wmem_queued();
        let unsent = self.snd.unsent_bytes() as u32 - pushed_bytes;
        queued < self.snd.sndbuf() as usize
            && unsent < self.settings.notsent_lowat(cx.sysctl)
            && Self::has_memory(cx, queued)
    }

    /// Returns whether a writer may be woken (`wake = 1`): a third of the buffer is free, and less
    /// than half of `TCP_NOTSENT_LOWAT` is unsent.
    fn has_room(&self, cx: &Cx<'_>) -> bool {
        let (queued, sndbuf) = (self.wmem_queued(), self.snd.sndbuf() as usize);
        let notsent = self.snd.unsent_bytes() as u64;
        let weight = if cx.legacy.in_force().pollout_on_every_ack {
            1
        } else {
            2
        };
        queued < sndbuf
            && sndbuf - queued >= queued / 2
            && weight * notsent < u64::from(self.settings.notsent_lowat(cx.sysctl))
            && Self::has_memory(cx, queued)
    }

    /// Returns whether the host's memory admits a write. When it is scarce, a connection still
    /// gets its minimum, so that each makes progress, and a waiting writer is woken by its own
    /// acknowledgements at the latest.
    #[inline]
    fn has_memory(cx: &Cx<'_>, queued: usize) -> bool {
        !cx.mem.is_scarce_for_writes(cx.sysctl) || queued < Self::min_write_bytes(cx)
    }

    /// Returns the bytes that a connection may queue while the host's memory is scarce.
    #[cold]
    fn min_write_bytes(cx: &Cx<'_>) -> usize {
        cx.mem.minimum(cx.sysctl, cx.sysctl.tcp_wmem[0])
    }

    /// Returns the bytes that a write may add while the host's memory is exhausted: the rest of the
    /// minimum, or of the memory that the connection already holds.
    #[cold]
    pub(super) fn min_write_room(&self, cx: &Cx<'_>) -> usize {
        let left = Self::min_write_bytes(cx).saturating_sub(self.wmem_queued());
        left.max(self.snd.allocated_room())
    }

    /// Accounts for a full and only super-segment that is sent before the write continues (Linux:
    /// `tcp_push_one`), so that the write fills the remainder before it meets the limits. Here
    /// segments are sent when the call is over; returns how many bytes will be, in addition to
    /// `pushed_bytes`.
    #[cold]
    pub(super) fn push_one(&mut self, cx: &Cx<'_>, pushed_bytes: u32) -> u32 {
        let unsent = self.snd.unsent_bytes() as u32 - pushed_bytes;
        let in_host_queue = self.snd.wmem_inflight().saturating_add(pushed_bytes);
        if in_host_queue >= cx.sysctl.tcp_limit_output_bytes
            || self.snd.is_held_by_small_queue()
            || self.pacing_holds(cx)
        {
            return 0;
        }
        let snd = &self.snd;
        let mss = snd.mss().bytes();
        let quota = (self.congestion.cwnd() / 2)
            .max(1)
            .min(snd.max_segs(cx, self.path()));
        let admitted = snd.usable_window().min(self.cwnd_room_bytes());
        let part = admitted
            .saturating_sub(pushed_bytes)
            .min(quota.saturating_mul(mss))
            .min(unsent);
        let part = part - part % mss;
        self.snd.shrink_tail(part);
        part
    }

    /// Returns the size of the super-segment that a write may begin now, in bytes; 0: none.
    #[inline]
    pub(super) fn new_super_segment_size(&self, cx: &Cx<'_>, pushed_bytes: u32) -> usize {
        let goal = self.snd.size_goal();
        if !self.may_add_memory(cx, pushed_bytes) {
            0
        } else if cx.mem.is_scarce_for_writes(cx.sysctl) {
            goal.min(Self::min_write_bytes(cx))
        } else {
            goal
        }
    }

    /// Registers a writer whose data was not fully accepted. With nothing queued or in flight it is
    /// woken immediately, as no later event would do so.
    pub(super) fn on_write_blocked(&mut self, now: Instant) {
        self.user.writer_waiting = true;
        if self.snd.unsent_bytes() == 0 {
            self.snd.begin_sndbuf_limited(now);
            if self.recovery.rtx.is_empty() {
                self.wake_writer();
            }
        }
    }

    /// Grows the send buffer with cwnd, up to `tcp_wmem[2]`, unless the application set its size or
    /// memory is not plentiful.
    pub(crate) fn grow_sndbuf(&mut self, cx: &Cx<'_>) {
        let full = self.recovery.rtx.in_flight() >= self.congestion.cwnd();
        let scarce = cx.mem.is_under_pressure() || !cx.mem.is_below_low_limit(cx.sysctl);
        if self.snd.is_sndbuf_locked() || full || scarce {
            return;
        }
        let segs = self
            .congestion
            .cwnd()
            .max(10)
            .max(self.recovery.reordering_segs() + 1);
        // A segment with headers in memory, as an allocator would round its size.
        let per_mss = (self.snd.mss().bytes() + 640).next_power_of_two() + 256;
        let expand = self.congestion.algorithm().sndbuf_expand();
        let target = expand.saturating_mul(segs).saturating_mul(per_mss);
        self.snd.grow_sndbuf(target.min(cx.sysctl.tcp_wmem[2]));
    }

    /// Wakes a waiting writer, once, if there is enough room now.
    #[inline]
    pub(crate) fn wake_writer_if_room(&mut self, cx: &Cx<'_>) {
        if self.user.writer_waiting && self.is_writable(cx) {
            self.snd.end_sndbuf_limited(cx.now);
            self.wake_writer();
        }
    }

    /// Wakes a waiting writer after a limit was raised (a sysctl).
    pub fn on_limits_changed(&mut self, cx: &mut Cx<'_>) {
        self.wake_writer_if_room(cx);
    }
}
