//! A network for a namespace, a container or a microVM, through ordinary sockets of the host.
//!
//! The guest's packets end in a [`fullsend::Stack`] behind a TAP or another device. Each of its
//! flows continues through a socket of the host: a TCP connection, a connected UDP socket, or a ping
//! socket. The guest needs no privileges on the host, and the host no packet filter.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use fullsend_gateway::{Config, Forward, Gateway, Protocol, Side};
//!
//! let config = Config::default(); // 10.0.2.0/24 and fd00::/64, as slirp4netns and QEMU use
//! let device = fullsend_device::Tun::tap("tap0").open()?;
//! let gateway = Gateway::new(config, Box::new(device))?;
//! gateway.handle().add_forward(Forward {
//!     from: Side::Host,
//!     protocol: Protocol::Tcp,
//!     host: "127.0.0.1:8080".parse().unwrap(),
//!     guest: "10.0.2.100:80".parse().unwrap(),
//!     interface: None,
//! })?;
//! gateway.run().await
//! # }
//! ```
//!
//! [`EgressPolicy`] restricts the destinations of the guest by domain, network, port and protocol. For
//! several guests, one runtime can run a gateway for each, or one gateway joins them in a network
//! ([`Builder::guest`]).

#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("fullsend-gateway needs Linux: it uses system calls that other systems do not have");

mod config;
mod counters;
mod descriptors;
mod dhcp;
mod dns;
mod drain;
mod forward;
mod forwards;
mod free_memory;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod guests;
mod icmp;
mod inspect;
mod memory;
#[doc(hidden)]
pub mod message;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod namespace;
mod outbound_socket;
mod payload_memory;
mod policy;
mod ports;
mod rate;
mod reactor;
mod resolvers;
mod route;
mod router;
mod services;
mod tcp;
mod udp;
mod validate;
mod verdict;

pub use config::{
    Config, DhcpRange, DnsConfig, ForwardSource, Ipv4Config, Ipv6Config, Limits, LoopbackClients,
    Mapping, Outbound, Target, UdpFiltering,
};
pub use counters::Counters;
pub use dhcp::Lease;
pub use dns::Zone;
pub use forward::{Forward, ForwardId, Protocol, Side};
pub use gateway::{Builder, Gateway, Handle};
pub use memory::{MemoryBudget, MemoryBudgetError};
#[cfg(feature = "policy-file")]
pub use policy::PolicyFile;
pub use policy::{
    Action, AllowAll, DeniedNames, DnsVerdict, EgressPolicy, Flow, FlowProtocol, Policy,
    PolicyError, Rule, Verdict,
};
pub use ports::{PortForward, PortList, PortRange, PortSpec, PortSpecError};

// The types of these crates are in public signatures.
pub use fullsend::{self, control::SocketFile};
pub use fullsend_device::{self, PortEvent, PortId};
