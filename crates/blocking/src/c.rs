//! The calls with C's descriptors and pointers, which the two C libraries share: each library maps
//! its descriptors to handles by [`Descriptors`], and its functions are generated from [`c_calls`].
//!
//! Each function takes the arguments of the system call of its name after the descriptors, and fails
//! as that call does; a descriptor that is not open fails with EBADF. The caller of an `unsafe fn`
//! must guarantee what the system call requires: each pointer is null or points to memory of the
//! given length that no other code accesses during the call. No pointer needs to be aligned. A null
//! pointer where one is not allowed fails with EFAULT. On a socket with `SO_ZEROCOPY`, a call with
//! `MSG_ZEROCOPY` lends its memory for longer: until the error queue has reported the call's
//! completion, the socket is closed, or the stack is gone, the bytes must neither change nor be freed.
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

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::ops::Deref;

use fullsend_posix::{Errno, Handle, Result};
use libc::{loff_t, sockaddr, socklen_t};

pub use c_return::{CReturn, c_return, set_errno};
pub use fullsend_posix::c_calls;
pub use msg::{read, readv, recv, recvfrom, recvmsg, send, sendmsg, sendto, write, writev};
pub use poll::{epoll_create, epoll_create1, epoll_ctl, epoll_wait, poll};
pub(crate) use zerocopy::SocketLoans;

use crate::abi::SOCK_NONBLOCK;
use crate::stack::Stack;

/// The descriptors of a C library: numbers for the handles of one or more stacks.
pub trait Descriptors {
    /// A reference that keeps a stack alive.
    type Stack: Deref<Target = Stack>;

    /// Returns the stack to create descriptors on. [`poll`] sleeps by its clock if it has no known
    /// descriptor, or by the system's if this fails.
    ///
    /// # Errors
    /// The error of calls that create descriptors, if there is no such stack.
    fn stack(&self) -> Result<Self::Stack>;

    /// Returns the stack and the handle of a descriptor.
    ///
    /// # Errors
    /// EBADF for a descriptor that is not open.
    fn get(&self, fd: c_int) -> Result<(Self::Stack, Handle)>;

    /// Returns a new descriptor of a handle.
    ///
    /// # Errors
    /// EMFILE, for example, if no descriptor can be assigned; the caller then closes the handle.
    fn add(&self, stack: &Self::Stack, handle: Handle) -> Result<c_int>;

    /// Closes a descriptor and its handle.
    ///
    /// # Errors
    /// EBADF for a descriptor that is not open, and the errors of [`Stack::close`].
    fn close(&self, fd: c_int) -> Result<()>;
}

/// Returns a new descriptor of a handle, or closes the handle if none can be assigned.
fn add_or_close<D: Descriptors>(fds: &D, stack: &D::Stack, handle: Handle) -> Result<c_int> {
    fds.add(stack, handle).inspect_err(|_| {
        // The caller gets the more important error.
        let _ = stack.close(handle);
    })
}

