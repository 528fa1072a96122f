//! The application's calls: write, read, and the registration of waiting tasks.

use fullsend_offload::{Chain, Slice};
use fullsend_wire::cold_path;

use super::{Connection, State};
use crate::recv::HostWindowLimits;
use crate::send::WriteCx;
use crate::{AppendOutcome, Cx, Sysctl, TcpError, WriteFlags};

impl Connection {
    /// Appends a copy of `data` to the stream and returns the number of bytes accepted. `more` is
    /// `MSG_MORE`.
    ///
    /// # Errors
    ///
    /// [`TcpError::WouldBlock`] if there is no room or the handshake is unfinished,
    /// [`TcpError::OutOfMemory`] if the allocator refuses memory and nothing in flight will free
    /// any, [`TcpError::BrokenPipe`] after `shutdown_write` or at the end of the connection, or
    /// else the error that ended it.
    pub fn write(&mut self, cx: &mut Cx<'_>, data: &[u8], more: bool) -> Result<usize, TcpError> {
        if self.is_syn_deferred() {
            cold_path();
            return self.write_syn_data(cx, data);
        }
        self.check_writable()?;
        self.check_app_limited();
        self.refresh_sizes(cx);
        let mut goal = self.snd.size_goal();
        let (mut done, mut pushed_bytes) = (0, 0);
        while done < data.len() {
            let room = self.super_segment_room(cx, &mut goal, &mut pushed_bytes);
            if room == 0 {
                break;
            }
            let n = room.min(data.len() - done);
            let before = self.snd.truesize();
            let frugal = cx.mem.is_exhausted(cx.sysctl);
            let copied = self
                .snd
                .append(cx.pool, &data[done..done + n], goal, frugal);
            if self.snd.truesize() != before {
                self.charge(cx);
            }
            done += copied;
            if copied < n {
                cold_path();
                if frugal {
                    break;
                }
                // Continue the write within the connection's minimum.
                cx.mem.set_refused(cx.now, cx.sysctl, cx.mib, true);
            }
        }
        if done < data.len() {
            if done == 0 && cx.mem.is_refused() && self.is_writable(cx) {
                return Err(TcpError::OutOfMemory);
            }
            self.on_write_blocked(cx.now);
            if done == 0 {
                return Err(TcpError::WouldBlock);
            }
        }
        // A write of no bytes does not end the wait of one with `MSG_MORE`.
        if done > 0 {
            self.after_write(cx, more && done == data.len());
        }
        Ok(done)
    }

    /// Appends `data` to the last super-segment if that waits and `data` does not end the wait: the
    /// fast path of small writes. [`write`](Self::write) covers all cases.
    #[inline]
    pub fn try_append(&mut self, sysctl: &Sysctl, data: &[u8]) -> AppendOutcome {
        let is_open = matches!(self.state, State::Established | State::CloseWait);
        // Delivery-rate samples record when the application limits the flow.
        if !is_open || self.recovery.rtx.delivery().is_some() {
            return AppendOutcome::NotAppended;
        }
        let in_flight = !self.recovery.rtx.is_empty();
        self.snd.try_append(sysctl, data, in_flight)
    }

    /// Passes data that was appended to the sender, which decides whether a segment may be sent.
    #[inline]
    pub(crate) fn after_write(&mut self, cx: &mut Cx<'_>, more: bool) {
        let write = WriteCx {
            now: cx.now,
            in_flight: !self.recovery.rtx.is_empty(),
        };
        let (nxt, uncommon) = (self.snd.nxt(), &self.uncommon);
        let record_left = || {
            let Some(uncommon) = uncommon else {
                return u32::MAX;
            };
            cold_path();
            let records = uncommon.records.as_ref();
            records.map_or(u32::MAX, |records| records.left(nxt))
        };
        self.snd
            .on_written(cx.sysctl, cx.mib, write, more, record_left);
    }

    /// Performs [`write`](Self::write) with all flags of `sendmsg`.
    ///
    /// # Errors
    ///
    /// The errors of [`write`](Self::write).
    pub fn write_with(
        &mut self,
        cx: &mut Cx<'_>,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, TcpError> {
        let done = self.write(cx, data, flags.more)?;
        if flags.eor && done == data.len() {
            self.end_record();
        }
        if flags.oob && done == data.len() && done > 0 {
            self.mark_written_urgent();
        }
        Ok(done)
    }

