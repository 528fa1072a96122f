//! Packet formats: views over bytes, header values (`*Repr`) and checksums.
//!
//! A view borrows the bytes of a header, unknown bits included; its constructor has checked every
//! offset that its getters read. A repr holds the header's fields as plain values, with
//! `parse(emit(repr)) == repr`. This crate does not copy payload, allocate or do I/O.
//!
//! The quantities in headers, and those that all layers share, have types of their own. Sequence
//! numbers ([`SeqNum`]) have no total order, a window in a header ([`WireWindow`]) differs from a
//! [`Window`] in bytes, and time ([`Instant`]) is a number of nanoseconds that the caller measured:
//! nothing here reads a clock or generates randomness.
//!
//! `emit` writes into a buffer that the caller has made at least as long as the header, and panics
//! if it is shorter. Parsers never panic, whatever the input.
#![no_std]
#![deny(unsafe_code)]

pub mod arp;
pub mod checksum;
mod cold;
mod counters;
pub mod dns;
mod ecn;
mod error;
pub mod ethernet;
pub mod extension;
pub mod icmpv4;
pub mod icmpv6;
pub mod igmp;
pub mod ipv4;
pub mod ipv6;
pub mod mld;
pub mod ndp;
pub mod numbers;
mod prefetch;
mod read;
mod rng;
mod seq;
mod size;
pub mod tcp;
mod time;
pub mod udp;
pub mod vnet;

#[doc(hidden)]
pub use cold::cold_path;
pub use ecn::EcnField;
pub use error::WireError;
#[doc(hidden)]
pub use prefetch::prefetch;
pub use rng::{Rng, Seed};
pub use seq::SeqNum;
pub use size::{Mss, Rate, Window, WindowScale, WireWindow};
pub use time::{Instant, Nanos};
