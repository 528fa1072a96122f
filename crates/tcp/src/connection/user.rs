//! The user's calls: write, read, and who is told when to come back.

use fullsend_buf::{Chain, Slice};

use super::{Connection, State};
use crate::congestion::CcInfo;
use crate::{Cx, TcpError, TcpInfo};

impl Connection {
    /// Appends a copy of `data` to the stream; how much was taken. `more` is `MSG_MORE`.
    #[inline]
    pub fn write(&mut self, cx: &mut Cx<'_>, data: &[u8], more: bool) -> Result<usize, TcpError> {
        self.check_writable()?;
        self.check_app_limited();
        self.refresh_size_goal(cx);
        let goal = self.snd.size_goal as usize;
        let mut done = 0;
        while done < data.len() {
            let mut room = self.snd.queue.tail_room(goal);
            if room == 0 {
                // Memory is looked at once for each transmit unit (spec 3).
                if !self.may_add_memory(cx) {
                    break;
                }
                room = goal;
            }
            let n = room.min(data.len() - done);
            self.snd.queue.append(cx.pool, &data[done..done + n], goal);
            done += n;
        }
        if done == 0 && !data.is_empty() {
            self.user.wants_write = true;
            return Err(TcpError::WouldBlock);
        }
        self.after_write(cx, more && done == data.len());
        Ok(done)
    }

    /// Appends `data` without copying; all of it or `WouldBlock` (the slice comes back).
    pub fn write_slice(
        &mut self,
        cx: &mut Cx<'_>,
        data: Slice,
        more: bool,
    ) -> Result<(), (TcpError, Slice)> {
        if let Err(error) = self.check_writable() {
            return Err((error, data));
        }
        if data.is_empty() {
            return Ok(());
        }
        if !self.may_add_memory(cx) {
            self.user.wants_write = true;
            return Err((TcpError::WouldBlock, data));
        }
        self.check_app_limited();
        self.refresh_size_goal(cx);
        let goal = self.snd.size_goal as usize;
        self.snd.queue.append_slice(data, goal);
        self.after_write(cx, more);
        Ok(())
    }

    #[inline]
    fn check_writable(&mut self) -> Result<(), TcpError> {
        match self.state {
            State::Established | State::CloseWait => Ok(()),
            State::SynSent | State::SynReceived if !self.user.write_shut => {
                self.user.wants_write = true;
                Err(TcpError::WouldBlock)
            }
            _ => Err(self.user.error.take().unwrap_or(TcpError::BrokenPipe)),
        }
    }

    /// Copies received bytes out; 0 is the end of the stream.
    pub fn read(&mut self, cx: &mut Cx<'_>, out: &mut [u8]) -> Result<usize, TcpError> {
        self.check_readable()?;
        let n = self.rcv.queue.read(out);
        self.after_read(cx, n);
        Ok(n)
    }

    /// Takes received bytes without copying, at most `max`; empty is the end of the stream.
    pub fn read_chain(&mut self, cx: &mut Cx<'_>, max: usize) -> Result<Chain, TcpError> {
        self.check_readable()?;
        let chain = self.rcv.queue.read_chain(max);
        self.after_read(cx, chain.len());
        Ok(chain)
    }

    /// Takes the first piece of received memory without copying, at most `max` bytes of it; empty
    /// is the end of the stream.
    pub fn read_slice(&mut self, cx: &mut Cx<'_>, max: usize) -> Result<Slice, TcpError> {
        self.check_readable()?;
        let slice = self.rcv.queue.read_slice(max);
        self.after_read(cx, slice.len());
        Ok(slice)
    }

    /// Copies received bytes, leaving them.
    pub fn peek(&mut self, out: &mut [u8]) -> Result<usize, TcpError> {
        self.check_readable()?;
        Ok(self.rcv.queue.peek(out))
    }

    /// There is text, or the end of the stream; else an error, or not yet.
    fn check_readable(&mut self) -> Result<(), TcpError> {
        if self.rcv.queue.readable() > 0 || self.user.read_shut || self.rcv.queue.fin_received() {
            return Ok(());
        }
        if let Some(error) = self.user.error.take() {
            return Err(error);
        }
        if self.state == State::Closed {
            return Ok(());
        }
        self.user.wants_read = true;
        Err(TcpError::WouldBlock)
    }

