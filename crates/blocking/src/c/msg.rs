//! C's calls that receive and send: the families of `read`, `write`, `recv` and `send`.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use fullsend_posix::{Errno, Handle, Result, SockAddr};
use libc::{iovec, msghdr, sockaddr, socklen_t};

use super::scatter::ScatterBuffers;
use super::{Descriptors, ptr, zerocopy};
use crate::stack::Stack;

/// Linux's limit of bytes transferred in one call.
const MAX_RW_COUNT: usize = 0x7fff_f000;

fn count(n: c_int) -> Result<usize> {
    usize::try_from(n).map_err(|_| Errno::EINVAL)
}

/// Reads into one buffer: `read(2)`.
///
/// # Errors
/// EFAULT for a null buffer with a length, and the errors of [`Stack::read`].
pub unsafe fn read(
    fds: &impl Descriptors,
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
) -> Result<usize> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the buffer.
    let buffer = unsafe { ptr::bytes_mut(buffer, len.min(MAX_RW_COUNT)) }?;
    stack.read(handle, &mut [buffer])
}

/// Reads into several buffers: `readv(2)`.
///
/// # Errors
/// EINVAL for a negative or too large number of pieces, EFAULT for a null pointer with a length,
/// ENOMEM if pieces overlap and no memory is left to separate them, and the errors of
/// [`Stack::read`].
pub unsafe fn readv(
    fds: &impl Descriptors,
    fd: c_int,
    pieces: *const iovec,
    n: c_int,
) -> Result<usize> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the pieces.
    let mut buffers = unsafe { ScatterBuffers::new(pieces, count(n)?, (null_mut(), 0)) }?;
    buffers.with(|pieces, _| stack.read(handle, pieces), |&len| (len, 0))
}

/// Writes from one buffer: `write(2)`.
///
/// # Errors
/// EFAULT for a null buffer with a length, and the errors of [`Stack::write`].
pub unsafe fn write(
    fds: &impl Descriptors,
    fd: c_int,
    buffer: *const c_void,
    len: usize,
) -> Result<usize> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the buffer.
    let buffer = unsafe { ptr::bytes(buffer, len.min(MAX_RW_COUNT)) }?;
    stack.write(handle, &[buffer])
}

/// Writes from several buffers: `writev(2)`.
///
/// # Errors
/// EINVAL for a negative or too large number of pieces, EFAULT for a null pointer with a length,
/// and the errors of [`Stack::write`].
pub unsafe fn writev(
    fds: &impl Descriptors,
    fd: c_int,
    pieces: *const iovec,
    n: c_int,
) -> Result<usize> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the pieces.
    let pieces = unsafe { ptr::iovec_slices(pieces, count(n)?) }?;
    stack.write(handle, &pieces)
}

/// Receives into one buffer: `recv(2)`.
///
/// # Errors
/// The errors of [`recvfrom`].
pub unsafe fn recv(
    fds: &impl Descriptors,
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
) -> Result<usize> {
    // SAFETY: the caller guarantees the buffer.
    unsafe { recvfrom(fds, fd, buffer, len, flags, null_mut(), null_mut()) }
}

/// Receives into one buffer: `recvfrom(2)`. The address may be null.
///
/// # Errors
/// EFAULT for a null buffer with a length, or an address without a length; and the errors of
/// [`Stack::recvmsg`].
pub unsafe fn recvfrom(
    fds: &impl Descriptors,
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> Result<usize> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the buffer.
    let buffer = unsafe { ptr::bytes_mut(buffer, len.min(MAX_RW_COUNT)) }?;
    let got = stack.recvmsg(handle, &mut [buffer], flags, &mut [])?;
    if !addr.is_null() {
        match got.from {
            // SAFETY: the caller guarantees both.
            Some(from) => unsafe { ptr::write_address(from, addr, addr_len) }?,
            // SAFETY: the caller guarantees it.
            None => unsafe { ptr::write(addr_len, 0) }?,
        }
    }
    Ok(got.len)
}

/// Sends from one buffer: `send(2)`.
///
/// # Errors
/// The errors of [`sendto`].
pub unsafe fn send(
    fds: &impl Descriptors,
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
) -> Result<usize> {
    // SAFETY: the caller guarantees the buffer.
    unsafe { sendto(fds, fd, buffer, len, flags, null(), 0) }
}

