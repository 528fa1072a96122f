//! The socket calls: C functions with the prefix `fs_`, generated from the table of signatures.

use fullsend_blocking::c::{self, c_calls, c_return};
use libc::{
    c_int, c_uint, c_ulong, c_void, epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, sockaddr,
    socklen_t,
};

use super::table::{Fds, FsStack};

/// Exports the functions of a table of signatures. [`c_calls`] explains the kinds.
macro_rules! export {
    () => {};
    (own $name:ident($($arguments:tt)*) -> $return:ty; $($rest:tt)*) => {
        export! { $($rest)* }
    };
    (old $name:ident($($arguments:tt)*) -> $return:ty; $($rest:tt)*) => {
        export! { $($rest)* }
    };
    (new $name:ident($($arg:ident: $type:ty),*) -> $return:ty; $($rest:tt)*) => {
        #[unsafe(export_name = concat!("fs_", stringify!($name)))]
        #[allow(unused_unsafe, reason = "some of the calls have no pointers")]
        unsafe extern "C" fn $name(stack: *mut FsStack, $($arg: $type),*) -> $return {
            // SAFETY: the header requires of the pointers what the system call of this name
            // requires.
            c_return(|| unsafe { c::$name(&Fds::on(stack), $($arg),*) })
        }
        export! { $($rest)* }
    };
    (variadic $($rest:tt)*) => {
        export! { call $($rest)* }
    };
    (adapted $($rest:tt)*) => {
        export! { call $($rest)* }
    };
    (call $name:ident($($arg:ident: $type:ty),*) -> $return:ty; $($rest:tt)*) => {
        #[unsafe(export_name = concat!("fs_", stringify!($name)))]
        #[allow(unused_unsafe, reason = "some of the calls have no pointers")]
        unsafe extern "C" fn $name($($arg: $type),*) -> $return {
            // SAFETY: the header requires of the pointers what the system call of this name
            // requires.
            c_return(|| unsafe { c::$name(&Fds::OF_ALL_STACKS, $($arg),*) })
        }
        export! { $($rest)* }
    };
}

c_calls!(export);
export! {
    new epoll_create1(flags: c_int) -> c_int;
    new pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    call accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    call getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    call getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
}
