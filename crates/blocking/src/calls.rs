//! The calls that may wait, as BSD and Linux have them.

mod io;
mod many;
mod pipe;

pub use many::PollLine;

use fullsend_posix::{Errno, Handle, Posix, Result, SockAddr};
use fullsend_units::{Instant, Nanos};

use crate::abi::SHUT_WR;
use crate::stack::Stack;

/// When a call that may wait that long gives up. `None` never does.
fn until(now: Instant, span: Option<Nanos>) -> Option<Instant> {
    span.map(|span| now + span)
}

/// How long a call waits.
#[derive(Clone, Copy)]
enum Patience {
    /// Not at all.
    None,
    /// As the socket's `SO_RCVTIMEO` says.
    Receive,
    /// As the socket's `SO_SNDTIMEO` says.
    Send,
}

impl Patience {
    fn until(self, posix: &mut Posix, now: Instant, handle: Handle) -> Option<Instant> {
        let (receive, send) = posix.timeouts(handle).unwrap_or_default();
        let span = match self {
            Self::None => return Some(Instant::ZERO),
            _ if posix.is_nonblocking(handle) == Ok(true) => return Some(Instant::ZERO),
            Self::Receive => receive,
            Self::Send => send,
        };
        until(now, span)
    }
}

impl Stack {
    /// Waits on one handle while `call` gives EAGAIN.
    fn retry<R>(
        &self,
        handle: Handle,
        patience: Patience,
        mut call: impl FnMut(&mut Posix, Instant) -> Result<R>,
    ) -> Result<R> {
        self.wait(
            &[handle],
            |posix, now| patience.until(posix, now, handle),
            |posix, now| match call(posix, now) {
                Err(Errno::EAGAIN) => Ok(None),
                result => result.map(Some),
            },
        )?
        .ok_or(Errno::EAGAIN)
    }

    /// `socket(2)`.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<Handle> {
        self.call(|posix, _| posix.socket(domain, kind, protocol))
    }

    /// `bind(2)`.
    pub fn bind(&self, handle: Handle, addr: SockAddr) -> Result<()> {
        self.call(|posix, now| posix.bind(now, handle, addr))
    }

    /// `listen(2)`.
    pub fn listen(&self, handle: Handle, backlog: i32) -> Result<()> {
        self.call(|posix, now| posix.listen(now, handle, backlog))
    }

    /// `accept4(2)`: waits for a connection, at most `SO_RCVTIMEO`.
    pub fn accept4(&self, handle: Handle, flags: i32) -> Result<(Handle, SockAddr)> {
        self.retry(handle, Patience::Receive, |posix, _| {
            posix.accept4(handle, flags)
        })
    }

    /// `connect(2)`: waits until the connection stands, at most `SO_SNDTIMEO` (then
    /// EINPROGRESS, and the attempt goes on).
    pub fn connect(&self, handle: Handle, addr: SockAddr) -> Result<()> {
        let mut pending = Errno::EINPROGRESS;
        let mut first = true;
        self.wait(
            &[handle],
            |posix, now| Patience::Send.until(posix, now, handle),
            |posix, now| match posix.connect(now, handle, addr) {
                Err(error @ (Errno::EINPROGRESS | Errno::EALREADY)) => {
                    if core::mem::take(&mut first) {
                        pending = error;
                    }
                    Ok(None)
                }
                result => result.map(Some),
            },
        )?
        .ok_or(pending)
    }

    /// `getsockname(2)`.
    pub fn getsockname(&self, handle: Handle) -> Result<SockAddr> {
        self.call(|posix, _| posix.getsockname(handle))
    }

    /// `getpeername(2)`.
    pub fn getpeername(&self, handle: Handle) -> Result<SockAddr> {
        self.call(|posix, _| posix.getpeername(handle))
    }

    /// `shutdown(2)`; who sleeps in a call on the socket wakes.
    pub fn shutdown(&self, handle: Handle, how: i32) -> Result<()> {
        self.call(|posix, now| posix.shutdown(now, handle, how))
    }

    /// `close(2)`. Threads that sleep in a call on the socket wake with EBADF. With `SO_LINGER` the
    /// call waits up to that long for the peer to acknowledge what was written. Memory that C lent
    /// and that is still in use is copied.
    ///
    /// # Errors
    /// EBADF for a handle that is not open. On a stack that has ended, its error: the socket is
    /// closed nevertheless.
    pub fn close(&self, handle: Handle) -> Result<()> {
        let lingered = self.linger_as_set(handle);
        let (mut shard, now) = self.shared.lock();
        let alive = shard.alive();
        let closed = shard.posix.close(now, handle);
        // Under the lock of the close: no packet is read meanwhile.
        let copied = closed.is_ok() && self.lent.copy_all(handle);
        self.finish(shard, now);
        if copied {
            self.carrier.wait_for_hand();
        }
        lingered.and(alive).and(closed)
    }

    fn linger_as_set(&self, handle: Handle) -> Result<()> {
        let linger = self.call(|posix, _| posix.linger(handle))?;
        match linger {
            Some(span) if span != Nanos::ZERO => self.linger(handle, span),
            _ => Ok(()),
        }
    }

    fn linger(&self, handle: Handle, span: Nanos) -> Result<()> {
        // One that is not connected has nothing to send.
        let _ = self.shutdown(handle, SHUT_WR);
        self.wait(
            &[handle],
            |_, now| until(now, Some(span)),
            |posix, _| {
                posix.poll_events(handle)?;
                Ok(posix.is_flushed(handle)?.then_some(()))
            },
        )?;
        Ok(())
    }

    /// `setsockopt(2)`.
    pub fn setsockopt(&self, handle: Handle, level: i32, name: i32, value: &[u8]) -> Result<()> {
        self.call(|posix, now| posix.setsockopt(now, handle, level, name, value))
    }

    /// `getsockopt(2)`; how many bytes of `value` were filled.
    pub fn getsockopt(
        &self,
        handle: Handle,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize> {
        self.call(|posix, now| posix.getsockopt(now, handle, level, name, value))
    }

    /// `ioctl(2)`: the value that the request gives.
    pub fn ioctl(&self, handle: Handle, request: u32, argument: i32) -> Result<i32> {
        self.call(|posix, _| posix.ioctl(handle, request, argument))
    }

    /// `O_NONBLOCK`.
    pub fn is_nonblocking(&self, handle: Handle) -> Result<bool> {
        self.call(|posix, _| posix.is_nonblocking(handle))
    }

    /// Sets `O_NONBLOCK`.
    pub fn set_nonblocking(&self, handle: Handle, on: bool) -> Result<()> {
        self.call(|posix, _| posix.set_nonblocking(handle, on))
    }
}
