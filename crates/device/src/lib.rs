//! TUN, TAP and in-process links that carry super-segments.
//!
//! [`Tun`] is an interface of the kernel, [`pair()`] a link within the process, and [`Tapped`] a
//! recorder around any of them. A driver takes what a host wants to send, hands it to
//! [`Device::transmit`], and gives the host what [`Device::receive`] brings.
#![deny(unsafe_code)]

mod entropy;
mod memory;
mod offload_set;
mod pair;
mod pcap;
#[allow(unsafe_code, reason = "system calls that std does not wrap")]
mod sys;
#[cfg(test)]
mod test_packet;
mod tun;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use fullsend_offload::Packet;

pub use entropy::os_seed;
pub use fullsend_offload::Caps;
pub use memory::process_memory;
pub use offload_set::{OffloadSet, UnknownOffload};
pub use pair::{NicMode, PairConfig, PairEnd, pair};
pub use pcap::{Capture, TapPoint, Tapped};
pub use tun::{OpenError, Tun, TunBuilder, TunStats, other_address};

/// Something that sends and receives packets in batches, without blocking.
pub trait Device: Send {
    /// What it can do.
    fn caps(&self) -> Caps;

    /// Sends from the front of `batch` as long as the device takes packets; what it takes is
    /// removed, the rest stays. `WouldBlock` is not an error but packets left over.
    ///
    /// A packet that can never go (malformed, interface down) is taken too, and counted; an error
    /// means that the device is of no more use.
    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()>;

    /// Appends at most about `max` frames to `batch`, as they came (unparsed, checksum state set
    /// from the device). Returns how many frames it took from the device: 0 when there is nothing
    /// now. The number includes frames that were dropped, malformed ones and those that there was
    /// no memory for, so that `batch` may have grown by less. A file ([`fd`](Self::fd)) that
    /// returns fewer than `max` must have no more.
    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize>;

    /// Packets that were taken and are still on their way out. The rest have been completed, first
    /// come, first done.
    fn in_flight(&self) -> usize {
        0
    }

    /// Asks to be told, as of room after a full queue, when what is in flight has been completed.
    /// False if nothing is.
    fn notify_completion(&mut self) -> bool {
        false
    }

    /// What to wait on for readability, when it is a file.
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