    /// Returns the bytes that fit into the last super-segment of the queue, or into a new one of
    /// `goal` bytes; 0 if there is no room for a new one. Memory is checked once for each
    /// super-segment. `pushed_bytes` of the queued bytes will be sent when the call ends.
    #[inline(always)]
    fn super_segment_room(
        &mut self,
        cx: &mut Cx<'_>,
        goal: &mut usize,
        pushed_bytes: &mut u32,
    ) -> usize {
        let mut room = self.snd.tail_room(*goal);
        if room == 0 && self.snd.is_single_super_segment(*pushed_bytes) {
            *pushed_bytes += self.push_one(cx, *pushed_bytes);
            room = self.snd.tail_room(*goal);
        }
        if room == 0 {
            *goal = self.new_super_segment_size(cx, *pushed_bytes);
            room = *goal;
        }
        if cx.mem.is_scarce_for_writes(cx.sysctl) {
            cold_path();
            room = room.min(self.min_write_room(cx));
        }
        room
    }

    /// Appends `data` without copying it, as far as there is room.
    ///
    /// # Errors
    ///
    /// The errors of [`write`](Self::write), together with the part of `data` that was not accepted.
    pub fn write_slice(
        &mut self,
        cx: &mut Cx<'_>,
        mut data: Slice,
        more: bool,
    ) -> Result<(), (TcpError, Slice)> {
        if self.is_syn_deferred() {
            // The SYN carries a copy.
            match self.write_syn_data(cx, &data) {
                Ok(n) => data.advance(n),
                Err(error) => return Err((error, data)),
            }
            return if data.is_empty() {
                Ok(())
            } else {
                Err((TcpError::WouldBlock, data))
            };
        }
        if let Err(error) = self.check_writable() {
            return Err((error, data));
        }
        self.check_app_limited();
        self.refresh_sizes(cx);
        let (len, mut goal, mut pushed_bytes) = (data.len(), self.snd.size_goal(), 0);
        while !data.is_empty() {
            let room = self.super_segment_room(cx, &mut goal, &mut pushed_bytes);
            if room == 0 {
                break;
            }
            let piece = data.split_to(room.min(data.len()));
            self.snd.append_slice(piece, goal);
            self.charge(cx);
        }
        if data.len() < len {
            self.after_write(cx, more && data.is_empty());
        }
        if data.is_empty() {
            return Ok(());
        }
        self.on_write_blocked(cx.now);
        Err((TcpError::WouldBlock, data))
    }

    /// Adapts the sizes of segments and super-segments to the device and to the ECN option.
    #[inline]
    fn refresh_sizes(&mut self, cx: &Cx<'_>) {
        self.snd.refresh_size_goal(&cx.device);
        if self.ecn.is_some() {
            cold_path();
            self.reserve_ecn_option(cx);
        }
    }

    #[inline]
    fn check_writable(&mut self) -> Result<(), TcpError> {
        match self.state {
            State::Established | State::CloseWait if self.user.error.is_none() => Ok(()),
            State::SynReceived if self.is_fastopen_child() && !self.user.write_shut => Ok(()),
            State::SynSent | State::SynReceived if !self.user.write_shut => {
                self.user.writer_waiting = true;
                Err(TcpError::WouldBlock)
            }
            _ => Err(self.user.error.take().unwrap_or(TcpError::BrokenPipe)),
        }
    }

    /// Copies received bytes into `out` and returns their number; 0 means the end of the stream.
    ///
    /// # Errors
    ///
    /// [`TcpError::WouldBlock`] if there is nothing to read, or the error that ended the
    /// connection.
    pub fn read(&mut self, cx: &mut Cx<'_>, out: &mut [u8]) -> Result<usize, TcpError> {
        self.check_readable()?;
        let most = self.max_readable(out.len());
        let n = self.rcv.read(&mut out[..most]);
        self.after_read(cx, n);
        Ok(n)
    }

