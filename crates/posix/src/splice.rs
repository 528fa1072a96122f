//! `read(2)`, `write(2)` and `splice(2)`, which sockets and pipes share. `splice` moves payload by
//! reference.

use alloc::vec::Vec;

use fullsend_offload::{Chain, Slice};
use fullsend_wire::Instant;

use crate::Posix;
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Handle};
use crate::pipe::CAPACITY;

/// `SPLICE_F_MORE`.
const SPLICE_F_MORE: u32 = 4;
/// All valid flags.
const SPLICE_F_ALL: u32 = 0xf;

impl Posix {
    /// Reads from a socket or a pipe: `readv(2)`.
    ///
    /// # Errors
    /// EAGAIN if nothing can be read, EBADF for a handle that is not open or the write end of a
    /// pipe, EINVAL for an epoll set; for a socket the errors of [`recvmsg`](Self::recvmsg).
    pub fn read(&mut self, now: Instant, handle: Handle, data: &mut [&mut [u8]]) -> Result<usize> {
        match &mut self.files.get_mut(handle)?.kind {
            FileKind::PipeReader(pipe) => {
                let n = pipe.read(data)?;
                self.pipe_drained(handle);
                Ok(n)
            }
            FileKind::PipeWriter(_) => Err(Errno::EBADF),
            FileKind::Epoll(_) => Err(Errno::EINVAL),
            // As on Linux, reading zero bytes from a socket always succeeds.
            FileKind::Stream(_) | FileKind::Datagram(_)
                if data.iter().all(|part| part.is_empty()) =>
            {
                Ok(0)
            }
            FileKind::Stream(_) | FileKind::Datagram(_) => {
                let received = self.recvmsg(now, handle, data, 0, &mut [])?;
                Ok(received.len)
            }
        }
    }

    /// Writes to a socket or a pipe: `writev(2)`.
    ///
    /// # Errors
    /// EAGAIN if the pipe is full, EPIPE if its read end is closed, ENOMEM without memory, EBADF
    /// for a handle that is not open or the read end of a pipe, EINVAL for an epoll set; for a
    /// socket the errors of [`sendmsg`](Self::sendmsg).
    pub fn write(&mut self, now: Instant, handle: Handle, data: &[&[u8]]) -> Result<usize> {
        match self.files.get(handle)?.kind {
            FileKind::PipeWriter(reader) => {
                let n = self.pipe_of(reader)?.write(data)?;
                self.pipe_filled(reader);
                Ok(n)
            }
            FileKind::PipeReader(_) => Err(Errno::EBADF),
            FileKind::Epoll(_) => Err(Errno::EINVAL),
            FileKind::Stream(_) | FileKind::Datagram(_) => {
                self.sendmsg(now, handle, data, 0, None, &[])
            }
        }
    }

