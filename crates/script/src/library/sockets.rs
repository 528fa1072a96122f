//! The library's calls. Each owns its memory, so that any thread may make it.

use std::ffi::{c_int, c_ulong};
use std::ptr;

use fullsend_posix::abi::MSG_ZEROCOPY;
use fullsend_posix::{EpollEvent, Errno, Received, SockAddr};
use libc::{epoll_event, loff_t, pollfd, socklen_t};

use super::memory::{SockName, iovecs, message, sock_name_or_null};
use super::{CallOutput, LibraryTarget};
use crate::run::target::{Fd, PollEntry, SendArgs, Sockets, TimeoutKind};
use crate::script::Nanos;

type Result<T> = core::result::Result<T, Errno>;

/// Makes a call with numbers and pointers to memory that the job owns.
macro_rules! call {
    ($target:expr, |$table:ident| $call:expr) => {
        $target.call(Errno::EAGAIN, move |$table| {
            // SAFETY: the job owns the memory, which has the lengths passed.
            CallOutput::from_return(unsafe { $call })
        })
    };
}

impl Sockets for LibraryTarget {
    fn take_ready(&mut self) -> bool {
        self.thread.is_done()
    }

    fn blocks_itself(&self) -> bool {
        true
    }

    fn may_block(&mut self, may: bool) {
        self.may_block = may;
    }

    fn wait_for_call(&mut self) -> bool {
        !self.thread.is_busy() || self.thread.wait()
    }

    fn is_blocking(&mut self, _fd: Fd) -> bool {
        self.thread.is_busy()
    }

    fn timeout(&mut self, _fd: Fd, _wait: TimeoutKind) -> Option<Nanos> {
        None
    }

    fn port(&self, fd: Fd) -> Option<u16> {
        self.ports.get(&fd.0).copied()
    }

    fn watch(&mut self, _fd: Fd) {}

    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Fd> {
        let done = call!(self, |t| (t.socket)(t.ud, domain, kind, protocol))?;
        Ok(self.opened(&done))
    }

    fn bind(&mut self, fd: Fd, addr: SockAddr) -> Result<()> {
        let name = SockName::new(addr);
        call!(self, |t| {
            let (start, len) = name.get();
            (t.bind)(t.ud, fd.0, start, len)
        })?;
        if let Some(addr) = addr.canonical() {
            self.ports.insert(fd.0, addr.port());
        }
        Ok(())
    }

    fn listen(&mut self, fd: Fd, backlog: i32) -> Result<()> {
        call!(self, |t| (t.listen)(t.ud, fd.0, backlog)).map(drop)
    }

    fn accept4(&mut self, fd: Fd, flags: i32) -> Result<(Fd, SockAddr)> {
        if flags != 0 {
            // The interface does not have this call.
            return Err(Errno(libc::ENOSYS));
        }
        let done = self.call(Errno::EAGAIN, move |t| {
            let mut name = vec![0; 128];
            let mut len = name.len() as socklen_t;
            let start = name.as_mut_ptr().cast();
            // SAFETY: the buffer holds any address; its length is passed.
            let mut done =
                CallOutput::from_return(unsafe { (t.accept)(t.ud, fd.0, start, &raw mut len) });
            name.truncate(len as usize);
            done.name = name;
            done
        })?;
        Ok((self.opened(&done), SockAddr::from_bytes(&done.name)?))
    }

    fn connect(&mut self, fd: Fd, addr: SockAddr) -> Result<()> {
        let name = SockName::new(addr);
        let done = self.call(Errno::EALREADY, move |t| {
            let (start, len) = name.get();
            // SAFETY: the pointer and length are those of an address.
            CallOutput::from_return(unsafe { (t.connect)(t.ud, fd.0, start, len) })
        });
        done.map(drop)
    }

    fn shutdown(&mut self, fd: Fd, how: i32) -> Result<()> {
        call!(self, |t| (t.shutdown)(t.ud, fd.0, how)).map(drop)
    }

    fn close(&mut self, fd: Fd) -> Result<()> {
        let done = call!(self, |t| (t.close)(t.ud, fd.0)).map(drop);
        if done != Err(Errno::EAGAIN) {
            self.open.remove(&fd.0);
        }
        done
    }

