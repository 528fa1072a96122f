//! The kernel's sockets, with errors as the C library returns them.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one plain libc call"
)]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use fullsend_posix::SockAddr;

use crate::backend::{Backend, Control, Ret, split};

/// Kernel sockets, which are closed when it is dropped.
#[derive(Default)]
pub(crate) struct LinuxBackend(Vec<i32>);

fn check(ret: i64) -> Ret {
    if ret >= 0 {
        return ret;
    }
    -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap())
}

fn address(ip: &str, port: u16) -> ([u8; 28], u32) {
    let ip: IpAddr = ip.parse().unwrap();
    let (bytes, len) = SockAddr::from(SocketAddr::new(ip, port)).to_bytes();
    (bytes, len as u32)
}

impl LinuxBackend {
    fn keep(&mut self, ret: i64) -> Ret {
        if ret >= 0 {
            self.0.push(ret as i32);
        }
        check(ret)
    }

    fn socket_name(fd: Ret, peer: bool) -> Result<SocketAddr, Ret> {
        let mut bytes = [0; 28];
        let mut len = 28;
        let addr = bytes.as_mut_ptr().cast();
        let ret = if peer {
            unsafe { libc::getpeername(fd as i32, addr, &raw mut len) }
        } else {
            unsafe { libc::getsockname(fd as i32, addr, &raw mut len) }
        };
        if ret < 0 {
            return Err(check(ret.into()));
        }
        Ok(
            match SockAddr::from_bytes(&bytes[..len as usize]).unwrap() {
                SockAddr::V4(addr) => addr.into(),
                SockAddr::V6(addr) => addr.into(),
                SockAddr::Unspec => unreachable!(),
            },
        )
    }
}

impl Drop for LinuxBackend {
    fn drop(&mut self) {
        for fd in &self.0 {
            unsafe { libc::close(*fd) };
        }
    }
}

impl Backend for LinuxBackend {
    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Ret {
        let ret = unsafe { libc::socket(domain, kind, protocol) };
        self.keep(ret.into())
    }

    fn bind(&mut self, fd: Ret, ip: &str, port: u16) -> Ret {
        let (addr, len) = address(ip, port);
        check(unsafe { libc::bind(fd as i32, addr.as_ptr().cast(), len) }.into())
    }

    fn listen(&mut self, fd: Ret, backlog: i32) -> Ret {
        check(unsafe { libc::listen(fd as i32, backlog) }.into())
    }

    fn accept(&mut self, fd: Ret) -> Ret {
        let null = std::ptr::null_mut();
        let flags = libc::SOCK_NONBLOCK;
        let ret = unsafe { libc::accept4(fd as i32, null, null.cast(), flags) };
        self.keep(ret.into())
    }

    fn connect(&mut self, fd: Ret, ip: &str, port: u16) -> Ret {
        let (addr, len) = address(ip, port);
        check(unsafe { libc::connect(fd as i32, addr.as_ptr().cast(), len) }.into())
    }

    fn disconnect(&mut self, fd: Ret) -> Ret {
        let addr = [0_u8; 16];
        check(unsafe { libc::connect(fd as i32, addr.as_ptr().cast(), 16) }.into())
    }

    fn port(&mut self, fd: Ret) -> Ret {
        Self::socket_name(fd, false).map_or_else(|error| error, |addr| addr.port().into())
    }

    fn peer_port(&mut self, fd: Ret) -> Ret {
        Self::socket_name(fd, true).map_or_else(|error| error, |addr| addr.port().into())
    }

    fn name(&mut self, fd: Ret, peer: bool) -> String {
        format!("{:?}", Self::socket_name(fd, peer).map(|addr| addr.ip()))
    }

    fn shutdown(&mut self, fd: Ret, how: i32) -> Ret {
        check(unsafe { libc::shutdown(fd as i32, how) }.into())
    }

    fn close(&mut self, fd: Ret) -> Ret {
        self.0.retain(|open| Ret::from(*open) != fd);
        check(unsafe { libc::close(fd as i32) }.into())
    }

    fn send(&mut self, fd: Ret, data: &[u8], flags: i32) -> Ret {
        let flags = flags | libc::MSG_NOSIGNAL;
        check(unsafe { libc::send(fd as i32, data.as_ptr().cast(), data.len(), flags) } as i64)
    }

    fn send_to(&mut self, fd: Ret, data: &[u8], flags: i32, ip: &str, port: u16) -> Ret {
        let (addr, len) = address(ip, port);
        let flags = flags | libc::MSG_NOSIGNAL;
        let (bytes, addr) = (data.as_ptr().cast(), addr.as_ptr().cast());
        check(unsafe { libc::sendto(fd as i32, bytes, data.len(), flags, addr, len) } as i64)
    }

