//! TUN, TAP and in-process links that carry super-segments.
//!
//! [`Tun`] is an interface of the kernel, [`FrameSocket`] a socket to another process, [`pair()`] a
//! link within the process, and [`CapturedDevice`] a packet capture around any device. A driver passes the packets that a host
//! sends to [`Device::transmit`], and the packets from [`Device::receive`] to the host.
#![deny(unsafe_code)]

mod entropy;
mod frame_socket;
mod memory;
mod offload_set;
mod pair;
mod pcap;
#[allow(unsafe_code, reason = "system calls that std does not wrap")]
mod sys;
#[cfg(test)]
mod test_packet;
mod tun;
pub mod vnet;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use fullsend_offload::Packet;

pub use entropy::os_seed;
pub use frame_socket::FrameSocket;
pub use fullsend_offload::Caps;
pub use memory::process_memory;
pub use offload_set::{OffloadSet, UnknownOffload};
pub use pair::{NicMode, PairConfig, PairEnd, pair};
pub use pcap::{Capture, CaptureInterface, CapturedDevice};
pub use tun::{OpenError, Tun, TunBuilder, TunStats, default_kernel_address};

/// A network device that sends and receives packets in batches, without blocking.
pub trait Device: Send {
    /// Returns the offloads that the device supports.
    fn caps(&self) -> Caps;

    /// Sends packets from the front of `batch` and removes them, until the device accepts no more.
    ///
    /// The rest stays in `batch`: a full queue is not an error. A packet that can never be sent
    /// (malformed, interface down) is removed as well, and counted.
    ///
    /// # Errors
    /// An error means that the device is no longer usable.
    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()>;

    /// Appends at most about `max` frames to `batch`, unparsed, with the checksum state that the
    /// device reports.
    ///
    /// Returns the number of frames read from the device: 0 if it has none now. The number includes
    /// dropped frames (malformed, or no memory), so that `batch` may grow by less; it may grow by
    /// more, by frames that [`has_received`](Self::has_received) reported. A device with a
    /// file ([`fd`](Self::fd)) that returns fewer than `max` must have no more.
    ///
    /// # Errors
    /// An error means that the device is no longer usable.
    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize>;

    /// Returns whether [`receive`](Self::receive) has packets although the file is not readable.
    fn has_received(&self) -> bool {
        false
    }

    /// Returns the number of packets that were accepted and are not yet completed.
    ///
    /// Packets complete in the order in which they were accepted.
    fn in_flight(&self) -> usize {
        0
    }

    /// Requests a notification, like that of room after a full queue, when all packets in flight
    /// have completed. Returns `false` if none is in flight.
    fn notify_completion(&mut self) -> bool {
        false
    }

    /// Returns the file to poll for readability, if the device has one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn caps(&self) -> Caps {
        (**self).caps()
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        (**self).transmit(batch)
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        (**self).receive(batch, max)
    }

    fn has_received(&self) -> bool {
        (**self).has_received()
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }

    fn notify_completion(&mut self) -> bool {
        (**self).notify_completion()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }
}
