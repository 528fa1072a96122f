//! Our side: sockets over a host in manual time, which follows the kernel's clock or advances with
//! each event.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;

use fullsend_device::Device;
use fullsend_driver::Pump;
use fullsend_offload::{Caps, Link, Packet, Slice, segment};
use fullsend_posix::abi::{
    IPPROTO_TCP, SO_LINGER, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET, TCP_INFO,
};
use fullsend_posix::{Errno, Handle, Posix, SockAddr};
use fullsend_stack::{Cidr, Host, HostConfig, IfaceConfig, Mac};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Nanos, Seed};

use crate::event::{SocketCall, SocketIndex, pattern};
use crate::side::{CallResult, FlowAddresses, TcpSide};

/// The minimum time that passes with each event.
const STEP: Nanos = Nanos::from_micros(20);

/// Nanoseconds per tick of TSval.
const NANOS_PER_TICK: u64 = 1_000_000;

pub(crate) struct OurSide {
    posix: Posix,
    pump: Pump<RecordingDevice>,
    now: Instant,
    /// The host's time at which it was ready.
    started: Instant,
    /// The kernel's clock at that time, in ns.
    clock: u64,
    addresses: FlowAddresses,
    sockets: Vec<Option<Handle>>,
    /// Bytes that each socket has written.
    written: Vec<u32>,
}

/// A device that keeps the packets sent, as they are on the wire.
struct RecordingDevice {
    caps: Caps,
    sent: Vec<Vec<u8>>,
}

