//! Pipes within a stack, and `splice`.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use fullsend_blocking::Errno;
use fullsend_blocking::c::{self, c_return};

use super::table::{self, FsStack};

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_pipe2(stack: *mut FsStack, fds: *mut c_int, flags: c_int) -> c_int {
    c_return(|| {
        if fds.is_null() {
            return Err(Errno::EFAULT);
        }
        let stack = table::stack(stack)?;
        let ends = c::pipe2(&stack, flags)?.map(|end| table::add_file(&stack, end));
        // SAFETY: not null, and the header requires memory for two ints.
        unsafe { fds.cast::<[c_int; 2]>().write_unaligned(ends) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_splice(
    from: c_int,
    from_offset: *mut c_void,
    to: c_int,
    to_offset: *mut c_void,
    len: usize,
    flags: c_uint,
) -> isize {
    c_return(|| {
        let (from, to) = (table::file(from)?, table::file(to)?);
        if !from_offset.is_null() || !to_offset.is_null() {
            return Err(Errno::ESPIPE);
        }
        if !Arc::ptr_eq(&from.stack, &to.stack) {
            return Err(Errno(libc::EXDEV));
        }
        from.stack.splice(from.handle, to.handle, len, flags)
    })
}
