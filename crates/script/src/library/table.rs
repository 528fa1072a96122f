//! `struct packetdrill_interface`: the functions that a library fills in, in packetdrill's order.

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulong, c_void};

use fullsend_posix::c_calls;
use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, sockaddr, socklen_t, timeval, useconds_t,
};

/// The function that a library exports.
pub(super) type Init = unsafe extern "C" fn(*const c_char, *mut MaybeTable);

/// The table that packetdrill passes to be filled in: 33 null pointers.
pub(super) type MaybeTable = [Option<unsafe extern "C" fn()>; 33];

/// The type of a function. [`c_calls`] explains the kinds.
macro_rules! function {
    (variadic ($fd:ty, $command:ty, $argument:ty) -> $return:ty) => {
        unsafe extern "C" fn(*mut c_void, $fd, $command, ...) -> $return
    };
    ($kind:ident ($($type:ty),*) -> $return:ty) => {
        unsafe extern "C" fn(*mut c_void, $($type),*) -> $return
    };
}

/// Defines the table from its functions.
macro_rules! define {
    ($($kind:ident $name:ident($($arg:ident: $type:ty),*) -> $return:ty;)*) => {
        /// The functions of a library, and the userdata that is the first argument of each.
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(super) struct Table {
            pub(super) ud: *mut c_void,
            $(pub(super) $name: function!($kind ($($type),*) -> $return),)*
        }
    };
}

c_calls!(define);

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
