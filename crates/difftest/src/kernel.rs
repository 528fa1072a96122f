//! The kernel's side: sockets behind a TUN device, in a network namespace of this process.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one plain libc call over live memory of the length given"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use fullsend_device::{Device, OffloadSet, Tun};
use fullsend_posix::SockAddr;
use fullsend_script::{IpPacket, WireSegment};
use fullsend_wire::numbers::protocol;
use fullsend_wire::{checksum, tcp};

use crate::event::{ACK, RST, SocketCall, SocketIndex, pattern};
use crate::side::{CallResult, FlowAddresses, TcpSide};

/// Source address of the echo requests whose replies mark the end of the kernel's response.
const MARKER: [u8; 4] = [192, 168, 255, 254];
/// A flag in `/proc/net/if_inet6`: duplicate address detection is in progress.
const IFA_F_TENTATIVE: u8 = 0x40;
/// Timeout of a marker's reply, which only a machine that stands still exceeds.
const MARKER_TIMEOUT: Duration = Duration::from_secs(10);

/// A network namespace with the TUN device, its addresses and its sysctls.
pub(crate) struct KernelNetwork {
    tun: Tun,
    markers: u16,
}

/// Returns the clock of the kernel's TCP, in nanoseconds.
pub(crate) fn clock() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn or_errno(value: i64) -> i64 {
    if value >= 0 {
        return value;
    }
    -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// Waits until no IPv6 address is tentative: packets to a tentative address are dropped.
fn wait_for_addresses() -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let addresses = fs::read_to_string("/proc/thread-self/net/if_inet6")?;
        // Address, interface, prefix length, scope, flags, name.
        let flags = |line: &str| u8::from_str_radix(line.split_whitespace().nth(4)?, 16).ok();
        let tentative = |line: &str| flags(line).is_some_and(|flags| flags & IFA_F_TENTATIVE != 0);
        if !addresses.lines().any(tentative) {
            return Ok(());
        }
        anyhow::ensure!(
            started.elapsed() < MARKER_TIMEOUT,
            "an IPv6 address stays tentative"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl KernelNetwork {
    /// Moves this process into a network namespace of its own and opens the TUN device.
    ///
    /// # Errors
    /// If the process has no permission (it needs root), or the kernel has no TUN driver.
    pub(crate) fn new(local: &[IpAddr], sysctls: &[(&str, &str)]) -> anyhow::Result<Self> {
        let entered = or_errno(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into());
        anyhow::ensure!(
            entered == 0,
            "cannot create a network namespace; run as root"
        );
        let mut builder = Tun::tun("diff0").offload(OffloadSet::NONE).mtu(1500);
        for ip in local {
            builder = builder.kernel_address(*ip, if ip.is_ipv4() { 16 } else { 64 });
        }
        for (key, value) in sysctls {
            let path = format!("/proc/sys/{}", key.replace('.', "/"));
            fs::write(&path, value).with_context(|| format!("cannot write {value} to {path}"))?;
        }
        let tun = builder.open()?;
        let mut network = Self { tun, markers: 0 };
        wait_for_addresses()?;
        network.drain();
        Ok(network)
    }

    fn raw(&self) -> RawFd {
        self.tun.fd().expect("a TUN is a file").as_raw_fd()
    }

    fn write(&self, packet: &[u8]) {
        let written = unsafe { libc::write(self.raw(), packet.as_ptr().cast(), packet.len()) };
        assert!(
            written == packet.len() as isize,
            "the TUN accepted {written} of {} bytes",
            packet.len()
        );
    }

    /// Reads the next packet, or returns `None` if there is none.
    fn read(&self) -> Option<Vec<u8>> {
        let mut packet = vec![0; 65536];
        let buffer = packet.as_mut_ptr().cast();
        let read = unsafe { libc::read(self.raw(), buffer, packet.len()) };
        packet.truncate(usize::try_from(read).ok()?);
        Some(packet)
    }

    /// Returns the packets that the kernel sends before its reply to an echo request, which follows
    /// all packets written so far.
    fn drain(&mut self) -> Vec<Vec<u8>> {
        self.markers = self.markers.wrapping_add(1);
        let echo = self.marker();
        self.write(&echo);
        let started = Instant::now();
        let mut packets = Vec::new();
        loop {
            let Some(packet) = self.read() else {
                let late = started.elapsed() > MARKER_TIMEOUT;
                assert!(!late, "the kernel did not answer an echo request in time");
                self.wait();
                continue;
            };
            if self.is_marker(&packet) {
                return packets;
            }
            packets.push(packet);
        }
    }

    fn wait(&self) {
        let mut poll = libc::pollfd {
            fd: self.raw(),
            events: libc::POLLIN,
            revents: 0,
        };
        unsafe { libc::poll(&raw mut poll, 1, 100) };
    }

    fn marker(&self) -> Vec<u8> {
        let [high, low] = self.markers.to_be_bytes();
        let mut payload = vec![8, 0, 0, 0, 0xd1, 0xff, high, low];
        let sum = checksum::sum(&payload).checksum();
        payload[2..4].copy_from_slice(&sum.to_be_bytes());
        IpPacket {
            src: MARKER.into(),
            dst: [192, 168, 0, 1].into(),
            protocol: protocol::ICMP,
            tos: 0,
            ttl: 64,
            flow_label: 0,
            payload,
        }
        .emit()
    }

    fn is_marker(&self, packet: &[u8]) -> bool {
        let [high, low] = self.markers.to_be_bytes();
        packet.get(16..20) == Some(&MARKER)
            && packet[9] == protocol::ICMP
            && packet.get(20) == Some(&0)
            && packet.get(26..28) == Some(&[high, low])
    }
}

/// The kernel's side of one sequence. Its connections are reset when it is dropped.
pub(crate) struct KernelSide<'a> {
    network: &'a mut KernelNetwork,
    addresses: FlowAddresses,
    sockets: Vec<Option<RawFd>>,
    written: Vec<u32>,
    /// The last acknowledgement number that each connection sent, with which it can be reset.
    acked: BTreeMap<SocketAddr, u32>,
}

impl<'a> KernelSide<'a> {
    pub(crate) fn new(network: &'a mut KernelNetwork, addresses: FlowAddresses) -> Self {
        Self {
            network,
            addresses,
            sockets: Vec::new(),
            written: Vec::new(),
            acked: BTreeMap::new(),
        }
    }

    fn fd(&self, fd: SocketIndex) -> Option<RawFd> {
        self.sockets.get(fd.0).copied().flatten()
    }

    fn open(&mut self, value: i64) -> CallResult {
        if value < 0 {
            return CallResult::from_value(value);
        }
        self.sockets.push(Some(value as RawFd));
        self.written.push(0);
        CallResult::from_value(self.sockets.len() as i64 + 2)
    }

    fn send(&mut self, index: SocketIndex, fd: RawFd, len: usize, flags: i32) -> CallResult {
        let start = self.written[index.0];
        let data: Vec<u8> = (0..len as u32).map(|i| pattern(start + 1 + i)).collect();
        let flags = flags | libc::MSG_NOSIGNAL;
        let sent = or_errno(unsafe { libc::send(fd, data.as_ptr().cast(), len, flags) } as i64);
        self.written[index.0] += sent.max(0) as u32;
        CallResult::from_value(sent)
    }

    fn set(fd: RawFd, level: i32, name: i32, value: &[i32]) -> CallResult {
        let len = size_of_val(value) as u32;
        let start = value.as_ptr().cast();
        CallResult::from_value(or_errno(
            unsafe { libc::setsockopt(fd, level, name, start, len) }.into(),
        ))
    }

    fn call_on_socket(&mut self, call: &SocketCall, index: SocketIndex, fd: RawFd) -> CallResult {
        let null = std::ptr::null_mut();
        CallResult::from_value(match *call {
            SocketCall::Socket => unreachable!("it has no descriptor"),
            SocketCall::Bind(_) => {
                let (addr, len) = SockAddr::from(self.addresses.local).to_bytes();
                // Each sequence binds the same port after the connections of the previous one have
                // ended.
                Self::set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &[1]);
                or_errno(unsafe { libc::bind(fd, addr.as_ptr().cast(), len as u32) }.into())
            }
            SocketCall::Listen(_, backlog) => or_errno(unsafe { libc::listen(fd, backlog) }.into()),
            SocketCall::Connect(_) => {
                let (addr, len) = SockAddr::from(self.addresses.remote).to_bytes();
                or_errno(unsafe { libc::connect(fd, addr.as_ptr().cast(), len as u32) }.into())
            }
            SocketCall::Accept(_) => {
                let flags = libc::SOCK_NONBLOCK;
                let new = unsafe { libc::accept4(fd, null, null.cast(), flags) };
                return self.open(or_errno(new.into()));
            }
            SocketCall::Send { len, flags, .. } => return self.send(index, fd, len, flags),
            SocketCall::Receive { len, flags, .. } => {
                let mut data = vec![0; len];
                let got = unsafe { libc::recv(fd, data.as_mut_ptr().cast(), len, flags) };
                let value = or_errno(got as i64);
                data.truncate(value.max(0) as usize);
                return CallResult { value, data };
            }
            SocketCall::Shutdown(_, how) => or_errno(unsafe { libc::shutdown(fd, how) }.into()),
            SocketCall::Close(_) => {
                self.sockets[index.0] = None;
                or_errno(unsafe { libc::close(fd) }.into())
            }
            SocketCall::Set(_, level, name, value) => return Self::set(fd, level, name, &[value]),
            SocketCall::Linger(_, on, seconds) => {
                return Self::set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &[on, seconds]);
            }
            SocketCall::Get(_, level, name) => {
                let (mut value, mut len) = (0_i32, 4);
                let start = (&raw mut value).cast();
                match unsafe { libc::getsockopt(fd, level, name, start, &raw mut len) } {
                    0 => value.into(),
                    error => or_errno(error.into()),
                }
            }
            SocketCall::Ioctl(_, request) => {
                let mut value = 0_i32;
                match unsafe { libc::ioctl(fd, request.into(), &raw mut value) } {
                    0 => value.into(),
                    error => or_errno(error.into()),
                }
            }
        })
    }

    fn record_ack(&mut self, packet: &[u8]) {
        let Ok(datagram) = IpPacket::parse(packet) else {
            return;
        };
        if datagram.protocol != protocol::TCP || datagram.dst != self.addresses.remote.ip() {
            return;
        }
        let Some(segment) = WireSegment::parse(&datagram.payload) else {
            return;
        };
        if segment.flags & (ACK | RST) == ACK {
            let remote = SocketAddr::new(datagram.dst, segment.dst_port);
            self.acked.insert(remote, segment.ack);
        }
    }

    /// Resets the connections that have no descriptor any more.
    fn reset_orphans(&mut self) {
        for (remote, seq) in std::mem::take(&mut self.acked) {
            let segment = WireSegment {
                src_port: remote.port(),
                dst_port: self.addresses.local.port(),
                flags: RST | ACK,
                seq,
                ack: 0,
                window: 0,
                urgent: 0,
                options: Vec::new(),
                data: Vec::new(),
            };
            let mut datagram = IpPacket {
                src: remote.ip(),
                dst: self.addresses.local.ip(),
                protocol: protocol::TCP,
                tos: 0,
                ttl: 64,
                flow_label: 0,
                payload: segment.emit(),
            };
            datagram.fill_checksum(tcp::CHECKSUM_OFFSET);
            self.network.write(&datagram.emit());
        }
    }
}

