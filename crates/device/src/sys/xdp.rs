//! System calls on `AF_XDP` sockets, and the memory that such a socket shares with the kernel.

mod ring;
mod umem;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void, off_t, socklen_t, xdp_desc};

use ring::Ring;
pub(crate) use ring::{ConsumerRing, ProducerRing};
pub(crate) use umem::{FrameLen, Umem};

use super::{checked, set_option};

/// Mapped memory of the kernel or of this process, unmapped on drop.
struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a socket's ring at `offset`, or without a socket memory of this process.
    fn new(socket: Option<(BorrowedFd<'_>, off_t)>, len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd, offset) = match socket {
            Some((socket, offset)) => (libc::MAP_SHARED, socket.as_raw_fd(), offset),
            // The mapping is shared: after a fork, a private page could be replaced by a copy here, while
            // the kernel would keep the original.
            None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0),
        };
        let flags = flags | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            start: start.cast(),
            len,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and its owner lets no pointer to it escape.
        unsafe { libc::munmap(self.start.cast::<c_void>(), self.len) };
    }
}

/// An `AF_XDP` socket, its four rings and the memory of its frames.
pub(crate) struct Xsk {
    // The rings and the memory are unmapped after the socket is closed.
    socket: OwnedFd,
    pub(crate) rx: ConsumerRing<xdp_desc>,
    pub(crate) fill: ProducerRing<u64>,
    pub(crate) tx: ProducerRing<xdp_desc>,
    pub(crate) completion: ConsumerRing<u64>,
    pub(crate) umem: Umem,
}

impl Xsk {
    /// Opens a non-blocking socket whose rings have `ring_len` entries, a power of two.
    pub(crate) fn new(umem: Umem, ring_len: u32) -> Result<Self, XskError> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain values; a descriptor that is not negative is new and owned here.
        let socket = unsafe {
            checked(libc::socket(libc::AF_XDP, kind, 0)).map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let socket = socket.map_err(XskError::Socket)?;
        let fd = socket.as_fd();
        let registration = umem.registration();
        set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
            .map_err(XskError::Memory)?;
        for name in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set_option(fd, libc::SOL_XDP, name, &ring_len).map_err(XskError::Memory)?;
        }
        let offsets = ring_offsets(fd).map_err(XskError::Memory)?;
        let (rx_at, tx_at) = (libc::XDP_PGOFF_RX_RING, libc::XDP_PGOFF_TX_RING);
        let fill_at = libc::XDP_UMEM_PGOFF_FILL_RING as off_t;
        let completion_at = libc::XDP_UMEM_PGOFF_COMPLETION_RING as off_t;
        let rings = (|| {
            Ok((
                ConsumerRing::new(Ring::map(fd, rx_at, &offsets.rx, ring_len)?),
                ProducerRing::new(Ring::map(fd, fill_at, &offsets.fr, ring_len)?),
                ProducerRing::new(Ring::map(fd, tx_at, &offsets.tx, ring_len)?),
                ConsumerRing::new(Ring::map(fd, completion_at, &offsets.cr, ring_len)?),
            ))
        })();
        let (rx, fill, tx, completion) = rings.map_err(XskError::Memory)?;
        Ok(Self {
            socket,
            rx,
            fill,
            tx,
            completion,
            umem,
        })
    }

    /// Binds the socket to queue 0 of an interface. The kernel copies each frame between its own memory
    /// and the socket's.
    pub(crate) fn bind(&self, index: u32) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: index,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        let len = size_of_val(&address) as socklen_t;
        // SAFETY: the pointer and length are those of a live address.
        let ret = unsafe { libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), len) };
        checked(ret).map(drop)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Makes the kernel send frames of the transmit ring, at most 32 per call.
    pub(crate) fn send_queued(&self) -> io::Result<()> {
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: no data and no address.
        let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Returns and clears the socket's error, such as `ENETDOWN` for a removed interface.
    pub(crate) fn take_error(&self) -> io::Result<()> {
        let errno: c_int = get_option(self.fd(), libc::SOL_SOCKET, libc::SO_ERROR)?;
        match errno {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Returns the number of frames for which the socket's memory or receive ring had no room.
    pub(crate) fn dropped(&self) -> io::Result<u64> {
        let stats: libc::xdp_statistics =
            get_option(self.fd(), libc::SOL_XDP, libc::XDP_STATISTICS)?;
        Ok(stats.rx_dropped + stats.rx_ring_full)
    }
}

/// The step of opening an `AF_XDP` socket that failed.
#[derive(Debug)]
pub(crate) enum XskError {
    Socket(io::Error),
    Memory(io::Error),
}

/// A type of values that the kernel writes for a socket option.
///
/// # Safety
/// All bytes, including zeros, must be valid.
unsafe trait PlainOption {}

// SAFETY: an integer.
unsafe impl PlainOption for c_int {}
// SAFETY: integers.
unsafe impl PlainOption for libc::xdp_statistics {}
// SAFETY: integers.
unsafe impl PlainOption for libc::xdp_mmap_offsets {}

/// Returns a socket option. The kernel may write only its first fields; the others are zero.
fn get_option<T: PlainOption>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    // SAFETY: all-zero bytes are valid.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as socklen_t;
    let to = (&raw mut value).cast::<c_void>();
    // SAFETY: the pointer and length are those of a live value, for which any bytes are valid.
    checked(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, to, &raw mut len) })?;
    Ok(value)
}

fn ring_offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    get_option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
}
