//! `sendmsg(2)` and `recvmsg(2)`, and their kin that lends memory.

use fullsend_buf::Slice;
use fullsend_units::{Instant, Nanos};

use crate::abi::{MSG_DONTWAIT, MSG_ERRQUEUE, MSG_FASTOPEN};
use crate::errno::{Errno, Result};
use crate::files::{Handle, Kind};
use crate::stamps::Clock;
use crate::wake::Key;
use crate::{CopiedCall, Posix, Received, SockAddr};

impl Posix {
    /// What the world's clock (nanoseconds since 1970) shows at the host's zero: times of
    /// `SO_TIMESTAMPING` and its kin are told in it.
    pub const fn set_epoch(&mut self, epoch: Nanos) {
        self.epoch = epoch;
    }

    /// `sendmsg(2)`; how many bytes were taken. `control` is made of Linux's `cmsghdr`s.
    ///
    /// Bytes are copied: a call with `MSG_ZEROCOPY` completes at once as copied.
    /// [`send_lent`](Self::send_lent) does not copy. No signal is ever raised: `MSG_NOSIGNAL` is
    /// the layer's above.
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
        let waits = !file.nonblocking && flags & MSG_DONTWAIT == 0;
        let result = match &mut file.kind {
            Kind::Stream(stream) => {
                let opens = flags & MSG_FASTOPEN != 0 || stream.is_deferred();
                let sent = if flags & MSG_FASTOPEN != 0 {
                    stream.send_opening(host, now, data, flags, dest)
                } else {
                    // As on Linux, a stream takes no notice of an address.
                    stream.send(host, now, data, flags, control)
                };
                let want: usize = data.iter().map(|part| part.len()).sum();
                let continues = || sent.map_or_else(|e| e == Errno::EINPROGRESS, |n| n < want);
                if opens && waits && want > 0 && continues() {
                    stream.expect_write(host);
                }
                sent
            }
            Kind::Datagram(datagram) => {
                let result = datagram.send(host, now, data, flags, dest, control);
                self.arm_if_watched(handle);
                result
            }
            _ => Err(Errno::ENOTSOCK),
        };
        if let Err(Errno::EINPROGRESS) = result {
            self.arm(handle);
        }
        self.tell_of_notices(handle);
        self.arm_if_blocked(handle, result)
    }

    /// Sends as [`sendmsg`](Self::sendmsg) does, for a caller that sends the rest later, without
    /// `MSG_ZEROCOPY`. If the call gets a completion, the error queue reports it when the returned
    /// [`CopiedCall`] is dropped.
    pub fn sendmsg_in_parts(
        &mut self,
        now: Instant,
        handle: Handle,
        data: &[&[u8]],
        flags: i32,
        dest: Option<SockAddr>,
        control: &[u8],
    ) -> Result<(usize, Option<CopiedCall>)> {
        if let Kind::Stream(stream) = &mut self.files.get_mut(handle)?.kind {
            stream.begin_parts();
        }
        let sent = self.sendmsg(now, handle, data, flags, dest, control);
        let copied = match &mut self.files.get_mut(handle)?.kind {
            Kind::Stream(stream) => stream.take_copied((&self.wakes, handle)),
            _ => None,
        };
        Ok((sent?, copied))
    }

    /// Sends memory that the caller lends, without copying it, and returns how many bytes were taken,
    /// from the front.
    ///
    /// The owner of the memory is dropped with the last packet, queue or reader that refers to it.
    /// With `MSG_ZEROCOPY` and `SO_ZEROCOPY` the error queue reports that after it has happened; what
    /// this host delivers to itself is copied, and reported as such (`SO_EE_CODE_ZEROCOPY_COPIED`).
    /// On a stream; flags beside `MSG_MORE` and `MSG_ZEROCOPY` have no effect.
    ///
    /// # Errors
    /// ENOBUFS when the completions of too many calls are outstanding or wait to be read, EOPNOTSUPP
    /// on a datagram socket, and those of [`sendmsg`](Self::sendmsg).
    pub fn send_lent(
        &mut self,
        now: Instant,
        handle: Handle,
        data: Slice,
        flags: i32,
    ) -> Result<usize> {
        let result = match &mut self.files.get_mut(handle)?.kind {
            Kind::Stream(stream) => {
                let wake = (&self.wakes, handle);
                stream.send_lent(&mut self.host, now, (data, flags), wake)
            }
            Kind::Datagram(_) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::ENOTSOCK),
        };
        self.tell_of_notices(handle);
        self.arm_if_blocked(handle, result)
    }

    /// A call may have put something into the error queue itself.
    fn tell_of_notices(&mut self, handle: Handle) {
        if let Ok(Kind::Stream(stream)) = self.files.get(handle).map(|file| &file.kind)
            && stream.has_new_notices()
        {
            self.notify(handle, Key::Any);
        }
    }

    /// What is left in the error queue is told anew whenever something was taken from it.
    fn tell_of_more_notices(&mut self, handle: Handle) {
        if let Ok(Kind::Stream(stream)) = self.files.get(handle).map(|file| &file.kind)
            && stream.has_queued_notices()
        {
            self.notify(handle, Key::Any);
        }
    }

    /// `recvmsg(2)`. `MSG_WAITALL` has no effect on what is there already: who blocks asks again
    /// until it has [`receive_target`](Self::receive_target).
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
            Kind::Stream(stream) => {
                stream.receive(host, Clock { now, epoch }, data, flags, control)
            }
            Kind::Datagram(datagram) => datagram.receive(host, data, (flags, blocks), control),
            _ => Err(Errno::ENOTSOCK),
        };
        if flags & MSG_ERRQUEUE != 0 && result.is_ok() {
            self.tell_of_more_notices(handle);
        }
        self.arm_if_blocked(handle, result)
    }
}