impl TcpSide for KernelSide<'_> {
    fn call(&mut self, call: &SocketCall) -> CallResult {
        if *call == SocketCall::Socket {
            let domain = if self.addresses.is_v6() {
                libc::AF_INET6
            } else {
                libc::AF_INET
            };
            let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let fd = unsafe { libc::socket(domain, kind, libc::IPPROTO_TCP) };
            // Not by sysctl: a namespace cannot select an algorithm that its host does not allow to
            // all.
            let (level, name) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
            let selected =
                unsafe { libc::setsockopt(fd, level, name, c"cubic".as_ptr().cast(), 5) };
            // Otherwise every difference would be one between two algorithms.
            assert_eq!(or_errno(selected.into()), 0, "the kernel has no CUBIC");
            // Our sockets always have this option.
            Self::set(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &[1]);
            return self.open(or_errno(fd.into()));
        }
        let index = call.fd();
        let Some(fd) = self.fd(index) else {
            return CallResult::from_value(-i64::from(libc::EBADF));
        };
        self.call_on_socket(call, index, fd)
    }

    fn poll(&mut self, fd: SocketIndex) -> Option<i32> {
        let mut poll = libc::pollfd {
            fd: self.fd(fd)?,
            events: 0x7fff,
            revents: 0,
        };
        let polled = unsafe { libc::poll(&raw mut poll, 1, 0) };
        (polled >= 0).then_some(poll.revents.into())
    }

    fn info(&mut self, fd: SocketIndex) -> Option<Vec<u8>> {
        let fd = self.fd(fd)?;
        let mut info = vec![0; 248];
        let mut len = info.len() as u32;
        let start = info.as_mut_ptr().cast();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let got = unsafe { libc::getsockopt(fd, level, name, start, &raw mut len) };
        info.truncate(len as usize);
        (got == 0).then_some(info)
    }

    fn socket_count(&self) -> usize {
        self.sockets.len()
    }

    fn deliver(&mut self, packet: &[u8]) {
        self.network.write(packet);
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        let sent = self.network.drain();
        for packet in &sent {
            self.record_ack(packet);
        }
        sent
    }
}

impl Drop for KernelSide<'_> {
    fn drop(&mut self) {
        for fd in self.sockets.drain(..).flatten() {
            Self::set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &[1, 0]);
            unsafe { libc::close(fd) };
        }
        self.reset_orphans();
        self.network.drain();
    }
}
