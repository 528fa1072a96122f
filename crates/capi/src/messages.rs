//! The `read`, `write`, `recv` and `send` families.

use std::ffi::{c_int, c_void};
use std::ptr;

use fullsend_blocking::c::{self, c_return};
use libc::{iovec, msghdr, sockaddr, socklen_t};

use super::table;

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_read(fd: c_int, buffer: *mut c_void, len: usize) -> isize {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `read(2)` requires.
        unsafe { c::read(&file.stack, file.handle, buffer, len) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_readv(fd: c_int, pieces: *const iovec, n: c_int) -> isize {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `readv(2)` requires.
        unsafe { c::readv(&file.stack, file.handle, pieces, n) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `recvfrom(2)` requires.
        unsafe { c::recvfrom(&file.stack, file.handle, buffer, len, flags, addr, addr_len) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the header has the same requirements on the pointer; the address is not requested.
    unsafe { fs_recvfrom(fd, buffer, len, flags, ptr::null_mut(), ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `recvmsg(2)` requires.
        unsafe { c::recvmsg(&file.stack, file.handle, message, flags) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_write(fd: c_int, buffer: *const c_void, len: usize) -> isize {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `write(2)` requires.
        unsafe { c::write(&file.stack, file.handle, buffer, len) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_writev(fd: c_int, pieces: *const iovec, n: c_int) -> isize {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `writev(2)` requires.
        unsafe { c::writev(&file.stack, file.handle, pieces, n) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> isize {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `sendto(2)` requires.
        unsafe { c::sendto(&file.stack, file.handle, buffer, len, flags, addr, addr_len) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the header has the same requirements on the pointer; there is no address.
    unsafe { fs_sendto(fd, buffer, len, flags, ptr::null(), 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `sendmsg(2)` requires.
        unsafe { c::sendmsg(&file.stack, file.handle, message, flags) }
    })
}
