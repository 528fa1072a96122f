//! A device of a descriptor that another program or system has opened.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use fullsend_offload::{Link, Pool};

use super::receive::FrameReader;
use super::transmit::LinkLog;
use super::{FrameHeader, Tun, TunStats};
use crate::{Caps, OffloadSet};

/// Bytes of free memory that a device's own pool keeps.
const POOL_BYTES: usize = 16 << 20;

/// The frame format of a descriptor, for [`Tun::from_fd`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FdConfig {
    link: Link,
    mtu: u32,
    header: FrameHeader,
    offload: OffloadSet,
}

impl FdConfig {
    /// Returns the format of IP packets of at most `mtu` bytes without a header.
    pub const fn ip(mtu: u32) -> Self {
        Self {
            link: Link::Ip,
            mtu,
            header: FrameHeader::None,
            offload: OffloadSet::NONE,
        }
    }

    /// Returns the format of Ethernet frames without a header, whose IP packets have at most `mtu` bytes.
    pub const fn ethernet(mtu: u32) -> Self {
        Self {
            link: Link::Ethernet,
            ..Self::ip(mtu)
        }
    }

    /// Sets the header before each frame to a `virtio_net_hdr`, with which the other side accepts the
    /// offloads of `set` from the stack. A TUN or TAP of Linux accepts [`OffloadSet::ALL`] since 6.2, and
    /// all but `uso` before.
    ///
    /// The offloads that the other side uses are those that its opener has requested with
    /// `TUNSETOFFLOAD`; the stack accepts all of them.
    #[must_use]
    pub const fn vnet_header(mut self, set: OffloadSet) -> Self {
        self.header = FrameHeader::Vnet;
        self.offload = OffloadSet {
            vnet_hdr: true,
            ..set
        }
        .normalized();
        self
    }

    /// Sets the header before each frame to the address family, as used by a utun of macOS and iOS.
    #[must_use]
    pub const fn family_header(mut self) -> Self {
        self.header = FrameHeader::Family;
        self.offload = OffloadSet::NONE;
        self
    }
}

impl Tun {
    /// Makes a device of a descriptor on which each read returns one frame, and each write sends one.
    /// Except for making it non-blocking, only reads and writes are used, so that it works where the
    /// calls of a TUN are forbidden or impossible: Android's `VpnService`, the utun of iOS, a TAP from
    /// another process, a `SOCK_SEQPACKET` or `SOCK_DGRAM` socket. An empty frame ends the device, like
    /// the end of such a socket.
    ///
    /// If the calls of Linux are permitted, [`TunBuilder::adopt`](crate::TunBuilder::adopt) negotiates
    /// the offloads.
    ///
    /// # Errors
    /// The error of making `fd` non-blocking.
    ///
    /// ```
    /// use std::os::fd::OwnedFd;
    /// use std::os::unix::net::UnixDatagram;
    ///
    /// use fullsend_device::{Device, FdConfig, Tun};
    ///
    /// let (ours, theirs) = UnixDatagram::pair()?;
    /// let mut device = Tun::from_fd(OwnedFd::from(ours), FdConfig::ip(1500))?;
    /// theirs.send(&[0x45; 20])?;
    /// let mut received = Vec::new();
    /// assert_eq!(device.receive(&mut received, 64)?, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn from_fd(fd: OwnedFd, config: FdConfig) -> io::Result<Self> {
        set_nonblocking(&fd)?;
        let FdConfig {
            link,
            mtu,
            header,
            offload,
        } = config;
        let caps = Caps {
            tso4: offload.tso4,
            tso6: offload.tso6,
            uso: offload.uso,
            tx_checksum: offload.csum,
            ..Caps::plain(link, mtu)
        };
        Ok(Self {
            file: File::from(fd),
            name: "descriptor".to_owned(),
            caps,
            offload,
            header,
            warnings: Vec::new(),
            reader: FrameReader::new(Pool::new(POOL_BYTES), header).ends_with_empty_frame(),
            stats: TunStats::default(),
            link_log: LinkLog::default(),
        })
    }
}

#[cfg(target_os = "linux")]
fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    crate::sys::set_nonblocking(std::os::fd::AsFd::as_fd(fd))
}

#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code, reason = "system calls that std does not wrap")]
fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: plain values, and a descriptor that is open.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
