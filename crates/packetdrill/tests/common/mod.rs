//! Plays packetdrill's role: loads the library as it does, makes packets, and inspects ours.
#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the calls of a C interface"
)]

use std::ffi::{CString, c_char, c_int, c_longlong, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{sockaddr, socklen_t, timeval};

/// Allows one run at a time, as the library has one stack.
static RUN: Mutex<()> = Mutex::new(());

type Ud = *mut c_void;

/// `struct packetdrill_interface`; functions that are not called here are untyped pointers.
#[repr(C)]
pub(crate) struct Interface {
    pub(crate) ud: Ud,
    pub(crate) free: unsafe extern "C" fn(Ud),
    pub(crate) socket: unsafe extern "C" fn(Ud, c_int, c_int, c_int) -> c_int,
    pub(crate) bind: unsafe extern "C" fn(Ud, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) listen: unsafe extern "C" fn(Ud, c_int, c_int) -> c_int,
    pub(crate) accept: unsafe extern "C" fn(Ud, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub(crate) connect: unsafe extern "C" fn(Ud, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) read: unsafe extern "C" fn(Ud, c_int, *mut c_void, usize) -> isize,
    pub(crate) readv: *const c_void,
    pub(crate) recv: unsafe extern "C" fn(Ud, c_int, *mut c_void, usize, c_int) -> isize,
    pub(crate) recvfrom: *const c_void,
    pub(crate) recvmsg: *const c_void,
    pub(crate) write: unsafe extern "C" fn(Ud, c_int, *const c_void, usize) -> isize,
    pub(crate) writev: *const c_void,
    pub(crate) send: *const c_void,
    pub(crate) sendto: *const c_void,
    pub(crate) sendmsg: *const c_void,
    pub(crate) fcntl: unsafe extern "C" fn(Ud, c_int, c_int, ...) -> c_int,
    pub(crate) ioctl: unsafe extern "C" fn(Ud, c_int, libc::c_ulong, ...) -> c_int,
    pub(crate) close: unsafe extern "C" fn(Ud, c_int) -> c_int,
    pub(crate) shutdown: *const c_void,
    pub(crate) getsockopt:
        unsafe extern "C" fn(Ud, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub(crate) setsockopt:
        unsafe extern "C" fn(Ud, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub(crate) poll: unsafe extern "C" fn(Ud, *mut libc::pollfd, libc::nfds_t, c_int) -> c_int,
    pub(crate) netdev_send: unsafe extern "C" fn(Ud, *const c_void, usize) -> c_int,
    pub(crate) netdev_receive:
        unsafe extern "C" fn(Ud, *mut c_void, *mut usize, *mut c_longlong) -> c_int,
    pub(crate) usleep: unsafe extern "C" fn(Ud, libc::useconds_t) -> c_int,
    pub(crate) gettimeofday: unsafe extern "C" fn(Ud, *mut timeval, *mut c_void) -> c_int,
    pub(crate) epoll_create: unsafe extern "C" fn(Ud, c_int) -> c_int,
    pub(crate) epoll_ctl: *const c_void,
    pub(crate) epoll_wait: *const c_void,
    pub(crate) pipe: unsafe extern "C" fn(Ud, *mut c_int) -> c_int,
    pub(crate) splice: *const c_void,
}

/// Waits until no other run is active. The run lasts as long as the returned guard.
pub(crate) fn lock_library() -> MutexGuard<'static, ()> {
    RUN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the path of the library that cargo has built for these tests.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libfullsend_packetdrill.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// A run of the library.
pub(crate) struct Drill {
    pub(crate) ifc: Interface,
    _one_at_a_time: MutexGuard<'static, ()>,
}

// The functions may be called from any thread; the other fields are addresses.
unsafe impl Sync for Drill {}

/// A TCP packet that we sent, with its time of departure.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) at_us: i64,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) ports: (u16, u16),
    pub(crate) payload: Vec<u8>,
}

pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;
pub(crate) const PSH: u8 = 8;
pub(crate) const FIN: u8 = 1;
pub(crate) const RST: u8 = 4;

impl Drill {
    pub(crate) fn new(flags: &str) -> Self {
        let guard = lock_library();
        let file = CString::new(library().to_str().unwrap()).unwrap();
        let flags = CString::new(flags).unwrap();
        let ifc = unsafe {
            let how = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE | libc::RTLD_DEEPBIND;
            let library = libc::dlopen(file.as_ptr(), how);
            assert!(!library.is_null(), "dlopen");
            let init = libc::dlsym(library, c"packetdrill_interface_init".as_ptr());
            assert!(!init.is_null(), "dlsym");
            let init: unsafe extern "C" fn(*const c_char, *mut Interface) =
                std::mem::transmute(init);
            let mut ifc = std::mem::MaybeUninit::<Interface>::zeroed();
            init(flags.as_ptr(), ifc.as_mut_ptr());
            ifc.assume_init()
        };
        Self {
            ifc,
            _one_at_a_time: guard,
        }
    }

    pub(crate) fn now_us(&self) -> i64 {
        let mut time = timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let null = std::ptr::null_mut();
        assert_eq!(
            unsafe { (self.ifc.gettimeofday)(self.ifc.ud, &raw mut time, null) },
            0
        );
        time.tv_sec * 1_000_000 + time.tv_usec
    }

    pub(crate) fn usleep(&self, us: u32) {
        assert_eq!(unsafe { (self.ifc.usleep)(self.ifc.ud, us) }, 0);
    }

    pub(crate) fn socket(&self, kind: c_int) -> c_int {
        self.socket_of(libc::AF_INET, kind)
    }

    pub(crate) fn socket_of(&self, domain: c_int, kind: c_int) -> c_int {
        unsafe { (self.ifc.socket)(self.ifc.ud, domain, kind, 0) }
    }

    /// Returns an IPv6 listener at `ip`, which may be an IPv4-mapped address.
    pub(crate) fn listener6(&self, ip: &str, port: u16) -> c_int {
        let fd = self.socket_of(libc::AF_INET6, libc::SOCK_STREAM);
        let addr = address6(ip, port);
        let ud = self.ifc.ud;
        unsafe {
            assert_eq!((self.ifc.bind)(ud, fd, (&raw const addr).cast(), 28), 0);
            assert_eq!((self.ifc.listen)(ud, fd, 1), 0);
        }
        fd
    }

    pub(crate) fn listener(&self, port: u16) -> c_int {
        let fd = self.socket(libc::SOCK_STREAM);
        let addr = address([0; 4], port);
        let ud = self.ifc.ud;
        unsafe {
            assert_eq!((self.ifc.bind)(ud, fd, (&raw const addr).cast(), 16), 0);
            assert_eq!((self.ifc.listen)(ud, fd, 1), 0);
        }
        fd
    }

    pub(crate) fn accept(&self, fd: c_int) -> c_int {
        let null = std::ptr::null_mut();
        unsafe { (self.ifc.accept)(self.ifc.ud, fd, null, std::ptr::null_mut()) }
    }

    pub(crate) fn set_nonblocking(&self, fd: c_int) {
        let ud = self.ifc.ud;
        unsafe {
            let flags = (self.ifc.fcntl)(ud, fd, libc::F_GETFL);
            assert_eq!(flags, libc::O_RDWR);
            let flags = flags | libc::O_NONBLOCK;
            assert_eq!((self.ifc.fcntl)(ud, fd, libc::F_SETFL, flags), 0);
            assert_eq!((self.ifc.fcntl)(ud, fd, libc::F_GETFL), flags);
        }
    }

    pub(crate) fn read(&self, fd: c_int, len: usize) -> Result<Vec<u8>, c_int> {
        let mut out = vec![0; len];
        let got = unsafe { (self.ifc.read)(self.ifc.ud, fd, out.as_mut_ptr().cast(), len) };
        out.truncate(usize::try_from(got).map_err(|_| errno())?);
        Ok(out)
    }

    pub(crate) fn write(&self, fd: c_int, data: &[u8]) -> isize {
        unsafe { (self.ifc.write)(self.ifc.ud, fd, data.as_ptr().cast(), data.len()) }
    }

    pub(crate) fn close(&self, fd: c_int) -> c_int {
        unsafe { (self.ifc.close)(self.ifc.ud, fd) }
    }

    /// Sends a packet from 192.0.2.1 to 192.168.0.1.
    pub(crate) fn inject(&self, packet: &[u8]) {
        let (start, len) = (packet.as_ptr().cast(), packet.len());
        assert_eq!(
            unsafe { (self.ifc.netdev_send)(self.ifc.ud, start, len) },
            0
        );
    }

    /// Returns the next packet as bytes, or `None` when there is none.
    pub(crate) fn receive_raw(&self) -> Option<(i64, Vec<u8>)> {
        let mut buffer = vec![0u8; 65_536];
        let (mut count, mut at) = (buffer.len(), 0);
        let start = buffer.as_mut_ptr().cast();
        let got =
            unsafe { (self.ifc.netdev_receive)(self.ifc.ud, start, &raw mut count, &raw mut at) };
        assert_eq!(got, 0);
        buffer.truncate(count);
        (count > 0).then_some((at, buffer))
    }

    pub(crate) fn receive(&self) -> Sent {
        let (at_us, packet) = self.receive_raw().expect("a packet");
        assert_eq!(fullsend_packetdrill::verify(&packet), Ok(()));
        assert_eq!(packet[12..20], [192, 168, 0, 1, 192, 0, 2, 1]);
        let tcp = &packet[20..];
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        Sent {
            at_us,
            flags: tcp[13],
            seq: word(4),
            ack: word(8),
            ports: ((word(0) >> 16) as u16, word(0) as u16),
            payload: tcp[usize::from(tcp[12] >> 4) * 4..].to_vec(),
        }
    }
}

impl Drop for Drill {
    fn drop(&mut self) {
        unsafe { (self.ifc.free)(self.ifc.ud) };
    }
}

pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

pub(crate) fn address(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(ip),
        },
        sin_zero: [0; 8],
    }
}

pub(crate) fn address6(ip: &str, port: u16) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr {
            s6_addr: ip.parse::<std::net::Ipv6Addr>().unwrap().octets(),
        },
        sin6_scope_id: 0,
    }
}

