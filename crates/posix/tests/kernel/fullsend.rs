//! Sockets of this crate, over one host's loopback.

use std::net::{IpAddr, SocketAddr};

use fullsend_posix::{EpollEvent, Errno, Handle, Posix, SockAddr};
use fullsend_stack::{Host, HostConfig};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Nanos, Seed};

use crate::backend::{Backend, Control, Ret, split};

/// A host whose loopback is carried by `wait_until_idle`.
pub(crate) struct FullsendBackend {
    posix: Posix,
    now: Instant,
    handles: Vec<Handle>,
}

/// Time limit of a script, in virtual time.
const LONGEST: Nanos = Nanos::from_secs(3600);

fn addr(ip: &str, port: u16) -> SockAddr {
    let ip: IpAddr = ip.parse().unwrap();
    SocketAddr::new(ip, port).into()
}

fn check<T>(result: Result<T, Errno>, value: impl FnOnce(T) -> Ret) -> Ret {
    result.map_or_else(|errno| -Ret::from(errno.0), value)
}

fn none(result: Result<(), Errno>) -> Ret {
    check(result, |()| 0)
}

impl FullsendBackend {
    pub(crate) fn new() -> Self {
        let config = HostConfig {
            seed: Seed([7; 4]),
            sysctl: Sysctl::default(),
            pool_bytes: 1 << 20,
        };
        Self {
            posix: Posix::new(Host::new(config)),
            now: Instant::ZERO + Nanos::from_secs(1),
            handles: Vec::new(),
        }
    }

    fn keep(&mut self, result: Result<Handle, Errno>) -> Ret {
        check(result, |handle| {
            self.handles.push(handle);
            self.handles.len() as Ret - 1
        })
    }

    fn socket_name(&mut self, fd: Ret, peer: bool) -> Result<SocketAddr, Ret> {
        let handle = self.handles[fd as usize];
        let name = if peer {
            self.posix.getpeername(handle)
        } else {
            self.posix.getsockname(handle)
        };
        match name.map_err(|errno| -Ret::from(errno.0))? {
            SockAddr::V4(addr) => Ok(addr.into()),
            SockAddr::V6(addr) => Ok(addr.into()),
            SockAddr::Unspec => unreachable!(),
        }
    }
}

impl Backend for FullsendBackend {
    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Ret {
        let result = self.posix.socket(domain, kind, protocol);
        self.keep(result)
    }

    fn bind(&mut self, fd: Ret, ip: &str, port: u16) -> Ret {
        let handle = self.handles[fd as usize];
        none(self.posix.bind(self.now, handle, addr(ip, port)))
    }

    fn listen(&mut self, fd: Ret, backlog: i32) -> Ret {
        let handle = self.handles[fd as usize];
        none(self.posix.listen(self.now, handle, backlog))
    }

    fn accept(&mut self, fd: Ret) -> Ret {
        let handle = self.handles[fd as usize];
        let flags = libc::SOCK_NONBLOCK;
        let result = self.posix.accept4(handle, flags);
        self.keep(result.map(|(new, _)| new))
    }

    fn connect(&mut self, fd: Ret, ip: &str, port: u16) -> Ret {
        let handle = self.handles[fd as usize];
        none(self.posix.connect(self.now, handle, addr(ip, port)))
    }

    fn disconnect(&mut self, fd: Ret) -> Ret {
        let handle = self.handles[fd as usize];
        let result = self.posix.connect(self.now, handle, SockAddr::Unspec);
        none(result)
    }

    fn port(&mut self, fd: Ret) -> Ret {
        let socket_name = self.socket_name(fd, false);
        socket_name.map_or_else(|error| error, |addr| addr.port().into())
    }

    fn peer_port(&mut self, fd: Ret) -> Ret {
        let socket_name = self.socket_name(fd, true);
        socket_name.map_or_else(|error| error, |addr| addr.port().into())
    }

    fn name(&mut self, fd: Ret, peer: bool) -> String {
        format!("{:?}", self.socket_name(fd, peer).map(|addr| addr.ip()))
    }

    fn shutdown(&mut self, fd: Ret, how: i32) -> Ret {
        let handle = self.handles[fd as usize];
        none(self.posix.shutdown(self.now, handle, how))
    }

    fn close(&mut self, fd: Ret) -> Ret {
        let handle = self.handles[fd as usize];
        none(self.posix.close(self.now, handle))
    }

    fn send(&mut self, fd: Ret, data: &[u8], flags: i32) -> Ret {
        let handle = self.handles[fd as usize];
        let sent = self
            .posix
            .sendmsg(self.now, handle, &[data], flags, None, &[]);
        check(sent, |n| n as Ret)
    }

