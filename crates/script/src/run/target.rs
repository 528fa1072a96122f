//! What a script is played against: the seam between the runner and a stack.
//!
//! [`World`](super::world::World) is the stack in this process, in virtual time;
//! [`Library`](crate::library::Library) is a library that has packetdrill's interface.

use std::collections::VecDeque;

use fullsend_posix::{EpollEvent, Errno, Received, SockAddr};

use crate::script::Nanos;

/// A descriptor of the target's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Fd(pub(crate) i32);

/// A packet that the stack sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Nanos,
    /// From the IP header on.
    pub(crate) bytes: Vec<u8>,
}

/// A line of what `poll` asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollLine {
    pub(crate) fd: Fd,
    pub(crate) events: u16,
    pub(crate) revents: u16,
}

/// Which of a socket's time-outs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// `SO_RCVTIMEO`.
    Receive,
    /// `SO_SNDTIMEO`.
    Send,
}

/// A call that sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending<'a> {
    /// `write`, `writev`, `send`, `sendto` or `sendmsg`.
    pub(crate) name: &'a str,
    pub(crate) parts: &'a [&'a [u8]],
    pub(crate) flags: i32,
    pub(crate) dest: Option<SockAddr>,
    pub(crate) control: &'a [u8],
}

type Result<T> = core::result::Result<T, Errno>;

/// A stack with a network and a clock, both of which stand still unless told otherwise.
pub(crate) trait Target: Sockets {
    /// The script's clock.
    fn now(&self) -> Nanos;
    /// The script's time of a time stamp, ns since the epoch.
    fn script_time(&self, stamp: i64) -> Nanos;
    /// Lets time pass up to `end`, or to what the stack does by itself before; true if it did
    /// something.
    fn step(&mut self, end: Nanos) -> bool;
    /// The same for somebody who waits for a packet.
    fn step_to_packet(&mut self, end: Nanos) -> bool {
        self.step(end)
    }
    /// Something was done to the stack: see to what it has to send.
    fn settle(&mut self) {}
    /// A packet arrives, from the IP header on.
    fn receive(&mut self, bytes: &[u8]);
    /// What left, oldest first, not yet looked at.
    fn sent(&mut self) -> &mut VecDeque<Sent>;
    /// Does what a command between back quotes asks for; what of it was left out. One that fails
    /// ends the script.
    fn command(&mut self, command: &str) -> core::result::Result<Vec<String>, String>;
    /// When the last call returned.
    fn returned_at(&self) -> Nanos {
        self.now()
    }
    /// The script is over.
    fn finish(&mut self) -> core::result::Result<(), String> {
        Ok(())
    }
}

/// Its calls.
///
/// One that must wait gives EAGAIN (`connect` EINPROGRESS or EALREADY), and is made again once
/// [`take_ready`](Self::take_ready) says that it may go on. Who [waits by
/// itself](Self::waits_itself) has begun it by then, and gives its result the second time.
pub(crate) trait Sockets {
    /// A call that waits may be able to go on.
    fn take_ready(&mut self) -> bool;
    /// Calls that wait do so within the target, up to their own time-outs.
    fn waits_itself(&self) -> bool {
        false
    }
    /// The next call may wait.
    fn may_wait(&mut self, _may: bool) {}
    /// Lets the call that waits come to its end, where another cannot be made before; false if
    /// that takes virtual time, which the caller lets pass.
    fn wait_for_call(&mut self) -> bool {
        false
    }
    /// The call on `fd` that gave EAGAIN would rather wait.
    fn waits(&mut self, fd: Fd) -> bool;
    /// Its handshake is under way: [`connect`](Self::connect) tells how it ends.
    fn is_opening(&self, _fd: Fd) -> bool {
        false
    }
    /// How long it waits at most.
    fn time_out(&mut self, fd: Fd, wait: Wait) -> Option<Nanos>;
    /// Bytes that a call waits for that receives up to `len`; fewer are given at the end.
    fn receive_target(&mut self, _fd: Fd, _len: usize, _flags: i32) -> usize {
        0
    }
    /// How long `close` waits for what was written to be acknowledged.
    fn linger(&mut self, _fd: Fd) -> Option<Nanos> {
        None
    }
    /// All of it is.
    fn is_flushed(&mut self, _fd: Fd) -> bool {
        true
    }
    /// Where a socket listens, as far as that is known.
    fn port(&self, fd: Fd) -> Option<u16>;
    /// Somebody waits for `fd`: tell when it changes.
    fn watch(&mut self, fd: Fd);

    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Fd>;
    fn bind(&mut self, fd: Fd, addr: SockAddr) -> Result<()>;
    fn listen(&mut self, fd: Fd, backlog: i32) -> Result<()>;
    fn accept4(&mut self, fd: Fd, flags: i32) -> Result<(Fd, SockAddr)>;
    fn connect(&mut self, fd: Fd, addr: SockAddr) -> Result<()>;
    fn shutdown(&mut self, fd: Fd, how: i32) -> Result<()>;
    fn close(&mut self, fd: Fd) -> Result<()>;
    /// `read`, `readv`, `recv`, `recvfrom` or `recvmsg`.
    fn receive_call(
        &mut self,
        name: &str,
        fd: Fd,
        parts: &mut [&mut [u8]],
        flags: i32,
        control: &mut [u8],
    ) -> Result<Received>;
    fn send_call(&mut self, fd: Fd, sending: Sending<'_>) -> Result<usize>;
    fn setsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<()>;
    fn getsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &mut [u8]) -> Result<usize>;
    /// `getsockopt` as code between `%{` and `}%` asks.
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
    /// `O_NONBLOCK` of `F_GETFL`.
    fn is_nonblocking(&mut self, fd: Fd) -> Result<bool>;
    /// `O_NONBLOCK` of `F_SETFL`.
    fn set_nonblocking(&mut self, fd: Fd, on: bool) -> Result<()>;
    /// How many of `lines` are ready.
    fn poll(&mut self, lines: &mut [PollLine], timeout_ms: i32) -> Result<usize>;
    fn epoll_create(&mut self) -> Result<Fd>;
    fn epoll_ctl(&mut self, set: Fd, operation: i32, fd: Fd, event: EpollEvent) -> Result<()>;
    fn epoll_wait(&mut self, set: Fd, out: &mut [EpollEvent], timeout_ms: i32) -> Result<usize>;
    /// The reader's end, the writer's end.
    fn pipe(&mut self) -> Result<(Fd, Fd)>;
    fn splice(&mut self, from: Fd, to: Fd, len: usize, flags: u32) -> Result<usize>;
}
