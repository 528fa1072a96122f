//! System calls without a wrapper in std: ioctls on a TUN file and on an interface, and one rtnetlink
//! request. Every function here is safe to call; each `unsafe` block states why.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{c_int, c_uint, c_ulong};

mod bpf;
mod ethtool;
mod packet;
mod xdp;

pub(crate) use bpf::{XdpMode, XdpProgram};
pub(crate) use ethtool::ReceiveQueues;
use packet::set_option;
pub(crate) use packet::{
    bind_packet_socket, ignore_outgoing, is_bound, kernel_version, packet_drops, packet_socket,
    packet_vnet_hdr, promiscuous, receive_untagged_frames, set_queue_bytes,
};
pub(crate) use xdp::{FrameLen, Umem, Xsk, XskError};

/// An interface name in the kernel's form, at most 15 bytes and a NUL.
#[derive(Clone, Copy)]
pub(crate) struct IfName([libc::c_char; libc::IFNAMSIZ]);

impl IfName {
    /// Returns the name, or `None` if it is too long or has a byte that no interface name may have.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let fits = name.len() < libc::IFNAMSIZ;
        let bad = |b: u8| b == 0 || b == b'/' || b == b':' || b.is_ascii_whitespace();
        if !fits || name == "." || name == ".." || name.bytes().any(bad) {
            return None;
        }
        let mut out = [0; libc::IFNAMSIZ];
        for (to, from) in out.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        Some(Self(out))
    }

    fn as_string(self) -> String {
        let bytes = self.0.iter().map(|&c| c as u8).take_while(|&b| b != 0);
        String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
    }

    fn request(self) -> libc::ifreq {
        // SAFETY: plain data, for which all-zero bytes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = self.0;
        request
    }
}

fn checked(ret: c_int) -> io::Result<c_int> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

/// Calls `ioctl` with a structure that the kernel reads and may write.
///
/// # Safety
/// `T` must be the structure that `request` is defined for.
unsafe fn ioctl_with<T>(fd: BorrowedFd<'_>, request: libc::Ioctl, arg: &mut T) -> io::Result<()> {
    // SAFETY: `arg` is valid for reads and writes of `T`, which the caller guarantees to be right.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(arg)) }).map(drop)
}

/// Creates the interface or attaches to it (`TUNSETIFF`), and returns its name with `%d` filled in.
pub(crate) fn tun_set_iff(fd: BorrowedFd<'_>, name: IfName, flags: c_int) -> io::Result<String> {
    let mut req = name.request();
    req.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the request reads and writes a `struct ifreq`.
    unsafe { ioctl_with(fd, libc::TUNSETIFF, &mut req) }?;
    Ok(IfName(req.ifr_name).as_string())
}

/// Returns the name and the flags of the interface that the file is attached to (`TUNGETIFF`).
pub(crate) fn tun_get_iff(fd: BorrowedFd<'_>) -> io::Result<(String, c_int)> {
    let mut req = IfName([0; libc::IFNAMSIZ]).request();
    // SAFETY: the request writes a `struct ifreq`.
    unsafe { ioctl_with(fd, libc::TUNGETIFF, &mut req) }?;
    // SAFETY: the kernel has just written this member.
    let flags = unsafe { req.ifr_ifru.ifru_flags };
    Ok((IfName(req.ifr_name).as_string(), c_int::from(flags as u16)))
}

/// Sets `O_NONBLOCK`.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut on: c_int = 1;
    // SAFETY: the request reads one int.
    unsafe { ioctl_with(fd, libc::FIONBIO, &mut on) }
}