    fn send_to(&mut self, fd: Ret, data: &[u8], flags: i32, ip: &str, port: u16) -> Ret {
        let handle = self.handles[fd as usize];
        let to = Some(addr(ip, port));
        let sent = self
            .posix
            .sendmsg(self.now, handle, &[data], flags, to, &[]);
        check(sent, |n| n as Ret)
    }

    fn recv(&mut self, fd: Ret, len: usize, flags: i32) -> (Ret, Vec<u8>, i32) {
        let handle = self.handles[fd as usize];
        let mut data = vec![0; len];
        let got = self
            .posix
            .recvmsg(self.now, handle, &mut [&mut data], flags, &mut []);
        let flags = got.map_or(0, |got| got.flags);
        let ret = check(got, |got| got.len as Ret);
        data.truncate(ret.max(0) as usize);
        (ret, data, flags)
    }

    fn recv_control(
        &mut self,
        fd: Ret,
        len: usize,
        room: usize,
        flags: i32,
    ) -> (Ret, i32, Control) {
        let handle = self.handles[fd as usize];
        let (mut data, mut control) = (vec![0; len], vec![0; room]);
        let parts: &mut [&mut [u8]] = &mut [&mut data];
        let got = self
            .posix
            .recvmsg(self.now, handle, parts, flags, &mut control);
        let (flags, used) = got.map_or((0, 0), |got| (got.flags, got.control_len));
        (
            check(got, |got| got.len as Ret),
            flags,
            split(&control[..used]),
        )
    }

    fn read(&mut self, fd: Ret, len: usize) -> Ret {
        let mut data = vec![0; len];
        let handle = self.handles[fd as usize];
        let got = self.posix.read(self.now, handle, &mut [&mut data]);
        check(got, |n| n as Ret)
    }

    fn write(&mut self, fd: Ret, data: &[u8]) -> Ret {
        let handle = self.handles[fd as usize];
        check(self.posix.write(self.now, handle, &[data]), |n| n as Ret)
    }

    fn set(&mut self, fd: Ret, level: i32, name: i32, value: &[u8]) -> Ret {
        let handle = self.handles[fd as usize];
        none(self.posix.setsockopt(self.now, handle, level, name, value))
    }

    fn get(&mut self, fd: Ret, level: i32, name: i32, len: usize) -> (Ret, Vec<u8>) {
        let handle = self.handles[fd as usize];
        let mut value = vec![0; len];
        let got = self
            .posix
            .getsockopt(self.now, handle, level, name, &mut value);
        value.truncate(got.unwrap_or(len));
        (check(got, |_| 0), value)
    }

    fn ioctl(&mut self, fd: Ret, request: u32) -> Ret {
        let handle = self.handles[fd as usize];
        check(self.posix.ioctl(handle, request, 0), Ret::from)
    }

    fn poll(&mut self, fd: Ret) -> Ret {
        let handle = self.handles[fd as usize];
        check(self.posix.poll_events(handle), Ret::from)
    }

    fn epoll_create(&mut self) -> Ret {
        let result = self.posix.epoll_create();
        self.keep(result)
    }

    fn epoll_ctl(&mut self, set: Ret, op: i32, fd: Ret, events: u32, data: u64) -> Ret {
        let (set, handle) = (self.handles[set as usize], self.handles[fd as usize]);
        let event = EpollEvent { events, data };
        none(self.posix.epoll_ctl(set, op, handle, event))
    }

    fn epoll_wait(&mut self, set: Ret, max: usize) -> (Ret, Vec<(u32, u64)>) {
        let mut events = vec![EpollEvent::default(); max];
        let set = self.handles[set as usize];
        let found = self.posix.epoll_wait(self.now, set, &mut events);
        events.truncate(found.unwrap_or(0));
        let events = events.iter().map(|e| (e.events, e.data)).collect();
        (check(found, |n| n as Ret), events)
    }

    fn pipe(&mut self) -> (Ret, Ret) {
        let (reader, writer) = self.posix.pipe(true).unwrap();
        (self.keep(Ok(reader)), self.keep(Ok(writer)))
    }

    fn splice(&mut self, from: Ret, to: Ret, len: usize) -> Ret {
        let (from, to) = (self.handles[from as usize], self.handles[to as usize]);
        check(self.posix.splice(self.now, from, to, len, 0), |n| n as Ret)
    }

    fn wait_until_idle(&mut self) {
        // Longer than the maximum delay of an acknowledgement.
        for _ in 0..15 {
            self.now += Nanos::from_millis(5);
            assert!(self.now < Instant::ZERO + LONGEST, "it has no end");
            self.posix.host_mut().poll(self.now);
        }
    }
}
