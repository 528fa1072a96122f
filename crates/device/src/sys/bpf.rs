//! The XDP program that redirects the frames of an interface to an `AF_XDP` socket, loaded with bpf(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_long};

const BPF_MAP_CREATE: c_long = 0;
const BPF_MAP_UPDATE_ELEM: c_long = 2;
const BPF_PROG_LOAD: c_long = 5;
const BPF_LINK_CREATE: c_long = 28;

const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_FUNC_REDIRECT_MAP: i32 = 51;
const BPF_PSEUDO_MAP_FD: u8 = 1;
const XDP_PASS: i32 = 2;
/// Offset of `rx_queue_index` in `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;

const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The place at which the kernel runs an XDP program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum XdpMode {
    /// The driver, before the kernel has made a packet of the frame.
    Native,
    /// The kernel's stack, for a driver without XDP.
    Generic,
}

/// A member of `union bpf_attr` without its last fields, which the kernel assumes to be zero.
///
/// # Safety
/// The type must be plain data without padding, with the layout that its command defines.
unsafe trait Attr {}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

// SAFETY: the first fields of BPF_MAP_CREATE in `linux/bpf.h`.
unsafe impl Attr for MapCreate {}
// SAFETY: the fields of BPF_MAP_UPDATE_ELEM.
unsafe impl Attr for MapUpdate {}
// SAFETY: the first fields of BPF_PROG_LOAD.
unsafe impl Attr for ProgLoad {}
// SAFETY: the first fields of BPF_LINK_CREATE.
unsafe impl Attr for LinkCreate {}

/// Calls `bpf` with a command.
///
/// # Safety
/// `attr` must be the structure of `command`, and its pointers must be valid during the call.
unsafe fn bpf<T: Attr>(command: c_long, attr: &T) -> io::Result<c_int> {
    let attr_ptr = std::ptr::from_ref(attr);
    // SAFETY: the pointer and length are those of a live structure; the caller guarantees the rest.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, command, attr_ptr, size_of::<T>()) };
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret as c_int)
    }
}

/// Calls `bpf` with a command that returns a descriptor.
///
/// # Safety
/// The requirements of [`bpf`].
unsafe fn bpf_fd<T: Attr>(command: c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees the requirements of `bpf`; the descriptor is new and owned here.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Creates a map with the socket of queue 0. The map does not keep the socket open: closing the socket
/// removes it from the map.
fn socket_map(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let create = MapCreate {
        map_type: BPF_MAP_TYPE_XSKMAP,
        key_size: size_of::<u32>() as u32,
        value_size: size_of::<c_int>() as u32,
        max_entries: 1,
    };
    // SAFETY: this command's structure, without pointers.
    let map = unsafe { bpf_fd(BPF_MAP_CREATE, &create) }?;
    let (queue, fd) = (0u32, socket.as_raw_fd());
    let update = MapUpdate {
        map_fd: map.as_raw_fd() as u32,
        pad: 0,
        key: (&raw const queue) as u64,
        value: (&raw const fd) as u64,
        flags: 0,
    };
    // SAFETY: this command's structure; key and value are live and have the sizes of the map.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &update) }?;
    Ok(map)
}

/// Returns an instruction (`struct bpf_insn`).
const fn instruction(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let registers = if cfg!(target_endian = "little") {
        src << 4 | dst
    } else {
        dst << 4 | src
    };
    let (off, imm) = (off.to_ne_bytes(), imm.to_ne_bytes());
    [
        code, registers, off[0], off[1], imm[0], imm[1], imm[2], imm[3],
    ]
}

/// A loaded program that redirects each frame of queue 0 to a socket.
pub(crate) struct XdpProgram(OwnedFd);

impl XdpProgram {
    /// Loads the program `return bpf_redirect_map(map, ctx->rx_queue_index, XDP_PASS)`.
    pub(crate) fn load(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let map = socket_map(socket)?;
        let instructions = [
            instruction(0x61, 2, 1, RX_QUEUE_INDEX, 0),
            instruction(0x18, 1, BPF_PSEUDO_MAP_FD, 0, map.as_raw_fd()),
            instruction(0, 0, 0, 0, 0),
            instruction(0xb7, 3, 0, 0, XDP_PASS),
            instruction(0x85, 0, 0, 0, BPF_FUNC_REDIRECT_MAP),
            instruction(0x95, 0, 0, 0, 0),
        ];
        let load = ProgLoad {
            prog_type: BPF_PROG_TYPE_XDP,
            insn_cnt: instructions.len() as u32,
            insns: instructions.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
        };
        // SAFETY: this command's structure; the instructions and the text are live.
        unsafe { bpf_fd(BPF_PROG_LOAD, &load) }.map(Self)
    }

    /// Attaches the program to an interface until the returned descriptor is closed, e.g. by the end of
    /// the process.
    pub(crate) fn attach(&self, index: u32, mode: XdpMode) -> io::Result<OwnedFd> {
        let link = LinkCreate {
            prog_fd: self.0.as_raw_fd() as u32,
            target_ifindex: index,
            attach_type: BPF_XDP,
            flags: match mode {
                XdpMode::Native => XDP_FLAGS_DRV_MODE,
                XdpMode::Generic => XDP_FLAGS_SKB_MODE,
            },
        };
        // SAFETY: this command's structure, without pointers.
        unsafe { bpf_fd(BPF_LINK_CREATE, &link) }
    }
}
