//! Packets in big pieces: the [`Packet`], GSO that cuts it and GRO that joins it.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod bytes;
mod checksum;
mod ecn;
mod gro;
mod gso;
mod header;
mod packet;
mod parse;
#[cfg(test)]
mod testing;
mod tunnel;

pub use gro::{Gro, GroConfig, GroStats};
pub use gso::segment;
pub use header::HeaderBuf;
pub use packet::{Checksum, GsoKind, Layers, Link, Offload, Packet, ParseError, TxToken};
pub use tunnel::{Encap, Tunnels};