    /// Text was taken: tunes the buffer, and tells the peer of much new room.
    #[inline]
    fn after_read(&mut self, cx: &Cx<'_>, n: usize) {
        if n == 0 || !self.state.is_synchronized() {
            return;
        }
        let rcv = &mut self.rcv;
        let mss = self.adv_mss;
        if cx.sysctl.tcp_moderate_rcvbuf {
            rcv.window.on_read(cx.now, n, mss, cx.sysctl.tcp_rmem);
        }
        if rcv.queue.fin_received() {
            return;
        }
        let held = rcv.queue.readable();
        if rcv.window.update_due(rcv.queue.rcv_nxt(), held, mss) {
            rcv.ack.now();
            self.out.any = true;
        }
    }

    /// Bytes that can be read now, and whether the end or an error has been reached. Registers
    /// interest when not readable (a later `take_wakes` tells).
    pub fn poll_readable(&mut self) -> bool {
        let ready = self.is_readable();
        self.user.wants_read = !ready;
        ready
    }

    fn is_readable(&self) -> bool {
        self.rcv.queue.readable() >= self.settings.rcvlowat() as usize
            || self.rcv.queue.fin_received()
            || self.user.read_shut
            || self.user.error.is_some()
            || self.state == State::Closed
    }

    /// Writable in the sense of spec 3 (wake=1). Registers interest (NOSPACE) when not.
    pub fn poll_writable(&mut self, cx: &mut Cx<'_>) -> bool {
        let ready = self.is_writable(cx);
        self.user.wants_write = !ready;
        ready
    }

    fn is_writable(&self, cx: &Cx<'_>) -> bool {
        match self.state {
            State::SynSent | State::SynReceived => false,
            State::Established | State::CloseWait => self.has_room(cx),
            // The write will say why not.
            _ => true,
        }
    }

    /// Spec 3, wake=0: a new transmit unit may be begun.
    #[inline]
    fn may_add_memory(&self, cx: &Cx<'_>) -> bool {
        self.snd.wmem_queued() < self.snd.sndbuf as usize
            && (self.snd.queue.len() as u32) < self.settings.notsent_lowat(cx.sysctl)
    }

    /// Spec 3, wake=1: so much room that a wakeup is worth it.
    fn has_room(&self, cx: &Cx<'_>) -> bool {
        let (queued, sndbuf) = (self.snd.wmem_queued(), self.snd.sndbuf as usize);
        let notsent = self.snd.queue.len() as u64;
        queued < sndbuf
            && sndbuf - queued >= queued / 2
            && 2 * notsent < u64::from(self.settings.notsent_lowat(cx.sysctl))
    }

    /// Spec 3: the send buffer follows cwnd, up to `tcp_wmem[2]`, unless the user fixed it.
    pub(crate) fn grow_sndbuf(&mut self, cx: &Cx<'_>) {
        let in_flight = self.snd.rtx.in_flight();
        if self.snd.sndbuf_locked || in_flight > self.cwnd.cwnd {
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

    pub(crate) fn wake_writer_if_room(&mut self, cx: &Cx<'_>) {
        if self.user.wants_write && self.is_writable(cx) {
            self.wake_writer();
        }
    }

    pub(crate) fn wake_writer(&mut self) {
        if core::mem::take(&mut self.user.wants_write) {
            self.user.wakes.write = true;
        }
    }

    pub(crate) fn wake_reader(&mut self) {
        if core::mem::take(&mut self.user.wants_read) {
            self.user.wakes.read = true;
        }
    }

    #[inline]
    pub(crate) fn wake_reader_if_enough(&mut self) {
        if self.user.wants_read && self.is_readable() {
            self.wake_reader();
        }
    }

    /// All that was written has been acknowledged (and the FIN, if sent).
    pub fn is_flushed(&self) -> bool {
        !self.snd.has_unsent() && self.snd.rtx.is_empty() && !self.user.lost_data
    }

    /// The pending error (`SO_ERROR`), cleared by reading.
    pub fn take_error(&mut self) -> Option<TcpError> {
        self.user.error.take().or(self.user.soft_error.take())
    }

    /// What the congestion control tells of itself beside the window (`TCP_CC_INFO`).
    pub fn cc_info(&self) -> CcInfo {
        self.cc.info()
    }

    /// The name of the congestion control (`TCP_CONGESTION`).
    pub fn congestion(&self) -> &'static str {
        self.cc.name()
    }

    /// `TCP_INFO`.
    pub fn info(&self, cx: &Cx<'_>) -> TcpInfo {
        crate::info::collect(self, cx)
    }
}