    fn recv(&mut self, fd: Ret, len: usize, flags: i32) -> (Ret, Vec<u8>, i32) {
        let mut data = vec![0; len];
        let mut iov = libc::iovec {
            iov_base: data.as_mut_ptr().cast(),
            iov_len: len,
        };
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        let ret = check(unsafe { libc::recvmsg(fd as i32, &raw mut msg, flags) } as i64);
        data.truncate(ret.max(0) as usize);
        (ret, data, msg.msg_flags)
    }

    fn recv_control(
        &mut self,
        fd: Ret,
        len: usize,
        room: usize,
        flags: i32,
    ) -> (Ret, i32, Control) {
        let (mut data, mut control) = (vec![0_u8; len], vec![0_u64; room.div_ceil(8)]);
        let mut iov = libc::iovec {
            iov_base: data.as_mut_ptr().cast(),
            iov_len: len,
        };
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = room as _;
        let ret = check(unsafe { libc::recvmsg(fd as i32, &raw mut msg, flags) } as i64);
        let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let used = if ret < 0 {
            0
        } else {
            msg.msg_controllen as usize
        };
        (ret, msg.msg_flags, split(&bytes[..used]))
    }

    fn read(&mut self, fd: Ret, len: usize) -> Ret {
        let mut data = vec![0_u8; len];
        check(unsafe { libc::read(fd as i32, data.as_mut_ptr().cast(), len) } as i64)
    }

    fn write(&mut self, fd: Ret, data: &[u8]) -> Ret {
        check(unsafe { libc::write(fd as i32, data.as_ptr().cast(), data.len()) } as i64)
    }

    fn set(&mut self, fd: Ret, level: i32, name: i32, value: &[u8]) -> Ret {
        let (bytes, len) = (value.as_ptr().cast(), value.len() as u32);
        check(unsafe { libc::setsockopt(fd as i32, level, name, bytes, len) }.into())
    }

    fn get(&mut self, fd: Ret, level: i32, name: i32, len: usize) -> (Ret, Vec<u8>) {
        let mut value = vec![0_u8; len];
        let mut size = len as u32;
        let bytes = value.as_mut_ptr().cast();
        let ret = unsafe { libc::getsockopt(fd as i32, level, name, bytes, &raw mut size) };
        value.truncate(size as usize);
        (check(ret.into()), value)
    }

    fn ioctl(&mut self, fd: Ret, request: u32) -> Ret {
        let mut value = 0;
        let ret = unsafe { libc::ioctl(fd as i32, request.into(), &raw mut value) };
        if ret < 0 {
            return check(ret.into());
        }
        value.into()
    }

    fn poll(&mut self, fd: Ret) -> Ret {
        // Requests every bit, so that each is reported.
        let mut pollfd = libc::pollfd {
            fd: fd as i32,
            events: 0x7fff,
            revents: 0,
        };
        let ret = unsafe { libc::poll(&raw mut pollfd, 1, 0) };
        if ret < 0 {
            return check(ret.into());
        }
        pollfd.revents.into()
    }

    fn epoll_create(&mut self) -> Ret {
        let ret = unsafe { libc::epoll_create1(0) };
        self.keep(ret.into())
    }

    fn epoll_ctl(&mut self, set: Ret, op: i32, fd: Ret, events: u32, data: u64) -> Ret {
        let mut event = libc::epoll_event { events, u64: data };
        check(unsafe { libc::epoll_ctl(set as i32, op, fd as i32, &raw mut event) }.into())
    }

    fn epoll_wait(&mut self, set: Ret, max: usize) -> (Ret, Vec<(u32, u64)>) {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max];
        let ret = unsafe { libc::epoll_wait(set as i32, events.as_mut_ptr(), max as i32, 0) };
        events.truncate(ret.max(0) as usize);
        (
            check(ret.into()),
            events.iter().map(|e| (e.events, e.u64)).collect(),
        )
    }

    fn pipe(&mut self) -> (Ret, Ret) {
        let mut ends = [0; 2];
        assert_eq!(
            unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK) },
            0
        );
        self.0.extend(ends);
        (ends[0].into(), ends[1].into())
    }

    fn splice(&mut self, from: Ret, to: Ret, len: usize) -> Ret {
        let null = std::ptr::null_mut();
        let flags = libc::SPLICE_F_NONBLOCK;
        let ret = unsafe { libc::splice(from as i32, null, to as i32, null, len, flags) };
        check(ret as i64)
    }

    fn wait_until_idle(&mut self) {
        std::thread::sleep(Duration::from_millis(2));
    }
}
