//! `sendmsg(2)` and `recvmsg(2)`, and variants that lend memory.

use fullsend_offload::Slice;
use fullsend_wire::{Instant, Nanos};

use crate::abi::{MSG_DONTWAIT, MSG_ERRQUEUE, MSG_FASTOPEN};
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Handle};
use crate::timestamps::EpochClock;
use crate::wake::WakeKey;
use crate::{CopiedCall, Posix, Received, SockAddr};

impl Posix {
    /// Sets the time, in ns since the Unix epoch, at which the host's clock was zero. Timestamps
    /// (`SO_TIMESTAMPING` and similar options) are relative to it.
    pub const fn set_epoch(&mut self, epoch: Nanos) {
        self.epoch = epoch;
    }

    /// Sends data: `sendmsg(2)`. Returns the number of bytes accepted. `control` contains Linux's
    /// `cmsghdr`s.
    ///
    /// The data is copied: a call with `MSG_ZEROCOPY` completes at once, as copied, whereas
    /// [`send_lent`](Self::send_lent) does not copy. No signal is raised: `MSG_NOSIGNAL` concerns
    /// the layer above.
    ///
    /// # Errors
    /// EAGAIN if the send buffer is full, EPIPE on a stream without a connection or after
    /// `SHUT_WR`, EDESTADDRREQ for a datagram without a destination, EMSGSIZE for a datagram that
    /// is too long, EINVAL for invalid control messages, ENOBUFS without memory; the pending error
    /// of the socket (ECONNRESET, ETIMEDOUT or another), which the call clears; with `MSG_FASTOPEN`
    /// and no cookie EINPROGRESS; EBADF for a handle that is not open, ENOTSOCK for one that is not
    /// a socket.
    pub fn sendmsg(
        &mut self,
        now: Instant,
        handle: Handle,
        data: &[&[u8]],
        flags: i32,
        dest: Option<SockAddr>,
        control: &[u8],
    ) -> Result<usize> {
        let host = &mut self.host;
        let file = self.files.get_mut(handle)?;
        let blocks = !file.nonblocking && flags & MSG_DONTWAIT == 0;
        let result = match &mut file.kind {
            FileKind::Stream(stream) => {
                let is_fastopen = flags & MSG_FASTOPEN != 0 || stream.is_deferred();
                let sent = if flags & MSG_FASTOPEN != 0 {
                    stream.send_fastopen(host, now, data, flags, dest)
                } else {
                    // As on Linux, a stream ignores an address.
                    stream.send(host, now, data, flags, control)
                };
                let total: usize = data.iter().map(|part| part.len()).sum();
                let will_write_again =
                    || sent.map_or_else(|e| e == Errno::EINPROGRESS, |n| n < total);
                if is_fastopen && blocks && total > 0 && will_write_again() {
                    stream.expect_write(host);
                }
                sent
            }
            FileKind::Datagram(datagram) => {
                let result = datagram.send(host, now, data, flags, dest, control);
                self.arm_if_watched(handle);
                result
            }
            _ => Err(Errno::ENOTSOCK),
        };
        if let Err(Errno::EINPROGRESS) = result {
            self.arm(handle);
        }
        self.notify_new_reports(handle);
        self.arm_if_blocked(handle, result)
    }

    /// Sends as [`sendmsg`](Self::sendmsg) does, for a caller that sends the rest later without
    /// `MSG_ZEROCOPY`. If the call is to be completed, the error queue reports it when the returned
    /// [`CopiedCall`] is dropped.
    ///
    /// # Errors
    /// The errors of [`sendmsg`](Self::sendmsg).
    pub fn sendmsg_in_parts(
        &mut self,
        now: Instant,
        handle: Handle,
        data: &[&[u8]],
        flags: i32,
        dest: Option<SockAddr>,
        control: &[u8],
    ) -> Result<(usize, Option<CopiedCall>)> {
        if let FileKind::Stream(stream) = &mut self.files.get_mut(handle)?.kind {
            stream.begin_parts();
        }
        let sent = self.sendmsg(now, handle, data, flags, dest, control);
        let copied = match &mut self.files.get_mut(handle)?.kind {
            FileKind::Stream(stream) => stream.take_copied((&self.wakes, handle)),
            _ => None,
        };
        Ok((sent?, copied))
    }

