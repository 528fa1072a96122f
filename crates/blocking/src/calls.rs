//! Socket calls, some of which may wait.

mod io;
mod pipe;
mod poll;

pub use poll::PollEntry;

use fullsend_posix::{Errno, Handle, Posix, Result, SockAddr};
use fullsend_wire::{Instant, Nanos};

use crate::abi::SHUT_WR;
use crate::stack::Stack;

/// Returns when a call that may wait for `span` times out; with `None` it never does.
pub(crate) fn deadline_after(now: Instant, span: Option<Nanos>) -> Option<Instant> {
    span.map(|span| now + span)
}

/// The timeout of a call.
#[derive(Clone, Copy)]
enum Timeout {
    /// The call does not wait.
    None,
    /// The socket's `SO_RCVTIMEO`.
    Receive,
    /// The socket's `SO_SNDTIMEO`.
    Send,
}

impl Timeout {
    fn deadline(self, posix: &mut Posix, now: Instant, handle: Handle) -> Option<Instant> {
        let (receive, send) = posix.timeouts(handle).unwrap_or_default();
        let span = match self {
            Self::None => return Some(Instant::ZERO),
            _ if posix.is_nonblocking(handle) == Ok(true) => return Some(Instant::ZERO),
            Self::Receive => receive,
            Self::Send => send,
        };
        deadline_after(now, span)
    }
}

impl Stack {
    /// Calls `call` until it does not return EAGAIN, and waits for the handle in between.
    fn retry<R>(
        &self,
        handle: Handle,
        timeout: Timeout,
        mut call: impl FnMut(&mut Posix, Instant) -> Result<R>,
    ) -> Result<R> {
        self.wait(
            &[handle],
            |posix, now| timeout.deadline(posix, now, handle),
            |posix, now| match call(posix, now) {
                Err(Errno::EAGAIN) => Ok(None),
                result => result.map(Some),
            },
        )?
        .ok_or(Errno::EAGAIN)
    }

