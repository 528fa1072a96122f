//! `pipe`, `splice`, and `read` and `write` on sockets and pipes.

use fullsend_offload::Chain;
use fullsend_posix::{Errno, Handle, Posix, Result, SockAddr};
use fullsend_wire::Instant;

use super::Timeout;
use super::io::rest;
use crate::abi::AF_INET;
use crate::stack::Stack;

/// `SPLICE_F_NONBLOCK`.
const SPLICE_F_NONBLOCK: u32 = 2;

impl Stack {
    /// Creates a pipe: `pipe2(2)`. Returns its read end and its write end.
    ///
    /// # Errors
    /// The errors of [`Posix::pipe`]. On a stack that has ended, the error that it ended with.
    pub fn pipe(&self, nonblocking: bool) -> Result<(Handle, Handle)> {
        self.call(|posix, _| posix.pipe(nonblocking))
    }

    /// Reads from a socket or a pipe: `readv(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::read`], EAGAIN only for a non-blocking handle or after the timeout.
    /// On a stack that has ended, the error that it ended with.
    pub fn read(&self, handle: Handle, data: &mut [&mut [u8]]) -> Result<usize> {
        match self.recvmsg(handle, data, 0, &mut []) {
            Err(Errno::ENOTSOCK) => self.retry(handle, Timeout::Receive, |posix, now| {
                posix.read(now, handle, data)
            }),
            got => got.map(|got| got.len),
        }
    }

    /// Writes to a socket or a pipe: `writev(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::write`], EAGAIN only for a non-blocking handle or after the timeout.
    /// On a stack that has ended, the error that it ended with.
    pub fn write(&self, handle: Handle, data: &[&[u8]]) -> Result<usize> {
        match self.sendmsg(handle, data, 0, None, &[]) {
            Err(Errno::ENOTSOCK) => self.write_pipe(handle, data),
            sent => sent,
        }
    }

    fn write_pipe(&self, handle: Handle, data: &[&[u8]]) -> Result<usize> {
        let total: usize = data.iter().map(|part| part.len()).sum();
        let mut done = 0;
        loop {
            let wrote = self.retry(handle, Timeout::Send, |posix, now| {
                posix.write(now, handle, &rest(data, done))
            });
            match wrote {
                Ok(n) => done += n,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            if done >= total {
                return Ok(done);
            }
        }
    }

    /// Moves bytes between a socket and a pipe: `splice(2)` without offsets. Waits for both ends,
    /// unless `SPLICE_F_NONBLOCK` or `O_NONBLOCK` is set. If the bytes are the first of a
    /// connection with `TCP_FASTOPEN_CONNECT`, the call waits for the handshake regardless of
    /// `flags`, unless the socket has `O_NONBLOCK`. If the handshake fails, the bytes are returned
    /// to the pipe.
    ///
    /// # Errors
    /// The errors of [`Posix::splice`], EAGAIN only for a non-blocking call or after a timeout. On
    /// a stack that has ended, the error that it ended with. If the handshake of a connection that
    /// the call opened fails, its error.
    pub fn splice(&self, from: Handle, to: Handle, len: usize, flags: u32) -> Result<usize> {
        let mut bytes_on_syn = None;
        let moved = self.wait(
            &[from, to],
            |posix, now| splice_deadline(posix, now, [from, to], flags),
            |posix, now| {
                let deferred = posix.is_deferred(to);
                let bytes_for_syn = deferred.then(|| posix.peek_pipe(from, len).ok()).flatten();
                match posix.splice(now, from, to, len, flags) {
                    Err(Errno::EAGAIN) => {
                        // Either end may be the one that is not ready, so the call waits for both.
                        posix.poll_events(from)?;
                        posix.poll_events(to)?;
                        Ok(None)
                    }
                    Ok(moved) => {
                        let must_wait =
                            posix.is_opening(to) && posix.is_nonblocking(to) == Ok(false);
                        bytes_on_syn = bytes_for_syn.filter(|_| must_wait);
                        Ok(Some(moved))
                    }
                    Err(error) => Err(error),
                }
            },
        )?;
        let moved = moved.ok_or(Errno::EAGAIN)?;
        match bytes_on_syn {
            Some(bytes) => self.finish_handshake([from, to], (bytes.range(0, moved), len), flags),
            None => Ok(moved),
        }
    }

    /// Waits for the handshake of a connection whose SYN carries `moved`, the first of `len` bytes
    /// to splice, then moves the rest.
    fn finish_handshake(
        &self,
        [from, to]: [Handle; 2],
        (moved, len): (Chain, usize),
        flags: u32,
    ) -> Result<usize> {
        let opened = self.wait(
            &[to],
            |posix, now| Timeout::Send.deadline(posix, now, to),
            |posix, now| match posix.connect(now, to, SockAddr::any(AF_INET)) {
                Err(Errno::EALREADY) => Ok(None),
                Ok(()) | Err(Errno::EISCONN) => {
                    // A later call moves the bytes that do not fit now.
                    let rest = len - moved.len();
                    let more = posix.splice(now, from, to, rest, flags).unwrap_or(0);
                    Ok(Some(more))
                }
                Err(error) => {
                    posix.put_back_into_pipe(from, moved.clone())?;
                    Err(error)
                }
            },
        )?;
        Ok(moved.len() + opened.unwrap_or(0))
    }
}

fn splice_deadline(
    posix: &mut Posix,
    now: Instant,
    [from, to]: [Handle; 2],
    flags: u32,
) -> Option<Instant> {
    if flags & SPLICE_F_NONBLOCK != 0 {
        return Some(Instant::ZERO);
    }
    let from = Timeout::Receive.deadline(posix, now, from);
    let to = Timeout::Send.deadline(posix, now, to);
    [from, to].into_iter().flatten().min()
}
