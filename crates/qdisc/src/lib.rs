//! Queueing disciplines: the queue between a host and its device, and the order in which packets
//! leave it.
//!
//! A [`Qdisc`] accepts packets with [`enqueue`](Qdisc::enqueue) and returns them with
//! [`dequeue`](Qdisc::dequeue). If it has packets but none may leave yet,
//! [`next_departure`](Qdisc::next_departure) returns the time for the next call. Nothing here reads
//! a clock.
//!
//! ```
//! use fullsend_qdisc::{Qdisc, QdiscConfig, QueuedPacket};
//! use fullsend_wire::Instant;
//!
//! #[derive(Debug, PartialEq)]
//! struct Packet(u32);
//! impl QueuedPacket for Packet {
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

use fullsend_wire::Instant;

pub use config::{FqConfig, QdiscConfig, QdiscError, TbfConfig};
pub use fifo::Pfifo;
pub use fq::Fq;
pub use stats::{FqStats, QdiscStats};
pub use tbf::Tbf;

// Their types are in public signatures.
pub use fullsend_offload;
pub use fullsend_wire;

/// The properties of a packet that queueing disciplines use.
pub trait QueuedPacket {
    /// Returns the bytes that the packet takes on the wire, after segmentation.
    fn wire_len(&self) -> u32;

    /// Returns the number of packets after segmentation; at least 1.
    fn segments(&self) -> u32 {
        1
    }

    /// Returns the flow that the packet belongs to; 0 is none.
    fn flow(&self) -> u64 {
        0
    }

    /// Returns the earliest departure time; [`Instant::ZERO`] is at once.
    fn departure(&self) -> Instant {
        Instant::ZERO
    }

    /// Sets Congestion Experienced (RFC 3168); returns `false` if the packet is not ECN-capable.
    fn mark_ce(&mut self) -> bool {
        false
    }
}

/// A queueing discipline with its packets. [`QdiscConfig::NoQueue`] has none.
#[derive(Debug)]
pub enum Qdisc<P> {
    /// First in, first out.
    Pfifo(Pfifo<P>),
    /// Fair queueing with departure times.
    Fq(Box<Fq<P>>),
    /// Token bucket filter.
    Tbf(Tbf<P>),
}

impl<P: QueuedPacket> Qdisc<P> {
    /// Returns an empty queue; `None` for [`QdiscConfig::NoQueue`].
    pub fn new(config: QdiscConfig) -> Option<Self> {
        match config {
            QdiscConfig::NoQueue => None,
            QdiscConfig::Pfifo { limit } => Some(Self::Pfifo(Pfifo::new(limit))),
            QdiscConfig::Fq(config) => Some(Self::Fq(Box::new(Fq::new(config)))),
            QdiscConfig::Tbf(config) => Some(Self::Tbf(Tbf::new(config))),
        }
    }

    /// Queues a packet.
    ///
    /// # Errors
    /// Returns the packet if it is dropped; it has been counted.
    #[inline]
    pub fn enqueue(&mut self, now: Instant, packet: P) -> Result<(), P> {
        match self {
            Self::Pfifo(fifo) => fifo.enqueue(packet),
            Self::Fq(fq) => fq.enqueue(now, packet),
            Self::Tbf(tbf) => tbf.enqueue(packet),
        }
    }

    /// Removes and returns the next packet that may leave at `now`.
    #[inline]
    pub fn dequeue(&mut self, now: Instant) -> Option<P> {
        match self {
            Self::Pfifo(fifo) => fifo.dequeue(),
            Self::Fq(fq) => fq.dequeue(now),
            Self::Tbf(tbf) => tbf.dequeue(now),
        }
    }

    /// Returns the time of the next departure, after [`dequeue`](Self::dequeue) has returned
    /// `None`.
    ///
    /// A packet that is queued later may leave before it. [`Instant::ZERO`] means at once; `None`
    /// if no packet is queued.
    #[inline]
    pub fn next_departure(&self) -> Option<Instant> {
        match self {
            Self::Pfifo(fifo) => (!fifo.is_empty()).then_some(Instant::ZERO),
            Self::Fq(fq) => fq.next_departure(),
            Self::Tbf(tbf) => tbf.next_departure(),
        }
    }

    /// Returns whether no packet is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Pfifo(fifo) => fifo.is_empty(),
            Self::Fq(fq) => fq.is_empty(),
            Self::Tbf(tbf) => tbf.is_empty(),
        }
    }

    /// Returns the counters and the backlog.
    pub fn stats(&self) -> QdiscStats {
        match self {
            Self::Pfifo(fifo) => fifo.stats(),
            Self::Fq(fq) => fq.stats(),
            Self::Tbf(tbf) => tbf.stats(),
        }
    }
}
