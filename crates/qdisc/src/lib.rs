//! Queueing disciplines: what waits between a host and its device, and in which order it leaves.
//!
//! A [`Qdisc`] takes packets with [`enqueue`](Qdisc::enqueue) and gives them with
//! [`dequeue`](Qdisc::dequeue); when it holds some but none may leave yet,
//! [`next_departure`](Qdisc::next_departure) says when to ask again. Nothing here reads a clock.
//!
//! ```
//! use fullsend_qdisc::{Qdisc, QdiscConfig, Queued};
//! use fullsend_units::Instant;
//!
//! #[derive(Debug, PartialEq)]
//! struct Packet(u32);
//! impl Queued for Packet {
//!     fn wire_len(&self) -> u32 {
//!         self.0
//!     }
//! }
//!
//! // 1 Mbit/s is 125 bytes in a millisecond.
//! let config: QdiscConfig = "tbf rate 1mbit burst 125 limit 10kb".parse().unwrap();
//! let mut qdisc = Qdisc::new(config).unwrap();
//! let start = Instant::ZERO;
//! qdisc.enqueue(start, Packet(125)).unwrap();
//! qdisc.enqueue(start, Packet(125)).unwrap();
//! assert_eq!(qdisc.dequeue(start), Some(Packet(125)));
//! assert_eq!(qdisc.dequeue(start), None);
//! assert_eq!(qdisc.next_departure(), Some(Instant::from_nanos(1_000_000)));
//! ```
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod config;
mod fifo;
mod fq;
mod packet;
mod stats;
mod tbf;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;

use fullsend_units::Instant;

pub use config::{FqConfig, QdiscConfig, QdiscError, TbfConfig};
pub use fifo::Pfifo;
pub use fq::Fq;
pub use stats::{FqStats, QdiscStats};
pub use tbf::Tbf;

/// What a queueing discipline asks of a packet.
pub trait Queued {
    /// Bytes it takes on the wire once it is cut.
    fn wire_len(&self) -> u32;

    /// Packets it is cut into; at least 1.
    fn segments(&self) -> u32 {
        1
    }

    /// The flow it belongs to; 0 is none.
    fn flow(&self) -> u64 {
        0
    }

    /// Earliest departure; [`Instant::ZERO`] is at once.
    fn departure(&self) -> Instant {
        Instant::ZERO
    }

    /// Sets the Congestion Experienced mark of RFC 3168; false if its sender cannot have it.
    fn mark_ce(&mut self) -> bool {
        false
    }
}

/// A queueing discipline at work. [`QdiscConfig::NoQueue`] has none.
#[derive(Debug)]
pub enum Qdisc<P> {
    /// First in, first out.
    Pfifo(Pfifo<P>),
    /// Fair queueing with departure times.
    Fq(Box<Fq<P>>),
    /// Token bucket.
    Tbf(Tbf<P>),
}

impl<P: Queued> Qdisc<P> {
    /// An empty one; nothing for [`QdiscConfig::NoQueue`].
    pub fn new(config: QdiscConfig) -> Option<Self> {
        match config {
            QdiscConfig::NoQueue => None,
            QdiscConfig::Pfifo { limit } => Some(Self::Pfifo(Pfifo::new(limit))),
            QdiscConfig::Fq(config) => Some(Self::Fq(Box::new(Fq::new(config)))),
            QdiscConfig::Tbf(config) => Some(Self::Tbf(Tbf::new(config))),
        }
    }

    /// Takes a packet, or gives it back: it is dropped, and has been counted.
    #[inline]
    pub fn enqueue(&mut self, now: Instant, packet: P) -> Result<(), P> {
        match self {
            Self::Pfifo(fifo) => fifo.enqueue(packet),
            Self::Fq(fq) => fq.enqueue(now, packet),
            Self::Tbf(tbf) => tbf.enqueue(packet),
        }
    }

    /// The next packet that may leave at `now`.
    #[inline]
    pub fn dequeue(&mut self, now: Instant) -> Option<P> {
        match self {
            Self::Pfifo(fifo) => fifo.dequeue(),
            Self::Fq(fq) => fq.dequeue(now),
            Self::Tbf(tbf) => tbf.dequeue(now),
        }
    }

    /// After [`dequeue`](Self::dequeue) gave nothing: when it will, unless a packet comes that may
    /// leave before; nothing when no packet waits.
    #[inline]
    pub fn next_departure(&self) -> Option<Instant> {
        match self {
            Self::Pfifo(fifo) => (!fifo.is_empty()).then_some(Instant::ZERO),
            Self::Fq(fq) => fq.next_departure(),
            Self::Tbf(tbf) => tbf.next_departure(),
        }
    }

    /// No packet waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Pfifo(fifo) => fifo.is_empty(),
            Self::Fq(fq) => fq.is_empty(),
            Self::Tbf(tbf) => tbf.is_empty(),
        }
    }

    /// What it has done, and what waits.
    pub fn stats(&self) -> QdiscStats {
        match self {
            Self::Pfifo(fifo) => fifo.stats(),
            Self::Fq(fq) => fq.stats(),
            Self::Tbf(tbf) => tbf.stats(),
        }
    }
}
