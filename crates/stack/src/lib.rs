//! A sans-IO IPv4/IPv6 host.
//!
//! Packets and time come in ([`Host::receive`], [`Host::poll`]), packets and deadlines go out
//! ([`Host::transmit`], [`Host::poll_deadline`]), and users' calls stand between. The same host
//! runs on real devices and in the simulator.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod api;

pub use api::*;