/// Returns a SYN over IPv6 from `from` to `to`.
pub(crate) fn syn6(from: &str, to: &str, ports: (u16, u16), seq: u32) -> Vec<u8> {
    let mut p = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
    for ip in [from, to] {
        p.extend(ip.parse::<std::net::Ipv6Addr>().unwrap().octets());
    }
    p.extend(ports.0.to_be_bytes());
    p.extend(ports.1.to_be_bytes());
    p.extend(seq.to_be_bytes());
    p.extend([0, 0, 0, 0, 0x50, SYN, 0xff, 0xff, 0, 0, 0, 0]);
    let check = fold(sum(&p[8..]) + 6 + 20);
    p[56..58].copy_from_slice(&check);
    p
}

fn sum(bytes: &[u8]) -> u32 {
    let word = |w: &[u8]| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0));
    bytes.chunks(2).map(word).sum()
}

fn fold(mut sum: u32) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Returns a TCP packet from 192.0.2.1 to 192.168.0.1. A SYN has an MSS option of 1000.
pub(crate) fn tcp(ports: (u16, u16), flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let options: &[u8] = if flags & SYN != 0 {
        &[2, 4, 0x03, 0xe8]
    } else {
        &[]
    };
    let header = 20 + options.len();
    let total = (20 + header + payload.len()) as u16;
    let mut p = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0];
    p[2..4].copy_from_slice(&total.to_be_bytes());
    p.extend([192, 0, 2, 1, 192, 168, 0, 1]);
    let check = fold(sum(&p));
    p[10..12].copy_from_slice(&check);
    p.extend(ports.0.to_be_bytes());
    p.extend(ports.1.to_be_bytes());
    p.extend(seq.to_be_bytes());
    p.extend(ack.to_be_bytes());
    p.extend([(header as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    p.extend(options);
    p.extend(payload);
    let pseudo = sum(&p[12..20]) + 6 + u32::from(total - 20);
    let check = fold(sum(&p[20..]) + pseudo);
    p[36..38].copy_from_slice(&check);
    p
}