    /// Moves up to `len` bytes between a pipe and a stream, or between two pipes: `splice(2)`
    /// without offsets. Of the flags only `SPLICE_F_MORE` has an effect; the call never blocks. It
    /// does not move past a byte that the peer marked as urgent until a read has consumed it: it
    /// returns 0 there, or EAGAIN on a non-blocking stream.
    ///
    /// # Errors
    /// EINVAL if neither handle is a pipe.
    pub fn splice(
        &mut self,
        now: Instant,
        from: Handle,
        to: Handle,
        len: usize,
        flags: u32,
    ) -> Result<usize> {
        let source = &self.files.get(from)?.kind;
        let target = &self.files.get(to)?.kind;
        if flags & !SPLICE_F_ALL != 0 {
            return Err(Errno::EINVAL);
        }
        match (source, target) {
            (FileKind::PipeWriter(_), _) | (_, FileKind::PipeReader(_)) => Err(Errno::EBADF),
            _ if len == 0 => Ok(0),
            (FileKind::PipeReader(_), FileKind::PipeWriter(reader)) if *reader == from => {
                Err(Errno::EINVAL)
            }
            (FileKind::PipeReader(_), &FileKind::PipeWriter(reader)) => {
                self.splice_pipes(from, reader, len)
            }
            (FileKind::PipeReader(_), FileKind::Stream(_)) => {
                self.splice_to_stream(now, from, to, len, flags & SPLICE_F_MORE != 0)
            }
            (FileKind::Stream(_), &FileKind::PipeWriter(reader)) => {
                self.splice_from_stream(now, from, reader, len)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn splice_pipes(&mut self, from: Handle, to: Handle, len: usize) -> Result<usize> {
        let room = self.pipe_of(to)?.room();
        let source = self.pipe_of(from)?;
        let n = len.min(source.data.len()).min(room);
        if n == 0 {
            let ended = source.data.is_empty() && !source.has_writer();
            return if ended { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        let moved = source.data.split_to(n);
        self.pipe_of(to)?.data.append(moved);
        self.pipe_drained(from);
        self.pipe_filled(to);
        Ok(n)
    }

    /// Moves bytes from a stream into the pipe of `reader`.
    fn splice_from_stream(
        &mut self,
        now: Instant,
        stream: Handle,
        reader: Handle,
        len: usize,
    ) -> Result<usize> {
        let room = self.pipe_of(reader)?.room();
        if room == 0 {
            return Err(Errno::EAGAIN);
        }
        let max = len.min(room).min(CAPACITY);
        let file = self.files.get_mut(stream)?;
        let blocks = !file.nonblocking;
        let taken = match &mut file.kind {
            // As on Linux. A blocking call would wait forever, as only a read moves past the mark.
            FileKind::Stream(stream) if stream.is_at_mark(&mut self.host) => {
                return if blocks { Ok(0) } else { Err(Errno::EAGAIN) };
            }
            FileKind::Stream(stream) => stream.read_chain(&mut self.host, now, max),
            _ => Err(Errno::EINVAL),
        };
        let chain = self.arm_if_blocked(stream, taken)?;
        let n = chain.len();
        if n > 0 {
            self.pipe_of(reader)?.data.append(chain);
            self.pipe_filled(reader);
        }
        Ok(n)
    }

    /// Moves bytes from the pipe of `reader` into a stream.
    fn splice_to_stream(
        &mut self,
        now: Instant,
        reader: Handle,
        stream: Handle,
        len: usize,
        more: bool,
    ) -> Result<usize> {
        let pipe = self.pipe_of(reader)?;
        if pipe.data.is_empty() {
            return if pipe.has_writer() {
                Err(Errno::EAGAIN)
            } else {
                Ok(0)
            };
        }
        if self.is_deferred(stream) {
            return self.splice_onto_syn(now, reader, stream, len);
        }
        let mut rest = core::mem::take(&mut self.pipe_of(reader)?.data);
        let mut chain = rest.split_to(len.min(rest.len()));
        let mut done = 0;
        let mut result = Ok(());
        while let Some(slice) = chain.pop_front() {
            let len = slice.len();
            let more = more || !chain.is_empty();
            if let Err((error, left)) = self.write_slice(now, stream, slice, more) {
                done += len - left.len();
                result = Err(error);
                let mut unsent = Chain::from(left);
                unsent.append(chain);
                chain = unsent;
                break;
            }
            done += len;
        }
        chain.append(rest);
        self.pipe_of(reader)?.data = chain;
        if done > 0 {
            self.pipe_drained(reader);
            return Ok(done);
        }
        self.arm_if_blocked(stream, result.map(|()| done))
    }

    /// Moves bytes from the pipe of `reader` into a stream with a deferred SYN, which carries a
    /// copy.
    fn splice_onto_syn(
        &mut self,
        now: Instant,
        reader: Handle,
        stream: Handle,
        len: usize,
    ) -> Result<usize> {
        let bytes = self.peek_pipe(reader, len)?;
        let parts: Vec<&[u8]> = bytes.slices().iter().map(|slice| &**slice).collect();
        let sent = self.sendmsg(now, stream, &parts, 0, None, &[])?;
        self.pipe_of(reader)?.data.advance(sent);
        self.pipe_drained(reader);
        Ok(sent)
    }

    /// Returns the first bytes in a pipe, at most `len`, without removing them.
    ///
    /// # Errors
    /// EPIPE if `reader` is not the read end of a pipe.
    pub fn peek_pipe(&mut self, reader: Handle, len: usize) -> Result<Chain> {
        let held = &self.pipe_of(reader)?.data;
        Ok(held.range(0, len.min(held.len())))
    }

    /// Puts bytes that [`splice`](Self::splice) has moved out of a pipe back in front of its
    /// content, regardless of its capacity.
    ///
    /// # Errors
    /// EPIPE if `reader` is not the read end of a pipe.
    pub fn put_back_into_pipe(&mut self, reader: Handle, mut bytes: Chain) -> Result<()> {
        let pipe = self.pipe_of(reader)?;
        bytes.append(core::mem::take(&mut pipe.data));
        pipe.data = bytes;
        self.pipe_filled(reader);
        Ok(())
    }

    fn write_slice(
        &mut self,
        now: Instant,
        stream: Handle,
        slice: Slice,
        more: bool,
    ) -> core::result::Result<(), (Errno, Slice)> {
        match self.files.get_mut(stream).map(|file| &mut file.kind) {
            Ok(FileKind::Stream(stream)) => stream.write_slice(&mut self.host, now, slice, more),
            _ => Err((Errno::EBADF, slice)),
        }
    }
}
