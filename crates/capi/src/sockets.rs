//! Sockets: creation, addresses, connecting, options and closing.

use std::ffi::{c_int, c_ulong, c_void};

use fullsend_blocking::c::{self, c_return};
use libc::{sockaddr, socklen_t};

use super::table::{self, FsStack};

#[unsafe(no_mangle)]
extern "C" fn fs_socket(stack: *mut FsStack, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    c_return(|| {
        let stack = table::stack(stack)?;
        let handle = stack.socket(domain, kind, protocol)?;
        Ok(table::add_file(&stack, handle))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `bind(2)` requires.
        unsafe { c::bind(&file.stack, file.handle, addr, len) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_listen(fd: c_int, backlog: c_int) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        file.stack.listen(file.handle, backlog)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the header has the same requirements on the pointers.
    unsafe { fs_accept4(fd, addr, len, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `accept4(2)` requires.
        let new = unsafe { c::accept4(&file.stack, file.handle, addr, len, flags) }?;
        Ok(table::add_file(&file.stack, new))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `connect(2)` requires.
        unsafe { c::connect(&file.stack, file.handle, addr, len) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `getsockname(2)` requires.
        unsafe { c::getsockname(&file.stack, file.handle, addr, len) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `getpeername(2)` requires.
        unsafe { c::getpeername(&file.stack, file.handle, addr, len) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_shutdown(fd: c_int, how: c_int) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        file.stack.shutdown(file.handle, how)
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_close(fd: c_int) -> c_int {
    c_return(|| {
        let file = table::remove_file(fd)?;
        file.stack.close(file.handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `setsockopt(2)` requires.
        unsafe { c::setsockopt(&file.stack, file.handle, level, name, value, len) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires of the pointers what `getsockopt(2)` requires.
        unsafe { c::getsockopt(&file.stack, file.handle, level, name, value, len) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_fcntl(fd: c_int, command: c_int, argument: c_int) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        c::fcntl(&file.stack, file.handle, command, argument)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_ioctl(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int {
    c_return(|| {
        let file = table::file(fd)?;
        // SAFETY: the header requires null or a pointer to an int.
        unsafe { c::ioctl(&file.stack, file.handle, request, argument) }
    })
}
