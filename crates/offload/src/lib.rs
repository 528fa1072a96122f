//! Packets in big pieces: the [`Packet`], GSO that cuts it and GRO that joins it.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod gro;
mod gso;
mod packet;

pub use gro::{Gro, GroConfig, GroStats};
pub use gso::segment;
pub use packet::{
    Checksum, GsoKind, HeaderBuf, Layers, Link, Offload, Packet, ParseError, TxToken,
};
