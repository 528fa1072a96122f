//! The calls with C pointers, which the two C libraries share.
//!
//! Each `unsafe fn` takes the arguments of the system call of its name, and the caller must
//! guarantee what that call requires: each pointer is null or points to memory of the given length
//! that no other code accesses during the call. A null pointer where one is not allowed fails with
//! EFAULT.
#![allow(unsafe_code, reason = "C's pointers become slices here")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the requirements of all functions are stated above"
)]

mod c_return;
mod msg;
mod poll;
mod ptr;
mod scatter;
mod zerocopy;

use std::ffi::{c_int, c_ulong, c_void};

use fullsend_posix::{Errno, Handle, Result};
use libc::{sockaddr, socklen_t};

pub use c_return::{CReturn, c_return, set_errno};
pub use msg::{read, readv, recvfrom, recvmsg, sendmsg, sendto, write, writev};
pub use poll::{epoll_ctl, epoll_wait, poll};
pub(crate) use zerocopy::SocketLoans;

use crate::abi::SOCK_NONBLOCK;
use crate::stack::Stack;

/// Binds a socket to an address: `bind(2)`.
///
/// # Errors
/// EFAULT for a null address, EINVAL for one of an invalid length, and the errors of
/// [`Stack::bind`].
pub unsafe fn bind(
    stack: &Stack,
    handle: Handle,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<()> {
    // SAFETY: the caller guarantees the address.
    let addr = unsafe { ptr::read_address(addr, len) }?;
    stack.bind(handle, addr)
}

/// Connects a socket: `connect(2)`.
///
/// # Errors
/// EFAULT for a null address, EINVAL for one of an invalid length, and the errors of
/// [`Stack::connect`].
pub unsafe fn connect(
    stack: &Stack,
    handle: Handle,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<()> {
    // SAFETY: the caller guarantees the address.
    let addr = unsafe { ptr::read_address(addr, len) }?;
    stack.connect(handle, addr)
}

/// Accepts a connection: `accept4(2)`. Both pointers may be null.
///
/// # Errors
/// EFAULT for a null `len` beside an address, EINVAL for a negative length, and the errors of
/// [`Stack::accept4`]. A connection whose address cannot be written is closed.
pub unsafe fn accept4(
    stack: &Stack,
    handle: Handle,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<Handle> {
    let (new, peer) = stack.accept4(handle, flags)?;
    if !addr.is_null() {
        // SAFETY: the caller guarantees both.
        let given = unsafe { ptr::write_address(peer, addr, len) };
        if let Err(error) = given {
            stack.close(new)?;
            return Err(error);
        }
    }
    Ok(new)
}

/// Writes the local address of a socket: `getsockname(2)`.
///
/// # Errors
/// EFAULT for a null pointer, EINVAL for a negative length, and the errors of
/// [`Stack::getsockname`].
pub unsafe fn getsockname(
    stack: &Stack,
    handle: Handle,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    let name = stack.getsockname(handle)?;
    // SAFETY: the caller guarantees both.
    unsafe { ptr::write_address(name, addr, len) }
}

/// Writes the peer's address: `getpeername(2)`.
///
/// # Errors
/// EFAULT for a null pointer, EINVAL for a negative length, and the errors of
/// [`Stack::getpeername`].
pub unsafe fn getpeername(
    stack: &Stack,
    handle: Handle,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    let name = stack.getpeername(handle)?;
    // SAFETY: the caller guarantees both.
    unsafe { ptr::write_address(name, addr, len) }
}

/// Sets a socket option: `setsockopt(2)`.
///
/// # Errors
/// EFAULT for a null value with a length, EINVAL for a negative length, and the errors of
/// [`Stack::setsockopt`].
pub unsafe fn setsockopt(
    stack: &Stack,
    handle: Handle,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<()> {
    // SAFETY: the caller guarantees the value.
    let value = unsafe { ptr::bytes(value, ptr::check_length(len)?) }?;
    stack.setsockopt(handle, level, name, value)
}

/// Reads a socket option: `getsockopt(2)`.
///
/// # Errors
/// EFAULT for a null pointer, EINVAL for a negative length, and the errors of
/// [`Stack::getsockopt`].
pub unsafe fn getsockopt(
    stack: &Stack,
    handle: Handle,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Result<()> {
    // SAFETY: the caller guarantees the length, and a value of that length; one borrow ends before
    // the other begins.
    unsafe {
        let room = ptr::check_length(*ptr::object_mut(len)?)?;
        let value = ptr::bytes_mut(value, room)?;
        let filled = stack.getsockopt(handle, level, name, value)?;
        *ptr::object_mut(len)? = filled as socklen_t;
    }
    Ok(())
}

/// Reads or sets descriptor flags: `fcntl(2)` with `F_GETFL` and `F_SETFL` for `O_NONBLOCK`, and
/// `F_GETFD` and `F_SETFD`, which have no effect.
///
/// # Errors
/// EINVAL for another command, EBADF for a handle that is not open.
pub fn fcntl(stack: &Stack, handle: Handle, command: c_int, argument: c_int) -> Result<c_int> {
    match command {
        libc::F_GETFL => {
            let flags = if stack.is_nonblocking(handle)? {
                libc::O_NONBLOCK
            } else {
                0
            };
            Ok(libc::O_RDWR | flags)
        }
        libc::F_SETFL => {
            stack.set_nonblocking(handle, argument & libc::O_NONBLOCK != 0)?;
            Ok(0)
        }
        libc::F_GETFD => stack.is_nonblocking(handle).map(|_| libc::FD_CLOEXEC),
        libc::F_SETFD => stack.is_nonblocking(handle).map(|_| 0),
        _ => Err(Errno::EINVAL),
    }
}

/// Runs a request with an `int` argument: `ioctl(2)` with `FIONBIO`, `FIONREAD`, `SIOCOUTQ` and
/// similar requests. `argument` is not dereferenced for a request that the socket does not support.
///
/// # Errors
/// ENOTTY for an unsupported request, EFAULT for a null argument, and the errors of
/// [`Stack::ioctl`].
pub unsafe fn ioctl(
    stack: &Stack,
    handle: Handle,
    request: c_ulong,
    argument: *mut c_int,
) -> Result<c_int> {
    let request = u32::try_from(request).map_err(|_| Errno::ENOTTY)?;
    if libc::Ioctl::from(request) == libc::FIONBIO {
        // SAFETY: the caller guarantees it.
        let on = *unsafe { ptr::object_mut(argument) }? != 0;
        stack.set_nonblocking(handle, on)?;
        return Ok(0);
    }
    // Fails for an unsupported request, whose argument may not be a pointer.
    let value = stack.ioctl(handle, request, 0)?;
    // SAFETY: the caller guarantees it.
    *unsafe { ptr::object_mut(argument) }? = value;
    Ok(0)
}

/// Creates a pipe: `pipe2(2)`. Returns its read end and its write end. `O_CLOEXEC` has no effect.
///
/// # Errors
/// EINVAL for unknown flags, and the errors of [`Stack::pipe`].
pub fn pipe2(stack: &Stack, flags: c_int) -> Result<[Handle; 2]> {
    if flags & !(libc::O_NONBLOCK | libc::O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let (reader, writer) = stack.pipe(flags & SOCK_NONBLOCK != 0)?;
    Ok([reader, writer])
}
