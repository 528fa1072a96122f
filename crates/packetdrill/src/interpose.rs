//! `close`, `getsockopt` and `sendfile` for the whole program, if the library is also preloaded:
//! packetdrill's `%{ }%` blocks and its exit bypass the interface, and so does `sendfile`. Calls on
//! other descriptors go to the kernel.

use std::ffi::{c_int, c_void};

use fullsend_blocking::c::{self, c_return};
use libc::{off_t, socklen_t};

use crate::calls;
use crate::files::kernel_close;
use crate::instance::current;
use crate::sendfile;

fn is_library_descriptor(fd: c_int) -> bool {
    current().is_ok_and(|instance| instance.handle(fd).is_ok())
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    if is_library_descriptor(fd) {
        return c_return(|| c::close(&&*current()?, fd));
    }
    kernel_close(fd)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller passes valid arguments of `getsockopt(2)`.
    unsafe {
        if is_library_descriptor(fd) {
            return calls::getsockopt(std::ptr::null_mut(), fd, level, name, value, len);
        }
        libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, file: c_int, offset: *mut off_t, count: usize) -> isize {
    // SAFETY: the caller passes valid arguments of `sendfile(2)`.
    unsafe {
        if is_library_descriptor(to) {
            return sendfile::sendfile(to, file, offset, count);
        }
        libc::syscall(libc::SYS_sendfile, to, file, offset, count) as isize
    }
}

/// The variant of [`sendfile`] with 64-bit offsets, which has the same type here.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, file: c_int, offset: *mut off_t, count: usize) -> isize {
    // SAFETY: as above.
    unsafe { sendfile(to, file, offset, count) }
}