    /// Returns received bytes without copying them, at most `max`; empty means the end of the
    /// stream.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn read_chain(&mut self, cx: &mut Cx<'_>, max: usize) -> Result<Chain, TcpError> {
        self.check_readable()?;
        let chain = self.rcv.read_chain(self.max_readable(max));
        self.after_read(cx, chain.len());
        Ok(chain)
    }

    /// Returns the first piece of received memory, at most `max` bytes; empty means the end of the
    /// stream. Copies it only if it would pin much more memory than it has bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn read_slice(&mut self, cx: &mut Cx<'_>, max: usize) -> Result<Slice, TcpError> {
        self.check_readable()?;
        let most = self.max_readable(max);
        let slice = self.rcv.read_slice(cx.pool, most);
        self.after_read(cx, slice.len());
        Ok(slice)
    }

    /// Copies received bytes into `out` without consuming them, and returns their number.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn peek(&mut self, out: &mut [u8]) -> Result<usize, TcpError> {
        self.check_readable()?;
        let most = self.max_readable(out.len());
        Ok(self.rcv.peek(&mut out[..most]))
    }

    /// Returns the number of bytes that one read of `most` bytes may return.
    #[inline]
    fn max_readable(&self, most: usize) -> usize {
        if self.uncommon.is_some() {
            self.readable_before_mark(most)
        } else {
            most
        }
    }

    /// Checks that data or the end of the stream can be read; returns an error otherwise.
    fn check_readable(&mut self) -> Result<(), TcpError> {
        if self.rcv.readable() > 0 || self.user.read_shut || self.rcv.fin_received() {
            return Ok(());
        }
        if let Some(error) = self.user.error.take() {
            return Err(error);
        }
        if self.state == State::Closed {
            return Ok(());
        }
        self.user.reader_waiting = true;
        Err(TcpError::WouldBlock)
    }

    /// Tunes the receive buffer after a read of `n` bytes, and advertises large new room to the
    /// peer.
    #[inline(always)]
    fn after_read(&mut self, cx: &mut Cx<'_>, n: usize) {
        self.charge(cx);
        if self.uncommon.is_some() && n > 0 {
            cold_path();
            self.record_rx_read();
            self.drop_passed_mark();
        }
        if n == 0 || !self.state.is_synchronized() {
            cold_path();
            return;
        }
        let may_grow = !cx.mem.is_under_pressure();
        let autotune = (cx.sysctl.tcp_rmem[2], may_grow);
        let autotune = cx.sysctl.tcp_moderate_rcvbuf.then_some(autotune);
        if self.rcv.on_read(cx.now, n, self.adv_mss, autotune) {
            self.send_window_update_if_due(cx);
        }
    }

    /// Advertises the window immediately if it can grow by much, less than half of it being open.
    fn send_window_update_if_due(&mut self, cx: &Cx<'_>) {
        let syns = 1 + self.stats.total_retrans;
        let limits = HostWindowLimits::new(cx.mem, cx.sysctl, self.mem_window);
        if self.rcv.is_window_update_due(limits)
            && !(self.stats.segs_out <= syns && self.rcv.exceeds_syn_field())
        {
            self.rcv.ack_now();
        }
    }

    pub(crate) fn wake_writer(&mut self) {
        if core::mem::take(&mut self.user.writer_waiting) {
            self.user.wakes.write = true;
        }
    }

    /// Returns the number of bytes that can be read.
    pub fn readable(&self) -> usize {
        self.rcv.readable()
    }

    /// Returns the bytes written and not acknowledged, and those of them that were not sent.
    pub fn unacked(&self) -> (usize, usize) {
        let unsent = self.snd.unsent_bytes();
        (self.snd.bytes_in_flight() as usize + unsent, unsent)
    }

    /// Returns whether all data written (and the FIN, if sent) has been acknowledged.
    pub fn is_flushed(&self) -> bool {
        !self.snd.has_unsent() && self.recovery.rtx.is_empty() && !self.user.lost_data
    }

    /// Returns the pending error (`SO_ERROR`) and clears it.
    pub fn take_error(&mut self) -> Option<TcpError> {
        self.user.error.take().or(self.user.soft_error.take())
    }

    /// Returns the name of the congestion control (`TCP_CONGESTION`).
    pub fn congestion(&self) -> &'static str {
        self.congestion.algorithm().name()
    }
}
