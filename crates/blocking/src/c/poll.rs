//! `poll` and `epoll` with C pointers.

use std::ffi::c_int;
use std::ops::Deref;
use std::ptr::null_mut;

use fullsend_posix::{EpollEvent, Errno, Handle, Result};
use fullsend_units::Nanos;
use libc::{epoll_event, nfds_t, pollfd};

use super::ptr;
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

/// Returns the entries of a `poll(2)` call as a slice.
///
/// # Errors
/// EINVAL for more than [`MAX_FILES`] entries, EFAULT for a null pointer to some.
unsafe fn entries<'a>(files: *mut pollfd, n: nfds_t) -> Result<&'a mut [pollfd]> {
    let n = usize::try_from(n).ok().filter(|&n| n <= MAX_FILES);
    // SAFETY: the caller guarantees them.
    unsafe { ptr::array_mut(files, n.ok_or(Errno::EINVAL)?) }
}

/// Waits for descriptors: `poll(2)`. `lookup_fd` returns the stack and the handle of a descriptor;
/// entries of descriptors that it does not know are `POLLNVAL`, and those of negative ones are
/// skipped.
///
/// Without any known descriptor it sleeps by the clock of `idle_stack`. If that is `None`, it
/// sleeps by the system's clock, and a signal ends the sleep with EINTR.
///
/// # Errors
/// EINVAL for more than 1,048,576 entries, and EXDEV for descriptors of two stacks.
pub unsafe fn poll<S: Deref<Target = Stack>>(
    idle_stack: Option<S>,
    lookup_fd: impl Fn(c_int) -> Option<(S, Handle)>,
    files: *mut pollfd,
    n: nfds_t,
    timeout_ms: c_int,
) -> Result<c_int> {
    // SAFETY: the caller guarantees them.
    let files = unsafe { entries(files, n) }?;
    let mut unknown = 0;
    let mut stack: Option<S> = None;
    let mut entries_to_poll = Vec::new();
    for (at, file) in files.iter_mut().enumerate() {
        file.revents = 0;
        if file.fd < 0 {
            continue;
        }
        let Some((of, handle)) = lookup_fd(file.fd) else {
            file.revents = libc::POLLNVAL;
            unknown += 1;
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
        entries_to_poll.push((at, entry));
    }
    let timeout_ms = if unknown > 0 { 0 } else { timeout_ms };
    let Some(stack) = stack.or(idle_stack) else {
        return sleep(timeout_ms).map(|()| unknown);
    };
    let (indices, mut entries_to_poll): (Vec<usize>, Vec<PollEntry>) =
        entries_to_poll.into_iter().unzip();
    let ready = stack.poll(&mut entries_to_poll, timeout(timeout_ms))?;
    for (at, entry) in indices.into_iter().zip(entries_to_poll) {
        files[at].revents = entry.revents as i16;
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

/// Adds, modifies or removes a handle of an epoll set: `epoll_ctl(2)`.
///
/// # Errors
/// EFAULT for a null event where one is needed, and the errors of [`Stack::epoll_ctl`].
pub unsafe fn epoll_ctl(
    stack: &Stack,
    set: Handle,
    operation: c_int,
    handle: Handle,
    event: *mut epoll_event,
) -> Result<()> {
    let event = if operation == libc::EPOLL_CTL_DEL {
        EpollEvent::default()
    } else {
        // SAFETY: the caller guarantees it.
        let event = unsafe { ptr::object_mut(event) }?;
        EpollEvent {
            events: event.events,
            data: event.u64,
        }
    };
    stack.epoll_ctl(set, operation, handle, event)
}

/// Waits until a handle of an epoll set is ready: `epoll_wait(2)`.
///
/// # Errors
/// EINVAL for a negative `max`, EFAULT for null `events`, and the errors of [`Stack::epoll_wait`].
pub unsafe fn epoll_wait(
    stack: &Stack,
    set: Handle,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> Result<c_int> {
    let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the caller guarantees them.
    let events = unsafe { ptr::array_mut(events, max) }?;
    let mut found = [EpollEvent::default(); MAX_EVENTS];
    let n = stack.epoll_wait(set, &mut found[..max.min(MAX_EVENTS)], timeout(timeout_ms))?;
    for (to, from) in events.iter_mut().zip(&found[..n]) {
        *to = epoll_event {
            events: from.events,
            u64: from.data,
        };
    }
    Ok(n as c_int)
}
