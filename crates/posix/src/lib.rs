//! The BSD socket calls of Linux over a sans-IO [`Host`](fullsend_stack::Host).
//!
//! Sockets are [`Handle`]s and errors are [`Errno`]s. Options, flags, events and structs have
//! Linux's numbers and layouts ([`abi`]). A method named after a system call behaves and fails as
//! that call does on Linux. This crate does not block, do I/O or read a clock: a call that would
//! wait returns EAGAIN (`connect`: EINPROGRESS), and [`Posix::take_ready`] returns the handles on
//! which another attempt may succeed. A blocking layer adds a mutex around [`Posix`] and a
//! condition variable for waiting threads.
//!
//! Programs with an operating system enable the feature `std`: threads then sleep at the locks of
//! wake-ups and of the packet pool while another has them. Without it they spin.
//!
//! ```
//! use fullsend_posix::{Posix, SockAddr, abi::*};
//! use fullsend_stack::{Host, HostConfig};
//! use fullsend_tcp::Sysctl;
//! use fullsend_wire::{Instant, Seed};
//!
//! # fn main() -> Result<(), fullsend_posix::Errno> {
//! let (seed, sysctl, pool_bytes) = (Seed([1; 4]), Sysctl::default(), 1 << 20);
//! let mut posix = Posix::new(Host::new(HostConfig { seed, sysctl, pool_bytes }));
//! let now = Instant::ZERO;
//! let server = posix.socket(AF_INET, SOCK_STREAM, 0)?;
//! let addr = SockAddr::V4("127.0.0.1:8080".parse().unwrap());
//! posix.bind(now, server, addr)?;
//! posix.listen(now, server, 16)?;
//! let client = posix.socket(AF_INET, SOCK_STREAM, 0)?;
//! assert_eq!(posix.connect(now, client, addr), Err(fullsend_posix::Errno::EINPROGRESS));
//! posix.host_mut().poll(now); // carries loopback; a driver also moves packets of interfaces
//! posix.connect(now, client, addr)?;
//! posix.sendmsg(now, client, &[b"hello"], 0, None, &[])?;
//! posix.host_mut().poll(now);
//! let (peer, _from) = posix.accept4(server, SOCK_NONBLOCK)?;
//! let mut buffer = [0; 16];
//! let received = posix.recvmsg(now, peer, &mut [&mut buffer], 0, &mut [])?;
//! assert_eq!(&buffer[..received.len], b"hello");
//! # Ok(())
//! # }
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

// First, because other modules use its macro.
#[macro_use]
mod sockopt;

pub mod abi;
mod addr;
mod bind;
mod bindings;
mod blocking;
mod c_calls;
mod calls;
mod cmsg;
mod datagram;
mod epoll;
mod errno;
mod errqueue;
mod files;
mod ioctl;
mod messages;
mod pipe;
mod posix;
mod splice;
mod stream;
mod tcp_info;
mod timestamps;
mod wake;

pub use addr::{SOCKADDR_IN_LEN, SOCKADDR_IN6_LEN, SockAddr};
pub use epoll::EpollEvent;
pub use errno::{Errno, Result};
pub use files::Handle;
pub use posix::Posix;
pub use stream::CopiedCall;

// Their types are in public signatures.
pub use fullsend_offload;
pub use fullsend_stack;
pub use fullsend_tcp;
pub use fullsend_wire;

/// The result of [`Posix::recvmsg`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Bytes received; with `MSG_TRUNC`, possibly more than the buffers hold.
    pub len: usize,
    /// The sender; `None` on a stream.
    pub from: Option<SockAddr>,
    /// `msg_flags`: `MSG_TRUNC`, `MSG_CTRUNC`, `MSG_EOR`, `MSG_ERRQUEUE`.
    pub flags: i32,
    /// Bytes written to the control buffer.
    pub control_len: usize,
}
