//! `poll` and `epoll`.

use std::ffi::c_int;

use fullsend_posix::{EpollEvent, Errno, Handle, Result};
use fullsend_units::Nanos;
use libc::{epoll_event, nfds_t, pollfd};

use super::ptr;
use crate::calls::PollLine;
use crate::stack::Stack;

/// Events told in one call at most: what is on the stack of the thread meanwhile.
const MAX_EVENTS: usize = 64;

/// Milliseconds; negative is forever.
fn span(timeout_ms: c_int) -> Option<Nanos> {
    u64::try_from(timeout_ms).ok().map(Nanos::from_millis)
}

/// `poll(2)`. `handle_of` finds the handle of a descriptor; those it does not know are
/// `POLLNVAL`.
pub unsafe fn poll(
    stack: &Stack,
    handle_of: impl Fn(c_int) -> Option<Handle>,
    files: *mut pollfd,
    n: nfds_t,
    timeout_ms: c_int,
) -> Result<c_int> {
    let n = usize::try_from(n).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the caller vouches for them.
    let files = unsafe { ptr::array_mut(files, n) }?;
    let mut unknown = 0;
    let mut lines = Vec::with_capacity(n);
    for file in &mut *files {
        let handle = handle_of(file.fd);
        let invalid = file.fd >= 0 && handle.is_none();
        file.revents = if invalid { libc::POLLNVAL } else { 0 };
        unknown += c_int::from(invalid);
        lines.push(PollLine {
            handle,
            events: u32::from(file.events as u16),
            revents: 0,
        });
    }
    let span = if unknown > 0 {
        Some(Nanos::ZERO)
    } else {
        span(timeout_ms)
    };
    let ready = stack.poll(&mut lines, span)?;
    for (file, line) in files.iter_mut().zip(lines) {
        file.revents |= line.revents as i16;
    }
    Ok(ready as c_int + unknown)
}

/// `epoll_ctl(2)`.
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
        // SAFETY: the caller vouches for it.
        let event = unsafe { ptr::one_mut(event) }?;
        EpollEvent {
            events: event.events,
            data: event.u64,
        }
    };
    stack.epoll_ctl(set, operation, handle, event)
}

/// `epoll_wait(2)`.
pub unsafe fn epoll_wait(
    stack: &Stack,
    set: Handle,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> Result<c_int> {
    let max = usize::try_from(max).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the caller vouches for them.
    let events = unsafe { ptr::array_mut(events, max) }?;
    let mut found = [EpollEvent::default(); MAX_EVENTS];
    let n = stack.epoll_wait(set, &mut found[..max.min(MAX_EVENTS)], span(timeout_ms))?;
    for (to, from) in events.iter_mut().zip(&found[..n]) {
        *to = epoll_event {
            events: from.events,
            u64: from.data,
        };
    }
    Ok(n as c_int)
}
