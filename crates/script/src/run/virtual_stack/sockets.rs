//! Calls of the posix layer, which never blocks: the runner waits.

use fullsend_posix::abi::{EPOLLERR, EPOLLHUP};
use fullsend_posix::{EpollEvent, Errno, Handle, Received, SockAddr};

use super::VirtualStack;
use crate::run::target::{Fd, PollEntry, SendArgs, Sockets, TimeoutKind};
use crate::script::Nanos;

type Result<T> = core::result::Result<T, Errno>;

impl VirtualStack {
    fn add(&mut self, handle: Handle) -> Fd {
        self.handles.push(handle);
        Fd(self.handles.len() as i32 - 1)
    }

    fn handle(&self, fd: Fd) -> Result<Handle> {
        let index = usize::try_from(fd.0).map_err(|_| Errno::EBADF)?;
        self.handles.get(index).copied().ok_or(Errno::EBADF)
    }
}

impl Sockets for VirtualStack {
    fn take_ready(&mut self) -> bool {
        let mut ready = Vec::new();
        self.posix.take_ready(&mut ready);
        !ready.is_empty()
    }

    fn is_blocking(&mut self, fd: Fd) -> bool {
        !self.is_nonblocking(fd).unwrap_or(true)
    }

    fn is_opening(&self, fd: Fd) -> bool {
        let handle = self.handle(fd);
        handle.is_ok_and(|handle| self.posix.is_opening(handle))
    }

    fn timeout(&mut self, fd: Fd, wait: TimeoutKind) -> Option<Nanos> {
        let (receive, send) = self.posix.timeouts(self.handle(fd).ok()?).ok()?;
        let span = match wait {
            TimeoutKind::Receive => receive,
            TimeoutKind::Send => send,
        };
        span.map(|span| span.as_nanos() as Nanos)
    }

    fn receive_target(&mut self, fd: Fd, len: usize, flags: i32) -> usize {
        let target = self.handle(fd);
        let target = target.and_then(|handle| self.posix.receive_target(handle, len, flags));
        target.unwrap_or(0)
    }

    fn linger(&mut self, fd: Fd) -> Option<Nanos> {
        let span = self.posix.linger(self.handle(fd).ok()?).ok()??;
        Some(span.as_nanos() as Nanos)
    }

    fn is_flushed(&mut self, fd: Fd) -> bool {
        let flushed = self.handle(fd);
        let flushed = flushed.and_then(|handle| self.posix.is_flushed(handle));
        flushed.unwrap_or(true)
    }

    fn port(&self, fd: Fd) -> Option<u16> {
        let addr = self.posix.getsockname(self.handle(fd).ok()?).ok()?;
        addr.canonical().map(|addr| addr.port())
    }

    fn watch(&mut self, fd: Fd) {
        if let Ok(handle) = self.handle(fd) {
            // Reading the events requests a notification of the next change.
            let _ = self.posix.poll_events(handle);
        }
    }

    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Fd> {
        let handle = self.posix.socket(domain, kind, protocol)?;
        Ok(self.add(handle))
    }

    fn bind(&mut self, fd: Fd, addr: SockAddr) -> Result<()> {
        self.posix.bind(self.instant(), self.handle(fd)?, addr)
    }

    fn listen(&mut self, fd: Fd, backlog: i32) -> Result<()> {
        self.posix.listen(self.instant(), self.handle(fd)?, backlog)
    }

    fn accept4(&mut self, fd: Fd, flags: i32) -> Result<(Fd, SockAddr)> {
        let handle = self.handle(fd)?;
        let (handle, peer) = self.posix.accept4(handle, flags)?;
        Ok((self.add(handle), peer))
    }

    fn connect(&mut self, fd: Fd, addr: SockAddr) -> Result<()> {
        self.posix.connect(self.instant(), self.handle(fd)?, addr)
    }

    fn shutdown(&mut self, fd: Fd, how: i32) -> Result<()> {
        self.posix.shutdown(self.instant(), self.handle(fd)?, how)
    }

    fn close(&mut self, fd: Fd) -> Result<()> {
        self.posix.close(self.instant(), self.handle(fd)?)
    }

    fn receive_call(
        &mut self,
        name: &str,
        fd: Fd,
        parts: &mut [&mut [u8]],
        flags: i32,
        control: &mut [u8],
    ) -> Result<Received> {
        let (now, handle) = (self.instant(), self.handle(fd)?);
        match name {
            "read" | "readv" => self.posix.read(now, handle, parts).map(|len| Received {
                len,
                ..Received::default()
            }),
            _ => self.posix.recvmsg(now, handle, parts, flags, control),
        }
    }

    fn send_call(&mut self, fd: Fd, sending: SendArgs<'_>) -> Result<usize> {
        let (now, handle) = (self.instant(), self.handle(fd)?);
        let SendArgs { parts, flags, .. } = sending;
        match sending.name {
            "write" | "writev" => self.posix.write(now, handle, parts),
            _ => {
                let (dest, control) = (sending.dest, sending.control);
                self.posix.sendmsg(now, handle, parts, flags, dest, control)
            }
        }
    }

    fn setsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<()> {
        let (now, handle) = (self.instant(), self.handle(fd)?);
        self.posix.setsockopt(now, handle, level, name, value)
    }

    fn getsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &mut [u8]) -> Result<usize> {
        let (now, handle) = (self.instant(), self.handle(fd)?);
        self.posix.getsockopt(now, handle, level, name, value)
    }

    fn ioctl(&mut self, fd: Fd, request: u32) -> Result<i32> {
        self.posix.ioctl(self.handle(fd)?, request, 0)
    }

    fn is_nonblocking(&mut self, fd: Fd) -> Result<bool> {
        self.posix.is_nonblocking(self.handle(fd)?)
    }

    fn set_nonblocking(&mut self, fd: Fd, on: bool) -> Result<()> {
        self.posix.set_nonblocking(self.handle(fd)?, on)
    }

    fn poll(&mut self, lines: &mut [PollEntry], _timeout_ms: i32) -> Result<usize> {
        let mut ready = 0;
        for line in lines {
            let events = self.posix.poll_events(self.handle(line.fd)?);
            let requested = u32::from(line.events) | EPOLLERR | EPOLLHUP;
            line.revents = (events.unwrap_or(EPOLLERR) & requested) as u16;
            ready += usize::from(line.revents != 0);
        }
        Ok(ready)
    }

    fn epoll_create(&mut self) -> Result<Fd> {
        let handle = self.posix.epoll_create()?;
        Ok(self.add(handle))
    }

    fn epoll_ctl(&mut self, set: Fd, operation: i32, fd: Fd, event: EpollEvent) -> Result<()> {
        let (set, handle) = (self.handle(set)?, self.handle(fd)?);
        self.posix.epoll_ctl(set, operation, handle, event)
    }

    fn epoll_wait(&mut self, set: Fd, out: &mut [EpollEvent], _timeout_ms: i32) -> Result<usize> {
        self.posix
            .epoll_wait(self.instant(), self.handle(set)?, out)
    }

    fn pipe(&mut self) -> Result<(Fd, Fd)> {
        let (reader, writer) = self.posix.pipe(false)?;
        Ok((self.add(reader), self.add(writer)))
    }

    fn splice(&mut self, from: Fd, to: Fd, len: usize, flags: u32) -> Result<usize> {
        let (from, to) = (self.handle(from)?, self.handle(to)?);
        self.posix.splice(self.instant(), from, to, len, flags)
    }
}
