//! What the layer that blocks asks: how long, for how much, and whether.

use fullsend_stack::Host;
use fullsend_tcp::{Linger, State};
use fullsend_units::Nanos;

use crate::Posix;
use crate::abi::MSG_WAITALL;
use crate::errno::{Errno, Result};
use crate::files::{Handle, Kind};
use crate::stream::Stream;

impl Posix {
    /// `O_NONBLOCK`. Nothing here blocks: it is kept for the layer that does.
    pub fn is_nonblocking(&self, handle: Handle) -> Result<bool> {
        Ok(self.files.get(handle)?.nonblocking)
    }

    /// Its handshake is under way. A call that waits and whose bytes ride on the SYN (Fast Open)
    /// goes on waiting, and [`connect`](Self::connect) tells how it ends.
    pub fn is_opening(&self, handle: Handle) -> bool {
        let file = self.files.get(handle);
        file.is_ok_and(|file| match &file.kind {
            Kind::Stream(stream) => stream.is_opening(&self.host),
            _ => false,
        })
    }

    /// Returns whether the SYN waits for the first write (`TCP_FASTOPEN_CONNECT`). A call that waits
    /// and writes then waits for the handshake as well.
    pub fn is_deferred(&self, handle: Handle) -> bool {
        let file = self.files.get(handle);
        file.is_ok_and(|file| matches!(&file.kind, Kind::Stream(stream) if stream.is_deferred()))
    }

    /// Sets `O_NONBLOCK`.
    pub fn set_nonblocking(&mut self, handle: Handle, on: bool) -> Result<()> {
        self.files.get_mut(handle)?.nonblocking = on;
        Ok(())
    }

    /// `SO_RCVTIMEO` (receiving, accepting) and `SO_SNDTIMEO` (sending, connecting); `None` is for
    /// ever. After it a blocked call gives EAGAIN, or EINPROGRESS when it connects.
    pub fn timeouts(&self, handle: Handle) -> Result<(Option<Nanos>, Option<Nanos>)> {
        let common = match &self.files.get(handle)?.kind {
            Kind::Stream(stream) => &stream.common,
            Kind::Datagram(datagram) => &datagram.common,
            _ => return Ok((None, None)),
        };
        Ok((common.rcvtimeo, common.sndtimeo))
    }

    /// Bytes that a blocking receive of up to `len` waits for before it returns: all with
    /// `MSG_WAITALL`, else `SO_RCVLOWAT`. Fewer are returned at the end, an error or a timeout.
    pub fn receive_target(&mut self, handle: Handle, len: usize, flags: i32) -> Result<usize> {
        match &self.files.get(handle)?.kind {
            Kind::Stream(_) if flags & MSG_WAITALL != 0 => Ok(len),
            Kind::Stream(stream) => Ok(stream.low_mark(&mut self.host).min(len).max(1)),
            _ => Ok(1),
        }
    }

    /// How long a blocking `close` waits for what was written to be acknowledged (`SO_LINGER`).
    pub fn linger(&mut self, handle: Handle) -> Result<Option<Nanos>> {
        match &self.files.get(handle)?.kind {
            Kind::Stream(stream) => Ok(stream.linger(&mut self.host)),
            _ => Ok(None),
        }
    }

    /// Everything written is acknowledged, the FIN as well if there is one; or never will be.
    pub fn is_flushed(&mut self, handle: Handle) -> Result<bool> {
        match &self.files.get(handle)?.kind {
            Kind::Stream(stream) => Ok(stream.is_flushed(&mut self.host)),
            Kind::Datagram(_) => Ok(true),
            _ => Err(Errno::ENOTSOCK),
        }
    }
}

impl Stream {
    fn low_mark(&self, host: &mut Host) -> usize {
        setting!(self, host, so_rcvlowat, SoRcvlowat, 1) as usize
    }

    fn linger(&self, host: &mut Host) -> Option<Nanos> {
        match setting!(self, host, so_linger, SoLinger, Linger::Background) {
            Linger::Background => None,
            Linger::For(span) => Some(span),
        }
    }

    fn is_flushed(&self, host: &mut Host) -> bool {
        let unacked = match self.core {
            crate::stream::Core::Connection(id) => host.tcp_queues(id).map_or(0, |q| q.unacked),
            _ => 0,
        };
        let fin = matches!(
            self.state(host),
            State::FinWait1 | State::Closing | State::LastAck
        );
        unacked == 0 && !fin || self.state(host) == State::Closed
    }
}