/// Sends from one buffer: `sendto(2)`. The address may be null.
///
/// # Errors
/// EFAULT for a null buffer with a length, EINVAL for an address of an invalid length, and the
/// errors of [`Stack::sendmsg`].
pub unsafe fn sendto(
    fds: &impl Descriptors,
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> Result<usize> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the buffer and the address.
    let (buffer, dest) = unsafe {
        let buffer = ptr::bytes(buffer, len.min(MAX_RW_COUNT))?;
        let dest = if addr.is_null() {
            None
        } else {
            Some(ptr::read_address(addr, addr_len)?)
        };
        (buffer, dest)
    };
    // SAFETY: the caller guarantees memory lent according to the flags.
    unsafe { send_pieces(&stack, handle, &[buffer], flags, dest, &[]) }
}

/// Receives with ancillary data: `recvmsg(2)`.
///
/// # Errors
/// EFAULT for a null message or null memory with a length, EMSGSIZE for more than 1024 pieces,
/// ENOMEM if pieces overlap and no memory is left to separate them, and the errors of
/// [`Stack::recvmsg`].
pub unsafe fn recvmsg(
    fds: &impl Descriptors,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> Result<usize> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the message and the memory it points to. The message is copied,
    // as its pieces may overlap it.
    let (mut given, mut buffers) = unsafe {
        let given = ptr::read(message)?;
        if given.msg_iovlen > 1024 {
            return Err(Errno::EMSGSIZE);
        }
        let control = (given.msg_control.cast(), given.msg_controllen);
        let buffers = ScatterBuffers::new(given.msg_iov, given.msg_iovlen, control)?;
        (given, buffers)
    };
    let got = buffers.with(
        |pieces, control| stack.recvmsg(handle, pieces, flags, control),
        |got| (got.len, got.control_len),
    )?;
    if !given.msg_name.is_null() {
        match got.from {
            None => given.msg_namelen = 0,
            // SAFETY: the caller guarantees the name and its length.
            Some(from) => unsafe {
                ptr::write_address(from, given.msg_name.cast(), &raw mut given.msg_namelen)
            }?,
        }
    }
    // SAFETY: not null, as it was read, and the caller guarantees it. Only these fields change: others
    // may have been overwritten by a piece.
    unsafe {
        ptr::write(&raw mut (*message).msg_namelen, given.msg_namelen)?;
        ptr::write(&raw mut (*message).msg_controllen, got.control_len)?;
        ptr::write(&raw mut (*message).msg_flags, got.flags)?;
    }
    Ok(got.len)
}

/// Sends with ancillary data: `sendmsg(2)`.
///
/// # Errors
/// EFAULT for a null message or null memory with a length, EMSGSIZE for more than 1024 pieces,
/// EINVAL for an address of an invalid length, and the errors of [`Stack::sendmsg`].
pub unsafe fn sendmsg(
    fds: &impl Descriptors,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Result<usize> {
    let (stack, handle) = fds.get(fd)?;
    // SAFETY: the caller guarantees the message and the memory it points to.
    let (pieces, control, dest) = unsafe {
        let message = ptr::read(message)?;
        if message.msg_iovlen > 1024 {
            return Err(Errno::EMSGSIZE);
        }
        let pieces = ptr::iovec_slices(message.msg_iov, message.msg_iovlen)?;
        let control = ptr::bytes(message.msg_control, message.msg_controllen)?;
        let dest = if message.msg_name.is_null() || message.msg_namelen == 0 {
            None
        } else {
            let name = message.msg_name.cast_const().cast();
            Some(ptr::read_address(name, message.msg_namelen)?)
        };
        (pieces, control, dest)
    };
    // SAFETY: the caller guarantees memory lent according to the flags.
    unsafe { send_pieces(&stack, handle, &pieces, flags, dest, control) }
}

/// # Safety
/// With `MSG_ZEROCOPY`, the requirements of [`zerocopy::send`].
unsafe fn send_pieces(
    stack: &Stack,
    handle: Handle,
    pieces: &[&[u8]],
    flags: c_int,
    dest: Option<SockAddr>,
    control: &[u8],
) -> Result<usize> {
    if dest.is_none() && control.is_empty() && zerocopy::is_zerocopy(stack, handle, pieces, flags) {
        // SAFETY: the caller guarantees it.
        return unsafe { zerocopy::send(stack, handle, pieces[0], flags) };
    }
    stack.sendmsg(handle, pieces, flags, dest, control)
}
