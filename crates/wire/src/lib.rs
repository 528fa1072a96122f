//! Packet formats: views that prove bounds once, reprs that are the meaning, and checksums.
//!
//! A view borrows bytes and keeps what they say, unknown bits included; its constructor has
//! checked every offset its getters read. A repr is the meaning as plain values, and
//! `parse(emit(repr)) == repr`. Nothing here copies payload, allocates or does I/O.
//!
//! `emit` writes into a buffer that the caller has made at least as long as the header; a shorter
//! one is the caller's mistake and panics. Input from the network never does.
#![no_std]
#![deny(unsafe_code)]

pub mod arp;
pub mod checksum;
mod ecn;
mod error;
pub mod ethernet;
pub mod extension;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod numbers;
mod read;
pub mod tcp;
pub mod udp;
pub mod vnet;

pub use ecn::EcnField;
pub use error::WireError;