/// Creates a socket: `socket(2)`.
///
/// # Errors
/// The errors of [`Descriptors::stack`], [`Stack::socket`] and [`Descriptors::add`].
pub fn socket(
    fds: &impl Descriptors,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> Result<c_int> {
    let stack = fds.stack()?;
    let handle = stack.socket(domain, kind, protocol)?;
    add_or_close(fds, &stack, handle)
}

/// Binds a socket to an address: `bind(2)`.
///
/// # Errors
/// EFAULT for a null address, EINVAL for one of an invalid length, and the errors of
/// [`Stack::bind`].
pub unsafe fn bind(
    fds: &impl Descriptors,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<()> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the address.
    let addr = unsafe { ptr::read_address(addr, len) }?;
    stack.bind(handle, addr)
}

/// Makes a socket listen: `listen(2)`.
///
/// # Errors
/// EBADF for a descriptor that is not open, and the errors of [`Stack::listen`].
pub fn listen(fds: &impl Descriptors, fd: c_int, backlog: c_int) -> Result<()> {
    let (stack, handle) = fds.get(fd)?;
    stack.listen(handle, backlog)
}

/// Connects a socket: `connect(2)`.
///
/// # Errors
/// EFAULT for a null address, EINVAL for one of an invalid length, and the errors of
/// [`Stack::connect`].
pub unsafe fn connect(
    fds: &impl Descriptors,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<()> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the address.
    let addr = unsafe { ptr::read_address(addr, len) }?;
    stack.connect(handle, addr)
}

/// Accepts a connection: `accept(2)`. Both pointers may be null.
///
/// # Errors
/// The errors of [`accept4`].
pub unsafe fn accept(
    fds: &impl Descriptors,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<c_int> {
    // SAFETY: the caller guarantees both.
    unsafe { accept4(fds, fd, addr, len, 0) }
}

/// Accepts a connection: `accept4(2)`. Both pointers may be null.
///
/// # Errors
/// EFAULT for a null `len` beside an address, EINVAL for a negative length, and the errors of
/// [`Stack::accept4`] and [`Descriptors::add`]. A connection whose address cannot be written, or
/// that gets no descriptor, is closed.
pub unsafe fn accept4(
    fds: &impl Descriptors,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<c_int> {
    let (stack, handle) = fds.get(fd)?;
    let (new, peer) = stack.accept4(handle, flags)?;
    if !addr.is_null() {
        // SAFETY: the caller guarantees both.
        let given = unsafe { ptr::write_address(peer, addr, len) };
        if let Err(error) = given {
            stack.close(new)?;
            return Err(error);
        }
    }
    add_or_close(fds, &stack, new)
}

/// Writes the local address of a socket: `getsockname(2)`.
///
/// # Errors
/// EFAULT for a null pointer, EINVAL for a negative length, and the errors of
/// [`Stack::getsockname`].
pub unsafe fn getsockname(
    fds: &impl Descriptors,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    let (stack, handle) = fds.get(fd)?;
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
    fds: &impl Descriptors,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    let (stack, handle) = fds.get(fd)?;
    let name = stack.getpeername(handle)?;
    // SAFETY: the caller guarantees both.
    unsafe { ptr::write_address(name, addr, len) }
}

/// Shuts down one or both directions of a connection: `shutdown(2)`.
///
/// # Errors
/// EBADF for a descriptor that is not open, and the errors of [`Stack::shutdown`].
pub fn shutdown(fds: &impl Descriptors, fd: c_int, how: c_int) -> Result<()> {
    let (stack, handle) = fds.get(fd)?;
    stack.shutdown(handle, how)
}

/// Closes a descriptor: `close(2)`.
///
/// # Errors
/// The errors of [`Descriptors::close`].
pub fn close(fds: &impl Descriptors, fd: c_int) -> Result<()> {
    fds.close(fd)
}

/// Sets a socket option: `setsockopt(2)`.
///
/// # Errors
/// EFAULT for a null value with a length, EINVAL for a negative length, and the errors of
/// [`Stack::setsockopt`].
pub unsafe fn setsockopt(
    fds: &impl Descriptors,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<()> {
    let (stack, handle) = fds.get(fd)?;
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
    fds: &impl Descriptors,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Result<()> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the length, and a value of that length; one borrow ends before
    // the other begins.
    unsafe {
        let room = ptr::check_length(ptr::read(len)?)?;
        let value = ptr::bytes_mut(value, room)?;
        let filled = stack.getsockopt(handle, level, name, value)?;
        ptr::write(len, filled as socklen_t)
    }
}

/// Reads or sets descriptor flags: `fcntl(2)` with `F_GETFL` and `F_SETFL` for `O_NONBLOCK`, and
/// `F_GETFD` and `F_SETFD`, which have no effect.
///
/// # Errors
/// EINVAL for another command, EBADF for a descriptor that is not open.
pub fn fcntl(fds: &impl Descriptors, fd: c_int, command: c_int, argument: c_int) -> Result<c_int> {
    let (stack, handle) = fds.get(fd)?;
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
    fds: &impl Descriptors,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_int,
) -> Result<c_int> {
    let (stack, handle) = fds.get(fd)?;
    let request = u32::try_from(request).map_err(|_| Errno::ENOTTY)?;
    if libc::Ioctl::from(request) == libc::FIONBIO {
        // SAFETY: the caller guarantees it.
        let on = unsafe { ptr::read(argument) }? != 0;
        stack.set_nonblocking(handle, on)?;
        return Ok(0);
    }
    // Fails for an unsupported request, whose argument may not be a pointer.
    let value = stack.ioctl(handle, request, 0)?;
    // SAFETY: the caller guarantees it.
    unsafe { ptr::write(argument, value) }?;
    Ok(0)
}

/// Creates a pipe: `pipe(2)`.
///
/// # Errors
/// The errors of [`pipe2`].
pub unsafe fn pipe(fds: &impl Descriptors, ends: *mut c_int) -> Result<()> {
    // SAFETY: the caller guarantees the array.
    unsafe { pipe2(fds, ends, 0) }
}

/// Creates a pipe: `pipe2(2)`. `ends` receives its read end and its write end. `O_CLOEXEC` has no
/// effect.
///
/// # Errors
/// EFAULT for a null array, EINVAL for unknown flags, and the errors of [`Descriptors::stack`],
/// [`Stack::pipe`] and [`Descriptors::add`].
pub unsafe fn pipe2(fds: &impl Descriptors, ends: *mut c_int, flags: c_int) -> Result<()> {
    if ends.is_null() {
        return Err(Errno::EFAULT);
    }
    let stack = fds.stack()?;
    if flags & !(libc::O_NONBLOCK | libc::O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let (reader, writer) = stack.pipe(flags & SOCK_NONBLOCK != 0)?;
    let reader = add_or_close(fds, &stack, reader).inspect_err(|_| {
        let _ = stack.close(writer);
    })?;
    let writer = add_or_close(fds, &stack, writer).inspect_err(|_| {
        let _ = fds.close(reader);
    })?;
    // SAFETY: the caller guarantees memory for two ints.
    unsafe { ptr::write(ends.cast::<[c_int; 2]>(), [reader, writer]) }
}

/// Moves bytes between a socket and a pipe: `splice(2)`. Both offsets must be null.
///
/// # Errors
/// ESPIPE if an offset is not null, EXDEV for descriptors of two stacks, and the errors of
/// [`Stack::splice`].
pub fn splice(
    fds: &impl Descriptors,
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    len: usize,
    flags: c_uint,
) -> Result<usize> {
    let ((stack, from), (to_stack, to)) = (fds.get(from)?, fds.get(to)?);
    if !from_offset.is_null() || !to_offset.is_null() {
        return Err(Errno::ESPIPE);
    }
    if !std::ptr::eq(&raw const *stack, &raw const *to_stack) {
        return Err(Errno(libc::EXDEV));
    }
    stack.splice(from, to, len, flags)
}
