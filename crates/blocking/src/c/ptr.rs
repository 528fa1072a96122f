//! Conversion of pointers to slices.

use std::ffi::{c_int, c_void};
use std::slice;

use fullsend_posix::{Errno, Result, SockAddr};
use libc::{iovec, sockaddr, socklen_t};

/// Linux's `UIO_MAXIOV`.
const MAX_IOVECS: usize = 1024;

/// Returns a length that fits Linux's `int`, which it uses for `socklen_t`.
pub(super) fn check_length(len: socklen_t) -> Result<usize> {
    c_int::try_from(len).map_err(|_| Errno::EINVAL)?;
    Ok(len as usize)
}

/// Returns `len` if an object can have that size.
fn check_object_size(len: usize) -> Result<usize> {
    isize::try_from(len).map_err(|_| Errno::EINVAL)?;
    Ok(len)
}

/// Returns `len` bytes at `start` as a slice.
///
/// # Safety
/// `start` is null, or points to `len` bytes that are readable and do not change during `'a`.
pub(super) unsafe fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null and of a valid size; the caller guarantees the rest.
    Ok(unsafe { slice::from_raw_parts(start.cast(), check_object_size(len)?) })
}

/// Returns `len` bytes at `start` as a mutable slice.
///
/// # Safety
/// `start` is null, or points to `len` bytes that no other code accesses during `'a`.
pub(super) unsafe fn bytes_mut<'a>(start: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if start.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null and of a valid size; the caller guarantees the rest.
    Ok(unsafe { slice::from_raw_parts_mut(start.cast(), check_object_size(len)?) })
}

/// Returns the object at `at`. It need not be aligned: a system call would copy it, too.
///
/// # Safety
/// `at` is null, or points to a readable `T`.
pub(super) unsafe fn read<T: Copy>(at: *const T) -> Result<T> {
    if at.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null; the caller guarantees the rest.
    Ok(unsafe { at.read_unaligned() })
}

/// Overwrites the object at `at`, which need not be aligned.
///
/// # Safety
/// `at` is null, or points to memory for a `T` that no other code accesses during the call.
pub(super) unsafe fn write<T: Copy>(at: *mut T, value: T) -> Result<()> {
    if at.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: not null; the caller guarantees the rest.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

/// The objects of a caller's array, which need not be aligned.
#[derive(Clone, Copy)]
pub(super) struct Array<T> {
    start: *mut T,
    len: usize,
}

impl<T: Copy> Array<T> {
    /// Returns the array of `len` objects at `start`.
    ///
    /// # Errors
    /// EFAULT for a null pointer to some, EINVAL for more than an array can have.
    ///
    /// # Safety
    /// `start` is null, or points to `len` objects that no other code accesses while this value lives.
    pub(super) unsafe fn new(start: *mut T, len: usize) -> Result<Self> {
        if len > 0 && start.is_null() {
            return Err(Errno::EFAULT);
        }
        check_object_size(len.checked_mul(size_of::<T>()).ok_or(Errno::EINVAL)?)?;
        Ok(Self { start, len })
    }

    /// Returns the objects in order.
    pub(super) fn iter(self) -> impl ExactSizeIterator<Item = T> {
        (0..self.len).map(move |at| {
            // SAFETY: `new` requires the object.
            unsafe { self.start.add(at).read_unaligned() }
        })
    }

    /// Overwrites the object with index `at`.
    ///
    /// # Panics
    /// If the array has no such object.
    pub(super) fn set(&mut self, at: usize, value: T) {
        assert!(at < self.len, "index {at} of {}", self.len);
        // SAFETY: `new` requires the object.
        unsafe { self.start.add(at).write_unaligned(value) };
    }
}

/// Returns the `count` entries at `start`.
///
/// # Safety
/// `start` is null, or points to `count` entries that do not change while the array lives.
pub(super) unsafe fn iovecs(start: *const iovec, count: usize) -> Result<Array<iovec>> {
    if count > MAX_IOVECS {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller guarantees it; nothing overwrites the entries.
    unsafe { Array::new(start.cast_mut(), count) }
}

/// Returns the pieces that `count` entries at `start` point to.
///
/// # Safety
/// The requirements of [`iovecs`], and those of [`bytes`] for each piece.
pub(super) unsafe fn iovec_slices<'a>(start: *const iovec, count: usize) -> Result<Vec<&'a [u8]>> {
    // SAFETY: the caller guarantees it.
    let pieces = unsafe { iovecs(start, count) }?;
    let piece = |v: iovec| {
        // SAFETY: the caller guarantees each of them.
        unsafe { bytes(v.iov_base, v.iov_len) }
    };
    pieces.iter().map(piece).collect()
}

/// Parses a socket address of `len` bytes at `addr`.
///
/// # Safety
/// The requirements of [`bytes`].
pub(super) unsafe fn read_address(addr: *const sockaddr, len: socklen_t) -> Result<SockAddr> {
    if addr.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the caller guarantees it.
    SockAddr::from_bytes(unsafe { bytes(addr.cast(), check_length(len)?) }?)
}

/// Writes an address to `addr`, truncated to the length at `len`, and its full length to `len`.
///
/// # Safety
/// `len` is null or points to a length, and `addr` is null or points to that many bytes.
pub(super) unsafe fn write_address(
    name: SockAddr,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<()> {
    // SAFETY: the caller guarantees both. One borrow ends before the other begins, as the length
    // may lie within the address.
    unsafe {
        let given = check_length(read(len)?)?;
        let room = bytes_mut(addr.cast(), given)?;
        let (bytes, full) = name.to_bytes();
        let fits = full.min(room.len());
        room[..fits].copy_from_slice(&bytes[..fits]);
        write(len, full as socklen_t)
    }
}