    /// Sends lent memory without copying it, and returns the number of bytes accepted from its
    /// front. The socket must be a stream; of the flags only `MSG_MORE` and `MSG_ZEROCOPY` have an
    /// effect.
    ///
    /// The owner of the memory is dropped with the last packet, queue or reader that refers to it.
    /// With `MSG_ZEROCOPY` and `SO_ZEROCOPY`, the error queue reports the completion after that.
    /// Data that this host delivers to itself is copied, and reported as such
    /// (`SO_EE_CODE_ZEROCOPY_COPIED`).
    ///
    /// # Errors
    /// ENOBUFS when too many calls are outstanding or their completions have not been read, EOPNOTSUPP on
    /// a datagram socket, and the errors of [`sendmsg`](Self::sendmsg).
    pub fn send_lent(
        &mut self,
        now: Instant,
        handle: Handle,
        data: Slice,
        flags: i32,
    ) -> Result<usize> {
        let result = match &mut self.files.get_mut(handle)?.kind {
            FileKind::Stream(stream) => {
                let wake = (&self.wakes, handle);
                stream.send_lent(&mut self.host, now, (data, flags), wake)
            }
            FileKind::Datagram(_) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::ENOTSOCK),
        };
        self.notify_new_reports(handle);
        self.arm_if_blocked(handle, result)
    }

    /// Notifies waiters if the current call has put an entry into the error queue.
    fn notify_new_reports(&mut self, handle: Handle) {
        if let Ok(FileKind::Stream(stream)) = self.files.get(handle).map(|file| &file.kind)
            && stream.has_new_reports()
        {
            self.notify(handle, WakeKey::Any);
        }
    }

    /// Notifies waiters of the remaining entries after one was taken from the error queue.
    fn notify_queued_reports(&mut self, handle: Handle) {
        if let Ok(FileKind::Stream(stream)) = self.files.get(handle).map(|file| &file.kind)
            && stream.has_queued_reports()
        {
            self.notify(handle, WakeKey::Any);
        }
    }

    /// Receives data: `recvmsg(2)`. Returns the data that has arrived, also with `MSG_WAITALL`: a
    /// blocking layer calls it until it has [`receive_target`](Self::receive_target) bytes.
    ///
    /// # Errors
    /// EAGAIN if nothing has arrived or, with `MSG_ERRQUEUE`, been reported; ENOTCONN without a
    /// connection; EINVAL with `MSG_OOB` on a stream; the pending error of the socket (ECONNRESET,
    /// ETIMEDOUT or another), which the call clears; EBADF for a handle that is not open, ENOTSOCK
    /// for one that is not a socket.
    pub fn recvmsg(
        &mut self,
        now: Instant,
        handle: Handle,
        data: &mut [&mut [u8]],
        flags: i32,
        control: &mut [u8],
    ) -> Result<Received> {
        let host = &mut self.host;
        let epoch = self.epoch;
        let file = self.files.get_mut(handle)?;
        let blocks = !file.nonblocking && flags & MSG_DONTWAIT == 0;
        let result = match &mut file.kind {
            FileKind::Stream(stream) => {
                stream.receive(host, EpochClock { now, epoch }, data, flags, control)
            }
            FileKind::Datagram(datagram) => datagram.receive(host, data, (flags, blocks), control),
            _ => Err(Errno::ENOTSOCK),
        };
        if flags & MSG_ERRQUEUE != 0 && result.is_ok() {
            self.notify_queued_reports(handle);
        }
        self.arm_if_blocked(handle, result)
    }
}
