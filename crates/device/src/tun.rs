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

#[cfg(target_os = "linux")]
mod builder;
#[cfg(target_os = "linux")]
mod error;
#[cfg(unix)]
mod fd;
#[cfg(target_os = "linux")]
mod interface_config;
#[cfg(target_os = "linux")]
mod negotiate;
pub(crate) mod receive;
#[cfg(all(test, target_os = "linux"))]
mod tests;
pub(crate) mod transmit;

#[cfg(unix)]
use std::collections::VecDeque;
#[cfg(unix)]
use std::fs::File;
#[cfg(unix)]
use std::io;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};

#[cfg(target_os = "linux")]
use fullsend_offload::Link;
#[cfg(unix)]
use fullsend_offload::{Packet, Pool};

#[cfg(target_os = "linux")]
pub use builder::TunBuilder;
#[cfg(target_os = "linux")]
pub use error::OpenError;
#[cfg(unix)]
pub use fd::FdConfig;
#[cfg(target_os = "linux")]
pub use interface_config::default_kernel_address;
pub use receive::vnet_packet;
pub use transmit::vnet_header;

#[cfg(unix)]
use crate::{Caps, Device, DeviceCounters, OffloadSet};
#[cfg(unix)]
use receive::FrameReader;
#[cfg(unix)]
use transmit::LinkLog;

/// Length of [`FrameHeader::Family`], in bytes.
const FAMILY_LEN: usize = 4;

/// The kind of header before each frame of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum FrameHeader {
    /// No header: a frame is an IP packet or an Ethernet frame, as with a TUN or TAP with `IFF_NO_PI`,
    /// Android's `VpnService`, or a socket that preserves message boundaries.
    #[default]
    None,
    /// A `virtio_net_hdr` of 10 bytes, as with a TUN or TAP with `IFF_NO_PI` and `IFF_VNET_HDR`.
    Vnet,
    /// The address family in 4 bytes, most significant first, as with a utun of macOS and iOS.
    Family,
}

/// The counters of a TUN or TAP device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TunStats {
    /// Packets and super-segments received from the kernel.
    pub rx_packets: u64,
    /// Received packets that were dropped: malformed, or no memory for them.
    pub rx_dropped: u64,
    /// `read` calls, including those that found nothing.
    pub rx_calls: u64,
    /// Packets and super-segments sent to the kernel.
    pub tx_packets: u64,
    /// Packets that the kernel refused as malformed, or because the interface was down.
    pub tx_dropped: u64,
    /// `writev` calls, including those that found no room.
    pub tx_calls: u64,
}

/// A queue of a TUN (IP packets) or TAP (Ethernet frames) device.
#[cfg(unix)]
pub struct Tun {
    file: File,
    name: String,
    caps: Caps,
    offload: OffloadSet,
    header: FrameHeader,
    warnings: Vec<String>,
    reader: FrameReader,
    stats: TunStats,
    link_log: LinkLog,
}

#[cfg(unix)]
impl Tun {
    #[cfg(target_os = "linux")]
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

    #[cfg(target_os = "linux")]
    /// Returns a builder for a TAP device. `%d` in the name becomes the first free number.
    pub fn tap(name: &str) -> TunBuilder {
        TunBuilder::new(name, Link::Ethernet)
    }

    #[cfg(target_os = "linux")]
    fn new(
        file: File,
        name: String,
        caps: Caps,
        offload: OffloadSet,
        pool: Pool,
        warnings: Vec<String>,
    ) -> Self {
        let header = if offload.vnet_hdr {
            FrameHeader::Vnet
        } else {
            FrameHeader::None
        };
        Self {
            file,
            name,
            caps,
            offload,
            header,
            warnings,
            reader: FrameReader::new(pool, header),
            stats: TunStats::default(),
            link_log: LinkLog::default(),
        }
    }

    #[cfg(target_os = "linux")]
    /// Returns a device for another queue of the interface.
    fn another_queue(&self, file: File, pool: Pool) -> Self {
        let (name, warnings) = (self.name.clone(), Vec::new());
        Self::new(file, name, self.caps, self.offload, pool, warnings)
    }

    #[cfg(target_os = "macos")]
    pub(crate) fn set_name(&mut self, name: String) {
        self.name = name;
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

#[cfg(unix)]
impl Device for Tun {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        transmit::transmit(
            (&self.file, &self.name),
            self.header,
            batch,
            (&mut self.stats, &mut self.link_log),
        )
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.reader.receive(&self.file, batch, max, &mut self.stats)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.reader.limit_memory(pool, max_bytes);
    }

    fn counters(&mut self) -> DeviceCounters {
        self.stats().into()
    }
}