    /// Creates a socket: `socket(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::socket`]. On a stack that has ended, the error that it ended with.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<Handle> {
        self.call(|posix, _| posix.socket(domain, kind, protocol))
    }

    /// Binds a socket to an address: `bind(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::bind`]. On a stack that has ended, the error that it ended with.
    pub fn bind(&self, handle: Handle, addr: SockAddr) -> Result<()> {
        self.call(|posix, now| posix.bind(now, handle, addr))
    }

    /// Makes a socket listen: `listen(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::listen`]. On a stack that has ended, the error that it ended with.
    pub fn listen(&self, handle: Handle, backlog: i32) -> Result<()> {
        self.call(|posix, now| posix.listen(now, handle, backlog))
    }

    /// Accepts a connection: `accept4(2)`. Waits for at most `SO_RCVTIMEO`.
    ///
    /// # Errors
    /// The errors of [`Posix::accept4`], EAGAIN only for a non-blocking socket or after the
    /// timeout. On a stack that has ended, the error that it ended with.
    pub fn accept4(&self, handle: Handle, flags: i32) -> Result<(Handle, SockAddr)> {
        self.retry(handle, Timeout::Receive, |posix, _| {
            posix.accept4(handle, flags)
        })
    }

    /// Connects a socket: `connect(2)`. Waits for the handshake for at most `SO_SNDTIMEO`. After
    /// that it fails with EINPROGRESS and the handshake continues; a call while it continues fails
    /// with EALREADY.
    ///
    /// # Errors
    /// The errors of [`Posix::connect`], EINPROGRESS and EALREADY as described. On a stack that has
    /// ended, the error that it ended with.
    pub fn connect(&self, handle: Handle, addr: SockAddr) -> Result<()> {
        let mut pending = Errno::EINPROGRESS;
        let mut first = true;
        self.wait(
            &[handle],
            |posix, now| Timeout::Send.deadline(posix, now, handle),
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

    /// Returns the local address of a socket: `getsockname(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::getsockname`]. On a stack that has ended, the error that it ended
    /// with.
    pub fn getsockname(&self, handle: Handle) -> Result<SockAddr> {
        self.call(|posix, _| posix.getsockname(handle))
    }

    /// Returns the peer's address: `getpeername(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::getpeername`]. On a stack that has ended, the error that it ended
    /// with.
    pub fn getpeername(&self, handle: Handle) -> Result<SockAddr> {
        self.call(|posix, _| posix.getpeername(handle))
    }

    /// Shuts down one or both directions of a connection: `shutdown(2)`. Wakes threads that wait in
    /// a call on the socket.
    ///
    /// # Errors
    /// The errors of [`Posix::shutdown`]. On a stack that has ended, the error that it ended with.
    pub fn shutdown(&self, handle: Handle, how: i32) -> Result<()> {
        self.call(|posix, now| posix.shutdown(now, handle, how))
    }

    /// Closes a handle: `close(2)`. Threads that wait in a call on the socket wake with EBADF. With
    /// `SO_LINGER` the call waits, for at most that time, until the peer has acknowledged the
    /// written data. Memory lent by C code that is still in use is copied.
    ///
    /// # Errors
    /// EBADF for a handle that is not open. On a stack that has ended, the error that it ended
    /// with; the socket is closed nevertheless.
    pub fn close(&self, handle: Handle) -> Result<()> {
        let lingered = self.linger_before_close(handle);
        let (mut shard, now) = self.shared.lock();
        let alive = shard.check_alive();
        let closed = shard.posix.close(now, handle);
        // Copied under the same lock as the close, so that no packet is read in between.
        let copied = closed.is_ok() && self.loans.copy_all(handle);
        self.finish_call(shard, now);
        if copied {
            self.outbox_drainer.wait_for_output();
        }
        lingered.and(alive).and(closed)
    }

    fn linger_before_close(&self, handle: Handle) -> Result<()> {
        let linger = self.call(|posix, _| posix.linger(handle))?;
        match linger {
            Some(span) if span != Nanos::ZERO => self.wait_until_flushed(handle, span),
            _ => Ok(()),
        }
    }

    fn wait_until_flushed(&self, handle: Handle, span: Nanos) -> Result<()> {
        // A socket that is not connected has nothing to send.
        let _ = self.shutdown(handle, SHUT_WR);
        self.wait(
            &[handle],
            |_, now| deadline_after(now, Some(span)),
            |posix, _| {
                posix.poll_events(handle)?;
                Ok(posix.is_flushed(handle)?.then_some(()))
            },
        )?;
        Ok(())
    }

    /// Sets a socket option: `setsockopt(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::setsockopt`]. On a stack that has ended, the error that it ended
    /// with.
    pub fn setsockopt(&self, handle: Handle, level: i32, name: i32, value: &[u8]) -> Result<()> {
        self.call(|posix, now| posix.setsockopt(now, handle, level, name, value))
    }

    /// Reads a socket option into `value`: `getsockopt(2)`. Returns its length in bytes.
    ///
    /// # Errors
    /// The errors of [`Posix::getsockopt`]. On a stack that has ended, the error that it ended
    /// with.
    pub fn getsockopt(
        &self,
        handle: Handle,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize> {
        self.call(|posix, now| posix.getsockopt(now, handle, level, name, value))
    }

    /// Returns the value of a request: `ioctl(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::ioctl`]. On a stack that has ended, the error that it ended with.
    pub fn ioctl(&self, handle: Handle, request: u32, argument: i32) -> Result<i32> {
        self.call(|posix, _| posix.ioctl(handle, request, argument))
    }

    /// Returns whether a handle has `O_NONBLOCK`.
    ///
    /// # Errors
    /// The errors of [`Posix::is_nonblocking`]. On a stack that has ended, the error that it ended
    /// with.
    pub fn is_nonblocking(&self, handle: Handle) -> Result<bool> {
        self.call(|posix, _| posix.is_nonblocking(handle))
    }

    /// Sets or clears `O_NONBLOCK`.
    ///
    /// # Errors
    /// The errors of [`Posix::set_nonblocking`]. On a stack that has ended, the error that it ended
    /// with.
    pub fn set_nonblocking(&self, handle: Handle, on: bool) -> Result<()> {
        self.call(|posix, _| posix.set_nonblocking(handle, on))
    }
}
