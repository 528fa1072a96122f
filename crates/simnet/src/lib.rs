//! Whole applications on simulated hosts: tokio-shaped sockets over lossy links in virtual time,
//! repeatable from a seed.
//!
//! A [`Simulation`] has named hosts, joined by links with the parameters of `tc netem`. Each host has a
//! software, which is an async closure, and its own [`fullsend::Stack`], whose sockets work as on a real
//! device. `tokio::time`, `tokio::spawn`, `tokio::sync` and libraries based on them (axum, hyper) work
//! unchanged: time is virtual, so an idle hour takes milliseconds.
//!
//! ```
//! use fullsend::UdpSocket;
//! use fullsend_simnet::{Simulation, seeds};
//! use std::time::Duration;
//!
//! // A client that repeats its request until the answer comes.
//! for seed in seeds(0..10) {
//!     let mut sim = Simulation::new(seed);
//!     sim.host("server", async |host| {
//!         let socket = UdpSocket::bind(host.stack(), "0.0.0.0:53")?;
//!         let mut buf = [0; 512];
//!         loop {
//!             let (len, from) = socket.recv_from(&mut buf).await?;
//!             socket.send_to(&buf[..len], from).await?;
//!         }
//!     })?;
//!     sim.client("client", async |host| {
//!         let socket = UdpSocket::bind(host.stack(), "0.0.0.0:0")?;
//!         let (mut buf, server) = ([0; 512], host.resolve("server:53")?);
//!         loop {
//!             socket.send_to(b"question", server).await?;
//!             let answer = socket.recv_from(&mut buf);
//!             if tokio::time::timeout(Duration::from_secs(1), answer).await.is_ok() {
//!                 return Ok(());
//!             }
//!         }
//!     })?;
//!     sim.connect("client", "server", "delay 30ms loss 20%")?;
//!     sim.run()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same seed gives the same packets at the same nanoseconds ([`Simulation::trace_hash`]) if the
//! software is deterministic. `docs/simulation.md` in the repository is a tutorial, and lists what is
//! deterministic and what is not.
//!
//! To schedule bare hosts without applications, which is faster, use [`fullsend_sim`].
#![forbid(unsafe_code)]

mod agenda;
mod card;
mod error;
mod format;
mod host;
mod kernel;
mod link;
mod machine;
mod names;
mod net;
mod scheduler;
mod seeds;
mod shared;
mod simulation;
mod topology;
mod wire;

pub use error::{Failure, RunError, SoftwareError, SoftwareResult};
pub use format::format_packet;
pub use fullsend_offload::Packet;
pub use fullsend_sim::{HostId, Loss, Netem, RandomLoss, TraceEvent, TracePoint};
pub use host::Host;
pub use link::Link;
pub use net::Net;
pub use seeds::seeds;
pub use simulation::Simulation;
pub use wire::LinkStats;

// The types of these crates are in public signatures.
pub use fullsend;

/// The tutorial, whose code blocks are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/simulation.md")]
struct Tutorial;
