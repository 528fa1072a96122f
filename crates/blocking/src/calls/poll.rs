//! Waiting for several handles: `poll` and `epoll_wait`.

use fullsend_posix::{EpollEvent, Handle, Posix, Result};
use fullsend_wire::Nanos;

use super::deadline_after;
use crate::abi::{EPOLLERR, EPOLLHUP};
use crate::stack::Stack;

/// `POLLNVAL`: the handle is not open.
const POLLNVAL: u32 = 0x20;

/// An entry of a `poll` call, as `struct pollfd`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollEntry {
    /// The handle; an entry with `None` is skipped.
    pub handle: Option<Handle>,
    /// The requested events, `EPOLL*` bits.
    pub events: u32,
    /// The events that occurred. `EPOLLERR` and `EPOLLHUP` are reported without a request.
    pub revents: u32,
}

impl Stack {
    /// Waits until an entry is ready, for at most `span` (`None`: forever): `poll(2)`. Returns the
    /// number of ready entries.
    ///
    /// # Errors
    /// On a stack that has ended, the error that it ended with. A handle that is not open is not an
    /// error: its entry has `POLLNVAL`.
    pub fn poll(&self, entries: &mut [PollEntry], span: Option<Nanos>) -> Result<usize> {
        let handles: Vec<Handle> = entries.iter().filter_map(|entry| entry.handle).collect();
        let ready = self.wait(
            &handles,
            |_, now| deadline_after(now, span),
            |posix, _| {
                let ready = poll_entries(posix, entries);
                Ok((ready > 0).then_some(ready))
            },
        )?;
        Ok(ready.unwrap_or(0))
    }
}

fn poll_entries(posix: &mut Posix, entries: &mut [PollEntry]) -> usize {
    let mut ready = 0;
    for entry in entries {
        entry.revents = match entry.handle.map(|handle| posix.poll_events(handle)) {
            None => 0,
            Some(Ok(events)) => events & (entry.events | EPOLLERR | EPOLLHUP),
            Some(Err(_)) => POLLNVAL,
        };
        ready += usize::from(entry.revents != 0);
    }
    ready
}

impl Stack {
    /// Creates an epoll set: `epoll_create1(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::epoll_create`]. On a stack that has ended, the error that it ended
    /// with.
    pub fn epoll_create(&self) -> Result<Handle> {
        self.call(|posix, _| posix.epoll_create())
    }

    /// Adds, modifies or removes a handle of an epoll set: `epoll_ctl(2)`.
    ///
    /// # Errors
    /// The errors of [`Posix::epoll_ctl`]. On a stack that has ended, the error that it ended with.
    pub fn epoll_ctl(
        &self,
        set: Handle,
        operation: i32,
        handle: Handle,
        event: EpollEvent,
    ) -> Result<()> {
        self.call(|posix, _| posix.epoll_ctl(set, operation, handle, event))
    }

    /// Waits until a handle of the set is ready, for at most `span` (`None`: forever):
    /// `epoll_wait(2)`. Returns the number of events written to `out`.
    ///
    /// # Errors
    /// The errors of [`Posix::epoll_wait`]. On a stack that has ended, the error that it ended
    /// with.
    pub fn epoll_wait(
        &self,
        set: Handle,
        out: &mut [EpollEvent],
        span: Option<Nanos>,
    ) -> Result<usize> {
        let ready = self.wait(
            &[set],
            |_, now| deadline_after(now, span),
            |posix, now| {
                let ready = posix.epoll_wait(now, set, out)?;
                Ok((ready > 0).then_some(ready))
            },
        )?;
        Ok(ready.unwrap_or(0))
    }
}
