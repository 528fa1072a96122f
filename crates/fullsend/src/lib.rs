//! Userspace TCP/IP with tokio-shaped sockets over TUN, TAP or an in-process link.
//!
//! A [`Stack`] is a host of its own, with its own addresses, in your process. Its sockets
//! ([`TcpStream`], [`TcpListener`], [`UdpSocket`]) look and behave as `tokio::net`'s; each is
//! made on a stack:
//!
//! ```no_run
//! # #[tokio::main] async fn main() -> std::io::Result<()> {
//! use fullsend::{Stack, TcpListener};
//!
//! let stack = Stack::builder().tun("fs0").address("10.9.0.2/24").build()?;
//! let listener = TcpListener::bind(&stack, "10.9.0.2:80")?;
//! let (stream, from) = listener.accept().await?;
//! # Ok(()) }
//! ```
//!
//! Two stacks with a link between them, for tests and for looking around, need neither root nor a
//! device: [`Stack::pair`].
//!
//! What a userspace stack cannot do is outlive its process: see [`TcpStream::flushed`] and
//! [`Stack::shutdown`].

#![deny(unsafe_code)]

mod addr;
#[cfg(feature = "axum")]
mod axum;
mod builder;
mod clock;
pub mod control;
mod driver;
mod engine;
mod error;
mod fine_timer;
mod kick;
mod stack;
mod sync;
mod tcp;
mod udp;
mod waiting;

pub use addr::ToAddr;
pub use builder::Builder;
pub use fullsend_device::{Caps, Device, NicMode, OffloadSet, other_address};
pub use fullsend_stack::SockStat;
pub use fullsend_stack::{AddressState, Cidr, IfaceId, OwnAddress};
pub use fullsend_stack::{FqStats, QdiscStats};
pub use fullsend_tcp::{
    FlowReport, Histogram, Linger, SendLimit, SocketOption, SocketOptions, State, TcpInfo,
};
pub use fullsend_units::{Nanos, Seed};
pub use stack::{Pair, Stack};
pub use tcp::{
    OwnedReadHalf, OwnedWriteHalf, PendingConnection, ReadHalf, ReuniteError, TcpListener,
    TcpStream, TransparentListener, WriteHalf,
};
pub use udp::UdpSocket;
