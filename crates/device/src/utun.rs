//! macOS's utun: a network interface whose other end is a socket of this process.

use std::io;
use std::mem::{self, size_of, size_of_val};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{FdConfig, Tun};

/// The kernel control that creates utun interfaces (`UTUN_CONTROL_NAME` of `net/if_utun.h`).
const CONTROL: &[u8] = b"com.apple.net.utun_control";
/// The option with the interface's name (`UTUN_OPT_IFNAME`).
const OPT_IFNAME: libc::c_int = 2;

impl Tun {
    /// Creates the interface `utunN` of macOS with the number `unit`, or with the first free number for
    /// `None`. `mtu` is the size of the largest IP packet in bytes.
    ///
    /// Requires root. The interface has no address and its own MTU until a program sets them, e.g.
    /// `ifconfig utun5 10.9.0.1 10.9.0.2 mtu 1500 up`; its name is [`Tun::name`]. It ends with the
    /// device. A utun has no offloads: each packet of the MTU is one system call. The code follows
    /// Apple's headers, is type-checked, and not tested.
    ///
    /// # Errors
    /// `PermissionDenied` without root, `ResourceBusy` if the number is in use, `InvalidInput` for a
    /// number that no interface can have, and any other error of the kernel.
    pub fn utun(unit: Option<u32>, mtu: u32) -> io::Result<Self> {
        let unit = match unit {
            // The kernel counts from 1; 0 requests a free number.
            Some(unit) => unit.checked_add(1).ok_or_else(|| {
                let text = format!("utun{unit} cannot exist; choose a smaller number");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?,
            None => 0,
        };
        let socket = control_socket()?;
        connect(&socket, unit)?;
        let name = interface_name(&socket)?;
        let mut tun = Self::from_fd(socket, FdConfig::ip(mtu).family_header())?;
        tun.set_name(name);
        Ok(tun)
    }
}

fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: plain values; a descriptor that is not negative is new and owned here.
    unsafe {
        let fd = checked(libc::socket(
            libc::PF_SYSTEM,
            libc::SOCK_DGRAM,
            libc::SYSPROTO_CONTROL,
        ))?;
        let socket = OwnedFd::from_raw_fd(fd);
        // On macOS, `socket` has no flag for this.
        checked(libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC))?;
        Ok(socket)
    }
}

/// Creates the interface by connecting the socket to the control.
fn connect(socket: &OwnedFd, unit: u32) -> io::Result<()> {
    // SAFETY: plain data, for which all-zero bytes are valid.
    let mut info: libc::ctl_info = unsafe { mem::zeroed() };
    for (to, from) in info.ctl_name.iter_mut().zip(CONTROL) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request reads and writes a `struct ctl_info`.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::CTLIOCGINFO, &raw mut info) })?;
    // SAFETY: plain data, for which all-zero bytes are valid.
    let mut address: libc::sockaddr_ctl = unsafe { mem::zeroed() };
    address.sc_len = size_of::<libc::sockaddr_ctl>() as libc::c_uchar;
    address.sc_family = libc::AF_SYSTEM as libc::c_uchar;
    address.ss_sysaddr = libc::AF_SYS_CONTROL as u16;
    address.sc_id = info.ctl_id;
    address.sc_unit = unit;
    let len = size_of_val(&address) as libc::socklen_t;
    let pointer = (&raw const address).cast();
    // SAFETY: the pointer and length are those of a live address.
    checked(unsafe { libc::connect(socket.as_raw_fd(), pointer, len) }).map(drop)
}

fn interface_name(socket: &OwnedFd) -> io::Result<String> {
    let mut name = [0_u8; libc::IFNAMSIZ];
    let mut len = size_of_val(&name) as libc::socklen_t;
    let (level, pointer) = (libc::SYSPROTO_CONTROL, name.as_mut_ptr().cast());
    // SAFETY: the pointer and length are those of a live array.
    checked(unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, OPT_IFNAME, pointer, &raw mut len)
    })?;
    let bytes = name.into_iter().take_while(|&byte| byte != 0).collect();
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn checked(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}
