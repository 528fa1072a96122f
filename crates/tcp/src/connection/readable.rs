//! The wake-up of waiting readers (`SO_RCVLOWAT`).
//!
//! A low-water mark beyond the data that flow control admits would never be reached: the reader would
//! wait for data, and the peer for room. A reader is therefore ready, too, when the peer can send
//! little more before some data is read.

use super::{Connection, State};
use crate::{Cx, TcpMemory};

impl Connection {
    /// Returns whether data, the end of the stream or an error can be read. Registers interest if
    /// not, which a later `take_wakes` reports. `mem` is the memory of the host's connections.
    pub fn poll_readable(&mut self, mem: &TcpMemory) -> bool {
        let ready = self.is_readable(mem);
        self.user.reader_waiting = !ready;
        ready
    }

    #[inline]
    fn is_readable(&self, mem: &TcpMemory) -> bool {
        self.has_enough_data(mem)
            || self.rcv.fin_received()
            || self.user.read_shut
            || self.user.error.is_some()
            || self.state == State::Closed
    }

    /// Returns whether there is data to wake a reader for: `SO_RCVLOWAT` bytes, or fewer if flow
    /// control admits no more.
    #[inline]
    pub(super) fn has_enough_data(&self, mem: &TcpMemory) -> bool {
        let readable = self.rcv.readable();
        readable > 0
            && (readable >= self.settings.rcvlowat() as usize || self.is_receive_limited(mem))
    }

    /// Returns whether flow control or the host's memory admits little more data until the
    /// application reads some (Linux: `tcp_epollin_ready`).
    pub(super) fn is_receive_limited(&self, mem: &TcpMemory) -> bool {
        mem.is_under_pressure() || self.rcv.is_nearly_full()
    }

    /// Wakes a waiting reader, once, if there is enough to read now. Called after data arrived, and
    /// wherever the limit of what may arrive becomes lower.
    #[inline]
    pub(crate) fn wake_reader_if_enough(&mut self, mem: &TcpMemory) {
        if self.user.reader_waiting && self.is_readable(mem) {
            self.wake_reader();
        }
    }

    pub(crate) fn wake_reader(&mut self) {
        if core::mem::take(&mut self.user.reader_waiting) {
            self.user.wakes.read = true;
        }
    }

    /// Sets `SO_RCVLOWAT`: at most half of the buffer, or of the largest buffer that autotuning may
    /// choose. Grows a buffer whose size is not fixed, so that it holds that much data.
    pub(super) fn set_rcvlowat(&mut self, cx: &Cx<'_>, bytes: u32) {
        let most = cx.sysctl.tcp_rmem[2];
        let lowat = bytes.min(self.rcv.max_rcvbuf(most) / 2).max(1);
        self.settings.set_rcvlowat(lowat);
        self.rcv.grow_for_lowat(lowat, most);
        self.wake_reader_if_enough(cx.mem);
    }
}
