//! Software GRO and GSO: coalesces the packets of a flow into super-segments, and segments them
//! again.
//!
//! Most of the cost of a packet in a VPN, a proxy or a stack is per packet, not per byte. [`Gro`]
//! accepts packets as a TUN device, a socket or a ring delivers them, and coalesces consecutive
//! packets of a flow into super-segments of up to 64 KiB (more for TCP, see
//! [`GroConfig::max_size`]). The work between receive and transmit is then done once per
//! super-segment. [`segment`] restores exactly the packets that were received, IP IDs and checksums
//! included. Payload is shared; it is copied only where headers span several slices. Supported are
//! TCP and UDP over IPv4 and IPv6, with IPv6 extension headers, VLAN tags and one level of
//! encapsulation ([`Tunnels`]).
//!
//! A packet's payload is a [`Chain`] of [`Slice`]s: refcounted parts of memory blocks, which return
//! to their [`Pool`] when the last slice is dropped. Each of these types is useful without GRO.
//!
//! A VPN that reads batches from one TUN device and writes to another:
//!
//! ```
//! use fullsend_offload::{Gro, GroConfig, Link, Packet, Slice, Tunnels, segment};
//! use fullsend_wire::Instant;
//!
//! fn forward(gro: &mut Gro, now: Instant, frames: &[Vec<u8>], write: &mut impl FnMut(&[u8])) {
//!     let frames = frames.iter().map(|frame| Packet::from_frame(Slice::copied_from(frame)));
//!     let (mut joined, mut cut) = (Vec::new(), Vec::new());
//!     gro.receive_batch(now, &mut frames.collect());
//!     gro.flush(&mut joined); // the end of this read: nothing waits for the next one
//!     for super_segment in joined {
//!         // Route, encrypt or count it here: once for up to 45 packets.
//!         segment(super_segment, &mut cut);
//!     }
//!     cut.iter().for_each(|packet| write(&packet.to_bytes()));
//! }
//!
//! let config = GroConfig { tunnels: Tunnels::STANDARD, ..GroConfig::new(Link::Ip) };
//! let mut gro = Gro::new(config);
//! # let ack = |id: u8, sum: u8| vec![
//! #     0x45, 0, 0, 40, 0, id, 0x40, 0, 64, 6, 0x26, sum, 10, 0, 0, 1, 10, 0, 0, 2, 4, 0, 0, 80,
//! #     0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0x46, 0x7b, 0, 0,
//! # ];
//! # let from_the_tun = vec![ack(7, 0xc7), ack(8, 0xc6)];
//! let mut written = Vec::new();
//! forward(&mut gro, Instant::ZERO, &from_the_tun, &mut |packet| written.push(packet.to_vec()));
//! assert_eq!(written, from_the_tun);
//! ```
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod buffers;
mod bytes;
mod caps;
mod checksum;
mod ecn;
mod gro;
mod gso;
mod header;
mod jumbo;
mod packet;
mod parse;
#[cfg(test)]
mod testing;
mod tunnel;

#[doc(hidden)]
pub use buffers::Mutex;
pub use buffers::{Chain, Loan, Pool, PoolStats, Slice, WriteBuf};
pub use caps::Caps;
pub use gro::{Gro, GroConfig, GroStats};
pub use gso::segment;
pub use header::HeaderBuf;
pub use packet::{Checksum, GsoKind, Layers, Link, Offload, Packet, ParseError, TxToken};
pub use tunnel::{Encap, Tunnels};

// Their types are in public signatures.
pub use fullsend_wire;
