//! `pipe`, `read` and `write` on anything, and `splice`.

use fullsend_posix::{Errno, Handle, Posix, Result};
use fullsend_units::Instant;

use super::Patience;
use super::io::rest;
use crate::stack::Stack;

/// `SPLICE_F_NONBLOCK`.
const SPLICE_F_NONBLOCK: u32 = 2;

impl Stack {
    /// `pipe2(2)`: the reader's end, the writer's end.
    pub fn pipe(&self, nonblocking: bool) -> Result<(Handle, Handle)> {
        self.call(|posix, _| posix.pipe(nonblocking))
    }

    /// `readv(2)` on a socket or a pipe.
    pub fn read(&self, handle: Handle, data: &mut [&mut [u8]]) -> Result<usize> {
        match self.recvmsg(handle, data, 0, &mut []) {
            Err(Errno::ENOTSOCK) => self.retry(handle, Patience::Receive, |posix, now| {
                posix.read(now, handle, data)
            }),
            got => got.map(|got| got.len),
        }
    }

    /// `writev(2)` on a socket or a pipe.
    pub fn write(&self, handle: Handle, data: &[&[u8]]) -> Result<usize> {
        match self.sendmsg(handle, data, 0, None, &[]) {
            Err(Errno::ENOTSOCK) => self.write_pipe(handle, data),
            sent => sent,
        }
    }

    fn write_pipe(&self, handle: Handle, data: &[&[u8]]) -> Result<usize> {
        let want: usize = data.iter().map(|part| part.len()).sum();
        let mut done = 0;
        loop {
            let wrote = self.retry(handle, Patience::Send, |posix, now| {
                posix.write(now, handle, &rest(data, done))
            });
            match wrote {
                Ok(n) => done += n,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            if done >= want {
                return Ok(done);
            }
        }
    }

    /// `splice(2)` without offsets: waits for both ends, unless `SPLICE_F_NONBLOCK` or
    /// `O_NONBLOCK` say otherwise.
    pub fn splice(&self, from: Handle, to: Handle, len: usize, flags: u32) -> Result<usize> {
        let moved = self.wait(
            &[from, to],
            |posix, now| splice_until(posix, now, [from, to], flags),
            |posix, now| match posix.splice(now, from, to, len, flags) {
                Err(Errno::EAGAIN) => {
                    // Whichever of them was in the way, both are told of.
                    posix.poll_events(from)?;
                    posix.poll_events(to)?;
                    Ok(None)
                }
                result => result.map(Some),
            },
        )?;
        moved.ok_or(Errno::EAGAIN)
    }
}

fn splice_until(
    posix: &mut Posix,
    now: Instant,
    [from, to]: [Handle; 2],
    flags: u32,
) -> Option<Instant> {
    if flags & SPLICE_F_NONBLOCK != 0 {
        return Some(Instant::ZERO);
    }
    let from = Patience::Receive.until(posix, now, from);
    let to = Patience::Send.until(posix, now, to);
    [from, to].into_iter().flatten().min()
}
