//! TUN and TAP: network interfaces of the kernel whose other end is this process.
//!
//! With `IFF_VNET_HDR` a super-segment of up to 64 KiB is one `read` or one `writev`, and neither
//! side computes a checksum. Without it, each packet of the MTU is one call.
//!
//! Measurements (Linux 6.18, a busy virtual machine of two cores, `examples/tun_raw.rs`), in
//! Gbit per second of CPU time of the process, which includes the kernel's TCP where that runs
//! inside its calls:
//! - Reading pieces of 64 KiB: 45-60, more than half of the time in the kernel's copy. Writing
//!   them: 62-66, and 104 to an address that drops them at once. At MTU 1500 without offloads: 6
//!   and 3; a call with its packet costs about 2 us, whatever its length.
//! - Reads in batches of 16 or more: with an ACK after every super-segment the kernel sends inside
//!   the `writev` (20 for one ACK per batch, 45 and more for 16).
//! - Half a mebibyte in flight was best; with several, the copy reads memory that has left the
//!   caches.
//! - `IFF_NAPI` changed nothing for super-segments; at MTU size it gave 2.7 instead of 3.2, and 1.5
//!   with a `gro_flush_timeout`. It is off by default.

mod builder;
mod error;
mod interface_config;
mod negotiate;
pub(crate) mod receive;
#[cfg(test)]
mod tests;
pub(crate) mod transmit;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use fullsend_offload::{Link, Packet, Pool};

pub use builder::TunBuilder;
pub use error::OpenError;
pub use interface_config::default_kernel_address;

use crate::{Caps, Device, OffloadSet};
use receive::FrameReader;
use transmit::LinkLog;

/// The counters of a TUN or TAP device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TunStats {
    /// Packets and super-segments received from the kernel.
    pub rx_packets: u64,
    /// Received packets that were dropped: malformed, or no memory for them.
    pub rx_dropped: u64,
    /// `read` calls, those that found nothing included.
    pub rx_calls: u64,
    /// Packets and super-segments sent to the kernel.
    pub tx_packets: u64,
    /// Packets that the kernel refused as malformed, or because the interface was down.
    pub tx_dropped: u64,
    /// `writev` calls, those that found no room included.
    pub tx_calls: u64,
}

/// A queue of a TUN (IP packets) or TAP (Ethernet frames) device.
pub struct Tun {
    file: File,
    name: String,
    caps: Caps,
    offload: OffloadSet,
    warnings: Vec<String>,
    reader: FrameReader,
    stats: TunStats,
    link_log: LinkLog,
}

impl Tun {
    /// Returns a builder for a TUN device. `%d` in the name becomes the first free number.
    ///
    /// ```no_run
    /// use fullsend_device::Tun;
    /// let tun = Tun::tun("fs%d").kernel_address("10.0.0.1".parse()?, 24).open()?;
    /// println!("{} takes {}", tun.name(), tun.offload());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tun(name: &str) -> TunBuilder {
        TunBuilder::new(name, Link::Ip)
    }

    /// Returns a builder for a TAP device. `%d` in the name becomes the first free number.
    pub fn tap(name: &str) -> TunBuilder {
        TunBuilder::new(name, Link::Ethernet)
    }

    fn new(
        file: File,
        name: String,
        caps: Caps,
        offload: OffloadSet,
        pool: Pool,
        warnings: Vec<String>,
    ) -> Self {
        Self {
            file,
            name,
            caps,
            offload,
            warnings,
            reader: FrameReader::new(pool, offload.vnet_hdr),
            stats: TunStats::default(),
            link_log: LinkLog::default(),
        }
    }

    /// Returns a device for another queue of the interface.
    fn another_queue(&self, file: File, pool: Pool) -> Self {
        let (name, warnings) = (self.name.clone(), Vec::new());
        Self::new(file, name, self.caps, self.offload, pool, warnings)
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the offloads in effect.
    pub fn offload(&self) -> OffloadSet {
        self.offload
    }

    /// Returns the settings that the kernel refused, one line each, for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the counters.
    pub fn stats(&self) -> TunStats {
        self.stats
    }
}

impl Device for Tun {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        transmit::transmit(
            (
                &mut |pieces: &[IoSlice<'_>]| (&self.file).write_vectored(pieces),
                &self.name,
            ),
            self.offload.vnet_hdr,
            batch,
            (&mut self.stats, &mut self.link_log),
        )
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let read = |buf: &mut [u8]| (&self.file).read(buf);
        self.reader.receive(read, batch, max, &mut self.stats)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}
