//! Random calls: any call, on any handle, open or closed, with any arguments. Used by the test of
//! that name and by the fuzz target.

use fullsend_offload::Slice;
use fullsend_posix::abi::*;
use fullsend_posix::{EpollEvent, Errno, Handle, Posix, SockAddr};
use fullsend_stack::{Host, HostConfig};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Nanos, Seed};

/// Limit of handles, open or closed, that calls are made on.
const MAX_HANDLES: usize = 24;

/// The source of choices; `None` ends the run.
pub(crate) trait Source {
    fn byte(&mut self) -> Option<u8>;

    fn word(&mut self) -> Option<u32> {
        let mut bytes = [0; 4];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Some(u32::from_le_bytes(bytes))
    }

    /// Returns a number that is usually small.
    fn number(&mut self) -> Option<i32> {
        let byte = self.byte()?;
        Some(match byte {
            0..=199 => (byte % 70).into(),
            200..=239 => i32::from(byte) * 37,
            _ => self.word()? as i32,
        })
    }

    fn bytes(&mut self, most: usize) -> Option<Vec<u8>> {
        let len = usize::from(self.byte()?) % (most + 1);
        (0..len).map(|_| self.byte()).collect()
    }
}

struct World<'a> {
    source: &'a mut dyn Source,
    posix: Posix,
    now: Instant,
    handles: Vec<Handle>,
}

/// Makes calls until the source is empty.
pub(crate) fn run(source: &mut dyn Source) {
    let config = HostConfig {
        seed: Seed([5; 4]),
        sysctl: Sysctl::default(),
        pool_bytes: 1 << 16,
    };
    let mut world = World {
        source,
        posix: Posix::new(Host::new(config)),
        now: Instant::ZERO,
        handles: Vec::new(),
    };
    while world.step().is_some() {}
    for handle in core::mem::take(&mut world.handles) {
        let _ = world.posix.close(world.now, handle);
    }
    world.posix.host_mut().poll(world.now);
}

