//! Userspace TCP/IP stack with tokio-style sockets over TUN, TAP or an in-process link.
//!
//! A [`Stack`] is an IP host with its own addresses inside your process. Its sockets
//! ([`TcpStream`], [`TcpListener`], [`UdpSocket`]) have the methods and the behaviour of those in
//! `tokio::net`; each one is created on a stack:
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
//! [`Stack::pair`] builds two stacks joined by a link, for tests and experiments. It needs neither
//! root nor a device.
//!
//! Unlike the kernel, a userspace stack ends with its process and cannot deliver data after that:
//! see [`TcpStream::flushed`] and [`Stack::shutdown`].
//!
//! # Features
//! No feature is on by default.
//! - `axum`: [`TcpListener`] implements `axum::serve::Listener`.
//! - `futures`: [`PacketPort`] is a `Stream` and a `Sink` of packets.
//! - `control`: the control socket, through which `fullsend stat` inspects and configures a running
//!   stack: the module `control`, `Builder::control_socket` and `Stack::control_socket`. It adds a
//!   dependency on serde.
//! - `vhost-user`: the link to a virtual machine's virtio-net card, `Builder::vhost_user`.

//!
//! # Operating systems
//! Linux has everything. Other Unix systems lack `Builder::tun`, `tap`, `packet_socket`, `xdp` and the
//! features `control` and `vhost-user`; macOS has `Builder::utun`. On Windows there is also no
//! `Builder::fd`; [`Builder::packet_io`] takes the device of the crate `tun`. There,
//! paced packets leave with a precision of 1 ms. Systems other than Linux are type-checked and not
//! tested.

#![deny(unsafe_code)]

#[cfg(all(
    any(feature = "control", feature = "vhost-user"),
    not(target_os = "linux")
))]
compile_error!(
    "the features `control` and `vhost-user` of fullsend need Linux; disable them for this target"
);

mod addr;
#[cfg(feature = "axum")]
mod axum;
mod builder;
mod callbacks;
mod clock;
pub mod congestion;
#[cfg(feature = "control")]
pub mod control;
mod device_file;
mod dns;
mod driver;
mod driver_timer;
mod driver_waker;
mod engine;
mod errno;
mod error;
#[cfg(target_os = "linux")]
mod fine_timer;
mod icmp;
mod ping;
mod readiness;
mod resolve;
mod runtime;
mod stack;
mod sync;
mod tcp;
mod udp;
mod wait_registration;

pub use addr::{Addrs, ToAddrs};
pub use builder::Builder;
pub use dns::DnsResolver;
pub use driver_timer::DriverTimer;
#[cfg(unix)]
pub use fullsend_device::FdConfig;
#[cfg(target_os = "linux")]
pub use fullsend_device::default_kernel_address;
pub use fullsend_device::{
    AsyncDevice, Caps, Device, DeviceCounters, FrameHeader, NicMode, Notifier, OffloadSet,
    PacketPort, PacketReceiver, PacketSender, UserDeviceConfig, vnet_header, vnet_packet,
};
pub use fullsend_offload::{
    Chain, Checksum, GsoKind, HeaderBuf, Layers, Link, Offload, Packet, Pool, Slice, TxToken,
    WriteBuf,
};
pub use fullsend_stack::SockStat;
#[cfg(feature = "control")]
pub use fullsend_stack::SocketInfo;
pub use fullsend_stack::{AddressState, Cidr, IfaceId, OwnAddress};
pub use fullsend_stack::{FqStats, QdiscStats};
pub use fullsend_stack::{IcmpMessage, UnreachableCode};
pub use fullsend_tcp::{
    FlowReport, Histogram, Linger, SendLimit, SocketOption, SocketOptions, State, TcpInfo,
};
#[cfg(feature = "vhost-user")]
pub use fullsend_vhost::{StatsHandle, VhostUser, VhostUserBuilder, VhostUserStats};
pub use fullsend_wire::{Nanos, Seed};
pub use icmp::IcmpSocket;
pub use ping::{PingError, PingReply, PingSocket};
pub use resolve::{Resolve, Resolving, SystemResolver};
pub use stack::{Pair, Stack};
pub use tcp::{
    OwnedReadHalf, OwnedWriteHalf, PendingConnection, ReadHalf, ReuniteError, SetStream,
    TcpListener, TcpSet, TcpSocket, TcpStream, TransparentListener, WriteHalf,
};
pub use udp::{Datagram, Transmit, UdpBind, UdpSocket};