    fn receive_call(
        &mut self,
        name: &str,
        fd: Fd,
        parts: &mut [&mut [u8]],
        flags: i32,
        control: &mut [u8],
    ) -> Result<Received> {
        let mut data: Vec<Vec<u8>> = parts.iter().map(|part| vec![0; part.len()]).collect();
        let (name, mut buffer) = (name.to_owned(), vec![0; control.len()]);
        let done = self.call(Errno::EAGAIN, move |t| {
            let mut pieces = iovecs(&mut data);
            let first = pieces.first().map_or((ptr::null_mut(), 0), |piece| {
                (piece.iov_base, piece.iov_len)
            });
            let mut header = message((ptr::null(), 0), &mut pieces, &mut buffer);
            let (ud, fd, count) = (t.ud, fd.0, pieces.len() as c_int);
            let (from, from_len) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the buffers have the lengths passed; the address may be null.
            let mut done = CallOutput::from_return(unsafe {
                match name.as_str() {
                    "read" => (t.read)(ud, fd, first.0, first.1),
                    "readv" => (t.readv)(ud, fd, pieces.as_ptr(), count),
                    "recv" => (t.recv)(ud, fd, first.0, first.1, flags),
                    "recvfrom" => (t.recvfrom)(ud, fd, first.0, first.1, flags, from, from_len),
                    _ => (t.recvmsg)(ud, fd, &raw mut header, flags),
                }
            });
            buffer.truncate(header.msg_controllen);
            (done.data, done.control, done.flags) = (data, buffer, header.msg_flags);
            done
        })?;
        for (to, from) in parts.iter_mut().zip(&done.data) {
            to.copy_from_slice(from);
        }
        control[..done.control.len()].copy_from_slice(&done.control);
        Ok(Received {
            len: done.value as usize,
            from: None,
            flags: done.flags,
            control_len: done.control.len(),
        })
    }

    fn send_call(&mut self, fd: Fd, sending: SendArgs<'_>) -> Result<usize> {
        let mut data: Vec<Vec<u8>> = sending.parts.iter().map(|part| part.to_vec()).collect();
        let (name, flags) = (sending.name.to_owned(), sending.flags);
        let (dest, mut control) = (sending.dest.map(SockName::new), sending.control.to_vec());
        let mut done = self.call(Errno::EAGAIN, move |t| {
            let mut pieces = iovecs(&mut data);
            let first = pieces.first().map_or((ptr::null_mut(), 0), |piece| {
                (piece.iov_base, piece.iov_len)
            });
            let to = sock_name_or_null(dest.as_ref());
            let header = message(to, &mut pieces, &mut control);
            let (ud, fd, count) = (t.ud, fd.0, pieces.len() as c_int);
            // SAFETY: the buffers have the lengths passed, and are kept while they are lent.
            let mut done = CallOutput::from_return(unsafe {
                match name.as_str() {
                    "write" => (t.write)(ud, fd, first.0, first.1),
                    "writev" => (t.writev)(ud, fd, pieces.as_ptr(), count),
                    "send" => (t.send)(ud, fd, first.0, first.1, flags),
                    "sendto" => (t.sendto)(ud, fd, first.0, first.1, flags, to.0, to.1),
                    _ => (t.sendmsg)(ud, fd, &raw const header, flags),
                }
            });
            done.data = data;
            done
        })?;
        if flags & MSG_ZEROCOPY != 0 {
            self.lent.push(std::mem::take(&mut done.data));
        }
        Ok(done.value as usize)
    }

    fn setsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<()> {
        let value = value.to_vec();
        let done = call!(self, |t| {
            let (start, len) = (value.as_ptr().cast(), value.len() as socklen_t);
            (t.setsockopt)(t.ud, fd.0, level, name, start, len)
        });
        done.map(drop)
    }

