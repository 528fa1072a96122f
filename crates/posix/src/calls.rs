//! The calls on sockets, dispatched by the kind of the handle.

use alloc::boxed::Box;

use fullsend_wire::Instant;

use crate::abi::{
    AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_TCP, IPPROTO_UDP, SOCK_CLOEXEC, SOCK_DGRAM,
    SOCK_NONBLOCK, SOCK_STREAM,
};
use crate::datagram::Datagram;
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Handle};
use crate::stream::Stream;
use crate::wake::WakeKey;
use crate::{Posix, SockAddr};

/// Number of socket types in Linux, of which two are supported.
const SOCK_MAX: i32 = 11;
/// Number of protocols in Linux.
const IPPROTO_MAX: i32 = 263;

impl Posix {
    /// Creates a socket: `socket(2)`. The types are `SOCK_STREAM` and `SOCK_DGRAM`, with
    /// `SOCK_NONBLOCK` and `SOCK_CLOEXEC` (no effect).
    ///
    /// # Errors
    /// EAFNOSUPPORT for a domain other than `AF_INET` and `AF_INET6`, ESOCKTNOSUPPORT and
    /// EPROTONOSUPPORT for an unsupported type or protocol, EINVAL for numbers that Linux does not
    /// have, EMFILE if no handle is free.
    pub fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Handle> {
        let flags = kind & (SOCK_NONBLOCK | SOCK_CLOEXEC);
        let kind = kind & !flags;
        if !(0..SOCK_MAX).contains(&kind) {
            return Err(Errno::EINVAL);
        }
        if !matches!(domain, AF_INET | AF_INET6) {
            return Err(Errno::EAFNOSUPPORT);
        }
        if !(0..IPPROTO_MAX).contains(&protocol) {
            return Err(Errno::EINVAL);
        }
        let file = match (kind, protocol) {
            (SOCK_STREAM, IPPROTO_IP | IPPROTO_TCP) => {
                FileKind::Stream(Box::new(Stream::new(domain)))
            }
            (SOCK_DGRAM, IPPROTO_IP | IPPROTO_UDP) => {
                FileKind::Datagram(Box::new(Datagram::new(domain)))
            }
            (SOCK_STREAM | SOCK_DGRAM, _) => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        self.files.insert(file, flags & SOCK_NONBLOCK != 0)
    }

    /// Accepts a connection: `accept4(2)`. Returns the new socket and its peer, or EAGAIN if no
    /// connection is waiting.
    ///
    /// # Errors
    /// EAGAIN if no connection is waiting, EINVAL for unknown flags or a socket that does not
    /// listen, EOPNOTSUPP for a datagram socket, EBADF for a handle that is not open, ENOTSOCK for
    /// one that is not a socket, EMFILE if no handle is free.
    pub fn accept4(&mut self, handle: Handle, flags: i32) -> Result<(Handle, SockAddr)> {
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let accepted = match &mut self.files.get_mut(handle)?.kind {
            FileKind::Stream(stream) => stream.accept(&mut self.host),
            FileKind::Datagram(_) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::ENOTSOCK),
        };
        let (stream, peer) = self.arm_if_blocked(handle, accepted)?;
        let nonblocking = flags & SOCK_NONBLOCK != 0;
        let new = self
            .files
            .insert(FileKind::Stream(Box::new(stream)), nonblocking)?;
        Ok((new, peer))
    }

    /// Connects a socket: `connect(2)`. Does not wait: a stream returns EINPROGRESS at first, then
    /// EALREADY; once the handshake has ended, it returns the result once, and after success
    /// EISCONN.
    ///
    /// # Errors
    /// EINPROGRESS, EALREADY and EISCONN as described; after a failed handshake its error
    /// (ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH or another). ENETUNREACH without a route,
    /// EADDRNOTAVAIL without a free port, EAFNOSUPPORT and EINVAL for an unsuitable address, EBADF
    /// for a handle that is not open, ENOTSOCK for one that is not a socket.
    pub fn connect(&mut self, now: Instant, handle: Handle, addr: SockAddr) -> Result<()> {
        self.process_wakes();
        let result = match &mut self.files.get_mut(handle)?.kind {
            FileKind::Stream(stream) => stream.connect(&mut self.host, now, addr),
            FileKind::Datagram(datagram) => datagram.connect(&mut self.host, now, addr),
            _ => Err(Errno::ENOTSOCK),
        };
        self.release_port(handle);
        if let Err(Errno::EINPROGRESS | Errno::EALREADY) = result {
            self.arm(handle);
        } else {
            self.arm_if_watched(handle);
        }
        result
    }

    /// Returns the local address of a socket: `getsockname(2)`.
    ///
    /// # Errors
    /// EBADF for a handle that is not open, ENOTSOCK for one that is not a socket.
    pub fn getsockname(&self, handle: Handle) -> Result<SockAddr> {
        match &self.files.get(handle)?.kind {
            FileKind::Stream(stream) => Ok(stream.local(&self.host)),
            FileKind::Datagram(datagram) => Ok(datagram.local()),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    /// Returns the peer's address: `getpeername(2)`.
    ///
    /// # Errors
    /// ENOTCONN without a connection, EBADF for a handle that is not open, ENOTSOCK for one that is
    /// not a socket.
    pub fn getpeername(&self, handle: Handle) -> Result<SockAddr> {
        match &self.files.get(handle)?.kind {
            FileKind::Stream(stream) => stream.peer(&self.host),
            FileKind::Datagram(datagram) => datagram.peer(),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    /// Shuts down one or both directions of a connection: `shutdown(2)`.
    ///
    /// # Errors
    /// ENOTCONN without a connection, EINVAL for an unknown `how`, EBADF for a handle that is not
    /// open, ENOTSOCK for one that is not a socket.
    pub fn shutdown(&mut self, now: Instant, handle: Handle, how: i32) -> Result<()> {
        let result = match &mut self.files.get_mut(handle)?.kind {
            FileKind::Stream(stream) => stream.shutdown(&mut self.host, now, how),
            FileKind::Datagram(datagram) => datagram.shutdown(how),
            _ => Err(Errno::ENOTSOCK),
        };
        self.release_port(handle);
        // The acknowledgement of the FIN is reported, too.
        self.arm_if_watched(handle);
        self.notify(handle, WakeKey::Any);
        result
    }

    /// Closes a handle: `close(2)`. Data written before is still delivered.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn close(&mut self, now: Instant, handle: Handle) -> Result<()> {
        self.process_wakes();
        // Waiting callers repeat their calls, which then fail with EBADF.
        self.notify(handle, WakeKey::Any);
        let mut file = self.files.remove(handle)?;
        self.remove_from_sets(handle, &file);
        match &mut file.kind {
            FileKind::Stream(stream) => {
                if let Some(port) = stream.claimed {
                    self.bindings.remove(port, handle);
                }
                stream.close(&mut self.host, now);
            }
            FileKind::Datagram(datagram) => datagram.close(&mut self.host, now),
            FileKind::Epoll(_) => {}
            end => self.pipe_closed(end),
        }
        Ok(())
    }

    /// Returns the readiness of a handle in `EPOLL*` bits, by the rules of `poll(2)`. From then on,
    /// [`take_ready`](Self::take_ready) reports a change.
    ///
    /// # Errors
    /// EBADF for a handle that is not open.
    pub fn poll_events(&mut self, handle: Handle) -> Result<u32> {
        self.process_wakes();
        self.arm(handle);
        self.events(handle)
    }
}