impl Device for RecordingDevice {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        for packet in batch.drain(..) {
            let mut pieces = Vec::new();
            segment(packet, &mut pieces);
            self.sent.extend(pieces.iter().map(Packet::to_bytes));
        }
        Ok(())
    }

    fn receive(&mut self, _: &mut Vec<Packet>, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn unit_result(result: Result<(), Errno>) -> CallResult {
    CallResult::from_value(result.map_or_else(|errno| -i64::from(errno.0), |()| 0))
}

fn count_result(result: Result<usize, Errno>) -> CallResult {
    CallResult::from_value(result.map_or_else(|errno| -i64::from(errno.0), |n| n as i64))
}

impl OurSide {
    /// Creates a host at the time `clock` of the kernel's clock, in nanoseconds.
    ///
    /// # Errors
    /// If a sysctl or the address is rejected.
    pub(crate) fn new(
        addresses: FlowAddresses,
        sysctls: &[(&str, &str)],
        clock: u64,
    ) -> anyhow::Result<Self> {
        let mut host = Host::new(HostConfig {
            seed: Seed([7; 4]),
            sysctl: Sysctl::default(),
            pool_bytes: 1 << 20,
        });
        let now = Instant::ZERO + Nanos::from_secs(1);
        let caps = Caps::offloading(Link::Ip, 1500);
        let iface = host.add_interface(IfaceConfig::new(caps, Mac([0; 6])));
        let device = RecordingDevice {
            caps,
            sent: Vec::new(),
        };
        let addr = addresses.local.ip();
        let prefix = if addresses.is_v6() { 64 } else { 16 };
        let added = host.add_address(now, iface, Cidr { addr, prefix });
        added.map_err(|error| anyhow::anyhow!("cannot add {addr}/{prefix}: {error:?}"))?;
        for (key, value) in sysctls {
            let set = host.set_sysctl(now, key, value);
            set.map_err(|error| anyhow::anyhow!("cannot set {key}={value}: {error}"))?;
        }
        // Waits for the end of duplicate address detection.
        let now = now + Nanos::from_secs(5);
        host.poll(now);
        // Timestamps tick at the same time as the kernel's.
        let now = now + Nanos::from_nanos(clock % NANOS_PER_TICK);
        let mut ours = Self {
            posix: Posix::new(host),
            pump: Pump::transmit_only(iface, device),
            now,
            started: now,
            clock,
            addresses,
            sockets: Vec::new(),
            written: Vec::new(),
        };
        ours.sent();
        Ok(ours)
    }

    fn handle(&self, fd: SocketIndex) -> Result<Handle, Errno> {
        let slot = self.sockets.get(fd.0).copied().flatten();
        slot.ok_or(Errno::EBADF)
    }

    fn open(&mut self, handle: Handle) -> CallResult {
        self.sockets.push(Some(handle));
        self.written.push(0);
        CallResult::from_value(self.sockets.len() as i64 + 2)
    }

    fn send(&mut self, fd: SocketIndex, len: usize, flags: i32) -> Result<CallResult, Errno> {
        let handle = self.handle(fd)?;
        let start = self.written[fd.0];
        let data: Vec<u8> = (0..len as u32).map(|i| pattern(start + 1 + i)).collect();
        let sent = self
            .posix
            .sendmsg(self.now, handle, &[&data], flags, None, &[])?;
        self.written[fd.0] += sent as u32;
        Ok(count_result(Ok(sent)))
    }

    fn receive(&mut self, fd: SocketIndex, len: usize, flags: i32) -> Result<CallResult, Errno> {
        let handle = self.handle(fd)?;
        let mut data = vec![0; len];
        let parts: &mut [&mut [u8]] = &mut [&mut data];
        let got = self
            .posix
            .recvmsg(self.now, handle, parts, flags, &mut [])?;
        data.truncate(got.len);
        let value = got.len as i64;
        Ok(CallResult { value, data })
    }

    fn get(&mut self, fd: SocketIndex, level: i32, name: i32) -> Result<CallResult, Errno> {
        let handle = self.handle(fd)?;
        let mut value = [0; 4];
        self.posix
            .getsockopt(self.now, handle, level, name, &mut value)?;
        Ok(CallResult::from_value(i32::from_ne_bytes(value).into()))
    }

    fn try_call(&mut self, call: &SocketCall) -> Result<CallResult, Errno> {
        let now = self.now;
        Ok(match *call {
            SocketCall::Socket => {
                let domain = if self.addresses.is_v6() {
                    libc::AF_INET6
                } else {
                    libc::AF_INET
                };
                let kind = SOCK_STREAM | SOCK_NONBLOCK;
                let handle = self.posix.socket(domain, kind, IPPROTO_TCP)?;
                self.open(handle)
            }
            SocketCall::Bind(fd) => unit_result(self.posix.bind(
                now,
                self.handle(fd)?,
                self.addresses.local.into(),
            )),
            SocketCall::Listen(fd, backlog) => {
                unit_result(self.posix.listen(now, self.handle(fd)?, backlog))
            }
            SocketCall::Connect(fd) => {
                let remote = SockAddr::from(self.addresses.remote);
                unit_result(self.posix.connect(now, self.handle(fd)?, remote))
            }
            SocketCall::Accept(fd) => {
                let accepted = self.posix.accept4(self.handle(fd)?, SOCK_NONBLOCK)?;
                self.open(accepted.0)
            }
            SocketCall::Send { fd, len, flags } => self.send(fd, len, flags)?,
            SocketCall::Receive { fd, len, flags } => self.receive(fd, len, flags)?,
            SocketCall::Shutdown(fd, how) => {
                unit_result(self.posix.shutdown(now, self.handle(fd)?, how))
            }
            SocketCall::Close(fd) => {
                let handle = self.handle(fd)?;
                self.sockets[fd.0] = None;
                unit_result(self.posix.close(now, handle))
            }
            SocketCall::Set(fd, level, name, value) => {
                let handle = self.handle(fd)?;
                let value = value.to_ne_bytes();
                unit_result(self.posix.setsockopt(now, handle, level, name, &value))
            }
            SocketCall::Linger(fd, on, seconds) => {
                let handle = self.handle(fd)?;
                let value = [on.to_ne_bytes(), seconds.to_ne_bytes()].concat();
                unit_result(
                    self.posix
                        .setsockopt(now, handle, SOL_SOCKET, SO_LINGER, &value),
                )
            }
            SocketCall::Get(fd, level, name) => self.get(fd, level, name)?,
            SocketCall::Ioctl(fd, request) => {
                let value = self.posix.ioctl(self.handle(fd)?, request, 0)?;
                CallResult::from_value(value.into())
            }
        })
    }
}

impl TcpSide for OurSide {
    fn advance_to(&mut self, clock: u64) {
        let passed = Nanos::from_nanos(clock.saturating_sub(self.clock));
        self.now = self.now.max(self.started + passed);
    }

    fn call(&mut self, call: &SocketCall) -> CallResult {
        self.now += STEP;
        self.try_call(call)
            .unwrap_or_else(|errno| CallResult::from_value(-i64::from(errno.0)))
    }

    fn poll(&mut self, fd: SocketIndex) -> Option<i32> {
        let handle = self.handle(fd).ok()?;
        let bits = self.posix.poll_events(handle);
        bits.ok().map(|bits| bits as i32)
    }

    fn info(&mut self, fd: SocketIndex) -> Option<Vec<u8>> {
        let handle = self.handle(fd).ok()?;
        let mut info = vec![0; 248];
        let got = self
            .posix
            .getsockopt(self.now, handle, IPPROTO_TCP, TCP_INFO, &mut info);
        info.truncate(got.ok()?);
        Some(info)
    }

    fn socket_count(&self) -> usize {
        self.sockets.len()
    }

    fn deliver(&mut self, packet: &[u8]) {
        self.now += STEP;
        let mut frames = vec![Packet::from_frame(Slice::copied_from(packet))];
        self.pump
            .input(self.posix.host_mut(), self.now, &mut frames);
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        loop {
            let host = self.posix.host_mut();
            host.poll(self.now);
            self.pump.transmit(host, self.now, &self.now);
            let mut new = mem::take(&mut self.pump.device_mut().sent);
            if new.is_empty() {
                return sent;
            }
            sent.append(&mut new);
        }
    }
}
