//! From pointers to slices.

use std::ffi::{c_int, c_void};
use std::slice;

use fullsend_posix::{Errno, Result, SockAddr};
use libc::{iovec, sockaddr, socklen_t};

/// `UIO_MAXIOV`.
const MAX_IOVECS: usize = 1024;

/// C's `socklen_t` is Linux's `int`.
pub(super) fn length(len: socklen_t) -> Result<usize> {
    c_int::try_from(len).map_err(|_| Errno::EINVAL)?;
    Ok(len as usize)
}

/// What may be one object's size.
fn checked(len: usize) -> Result<usize> {
    isize::try_from(len).map_err(|_| Errno::EINVAL)?;
    Ok(len)
}

/// # Safety
/// `start` is null, or `len` bytes from there can be read, and do not change, for `'a`.
pub(super) unsafe fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null, of an object's size, and the caller vouches for the rest.
    Ok(unsafe { slice::from_raw_parts(start.cast(), checked(len)?) })
}

/// # Safety
/// `start` is null, or `len` bytes from there are the caller's alone for `'a`.
pub(super) unsafe fn bytes_mut<'a>(start: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if start.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null, of an object's size, and the caller vouches for the rest.
    Ok(unsafe { slice::from_raw_parts_mut(start.cast(), checked(len)?) })
}

/// # Safety
/// `at` is null, or points to a `T` that is the caller's alone for `'a`.
pub(super) unsafe fn one_mut<'a, T>(at: *mut T) -> Result<&'a mut T> {
    // SAFETY: the caller vouches for it.
    unsafe { at.as_mut() }.ok_or(Errno::EFAULT)
}

/// # Safety
/// `start` is null, or points to `len` of `T` that are the caller's alone for `'a`.
pub(super) unsafe fn array_mut<'a, T>(start: *mut T, len: usize) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if start.is_null() {
        return Err(Errno::EFAULT);
    }
    checked(len.checked_mul(size_of::<T>()).ok_or(Errno::EINVAL)?)?;
    // SAFETY: not null, of an object's size, and the caller vouches for the rest.
    Ok(unsafe { slice::from_raw_parts_mut(start, len) })
}

/// # Safety
/// `start` is null, or points to `count` of them.
pub(super) unsafe fn iovecs<'a>(start: *const iovec, count: usize) -> Result<&'a [iovec]> {
    if count == 0 {
        return Ok(&[]);
    }
    if count > MAX_IOVECS {
        return Err(Errno::EINVAL);
    }
    if start.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    Ok(unsafe { slice::from_raw_parts(start, count) })
}

/// # Safety
/// As for each of the pieces, [`bytes`].
pub(super) unsafe fn gather<'a>(start: *const iovec, count: usize) -> Result<Vec<&'a [u8]>> {
    // SAFETY: the caller vouches for it.
    let pieces = unsafe { iovecs(start, count) }?;
    let piece = |v: &iovec| {
        // SAFETY: the caller vouches for each of them.
        unsafe { bytes(v.iov_base, v.iov_len) }
    };
    pieces.iter().map(piece).collect()
}

/// # Safety
/// As [`bytes`].
pub(super) unsafe fn address(addr: *const sockaddr, len: socklen_t) -> Result<SockAddr> {
    if addr.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the caller vouches for it.
    SockAddr::from_bytes(unsafe { bytes(addr.cast(), length(len)?) }?)
}

/// Writes as much of an address as there is room for, and how long it is.
///
/// # Safety
/// `len` is null or points to a length, `addr` to as many bytes.
pub(super) unsafe fn give_address(
    name: SockAddr,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    // SAFETY: the caller vouches for both, and one borrow ends before the other begins: C may give
    // a length that lies within the address.
    unsafe {
        let given = length(*one_mut(len)?)?;
        let room = bytes_mut(addr.cast(), given)?;
        let (bytes, full) = name.to_bytes();
        let fits = full.min(room.len());
        room[..fits].copy_from_slice(&bytes[..fits]);
        *one_mut(len)? = full as socklen_t;
    }
    Ok(())
}
