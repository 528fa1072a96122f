//! Hosts and links in virtual time, exactly repeatable from a seed.
//!
//! A [`Sim`] owns [`Host`](fullsend_stack::Host)s and the links between them, and advances time
//! from event to event. Links are described with the parameters of `tc netem` ([`Netem`]); a
//! network card ([`NicConfig`]) accepts super-segments or packets of the MTU, sends at its own
//! rate, and completes them. Two runs from one seed, with the same calls, have the same packets at
//! the same nanoseconds, which [`Sim::trace_hash`] verifies.
//!
//! ```
//! use fullsend_sim::{NicConfig, Sim};
//! use fullsend_stack::{Cidr, IfaceId, ListenConfig};
//! use fullsend_wire::{Instant, Nanos, Seed};
//!
//! let mut sim = Sim::new(Seed::from_u64(1));
//! let (a, b) = (sim.add_host(), sim.add_host());
//! let netem = "delay 10ms rate 100mbit loss 1%".parse().unwrap();
//! sim.connect([a, b], NicConfig::default(), [netem, netem]);
//! for (host, addr) in [(a, "10.0.0.1"), (b, "10.0.0.2")] {
//!     let cidr = Cidr { addr: addr.parse().unwrap(), prefix: 24 };
//!     sim.host(host).add_address(Instant::ZERO, IfaceId(0), cidr).unwrap();
//! }
//! let to = "10.0.0.2:80".parse().unwrap();
//! let config = ListenConfig { backlog: 8, defer_syn_ack: false, any_destination: false };
//! let listener = sim.host(b).tcp_listen(to, config).unwrap();
//! let now = sim.now();
//! sim.host(a).tcp_connect(now, None, to).unwrap();
//! let accepted = sim.run_until(Instant::ZERO + Nanos::from_secs(10), |sim| {
//!     sim.host(b).listener(listener).accept().unwrap().is_some()
//! });
//! assert!(accepted);
//! ```
#![forbid(unsafe_code)]

mod direction;
mod events;
mod format;
mod netem;
mod nic;
mod pipe;
mod router;
mod sim;
mod trace;

pub use direction::Loss;
pub use format::format_packet;
pub use netem::{Netem, NetemError, RandomLoss};
pub use nic::{NicConfig, NicMode};
pub use pipe::{LostPacket, Pipe, PipeStats};
pub use sim::{HostId, LinkId, Sim};
pub use trace::{TraceEvent, TraceHash, TracePoint};

// Their types are in public signatures.
pub use fullsend_offload;
pub use fullsend_stack::{self, QdiscConfig};
pub use fullsend_wire;
