//! `poll` and `epoll` with C pointers.

use std::ffi::c_int;
use std::ptr::null_mut;

use fullsend_posix::{EpollEvent, Errno, Result};
use fullsend_wire::Nanos;
use libc::{epoll_event, nfds_t, pollfd};

use super::ptr::{self, Array};
use super::{Descriptors, add_or_close};
use crate::calls::PollEntry;
use crate::stack::Stack;

/// Most events returned by one call: they are in an array on the thread's stack.
const MAX_EVENTS: usize = 64;
/// Most entries of one `poll`: the maximum of Linux's RLIMIT_NOFILE (fs.nr_open).
const MAX_FILES: usize = 1 << 20;

/// Returns the duration of `timeout_ms` milliseconds, or `None` (forever) if it is negative.
fn timeout(timeout_ms: c_int) -> Option<Nanos> {
    u64::try_from(timeout_ms).ok().map(Nanos::from_millis)
}

/// Returns the entries of a `poll(2)` call.
///
/// # Errors
/// EINVAL for more than [`MAX_FILES`] entries, EFAULT for a null pointer to some.
unsafe fn entries(files: *mut pollfd, n: nfds_t) -> Result<Array<pollfd>> {
    let n = usize::try_from(n).ok().filter(|&n| n <= MAX_FILES);
    // SAFETY: the caller guarantees them.
    unsafe { Array::new(files, n.ok_or(Errno::EINVAL)?) }
}

/// Waits for descriptors: `poll(2)`. Entries of unknown descriptors become `POLLNVAL`; entries of
/// negative descriptors are skipped.
///
/// Without any known descriptor it sleeps by the clock of [`Descriptors::stack`]. If there is none,
/// it sleeps by the system's clock, and a signal ends the sleep with EINTR.
///
/// # Errors
/// EINVAL for more than 1,048,576 entries, and EXDEV for descriptors of two stacks.
pub unsafe fn poll<D: Descriptors>(
    fds: &D,
    files: *mut pollfd,
    n: nfds_t,
    timeout_ms: c_int,
) -> Result<c_int> {
    // SAFETY: the caller guarantees them.
    let mut files = unsafe { entries(files, n) }?;
    let mut unknown = 0;
    let mut stack: Option<D::Stack> = None;
    let mut entries_to_poll = Vec::new();
    for (at, mut file) in files.iter().enumerate() {
        let known = fds.get(file.fd);
        file.revents = match known {
            Err(_) if file.fd >= 0 => libc::POLLNVAL,
            _ => 0,
        };
        files.set(at, file);
        let Ok((of, handle)) = known else {
            unknown += c_int::from(file.fd >= 0);
            continue;
        };
        let is_other = |one: &Stack| !std::ptr::eq(one, &raw const *of);
        if stack.as_deref().is_some_and(is_other) {
            return Err(Errno(libc::EXDEV));
        }
        stack = Some(of);
        let entry = PollEntry {
            handle: Some(handle),
            events: u32::from(file.events as u16),
            revents: 0,
        };
        entries_to_poll.push(((at, file), entry));
    }
    let timeout_ms = if unknown > 0 { 0 } else { timeout_ms };
    let Some(stack) = stack.or_else(|| fds.stack().ok()) else {
        return sleep(timeout_ms).map(|()| unknown);
    };
    let (known, mut entries_to_poll): (Vec<(usize, pollfd)>, Vec<PollEntry>) =
        entries_to_poll.into_iter().unzip();
    let ready = stack.poll(&mut entries_to_poll, timeout(timeout_ms))?;
    for ((at, mut file), entry) in known.into_iter().zip(entries_to_poll) {
        file.revents = entry.revents as i16;
        files.set(at, file);
    }
    Ok(ready as c_int + unknown)
}

/// Sleeps for `timeout_ms` milliseconds of the system's clock, or forever if it is negative.
fn sleep(timeout_ms: c_int) -> Result<()> {
    // SAFETY: without entries, no pointer is dereferenced.
    match unsafe { libc::poll(null_mut(), 0, timeout_ms) } {
        0 => Ok(()),
        _ => Err(Errno(libc::EINTR)),
    }
}

/// Creates an epoll set: `epoll_create(2)`. `size` has no effect.
///
/// # Errors
/// EINVAL if `size` is not positive, and the errors of [`epoll_create1`].
pub fn epoll_create(fds: &impl Descriptors, size: c_int) -> Result<c_int> {
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    epoll_create1(fds, 0)
}

/// Creates an epoll set: `epoll_create1(2)`. `EPOLL_CLOEXEC` has no effect.
///
/// # Errors
/// EINVAL for unknown flags, and the errors of [`Descriptors::stack`], [`Stack::epoll_create`] and
/// [`Descriptors::add`].
pub fn epoll_create1(fds: &impl Descriptors, flags: c_int) -> Result<c_int> {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let stack = fds.stack()?;
    let set = stack.epoll_create()?;
    add_or_close(fds, &stack, set)
}

/// Adds, modifies or removes a descriptor of an epoll set: `epoll_ctl(2)`.
///
/// # Errors
/// EFAULT for a null event where one is needed, EXDEV for descriptors of two stacks, and the errors
/// of [`Stack::epoll_ctl`].
pub unsafe fn epoll_ctl(
    fds: &impl Descriptors,
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Result<()> {
    let ((stack, set), (of, handle)) = (fds.get(epfd)?, fds.get(fd)?);
    if !std::ptr::eq(&raw const *stack, &raw const *of) {
        return Err(Errno(libc::EXDEV));
    }
    let event = if operation == libc::EPOLL_CTL_DEL {
        EpollEvent::default()
    } else {
        // SAFETY: the caller guarantees it.
        let event = unsafe { ptr::read(event) }?;
        EpollEvent {
            events: event.events,
            data: event.u64,
        }
    };
    stack.epoll_ctl(set, operation, handle, event)
}

/// Waits until a descriptor of an epoll set is ready: `epoll_wait(2)`.
///
/// # Errors
/// EINVAL for a negative `max`, EFAULT for null `events`, and the errors of [`Stack::epoll_wait`].
pub unsafe fn epoll_wait(
    fds: &impl Descriptors,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> Result<c_int> {
    let (stack, set) = fds.get(epfd)?;
    let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the caller guarantees them.
    let mut events = unsafe { Array::new(events, max) }?;
    let mut found = [EpollEvent::default(); MAX_EVENTS];
    let n = stack.epoll_wait(set, &mut found[..max.min(MAX_EVENTS)], timeout(timeout_ms))?;
    for (at, from) in found[..n].iter().enumerate() {
        let event = epoll_event {
            events: from.events,
            u64: from.data,
        };
        events.set(at, event);
    }
    Ok(n as c_int)
}
