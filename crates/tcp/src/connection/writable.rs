//! When more may be written, and when a waiting writer is told so (`TCP_NOTSENT_LOWAT`).
//!
//! A write is accepted up to the limits; a writer that met one is woken only at half of them, so
//! that it finds work to do and not room for one segment.

use fullsend_units::Instant;

use super::{Connection, State};
use crate::Cx;

impl Connection {
    /// Writable as `poll(2)` has it: a write is worth a wakeup. Registers interest (NOSPACE) when
    /// not.
    pub fn poll_writable(&mut self, cx: &mut Cx<'_>) -> bool {
        let ready = self.is_writable(cx);
        self.user.wants_write = !ready;
        ready
    }

    pub(super) fn is_writable(&self, cx: &Cx<'_>) -> bool {
        match self.state {
            State::SynSent => self.is_syn_deferred(),
            State::SynReceived => self.is_fastopen_child() && self.has_room(cx),
            State::Established | State::CloseWait => self.has_room(cx),
            // The write will say why not.
            _ => true,
        }
    }

    /// `wake = 0`: a new transmit unit may be begun.
    #[inline]
    pub(crate) fn may_add_memory(&self, cx: &Cx<'_>) -> bool {
        let queued = self.snd.wmem_queued();
        queued < self.snd.sndbuf as usize
            && (self.snd.queue.len() as u32) < self.settings.notsent_lowat(cx.sysctl)
            && Self::has_memory(cx, queued)
    }

    /// `wake = 1`: a third of the buffer is free, and less than half of what may be unsent is.
    fn has_room(&self, cx: &Cx<'_>) -> bool {
        let (queued, sndbuf) = (self.snd.wmem_queued(), self.snd.sndbuf as usize);
        let notsent = self.snd.queue.len() as u64;
        let weight = if cx.legacy.pollout_on_every_ack { 1 } else { 2 };
        queued < sndbuf
            && sndbuf - queued >= queued / 2
            && weight * notsent < u64::from(self.settings.notsent_lowat(cx.sysctl))
            && Self::has_memory(cx, queued)
    }

    /// When the host's memory is exhausted a connection still gets its least, so that each makes
    /// progress, and a writer that waits is woken by its own acknowledgements at the latest.
    #[inline]
    fn has_memory(cx: &Cx<'_>, queued: usize) -> bool {
        !cx.mem.is_exhausted(cx.sysctl) || queued < cx.sysctl.tcp_wmem[0] as usize
    }

    /// Bytes of the transmit unit that a write may begin now; 0 is none.
    #[inline]
    pub(super) fn new_unit(&self, cx: &Cx<'_>) -> usize {
        let goal = self.snd.size_goal as usize;
        if !self.may_add_memory(cx) {
            0
        } else if cx.mem.is_exhausted(cx.sysctl) {
            goal.min(cx.sysctl.tcp_wmem[0] as usize)
        } else {
            goal
        }
    }

    /// Not all of a write was taken. Without anything queued there will be no event to wait for.
    pub(super) fn out_of_room(&mut self, now: Instant) {
        self.user.wants_write = true;
        if self.snd.queue.is_empty()
            && let Some(flow) = &mut self.snd.flow
        {
            flow.begin_sndbuf(now);
        }
        if self.snd.queue.is_empty() && self.snd.rtx.is_empty() {
            self.wake_writer();
        }
    }

    /// The send buffer follows cwnd, up to `tcp_wmem[2]`, unless the user fixed it or memory is
    /// not plenty.
    pub(crate) fn grow_sndbuf(&mut self, cx: &Cx<'_>) {
        let full = self.snd.rtx.in_flight() >= self.cwnd.cwnd;
        let scarce = cx.mem.is_under_pressure() || !cx.mem.is_plenty(cx.sysctl);
        if self.snd.sndbuf_locked || full || scarce {
            return;
        }
        let segs = self
            .cwnd
            .cwnd
            .max(10)
            .max(self.recovery.reordering_segs() + 1);
        // One segment with headers in memory, as an allocator would round it.
        let per_mss = (self.snd.mss.bytes() + 640).next_power_of_two() + 256;
        let expand = self.cc.sndbuf_expand();
        let target = expand.saturating_mul(segs).saturating_mul(per_mss);
        self.snd.sndbuf = self.snd.sndbuf.max(target.min(cx.sysctl.tcp_wmem[2]));
    }

    /// A waiting writer is told, once, if what has just happened made enough room.
    #[inline]
    pub(crate) fn wake_writer_if_room(&mut self, cx: &Cx<'_>) {
        if self.user.wants_write && self.is_writable(cx) {
            if let Some(flow) = &mut self.snd.flow {
                flow.end_sndbuf(cx.now);
            }
            self.wake_writer();
        }
    }

    /// A limit may have been raised (a sysctl).
    pub fn limits_changed(&mut self, cx: &mut Cx<'_>) {
        self.wake_writer_if_room(cx);
    }
}