/// Returns the bytes of send buffer that a Unix socket uses now, with the kernel's overhead (`SIOCOUTQ`).
pub(crate) fn unix_unsent(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes an `int`.
    unsafe { ioctl_with(fd, libc::TIOCOUTQ as libc::Ioctl, &mut bytes) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Fills at most 256 bytes with random numbers, for which one call of the kernel suffices.
pub(crate) fn random(bytes: &mut [u8]) -> io::Result<()> {
    loop {
        // SAFETY: the pointer and length are those of a live slice.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got == bytes.len() as isize {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Connects a `SOCK_SEQPACKET` socket to the Unix socket at `path`.
pub(crate) fn connect_seqpacket(path: &Path) -> io::Result<OwnedFd> {
    // SAFETY: plain data, for which all-zero bytes are valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // The last byte stays NUL.
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "the path has {} bytes; at most 107 are possible",
                bytes.len()
            ),
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: plain values; a descriptor that is not negative is new and owned here.
    let socket = unsafe {
        let fd = checked(libc::socket(libc::AF_UNIX, kind, 0))?;
        OwnedFd::from_raw_fd(fd)
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and length are those of a live address.
    checked(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

/// Sets the offloads that the reader of the file accepts (`TUNSETOFFLOAD`).
pub(crate) fn tun_set_offload(fd: BorrowedFd<'_>, bits: c_uint) -> io::Result<()> {
    // SAFETY: this request takes its argument by value.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, bits as c_ulong) }).map(drop)
}

/// Sets an offload header of `size` bytes in little-endian order (`TUNSETVNETHDRSZ`, `TUNSETVNETLE`).
pub(crate) fn tun_set_vnet_hdr(fd: BorrowedFd<'_>, size: usize) -> io::Result<()> {
    let mut size = size as c_int;
    // SAFETY: the request reads one int.
    unsafe { ioctl_with(fd, libc::TUNSETVNETHDRSZ, &mut size) }?;
    let mut little: c_int = 1;
    // SAFETY: the request reads one int.
    unsafe { ioctl_with(fd, libc::TUNSETVNETLE, &mut little) }
}

/// Opens a socket for interface ioctls, in the calling thread's network namespace.
fn control_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: plain values; a descriptor that is not negative is new and owned here.
    unsafe { checked(libc::socket(libc::AF_INET, kind, 0)).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// An interface of the calling thread's network namespace.
pub(crate) struct Iface {
    socket: OwnedFd,
    name: IfName,
}

impl Iface {
    pub(crate) fn new(name: IfName) -> io::Result<Self> {
        let socket = control_socket()?;
        Ok(Self { socket, name })
    }

    fn call(&self, request: c_ulong, req: &mut libc::ifreq) -> io::Result<()> {
        use std::os::fd::AsFd;
        // SAFETY: every request that this module passes here is defined for `struct ifreq`.
        unsafe { ioctl_with(self.socket.as_fd(), request as libc::Ioctl, req) }
    }

    pub(crate) fn mtu(&self) -> io::Result<u32> {
        let mut req = self.name.request();
        self.call(libc::SIOCGIFMTU, &mut req)?;
        // SAFETY: the kernel has just written this member.
        Ok(unsafe { req.ifr_ifru.ifru_mtu } as u32)
    }

    pub(crate) fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let mut req = self.name.request();
        req.ifr_ifru.ifru_mtu = mtu as c_int;
        self.call(libc::SIOCSIFMTU, &mut req)
    }

    /// Returns the length of the transmit queue: the packets that wait for the reader of the file before
    /// the driver drops further ones.
    pub(crate) fn queue_len(&self) -> io::Result<u32> {
        let mut req = self.name.request();
        self.call(libc::SIOCGIFTXQLEN, &mut req)?;
        // SAFETY: the kernel has just written an int at the start of the union, where this member
        // is.
        Ok(unsafe { req.ifr_ifru.ifru_mtu } as u32)
    }

    pub(crate) fn set_queue_len(&self, packets: u32) -> io::Result<()> {
        let mut req = self.name.request();
        req.ifr_ifru.ifru_mtu = packets as c_int;
        self.call(libc::SIOCSIFTXQLEN, &mut req)
    }

    pub(crate) fn index(&self) -> io::Result<u32> {
        let mut req = self.name.request();
        self.call(libc::SIOCGIFINDEX, &mut req)?;
        // SAFETY: the kernel has just written this member.
        Ok(unsafe { req.ifr_ifru.ifru_ifindex } as u32)
    }

    /// Returns whether `IFF_UP` is set.
    pub(crate) fn is_up(&self) -> io::Result<bool> {
        Ok(self.flags()? & libc::IFF_UP as libc::c_short != 0)
    }

    /// Sets `IFF_UP` unless it is set.
    pub(crate) fn bring_up(&self) -> io::Result<()> {
        let flags = self.flags()?;
        let up = libc::IFF_UP as libc::c_short;
        if flags & up != 0 {
            return Ok(());
        }
        let mut req = self.name.request();
        req.ifr_ifru.ifru_flags = flags | up;
        self.call(libc::SIOCSIFFLAGS, &mut req)
    }

    fn flags(&self) -> io::Result<libc::c_short> {
        let mut req = self.name.request();
        self.call(libc::SIOCGIFFLAGS, &mut req)?;
        // SAFETY: the kernel has just written this member.
        Ok(unsafe { req.ifr_ifru.ifru_flags })
    }

    /// Returns whether the interface carries Ethernet frames and has an Ethernet address.
    pub(crate) fn is_ethernet(&self) -> io::Result<bool> {
        let mut req = self.name.request();
        self.call(libc::SIOCGIFHWADDR, &mut req)?;
        // SAFETY: the kernel has just written this member.
        Ok(unsafe { req.ifr_ifru.ifru_hwaddr.sa_family } == libc::ARPHRD_ETHER)
    }
}

/// Sends an rtnetlink message that requests an acknowledgement, and returns the kernel's result.
pub(crate) fn rtnetlink(message: &[u8]) -> io::Result<()> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: plain values; a descriptor that is not negative is new and owned here.
    let socket = unsafe {
        let fd = checked(libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE))?;
        OwnedFd::from_raw_fd(fd)
    };
    let fd = socket.as_raw_fd();
    // SAFETY: the pointer and length are those of a live slice.
    let sent = unsafe { libc::send(fd, message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = [0u8; 512];
    // SAFETY: the pointer and length are those of a live array.
    let got = unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // `struct nlmsgerr` follows the 16 bytes of `struct nlmsghdr`; it begins with -errno.
    match answer[..got as usize].get(16..20) {
        Some(&[a, b, c, d]) => match i32::from_ne_bytes([a, b, c, d]) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Functions that only tests call.
#[cfg(test)]
pub(crate) mod testing {
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

    use super::checked;

    /// Returns two ends of a `SOCK_SEQPACKET` socket.
    pub(crate) fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the pointer is that of two live ints.
        checked(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
        // SAFETY: both descriptors are new and owned here.
        Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
    }

    /// Runs `test` in its own network namespace, which is removed afterwards; prints `skipped` and
    /// returns if the user may not create one.
    pub(crate) fn in_own_network(test: impl FnOnce() + Send + 'static) {
        let run = move || match unshare_network() {
            Ok(()) => test(),
            Err(e) => println!("skipped: needs root for a network namespace: {e}"),
        };
        std::thread::spawn(run).join().expect("the test passes");
    }

    /// Runs `ip` with arguments that have no spaces.
    pub(crate) fn ip(args: &str) {
        let status = std::process::Command::new("ip")
            .args(args.split(' '))
            .status();
        assert!(status.unwrap().success(), "ip {args}");
    }

    /// Moves the calling thread into a new network namespace.
    pub(crate) fn unshare_network() -> io::Result<()> {
        // SAFETY: changes kernel-side state of this thread only.
        checked(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
    }

    /// Waits at most `timeout_ms` for the file to become readable; returns whether it is.
    pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout_ms: i32) -> bool {
        let mut poll = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one live `pollfd`.
        checked(unsafe { libc::poll(&raw mut poll, 1, timeout_ms) }).is_ok_and(|n| n > 0)
    }

    /// `UDP_SEGMENT`: one send becomes datagrams of `size` bytes.
    pub(crate) fn set_udp_segment(fd: BorrowedFd<'_>, size: u16) -> io::Result<()> {
        let size = libc::c_int::from(size);
        // SAFETY: the option reads one int.
        checked(unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const size).cast(),
                size_of_val(&size) as libc::socklen_t,
            )
        })
        .map(drop)
    }
}
