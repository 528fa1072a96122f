//! A TCP/IP stack for threads: the BSD socket calls, blocking and non-blocking, over a TUN or TAP
//! that a thread of the stack drives, or user-driven: the program transfers the packets and may set
//! the clock.
//!
//! [`Stack`] is a mutex around [`Posix`](fullsend_posix::Posix) and its device. A call that must
//! wait sleeps on a condition variable until its socket is ready. The methods named after a system
//! call behave and fail as that call does on Linux, with a stack's own handles; every call on a
//! stack that has ended fails with the error that it ended with. The C library and the packetdrill
//! library are built on this crate.
//!
//! The feature `control` (off by default, with serde) is the control socket for `fullsend stat`.
//!
//! ```
//! use fullsend_blocking::{Clock, Config, UserDrivenOptions, SockAddr, Stack, abi::*};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stack = Stack::user_driven(&Config::parse("address=10.0.0.1/24")?, Clock::real(), UserDrivenOptions::default())?;
//! let server = stack.socket(AF_INET, SOCK_STREAM, 0)?;
//! let here = SockAddr::V4("127.0.0.1:80".parse()?);
//! stack.bind(server, here)?;
//! stack.listen(server, 8)?;
//! let client = stack.socket(AF_INET, SOCK_STREAM, 0)?;
//! stack.connect(client, here)?;
//! let (peer, _from) = stack.accept4(server, 0)?;
//! stack.sendmsg(client, &[b"hello"], 0, None, &[])?;
//! let mut buffer = [0; 5];
//! stack.recvmsg(peer, &mut [&mut buffer], MSG_WAITALL, &mut [])?;
//! assert_eq!(&buffer, b"hello");
//! # Ok(()) }
//! ```
#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "fullsend-blocking needs Linux: it uses system calls that other systems do not have"
);

pub mod c;
mod calls;
mod clock;
mod config;
#[cfg(feature = "control")]
mod control;
mod driver;
mod driver_waker;
mod eventfd;
mod outbox_drainer;
mod shard;
mod signals;
mod stack;
mod sync;
mod user_driven;
mod wait;

pub use calls::PollEntry;
pub use clock::Clock;
pub use config::{Config, ConfigError};
pub use fullsend_posix::{EpollEvent, Errno, Handle, Received, SockAddr, abi};
pub use stack::{Stack, UserDrivenOptions};
pub use user_driven::Outbox;

// Their types are in public signatures.
pub use fullsend_offload;
pub use fullsend_posix;
pub use fullsend_stack;
pub use fullsend_wire;
