//! The handle of each descriptor. A descriptor is also open in the kernel (an eventfd), as
//! packetdrill closes those that a script left open with libc's `close`.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::IntoRawFd;

use fullsend_blocking::{Errno, Handle, Stack};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

#[derive(Default)]
pub(crate) struct DescriptorTable(Mutex<BTreeMap<c_int, Handle>>);

impl DescriptorTable {
    /// Adds a handle and returns a new descriptor.
    pub(crate) fn add(&self, stack: &Stack, handle: Handle) -> Result<c_int, Errno> {
        let file = eventfd(0, EventfdFlags::CLOEXEC);
        let file = file.map_err(|e| Errno(e.raw_os_error()))?.into_raw_fd();
        if let Some(stale) = self.0.lock().insert(file, handle) {
            // The kernel reuses the number, so the descriptor was closed past the library.
            let _ = stack.close(stale);
        }
        Ok(file)
    }

    pub(crate) fn get(&self, fd: c_int) -> Result<Handle, Errno> {
        self.0.lock().get(&fd).copied().ok_or(Errno::EBADF)
    }

    pub(crate) fn remove(&self, fd: c_int) -> Result<Handle, Errno> {
        self.0.lock().remove(&fd).ok_or(Errno::EBADF)
    }
}

/// Calls the kernel's `close`, not the one that this library exports.
pub(crate) fn kernel_close(fd: c_int) -> c_int {
    // SAFETY: a system call whose argument is a number.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}
