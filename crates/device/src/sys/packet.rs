//! System calls on packet sockets (packet(7)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void, socklen_t};

use super::checked;

/// Offsets of the kernel's own values in a socket filter (`linux/filter.h`).
const SKF_AD_OFF: u32 = -0x1000_i32 as u32;
const SKF_AD_VLAN_TAG_PRESENT: u32 = 48;

/// Sets a socket option.
pub(super) fn set_option<T>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as socklen_t;
    let value = std::ptr::from_ref(value).cast::<c_void>();
    // SAFETY: the pointer and length are those of a live value; each caller passes the type of the
    // option, and memory that the value points to outlives the call.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, len) }).map(drop)
}

/// Opens a non-blocking socket for whole Ethernet frames, which receives none before it is bound.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain values; a descriptor that is not negative is new and owned here.
    unsafe { checked(libc::socket(libc::AF_PACKET, kind, 0)).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

fn address(index: u32) -> libc::sockaddr_ll {
    // SAFETY: plain data, for which all-zero bytes are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as c_int;
    address
}

/// Binds the socket to an interface, whose frames it receives from then on.
pub(crate) fn bind_packet_socket(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let address = address(index);
    let len = size_of_val(&address) as socklen_t;
    // SAFETY: the pointer and length are those of a live address.
    checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Returns whether the interface that the socket was bound to still exists.
pub(crate) fn is_bound(fd: BorrowedFd<'_>) -> bool {
    let mut address = address(0);
    let mut len = size_of_val(&address) as socklen_t;
    // SAFETY: the pointer and length are those of a live address.
    let got = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    // The kernel replaces the index of a removed interface by -1.
    checked(got).is_ok() && address.sll_ifindex > 0
}

/// Makes the socket drop frames of a VLAN, whose tag the kernel has removed from the data.
pub(crate) fn receive_untagged_frames(fd: BorrowedFd<'_>) -> io::Result<()> {
    let step = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let is_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let give = libc::BPF_RET | libc::BPF_K;
    let mut steps = [
        step(load, 0, SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT),
        step(is_equal, 1, 0),
        step(give, 0, u32::MAX),
        step(give, 0, 0),
    ];
    let filter = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Excludes frames that this machine sends through the interface (`PACKET_IGNORE_OUTGOING`).
pub(crate) fn ignore_outgoing(fd: BorrowedFd<'_>) -> io::Result<()> {
    let on: c_int = 1;
    set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on)
}

/// Puts a `virtio_net_hdr` before each frame (`PACKET_VNET_HDR`).
pub(crate) fn packet_vnet_hdr(fd: BorrowedFd<'_>) -> io::Result<()> {
    let on: c_int = 1;
    set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)
}

/// Makes the interface receive frames to any address while the socket is open.
pub(crate) fn promiscuous(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(
        fd,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &membership,
    )
}

/// Sets the size of both queues, as far as the user's privileges permit.
pub(crate) fn set_queue_bytes(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = bytes as c_int;
    for (forced, allowed) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        // The first option requires CAP_NET_ADMIN; the second is limited by `net.core.rmem_max`.
        if set_option(fd, libc::SOL_SOCKET, forced, &bytes).is_err() {
            set_option(fd, libc::SOL_SOCKET, allowed, &bytes)?;
        }
    }
    Ok(())
}

/// Returns the number of frames dropped because of a full queue since the last call.
pub(crate) fn packet_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: plain data, for which all-zero bytes are valid.
    let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&stats) as socklen_t;
    // SAFETY: the pointer and length are those of a live structure, that of this option.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut stats).cast(),
            &raw mut len,
        )
    })?;
    Ok(stats.tp_drops)
}

/// Returns the kernel's major and minor version.
pub(crate) fn kernel_version() -> Option<(u32, u32)> {
    // SAFETY: plain data, for which all-zero bytes are valid.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is that of a live structure.
    checked(unsafe { libc::uname(&raw mut names) }).ok()?;
    let release: Vec<u8> = names.release.iter().map(|&c| c as u8).collect();
    let release = String::from_utf8_lossy(&release).into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
