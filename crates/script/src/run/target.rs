//! The target of a script: the interface between the runner and a stack.
//!
//! [`VirtualStack`](super::virtual_stack::VirtualStack) is the stack in this process, in virtual
//! time; [`Library`](crate::library::Library) is a library with packetdrill's interface.

use std::collections::VecDeque;

use fullsend_posix::{EpollEvent, Errno, Received, SockAddr};

use crate::script::Nanos;

/// A descriptor of the target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Fd(pub(crate) i32);

/// A packet that the stack sent.
#[derive(Clone, Debug)]
pub(crate) struct SentPacket {
    pub(crate) at: Nanos,
    /// The packet from its IP header.
    pub(crate) bytes: Vec<u8>,
}

/// One descriptor of a `poll` call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollEntry {
    pub(crate) fd: Fd,
    pub(crate) events: u16,
    pub(crate) revents: u16,
}

/// A timeout of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeoutKind {
    /// `SO_RCVTIMEO`.
    Receive,
    /// `SO_SNDTIMEO`.
    Send,
}

/// A call that sends data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendArgs<'a> {
    /// `write`, `writev`, `send`, `sendto` or `sendmsg`.
    pub(crate) name: &'a str,
    pub(crate) parts: &'a [&'a [u8]],
    pub(crate) flags: i32,
    pub(crate) dest: Option<SockAddr>,
    pub(crate) control: &'a [u8],
}

type Result<T> = core::result::Result<T, Errno>;

/// A stack with a network and a clock, both of which only advance when stepped.
pub(crate) trait Target: Sockets {
    /// Returns the script's time.
    fn now(&self) -> Nanos;
    /// Returns the script's time of a timestamp in ns since the epoch.
    fn script_time(&self, stamp: i64) -> Nanos;
    /// Advances the time to `end`, or to the stack's next own action before; returns whether it
    /// acted.
    fn step(&mut self, end: Nanos) -> bool;
    /// Advances the time like [`step`](Self::step), for a caller that waits for a packet.
    fn step_to_packet(&mut self, end: Nanos) -> bool {
        self.step(end)
    }
    /// Transmits pending packets after a change of the stack's state.
    fn transmit_pending(&mut self) {}
    /// Passes a packet, from its IP header, to the stack.
    fn receive(&mut self, bytes: &[u8]);
    /// Returns the packets sent and not yet compared, the oldest first.
    fn sent(&mut self) -> &mut VecDeque<SentPacket>;
    /// Runs a command between back quotes; returns the parts that were skipped. A command that
    /// fails ends the script.
    fn command(&mut self, command: &str) -> core::result::Result<Vec<String>, String>;
    /// Returns the time at which the last call returned.
    fn returned_at(&self) -> Nanos {
        self.now()
    }
    /// Ends the run.
    fn finish(&mut self) -> core::result::Result<(), String> {
        Ok(())
    }
}

/// The socket calls of a target.
///
/// A call that would block returns EAGAIN (`connect` EINPROGRESS or EALREADY), and is made again
/// when [`take_ready`](Self::take_ready) reports that it may continue. A target that [blocks by
/// itself](Self::blocks_itself) has started it by then, and returns its result the second time.
pub(crate) trait Sockets {
    /// Returns whether a blocked call may be able to continue.
    fn take_ready(&mut self) -> bool;
    /// Returns whether the target blocks calls by itself, up to their own timeouts.
    fn blocks_itself(&self) -> bool {
        false
    }
    /// Sets whether the next call may block.
    fn may_block(&mut self, _may: bool) {}
    /// Waits until the blocked call returns, as another cannot be made before. Returns `false` if
    /// that takes virtual time, which the caller then advances.
    fn wait_for_call(&mut self) -> bool {
        false
    }
    /// Returns whether the call on `fd` that returned EAGAIN blocks.
    fn is_blocking(&mut self, fd: Fd) -> bool;
    /// Returns whether the handshake is in progress: [`connect`](Self::connect) reports its end.
    fn is_opening(&self, _fd: Fd) -> bool {
        false
    }
    /// Returns the timeout of a blocked call.
    fn timeout(&mut self, fd: Fd, wait: TimeoutKind) -> Option<Nanos>;
    /// Returns the bytes that a receive of up to `len` waits for; it returns fewer at the end.
    fn receive_target(&mut self, _fd: Fd, _len: usize, _flags: i32) -> usize {
        0
    }
    /// Returns the time that `close` waits for data to be acknowledged.
    fn linger(&mut self, _fd: Fd) -> Option<Nanos> {
        None
    }
    /// Returns whether all data is acknowledged.
    fn is_flushed(&mut self, _fd: Fd) -> bool {
        true
    }
    /// Returns the port a socket is bound to, if it is known.
    fn port(&self, fd: Fd) -> Option<u16>;
    /// Requests that a change of `fd` makes [`take_ready`](Self::take_ready) return `true`.
    fn watch(&mut self, fd: Fd);

    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Fd>;
    fn bind(&mut self, fd: Fd, addr: SockAddr) -> Result<()>;
    fn listen(&mut self, fd: Fd, backlog: i32) -> Result<()>;
    fn accept4(&mut self, fd: Fd, flags: i32) -> Result<(Fd, SockAddr)>;
    fn connect(&mut self, fd: Fd, addr: SockAddr) -> Result<()>;
    fn shutdown(&mut self, fd: Fd, how: i32) -> Result<()>;
    fn close(&mut self, fd: Fd) -> Result<()>;
    /// Makes a `read`, `readv`, `recv`, `recvfrom` or `recvmsg` call.
    fn receive_call(
        &mut self,
        name: &str,
        fd: Fd,
        parts: &mut [&mut [u8]],
        flags: i32,
        control: &mut [u8],
    ) -> Result<Received>;
    fn send_call(&mut self, fd: Fd, sending: SendArgs<'_>) -> Result<usize>;
    fn setsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<()>;
    fn getsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &mut [u8]) -> Result<usize>;
    /// Calls `getsockopt` on behalf of code between `%{` and `}%`.
    fn getsockopt_of_code(
        &mut self,
        fd: Fd,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize> {
        self.getsockopt(fd, level, name, value)
    }
    fn ioctl(&mut self, fd: Fd, request: u32) -> Result<i32>;
    /// Returns `O_NONBLOCK` of `F_GETFL`.
    fn is_nonblocking(&mut self, fd: Fd) -> Result<bool>;
    /// Sets `O_NONBLOCK` by `F_SETFL`.
    fn set_nonblocking(&mut self, fd: Fd, on: bool) -> Result<()>;
    /// Returns the number of `lines` that are ready.
    fn poll(&mut self, lines: &mut [PollEntry], timeout_ms: i32) -> Result<usize>;
    fn epoll_create(&mut self) -> Result<Fd>;
    fn epoll_ctl(&mut self, set: Fd, operation: i32, fd: Fd, event: EpollEvent) -> Result<()>;
    fn epoll_wait(&mut self, set: Fd, out: &mut [EpollEvent], timeout_ms: i32) -> Result<usize>;
    /// Returns the reading end and the writing end.
    fn pipe(&mut self) -> Result<(Fd, Fd)>;
    fn splice(&mut self, from: Fd, to: Fd, len: usize, flags: u32) -> Result<usize>;
}
