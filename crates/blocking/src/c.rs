//! The calls with C's pointers: what the two C libraries have in common.
//!
//! Every `unsafe fn` here takes the pointers of the system call of its name, and the caller vouches
//! for what that call asks of them: each is null or points to memory of the length told, which
//! nobody else touches during the call. A null pointer where there must be none is EFAULT.
#![allow(unsafe_code, reason = "C's pointers become slices here")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the same for all of them: said above"
)]

mod lent;
mod msg;
mod ptr;
mod ready;
mod returned;
mod scatter;

use std::ffi::{c_int, c_ulong, c_void};

use fullsend_posix::{Errno, Handle, Result};
use libc::{sockaddr, socklen_t};

pub(crate) use lent::Loans;
pub use msg::{read, readv, recvfrom, recvmsg, sendmsg, sendto, write, writev};
pub use ready::{epoll_ctl, epoll_wait, poll};
pub use returned::{Returned, returned, set_errno};

use crate::abi::SOCK_NONBLOCK;
use crate::stack::Stack;

/// `bind(2)`.
pub unsafe fn bind(
    stack: &Stack,
    handle: Handle,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<()> {
    // SAFETY: the caller vouches for the address.
    let addr = unsafe { ptr::address(addr, len) }?;
    stack.bind(handle, addr)
}

/// `connect(2)`.
pub unsafe fn connect(
    stack: &Stack,
    handle: Handle,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<()> {
    // SAFETY: the caller vouches for the address.
    let addr = unsafe { ptr::address(addr, len) }?;
    stack.connect(handle, addr)
}

/// `accept4(2)`; both pointers may be null.
pub unsafe fn accept4(
    stack: &Stack,
    handle: Handle,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<Handle> {
    let (new, peer) = stack.accept4(handle, flags)?;
    if !addr.is_null() {
        // SAFETY: the caller vouches for both.
        let given = unsafe { ptr::give_address(peer, addr, len) };
        if let Err(error) = given {
            stack.close(new)?;
            return Err(error);
        }
    }
    Ok(new)
}

/// `getsockname(2)`.
pub unsafe fn getsockname(
    stack: &Stack,
    handle: Handle,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    let name = stack.getsockname(handle)?;
    // SAFETY: the caller vouches for both.
    unsafe { ptr::give_address(name, addr, len) }
}

/// `getpeername(2)`.
pub unsafe fn getpeername(
    stack: &Stack,
    handle: Handle,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    let name = stack.getpeername(handle)?;
    // SAFETY: the caller vouches for both.
    unsafe { ptr::give_address(name, addr, len) }
}

/// `setsockopt(2)`.
pub unsafe fn setsockopt(
    stack: &Stack,
    handle: Handle,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<()> {
    // SAFETY: the caller vouches for the value.
    let value = unsafe { ptr::bytes(value, ptr::length(len)?) }?;
    stack.setsockopt(handle, level, name, value)
}

/// `getsockopt(2)`.
pub unsafe fn getsockopt(
    stack: &Stack,
    handle: Handle,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Result<()> {
    // SAFETY: the caller vouches for the length, and for as much of the value; one borrow ends
    // before the other begins.
    unsafe {
        let room = ptr::length(*ptr::one_mut(len)?)?;
        let value = ptr::bytes_mut(value, room)?;
        let filled = stack.getsockopt(handle, level, name, value)?;
        *ptr::one_mut(len)? = filled as socklen_t;
    }
    Ok(())
}

/// `fcntl(2)`: `F_GETFL` and `F_SETFL` with `O_NONBLOCK`; `F_GETFD` and `F_SETFD`, which have no
/// effect.
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

/// `ioctl(2)` with one `int`: `FIONBIO`, `FIONREAD`, `SIOCOUTQ` and their like. `argument` is not
/// followed for a request that the socket does not know.
pub unsafe fn ioctl(
    stack: &Stack,
    handle: Handle,
    request: c_ulong,
    argument: *mut c_int,
) -> Result<c_int> {
    let request = u32::try_from(request).map_err(|_| Errno::ENOTTY)?;
    if libc::Ioctl::from(request) == libc::FIONBIO {
        // SAFETY: the caller vouches for it.
        let on = *unsafe { ptr::one_mut(argument) }? != 0;
        stack.set_nonblocking(handle, on)?;
        return Ok(0);
    }
    // A request that is not known may have an argument that is no pointer, or none: it fails here.
    let value = stack.ioctl(handle, request, 0)?;
    // SAFETY: the caller vouches for it.
    *unsafe { ptr::one_mut(argument) }? = value;
    Ok(0)
}

/// `pipe2(2)`: the reader's end, the writer's end. `O_CLOEXEC` has no effect.
pub fn pipe2(stack: &Stack, flags: c_int) -> Result<[Handle; 2]> {
    if flags & !(libc::O_NONBLOCK | libc::O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let (reader, writer) = stack.pipe(flags & SOCK_NONBLOCK != 0)?;
    Ok([reader, writer])
}
