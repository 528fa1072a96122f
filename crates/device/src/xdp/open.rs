//! Opening of an interface: its memory, rings, queue and program, and errors with remedies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use fullsend_offload::{Link, Pool};

use super::{Attachment, ETHERNET_LEN, VLAN_LEN, XdpSocket};
use crate::sys::{
    self, FrameLen, IfName, Iface, ReceiveQueues, Umem, XdpMode, XdpProgram, Xsk, XskError,
};
use crate::tun::TunStats;
use crate::tun::receive::FrameReader;
use crate::tun::transmit::{self, LinkLog};
use crate::{Caps, FrameHeader};

/// Bytes of free memory that the device's own pool keeps.
pub(super) const POOL_BYTES: usize = 16 << 20;

/// The number of frames in each direction.
const RING_LEN: u32 = 2048;

/// The number and interval of attempts to bind a queue, which the kernel releases some time after its
/// last socket was closed.
const RELEASE_ATTEMPTS: u32 = 200;
const RELEASE_INTERVAL: Duration = Duration::from_millis(5);

/// The largest MTU, rounded down, that drivers with one page of memory for each frame accept.
const USUAL_MTU_MAX: u32 = 3400;

pub(super) fn open(name: &str, pool: Pool) -> io::Result<XdpSocket> {
    let if_name = IfName::new(name).ok_or_else(|| {
        invalid(format!(
            "\"{name}\" is not an interface name; use 1 to 15 bytes without spaces, / and :"
        ))
    })?;
    let iface = Iface::new(if_name)?;
    let index = iface.index().map_err(|error| explain(name, error))?;
    if !iface.is_ethernet()? {
        return Err(invalid(format!(
            "interface \"{name}\" is not an Ethernet interface; use one end of a veth pair or a network \
             card"
        )));
    }
    check_queues(name, iface.receive_queues())?;
    let mtu = iface.mtu()?;
    let longest = mtu as usize + ETHERNET_LEN + VLAN_LEN;
    let frame_len = FrameLen::holding(longest).ok_or_else(|| mtu_error(name, mtu))?;
    let umem = Umem::new(frame_len, RING_LEN)?;
    let umem_len = umem.len();
    let mut xsk = Xsk::new(umem, RING_LEN).map_err(|e| explain_socket(name, umem_len, e))?;
    for frame in xsk.umem.receive_frames() {
        xsk.fill.push(frame);
    }
    xsk.fill.publish();
    retry_while_busy(|| xsk.bind(index)).map_err(|error| explain(name, error))?;
    let program = XdpProgram::load(xsk.fd()).map_err(|error| explain(name, error))?;
    let program = retry_while_busy(|| attach(&program, name, index))
        .map_err(|error| explain_attach(name, mtu, error))?;
    let promiscuous = sys::packet_socket()?;
    sys::promiscuous(promiscuous.as_fd(), index)?;
    if !iface.is_up()? {
        transmit::log(Some(transmit::down_text(name)));
    }
    Ok(XdpSocket {
        attachment: Some(Attachment {
            _program: program,
            _promiscuous: promiscuous,
        }),
        xsk,
        name: name.to_owned(),
        caps: Caps::plain(Link::Ethernet, mtu),
        is_veth: iface.is_veth(),
        reader: FrameReader::new(pool, FrameHeader::None),
        front_is_queued: false,
        down: false,
        stats: TunStats::default(),
        link_log: LinkLog::default(),
    })
}

/// Attaches the program in the driver, or else in the kernel's stack, which costs more for each packet.
fn attach(program: &XdpProgram, name: &str, index: u32) -> io::Result<OwnedFd> {
    let error = match program.attach(index, XdpMode::Native) {
        Err(error) if !is_final(&error) => error,
        result => return result,
    };
    let attachment = program.attach(index, XdpMode::Generic)?;
    tracing::warn!(
        %error,
        "the driver of interface {name} refused the XDP program; the kernel runs it instead, which \
         costs more for each packet"
    );
    Ok(attachment)
}

/// Returns whether the generic mode would also fail, or must not be used because it would drop packets
/// that do not fit.
fn is_final(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(
        errno,
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ERANGE | libc::ENODEV)
    )
}

/// Repeats `attempt` while the kernel releases an earlier socket or program.
fn retry_while_busy<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..RELEASE_ATTEMPTS {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                thread::sleep(RELEASE_INTERVAL);
            }
            result => return result,
        }
    }
    attempt()
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn check_queues(name: &str, queues: ReceiveQueues) -> io::Result<()> {
    let ReceiveQueues { count, combined } = queues;
    if count == 1 {
        return Ok(());
    }
    let kind = if combined { "combined" } else { "rx" };
    Err(invalid(format!(
        "interface \"{name}\" has {count} receive queues, and an AF_XDP socket receives from one; run \
         `ethtool -L {name} {kind} 1`"
    )))
}

fn mtu_error(name: &str, mtu: u32) -> io::Error {
    invalid(format!(
        "the MTU {mtu} of interface \"{name}\" is too large for XDP, whose frames fit into a page of \
         memory; run `ip link set {name} mtu {USUAL_MTU_MAX}`, or less if the driver has a smaller limit"
    ))
}

fn explain_socket(name: &str, umem_len: usize, error: XskError) -> io::Error {
    let (error, text) = match error {
        XskError::Socket(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => (
            error,
            "this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS); use a packet socket"
                .to_owned(),
        ),
        XskError::Memory(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
            let kib = umem_len / 1024;
            let text = format!(
                "the AF_XDP socket on interface \"{name}\" locks {kib} KiB of memory, which is more than \
                 RLIMIT_MEMLOCK permits; raise it (ulimit -l {kib}) or run with CAP_IPC_LOCK"
            );
            (error, text)
        }
        XskError::Socket(error) | XskError::Memory(error) => return explain(name, error),
    };
    io::Error::new(error.kind(), text)
}

/// Adds the remedy to an error of attaching the program.
fn explain_attach(name: &str, mtu: u32, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ERANGE) => mtu_error(name, mtu),
        Some(libc::EBUSY | libc::EEXIST) => io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!(
                "another XDP program is attached to interface \"{name}\"; `ip link show {name}` shows its \
                 number, and `ip link set {name} xdp off` detaches one that no process holds"
            ),
        ),
        _ => explain(name, error),
    }
}

/// Adds the remedy to another error of opening.
fn explain(name: &str, error: io::Error) -> io::Error {
    let (kind, text) = match error.raw_os_error() {
        Some(libc::ENODEV) => (
            io::ErrorKind::NotFound,
            format!("there is no interface \"{name}\"; `ip link` lists them"),
        ),
        Some(libc::EPERM | libc::EACCES) => (
            io::ErrorKind::PermissionDenied,
            format!(
                "no permission to open interface \"{name}\" for AF_XDP; run with CAP_NET_RAW, \
                 CAP_NET_ADMIN and CAP_BPF"
            ),
        ),
        Some(libc::EBUSY) => (
            io::ErrorKind::ResourceBusy,
            format!(
                "queue 0 of interface \"{name}\" is used by another AF_XDP socket; stop the program that \
                 has it"
            ),
        ),
        Some(errno) => (
            error.kind(),
            format!(
                "cannot open interface \"{name}\" for AF_XDP, which requires Linux 5.9: {}; use a packet \
                 socket",
                io::Error::from_raw_os_error(errno)
            ),
        ),
        None => return error,
    };
    io::Error::new(kind, text)
}
