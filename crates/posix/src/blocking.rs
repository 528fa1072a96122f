//! Properties of handles that a blocking layer needs: timeouts, minimum lengths, linger.

use fullsend_stack::Host;
use fullsend_tcp::{Linger, State};
use fullsend_wire::Nanos;

use crate::Posix;
use crate::abi::MSG_WAITALL;
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Handle};
use crate::stream::Stream;

impl Posix {
    /// Returns whether a handle has `O_NONBLOCK`. No call here blocks: it is for a blocking layer.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn is_nonblocking(&self, handle: Handle) -> Result<bool> {
        Ok(self.files.get(handle)?.nonblocking)
    }

    /// Returns whether a handshake is in progress. A blocking call whose data is on the SYN (Fast
    /// Open) then continues to wait, and [`connect`](Self::connect) returns the result of the
    /// handshake.
    pub fn is_opening(&self, handle: Handle) -> bool {
        let file = self.files.get(handle);
        file.is_ok_and(|file| match &file.kind {
            FileKind::Stream(stream) => stream.is_opening(&self.host),
            _ => false,
        })
    }

    /// Returns whether the SYN is deferred until the first write (`TCP_FASTOPEN_CONNECT`). A
    /// blocking write then waits for the handshake as well.
    pub fn is_deferred(&self, handle: Handle) -> bool {
        let file = self.files.get(handle);
        file.is_ok_and(
            |file| matches!(&file.kind, FileKind::Stream(stream) if stream.is_deferred()),
        )
    }

    /// Sets or clears `O_NONBLOCK`.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn set_nonblocking(&mut self, handle: Handle, on: bool) -> Result<()> {
        self.files.get_mut(handle)?.nonblocking = on;
        Ok(())
    }

    /// Returns `SO_RCVTIMEO` (receiving, accepting) and `SO_SNDTIMEO` (sending, connecting); `None`
    /// means no timeout. After that time a blocking call returns EAGAIN, or EINPROGRESS if it
    /// connects.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn timeouts(&self, handle: Handle) -> Result<(Option<Nanos>, Option<Nanos>)> {
        let common = match &self.files.get(handle)?.kind {
            FileKind::Stream(stream) => &stream.common,
            FileKind::Datagram(datagram) => &datagram.common,
            _ => return Ok((None, None)),
        };
        Ok((common.rcvtimeo, common.sndtimeo))
    }

    /// Returns the number of bytes that a blocking receive of up to `len` waits for: all with
    /// `MSG_WAITALL`, otherwise `SO_RCVLOWAT`. It returns fewer at the end of the stream, an error
    /// or a timeout.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn receive_target(&mut self, handle: Handle, len: usize, flags: i32) -> Result<usize> {
        match &self.files.get(handle)?.kind {
            FileKind::Stream(_) if flags & MSG_WAITALL != 0 => Ok(len),
            FileKind::Stream(stream) => Ok(stream.low_watermark(&mut self.host).min(len).max(1)),
            _ => Ok(1),
        }
    }

    /// Returns whether flow control or the host's memory admits little or no more data until some is
    /// read. A blocking `MSG_PEEK`, which removes nothing, should then return.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn is_receive_limited(&mut self, handle: Handle) -> Result<bool> {
        match &self.files.get(handle)?.kind {
            FileKind::Stream(stream) => Ok(stream.is_receive_limited(&mut self.host)),
            _ => Ok(false),
        }
    }

    /// Returns how long a blocking `close` waits for the acknowledgement of written data
    /// (`SO_LINGER`), or `None` if it does not wait.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn linger(&mut self, handle: Handle) -> Result<Option<Nanos>> {
        match &self.files.get(handle)?.kind {
            FileKind::Stream(stream) => Ok(stream.linger(&mut self.host)),
            _ => Ok(None),
        }
    }

    /// Returns whether all written data, and the FIN if there is one, is acknowledged or never will
    /// be.
    ///
    /// # Errors
    /// EBADF for a handle that is not open, ENOTSOCK for one that is not a socket.
    pub fn is_flushed(&mut self, handle: Handle) -> Result<bool> {
        match &self.files.get(handle)?.kind {
            FileKind::Stream(stream) => Ok(stream.is_flushed(&mut self.host)),
            FileKind::Datagram(_) => Ok(true),
            _ => Err(Errno::ENOTSOCK),
        }
    }
}

impl Stream {
    fn low_watermark(&self, host: &mut Host) -> usize {
        setting!(self, host, so_rcvlowat, SoRcvlowat, 1) as usize
    }

    fn linger(&self, host: &mut Host) -> Option<Nanos> {
        match setting!(self, host, so_linger, SoLinger, Linger::Background) {
            Linger::Background => None,
            Linger::For(span) => Some(span),
        }
    }

    fn is_flushed(&self, host: &mut Host) -> bool {
        let unacked = match self.host_socket {
            crate::stream::HostSocket::Connection(id) => {
                host.tcp(id).queues().map_or(0, |q| q.unacked)
            }
            _ => 0,
        };
        let fin = matches!(
            self.state(host),
            State::FinWait1 | State::Closing | State::LastAck
        );
        unacked == 0 && !fin || self.state(host) == State::Closed
    }
}
