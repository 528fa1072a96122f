//! The calls, each led to what its handle stands for.

use alloc::boxed::Box;

use fullsend_units::Instant;

use crate::abi::{
    AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM,
};
use crate::errno::{Errno, Result};
use crate::files::{Handle, Kind};
use crate::stream::Stream;
use crate::wake::Key;
use crate::{Posix, Received, SockAddr};

impl Posix {
    /// `socket(2)`. Types: `SOCK_STREAM`, with `SOCK_NONBLOCK` and `SOCK_CLOEXEC` (no effect).
    pub fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Handle> {
        if !matches!(domain, AF_INET | AF_INET6) {
            return Err(Errno::EAFNOSUPPORT);
        }
        let flags = kind & (SOCK_NONBLOCK | SOCK_CLOEXEC);
        let file = match (kind & !flags, protocol) {
            (SOCK_STREAM, IPPROTO_IP | IPPROTO_TCP) => Kind::Stream(Box::new(Stream::new(domain))),
            (SOCK_STREAM, _) => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        self.files.insert(file, flags & SOCK_NONBLOCK != 0)
    }

    /// `bind(2)`.
    pub fn bind(&mut self, _now: Instant, handle: Handle, addr: SockAddr) -> Result<()> {
        match &mut self.files.get_mut(handle)?.kind {
            Kind::Stream(stream) => stream.bind(&self.host, addr),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    /// `listen(2)`; once more, it changes the backlog.
    pub fn listen(&mut self, _now: Instant, handle: Handle, backlog: i32) -> Result<()> {
        let file = self.files.get_mut(handle)?;
        let result = match &mut file.kind {
            Kind::Stream(stream) => stream.listen(&mut self.host, backlog),
            _ => Err(Errno::ENOTSOCK),
        };
        self.arm_if_watched(handle);
        result
    }

    /// `accept4(2)`: the new socket and its peer. EAGAIN when there is none.
    pub fn accept4(
        &mut self,
        _now: Instant,
        handle: Handle,
        flags: i32,
    ) -> Result<(Handle, SockAddr)> {
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let accepted = match &mut self.files.get_mut(handle)?.kind {
            Kind::Stream(stream) => stream.accept(&mut self.host),
            _ => Err(Errno::ENOTSOCK),
        };
        let (stream, peer) = self.arm_if_blocked(handle, accepted)?;
        let nonblocking = flags & SOCK_NONBLOCK != 0;
        let new = self
            .files
            .insert(Kind::Stream(Box::new(stream)), nonblocking)?;
        Ok((new, peer))
    }

    /// `connect(2)`, never waiting: EINPROGRESS at first, then EALREADY, once 0 when the
    /// connection stands, and EISCONN from then on; or once the error why it failed.
    pub fn connect(&mut self, now: Instant, handle: Handle, addr: SockAddr) -> Result<()> {
        self.collect();
        let result = match &mut self.files.get_mut(handle)?.kind {
            Kind::Stream(stream) => stream.connect(&mut self.host, now, addr),
            _ => Err(Errno::ENOTSOCK),
        };
        if let Err(Errno::EINPROGRESS | Errno::EALREADY) = result {
            self.arm(handle);
        }
        result
    }

    /// `getsockname(2)`.
    pub fn getsockname(&self, handle: Handle) -> Result<SockAddr> {
        match &self.files.get(handle)?.kind {
            Kind::Stream(stream) => Ok(stream.local(&self.host)),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    /// `getpeername(2)`.
    pub fn getpeername(&self, handle: Handle) -> Result<SockAddr> {
        match &self.files.get(handle)?.kind {
            Kind::Stream(stream) => stream.peer(&self.host),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    /// `shutdown(2)`.
    pub fn shutdown(&mut self, now: Instant, handle: Handle, how: i32) -> Result<()> {
        let result = match &mut self.files.get_mut(handle)?.kind {
            Kind::Stream(stream) => stream.shutdown(&mut self.host, now, how),
            _ => Err(Errno::ENOTSOCK),
        };
        self.notify(handle, Key::Any);
        result
    }

    /// `close(2)`. What is written still goes out.
    pub fn close(&mut self, now: Instant, handle: Handle) -> Result<()> {
        self.collect();
        // Who waits on it finds out by trying.
        self.notify(handle, Key::Any);
        let mut file = self.files.remove(handle)?;
        self.leave_sets(handle, &file);
        match &mut file.kind {
            Kind::Stream(stream) => stream.close(&mut self.host, now),
            Kind::Epoll(_) => {}
            end => self.pipe_closed(end),
        }
        Ok(())
    }

    /// `sendmsg(2)`; how many bytes were taken. `control` is made of Linux's `cmsghdr`s.
    pub fn sendmsg(
        &mut self,
        now: Instant,
        handle: Handle,
        data: &[&[u8]],
        flags: i32,
        _dest: Option<SockAddr>,
        _control: &[u8],
    ) -> Result<usize> {
        let result = match &mut self.files.get_mut(handle)?.kind {
            // As on Linux, a stream takes no notice of an address.
            Kind::Stream(stream) => stream.send(&mut self.host, now, data, flags),
            _ => Err(Errno::ENOTSOCK),
        };
        self.arm_if_blocked(handle, result)
    }

    /// `recvmsg(2)`.
    pub fn recvmsg(
        &mut self,
        now: Instant,
        handle: Handle,
        data: &mut [&mut [u8]],
        flags: i32,
        _control: &mut [u8],
    ) -> Result<Received> {
        let result = match &mut self.files.get_mut(handle)?.kind {
            Kind::Stream(stream) => stream.receive(&mut self.host, now, data, flags),
            _ => Err(Errno::ENOTSOCK),
        };
        self.arm_if_blocked(handle, result)
    }

    /// `setsockopt(2)`.
    pub fn setsockopt(
        &mut self,
        _now: Instant,
        handle: Handle,
        _level: i32,
        _name: i32,
        _value: &[u8],
    ) -> Result<()> {
        self.files.get(handle)?;
        Err(Errno::ENOPROTOOPT)
    }

    /// `getsockopt(2)`; how many bytes of `value` were filled.
    pub fn getsockopt(
        &mut self,
        _now: Instant,
        handle: Handle,
        _level: i32,
        _name: i32,
        _value: &mut [u8],
    ) -> Result<usize> {
        self.files.get(handle)?;
        Err(Errno::ENOPROTOOPT)
    }

    /// `ioctl(2)` on sockets: the value that the request gives, for those that give one.
    pub fn ioctl(&mut self, handle: Handle, _request: u32, _argument: i32) -> Result<i32> {
        self.files.get(handle)?;
        Err(Errno::ENOTTY)
    }

    /// Readiness in `EPOLL*` bits, as `poll(2)` and `epoll(7)` have it; from here on a change is
    /// told by [`take_ready`](Self::take_ready).
    pub fn poll_events(&mut self, handle: Handle) -> Result<u32> {
        self.arm(handle);
        self.events(handle)
    }

    /// `O_NONBLOCK`. Nothing here blocks: it is kept for the layer that does.
    pub fn is_nonblocking(&self, handle: Handle) -> Result<bool> {
        Ok(self.files.get(handle)?.nonblocking)
    }

    /// Sets `O_NONBLOCK`.
    pub fn set_nonblocking(&mut self, handle: Handle, on: bool) -> Result<()> {
        self.files.get_mut(handle)?.nonblocking = on;
        Ok(())
    }
}
