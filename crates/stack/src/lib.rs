//! A sans-IO IPv4/IPv6 host.
//!
//! Packets and the current time go in ([`Host::receive`], [`Host::poll`]); packets and deadlines
//! come out ([`Host::transmit`], [`Host::poll_deadline`]). In between, applications open sockets and
//! use them through handles ([`TcpHandle`], [`ListenerHandle`], [`UdpHandle`]). The same host runs
//! on real devices and in the simulator.
//!
//! Programs with an operating system enable the feature `std`: threads then sleep at the lock of
//! the packet pool while another has it. Without it they spin.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod change;
mod demux;
mod egress;
mod error;
mod host;
mod inspect;
mod interface;
mod ip;
mod mib;
mod net_config;
mod notices;
mod ping;
mod rate;
mod siphash;
mod slab;
mod steering;
mod stop_waiting;
mod tcp;
mod timer;
mod udp;
mod udp_calls;
mod waiters;

pub use change::IfaceChange;
pub use error::StackError;
pub use fullsend_qdisc::{FqConfig, FqStats, QdiscConfig, QdiscStats, TbfConfig};
pub use host::{Host, HostConfig};
pub use inspect::{LinkStats, SocketCursor, SocketInfo, SocketKind, SocketOwner};
pub use interface::{IfaceConfig, IfaceId, Mac, NeighbourConfig};
pub use ip::{AddressState, Cidr, IcmpMessage, NeighbourMessage, OwnAddress, ParseCidrError};
pub use net_config::NetConfig;
pub use notices::Notice;
pub use ping::{PingError, PingHandle, PingId, PingReply};
pub use steering::Steering;
pub use stop_waiting::WaitOn;
pub use tcp::{
    FastopenServer, Incoming, Interest, ListenConfig, ListenerHandle, ListenerId, SockStat,
    TcpHandle, TcpId, TcpQueues, TcpRef, UnreachableCode,
};
pub use udp::{MulticastSettings, UdpHandle};
pub use udp_calls::{UdpDatagram, UdpError, UdpId, UdpSharing};
pub use waiters::{WaitKey, WaitList, Waiter};

// Their types are in public signatures.
pub use fullsend_offload;
pub use fullsend_tcp;
pub use fullsend_wire;