impl World<'_> {
    fn handle(&mut self) -> Option<Handle> {
        if self.handles.is_empty() {
            let handle = self.posix.socket(AF_INET, SOCK_STREAM, 0).unwrap();
            self.handles.push(handle);
        }
        let n = usize::from(self.source.byte()?);
        Some(self.handles[n % self.handles.len()])
    }

    fn keep(&mut self, handle: Result<Handle, Errno>) {
        let Ok(handle) = handle else { return };
        if self.handles.len() == MAX_HANDLES {
            let oldest = self.handles.remove(0);
            let _ = self.posix.close(self.now, oldest);
        }
        self.handles.push(handle);
    }

    /// Returns an address, of few that often match each other.
    fn addr(&mut self) -> Option<SockAddr> {
        let port = u16::from(self.source.byte()? % 4);
        let text = match self.source.byte()? % 9 {
            0 => "0.0.0.0",
            1 => "[::]",
            2 => "[::1]",
            3 => "[::ffff:127.0.0.1]",
            4 => "192.0.2.1",
            5 => return SockAddr::from_bytes(&self.source.bytes(30)?).ok(),
            6 => return Some(SockAddr::Unspec),
            _ => "127.0.0.1",
        };
        let addr: std::net::SocketAddr = format!("{text}:{port}").parse().unwrap();
        Some(addr.into())
    }

    fn step(&mut self) -> Option<()> {
        let op = self.source.byte()?;
        match op % 24 {
            0 => self.open()?,
            1..=6 => self.name_calls(op % 24)?,
            7..=12 => self.message_calls(op % 24)?,
            13..=15 => self.option_calls(op % 24)?,
            16..=19 => self.set_calls(op % 24)?,
            20 => {
                let handle = self.handle()?;
                let _ = self.posix.close(self.now, handle);
            }
            21 => {
                let millis = u64::from(self.source.byte()?);
                self.now += Nanos::from_millis(millis * millis);
                self.posix.host_mut().poll(self.now);
            }
            _ => self.posix.host_mut().poll(self.now),
        }
        Some(())
    }

    fn open(&mut self) -> Option<()> {
        let domain = if self.source.byte()? & 1 == 0 {
            AF_INET
        } else {
            AF_INET6
        };
        let handle = match self.source.byte()? % 8 {
            0..=3 => self.posix.socket(domain, SOCK_STREAM, 0),
            4..=5 => self.posix.socket(domain, SOCK_DGRAM, 0),
            6 => self.posix.epoll_create(),
            _ => {
                let (reader, writer) = self.posix.pipe(true).unwrap();
                self.keep(Ok(reader));
                Ok(writer)
            }
        };
        self.keep(handle);
        let numbers = [self.source.number()?, self.source.number()?];
        let odd = self.posix.socket(numbers[0], numbers[1], 0);
        self.keep(odd);
        Some(())
    }

    fn name_calls(&mut self, op: u8) -> Option<()> {
        let handle = self.handle()?;
        let now = self.now;
        match op {
            1 => {
                let addr = self.addr()?;
                let _ = self.posix.bind(now, handle, addr);
            }
            2 => {
                let backlog = self.source.number()?;
                let _ = self.posix.listen(now, handle, backlog);
            }
            3 => {
                let new = self.posix.accept4(handle, SOCK_NONBLOCK);
                self.keep(new.map(|(new, _)| new));
            }
            4 | 5 => {
                let addr = self.addr()?;
                let _ = self.posix.connect(now, handle, addr);
            }
            _ => {
                let how = self.source.number()?;
                let _ = self.posix.shutdown(now, handle, how % 4);
                let _ = self.posix.getsockname(handle);
                let _ = self.posix.getpeername(handle);
            }
        }
        Some(())
    }

    fn message_calls(&mut self, op: u8) -> Option<()> {
        let handle = self.handle()?;
        let now = self.now;
        let len = usize::from(self.source.byte()?) * 97;
        let data = vec![op; len];
        let flags = self.source.word()? as i32;
        match op {
            7 | 8 => {
                let dest = match self.source.byte()? % 4 {
                    0 => self.addr(),
                    _ => None,
                };
                let control = self.source.bytes(48)?;
                let (front, back) = data.split_at(len / 3);
                let flags = if op == 7 { flags } else { 0 };
                let sent = self
                    .posix
                    .sendmsg(now, handle, &[front, back], flags, dest, &control);
                assert!(sent.ok().is_none_or(|n| n <= len));
            }
            9 => {
                let data = Slice::copied_from(&data);
                let sent = self.posix.send_lent(now, handle, data, flags);
                assert!(sent.ok().is_none_or(|n| n <= len));
            }
            10 | 11 => {
                let flags = if op == 10 { flags } else { 0 };
                let mut data = data;
                let mut control = vec![0; usize::from(self.source.byte()?)];
                let (front, back) = data.split_at_mut(len / 2);
                let got = self
                    .posix
                    .recvmsg(now, handle, &mut [front, back], flags, &mut control);
                if let Ok(got) = got {
                    assert!(got.len <= len || flags & MSG_TRUNC != 0);
                    assert!(got.control_len <= control.len());
                }
            }
            _ => {
                let other = self.handle()?;
                let _ = self.posix.splice(now, handle, other, len, 0);
                let _ = self.posix.read(now, handle, &mut [&mut [0; 100]]);
                let _ = self.posix.write(now, other, &[&data[..len.min(100)]]);
            }
        }
        Some(())
    }

    fn option_calls(&mut self, op: u8) -> Option<()> {
        let handle = self.handle()?;
        let levels = [SOL_SOCKET, IPPROTO_TCP, IPPROTO_IP, IPPROTO_IPV6];
        let level = levels[usize::from(self.source.byte()? % 4)];
        let name = self.source.number()?;
        match op {
            13 => {
                let value = self.source.bytes(40)?;
                let _ = self.posix.setsockopt(self.now, handle, level, name, &value);
            }
            14 => {
                let value = self.source.number()?.to_ne_bytes();
                let _ = self.posix.setsockopt(self.now, handle, level, name, &value);
            }
            _ => {
                let mut value = vec![0; usize::from(self.source.byte()?) * 2];
                let got = self
                    .posix
                    .getsockopt(self.now, handle, level, name, &mut value);
                assert!(got.ok().is_none_or(|n| n <= value.len()));
                for request in [SIOCINQ, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK, name as u32] {
                    let _ = self.posix.ioctl(handle, request, 1);
                }
            }
        }
        Some(())
    }

    fn set_calls(&mut self, op: u8) -> Option<()> {
        let handle = self.handle()?;
        match op {
            16 | 17 => {
                let member = self.handle()?;
                let operation = i32::from(self.source.byte()? % 4);
                let events = self.source.word()?;
                let event = EpollEvent { events, data: 1 };
                let _ = self.posix.epoll_ctl(handle, operation, member, event);
            }
            18 => {
                let mut out = [EpollEvent::default(); 4];
                let room = usize::from(self.source.byte()? % 5);
                let found = self.posix.epoll_wait(self.now, handle, &mut out[..room]);
                assert!(out.iter().take(found.unwrap_or(0)).all(|e| e.events != 0));
            }
            _ => {
                let _ = self.posix.poll_events(handle);
                let mut ready = Vec::new();
                self.posix.take_ready(&mut ready);
            }
        }
        Some(())
    }
}