    fn getsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &mut [u8]) -> Result<usize> {
        let mut buffer = vec![0; value.len()];
        let done = self.call(Errno::EAGAIN, move |t| {
            let mut len = buffer.len() as socklen_t;
            let start = buffer.as_mut_ptr().cast();
            // SAFETY: the buffer holds the value; its length is passed.
            let got = unsafe { (t.getsockopt)(t.ud, fd.0, level, name, start, &raw mut len) };
            let mut done = CallOutput::from_return(got);
            buffer.truncate(len as usize);
            done.control = buffer;
            done
        })?;
        value[..done.control.len()].copy_from_slice(&done.control);
        Ok(done.control.len())
    }

    /// Calls the C library's `getsockopt` like packetdrill; only a preloaded library intercepts it.
    fn getsockopt_of_code(
        &mut self,
        fd: Fd,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize> {
        let mut len = value.len() as socklen_t;
        let start = value.as_mut_ptr().cast();
        // SAFETY: the buffer holds the value; its length is passed.
        let got = unsafe { libc::getsockopt(fd.0, level, name, start, &raw mut len) };
        if got == 0 {
            return Ok(len as usize);
        }
        // The library is called directly, as another call may be blocked on the thread.
        let (table, mut len) = (&self.table, value.len() as socklen_t);
        // SAFETY: as above.
        let got = unsafe { (table.getsockopt)(table.ud, fd.0, level, name, start, &raw mut len) };
        CallOutput::from_return(got).result().map(|_| len as usize)
    }

    fn ioctl(&mut self, fd: Fd, request: u32) -> Result<i32> {
        let done = self.call(Errno::EAGAIN, move |t| {
            let mut value: c_int = 0;
            let request = c_ulong::from(request);
            // SAFETY: `value` holds the result.
            let mut done =
                CallOutput::from_return(unsafe { (t.ioctl)(t.ud, fd.0, request, &raw mut value) });
            done.flags = value;
            done
        })?;
        Ok(done.flags)
    }

    fn is_nonblocking(&mut self, fd: Fd) -> Result<bool> {
        let done = call!(self, |t| (t.fcntl)(t.ud, fd.0, libc::F_GETFL))?;
        Ok(done.value as c_int & libc::O_NONBLOCK != 0)
    }

    fn set_nonblocking(&mut self, fd: Fd, on: bool) -> Result<()> {
        let flags = libc::O_RDWR | if on { libc::O_NONBLOCK } else { 0 };
        call!(self, |t| (t.fcntl)(t.ud, fd.0, libc::F_SETFL, flags)).map(drop)
    }

    fn poll(&mut self, lines: &mut [PollEntry], timeout_ms: i32) -> Result<usize> {
        let file = |line: &PollEntry| pollfd {
            fd: line.fd.0,
            events: line.events as i16,
            revents: 0,
        };
        let mut files: Vec<pollfd> = lines.iter().map(file).collect();
        let done = self.call(Errno::EAGAIN, move |t| {
            let (start, count) = (files.as_mut_ptr(), files.len() as libc::nfds_t);
            // SAFETY: the pointer and count are those of a live vector.
            let mut done =
                CallOutput::from_return(unsafe { (t.poll)(t.ud, start, count, timeout_ms) });
            done.polled = files;
            done
        })?;
        for (line, file) in lines.iter_mut().zip(&done.polled) {
            line.revents = file.revents as u16;
        }
        Ok(done.value as usize)
    }

    fn epoll_create(&mut self) -> Result<Fd> {
        let done = call!(self, |t| (t.epoll_create)(t.ud, 1))?;
        // Not closed at the end, like in packetdrill.
        Ok(Fd(done.value as i32))
    }

    fn epoll_ctl(&mut self, set: Fd, operation: i32, fd: Fd, event: EpollEvent) -> Result<()> {
        let mut event = epoll_event {
            events: event.events,
            u64: event.data,
        };
        let done = call!(self, |t| {
            (t.epoll_ctl)(t.ud, set.0, operation, fd.0, &raw mut event)
        });
        done.map(drop)
    }

    fn epoll_wait(&mut self, set: Fd, out: &mut [EpollEvent], timeout_ms: i32) -> Result<usize> {
        let mut events = vec![epoll_event { events: 0, u64: 0 }; out.len()];
        let done = self.call(Errno::EAGAIN, move |t| {
            let (start, count) = (events.as_mut_ptr(), events.len() as c_int);
            // SAFETY: the pointer and count are those of a live vector.
            let got = unsafe { (t.epoll_wait)(t.ud, set.0, start, count, timeout_ms) };
            let mut done = CallOutput::from_return(got);
            done.events = events;
            done
        })?;
        for (to, from) in out.iter_mut().zip(&done.events) {
            *to = EpollEvent {
                events: from.events,
                data: from.u64,
            };
        }
        Ok(done.value as usize)
    }

    fn pipe(&mut self) -> Result<(Fd, Fd)> {
        let done = self.call(Errno::EAGAIN, move |t| {
            let mut ends: [c_int; 2] = [-1; 2];
            // SAFETY: the array holds two descriptors.
            let mut done = CallOutput::from_return(unsafe { (t.pipe)(t.ud, ends.as_mut_ptr()) });
            done.name = ends.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
            done
        })?;
        let end = |at: usize| {
            let word = done.name.get(at..at + 4).and_then(<[u8]>::first_chunk);
            Fd(word.map_or(-1, |word| c_int::from_ne_bytes(*word)))
        };
        Ok((end(0), end(4)))
    }

    fn splice(&mut self, from: Fd, to: Fd, len: usize, flags: u32) -> Result<usize> {
        let done = call!(self, |t| {
            // packetdrill passes pointers to zero for NULL.
            let (mut start, mut end): (loff_t, loff_t) = (0, 0);
            (t.splice)(t.ud, from.0, &raw mut start, to.0, &raw mut end, len, flags)
        })?;
        Ok(done.value as usize)
    }
}
