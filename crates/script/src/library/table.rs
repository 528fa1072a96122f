//! `struct packetdrill_interface`: the functions that a library fills in, in packetdrill's order.

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulong, c_void};

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, sockaddr, socklen_t, timeval, useconds_t,
};

type Ud = *mut c_void;

/// The function that a library exports.
pub(super) type Init = unsafe extern "C" fn(*const c_char, *mut MaybeTable);

/// The table that packetdrill passes to be filled in: 33 null pointers.
pub(super) type MaybeTable = [Option<unsafe extern "C" fn()>; 33];

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) ud: Ud,
    pub(super) free: unsafe extern "C" fn(Ud),
    pub(super) socket: unsafe extern "C" fn(Ud, c_int, c_int, c_int) -> c_int,
    pub(super) bind: unsafe extern "C" fn(Ud, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(super) listen: unsafe extern "C" fn(Ud, c_int, c_int) -> c_int,
    pub(super) accept: unsafe extern "C" fn(Ud, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub(super) connect: unsafe extern "C" fn(Ud, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(super) read: unsafe extern "C" fn(Ud, c_int, *mut c_void, usize) -> isize,
    pub(super) readv: unsafe extern "C" fn(Ud, c_int, *const iovec, c_int) -> isize,
    pub(super) recv: unsafe extern "C" fn(Ud, c_int, *mut c_void, usize, c_int) -> isize,
    pub(super) recvfrom: unsafe extern "C" fn(
        Ud,
        c_int,
        *mut c_void,
        usize,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> isize,
    pub(super) recvmsg: unsafe extern "C" fn(Ud, c_int, *mut msghdr, c_int) -> isize,
    pub(super) write: unsafe extern "C" fn(Ud, c_int, *const c_void, usize) -> isize,
    pub(super) writev: unsafe extern "C" fn(Ud, c_int, *const iovec, c_int) -> isize,
    pub(super) send: unsafe extern "C" fn(Ud, c_int, *const c_void, usize, c_int) -> isize,
    pub(super) sendto: unsafe extern "C" fn(
        Ud,
        c_int,
        *const c_void,
        usize,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> isize,
    pub(super) sendmsg: unsafe extern "C" fn(Ud, c_int, *const msghdr, c_int) -> isize,
    pub(super) fcntl: unsafe extern "C" fn(Ud, c_int, c_int, ...) -> c_int,
    pub(super) ioctl: unsafe extern "C" fn(Ud, c_int, c_ulong, ...) -> c_int,
    pub(super) close: unsafe extern "C" fn(Ud, c_int) -> c_int,
    pub(super) shutdown: unsafe extern "C" fn(Ud, c_int, c_int) -> c_int,
    pub(super) getsockopt:
        unsafe extern "C" fn(Ud, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub(super) setsockopt:
        unsafe extern "C" fn(Ud, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub(super) poll: unsafe extern "C" fn(Ud, *mut pollfd, nfds_t, c_int) -> c_int,
    pub(super) netdev_send: unsafe extern "C" fn(Ud, *const c_void, usize) -> c_int,
    pub(super) netdev_receive:
        unsafe extern "C" fn(Ud, *mut c_void, *mut usize, *mut c_longlong) -> c_int,
    pub(super) usleep: unsafe extern "C" fn(Ud, useconds_t) -> c_int,
    pub(super) gettimeofday: unsafe extern "C" fn(Ud, *mut timeval, *mut c_void) -> c_int,
    pub(super) epoll_create: unsafe extern "C" fn(Ud, c_int) -> c_int,
    pub(super) epoll_ctl: unsafe extern "C" fn(Ud, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub(super) epoll_wait: unsafe extern "C" fn(Ud, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub(super) pipe: unsafe extern "C" fn(Ud, *mut c_int) -> c_int,
    pub(super) splice:
        unsafe extern "C" fn(Ud, c_int, *mut loff_t, c_int, *mut loff_t, usize, c_uint) -> isize,
}

const _: () = assert!(size_of::<Table>() == size_of::<MaybeTable>());

// SAFETY: the functions may be called on any thread, and the userdata is only passed on.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// Returns the table that a library has filled in, or the number of a missing function.
    pub(super) fn new(filled: &MaybeTable) -> Result<Self, usize> {
        // The userdata may be null, the functions must not.
        if let Some(missing) = filled.iter().skip(1).position(Option::is_none) {
            return Err(missing + 1);
        }
        // SAFETY: same size, no function is null, and the library guarantees their types.
        Ok(unsafe { std::mem::transmute_copy::<MaybeTable, Self>(filled) })
    }

    /// Returns the library's time in us since the epoch; a virtual clock may advance by the call.
    pub(super) fn now_us(&self) -> i64 {
        let mut time = timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        // SAFETY: `time` is a live value, and the zone may be null.
        unsafe { (self.gettimeofday)(self.ud, &raw mut time, std::ptr::null_mut()) };
        time.tv_sec * 1_000_000 + time.tv_usec
    }
}
