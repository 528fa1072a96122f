//! Waiting for several descriptors: `poll` and `epoll`.

use std::ffi::c_int;
use std::sync::Arc;

use fullsend_blocking::Errno;
use fullsend_blocking::c::{self, c_return};
use libc::{epoll_event, nfds_t, pollfd};

use super::table::{self, FsStack};

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_poll(files: *mut pollfd, n: nfds_t, timeout_ms: c_int) -> c_int {
    let lookup_fd = |fd| table::file(fd).ok().map(|file| (file.stack, file.handle));
    // SAFETY: the header requires of the pointer what `poll(2)` requires.
    c_return(|| unsafe { c::poll(None, lookup_fd, files, n, timeout_ms) })
}

#[unsafe(no_mangle)]
extern "C" fn fs_epoll_create1(stack: *mut FsStack, flags: c_int) -> c_int {
    c_return(|| {
        if flags & !libc::EPOLL_CLOEXEC != 0 {
            return Err(Errno::EINVAL);
        }
        let stack = table::stack(stack)?;
        let handle = stack.epoll_create()?;
        Ok(table::add_file(&stack, handle))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    c_return(|| {
        let set = table::file(epfd)?;
        let file = table::file(fd)?;
        if !Arc::ptr_eq(&set.stack, &file.stack) {
            return Err(Errno(libc::EXDEV));
        }
        // SAFETY: the header requires of the pointer what `epoll_ctl(2)` requires.
        unsafe { c::epoll_ctl(&set.stack, set.handle, operation, file.handle, event) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fs_epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    c_return(|| {
        let set = table::file(epfd)?;
        // SAFETY: the header requires of the pointer what `epoll_wait(2)` requires.
        unsafe { c::epoll_wait(&set.stack, set.handle, events, max, timeout_ms) }
    })
}
