//! Waiting for many: `poll` and `epoll_wait`.

use fullsend_posix::{EpollEvent, Handle, Posix, Result};
use fullsend_units::Nanos;

use super::until;
use crate::abi::{EPOLLERR, EPOLLHUP};
use crate::stack::Stack;

/// What `POLLNVAL` is: not open.
const POLLNVAL: u32 = 0x20;

/// One line of what `poll` asks, as `struct pollfd`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollLine {
    /// Whom; `None` is passed over.
    pub handle: Option<Handle>,
    /// What for, `EPOLL*` bits.
    pub events: u32,
    /// What is so. `EPOLLERR` and `EPOLLHUP` come unasked.
    pub revents: u32,
}

impl Stack {
    /// `poll(2)`: waits until one of them is ready, at most so long (`None`: forever); how many
    /// are.
    pub fn poll(&self, lines: &mut [PollLine], span: Option<Nanos>) -> Result<usize> {
        let handles: Vec<Handle> = lines.iter().filter_map(|line| line.handle).collect();
        let ready = self.wait(
            &handles,
            |_, now| until(now, span),
            |posix, _| {
                let ready = look(posix, lines);
                Ok((ready > 0).then_some(ready))
            },
        )?;
        Ok(ready.unwrap_or(0))
    }
}

fn look(posix: &mut Posix, lines: &mut [PollLine]) -> usize {
    let mut ready = 0;
    for line in lines {
        line.revents = match line.handle.map(|handle| posix.poll_events(handle)) {
            None => 0,
            Some(Ok(events)) => events & (line.events | EPOLLERR | EPOLLHUP),
            Some(Err(_)) => POLLNVAL,
        };
        ready += usize::from(line.revents != 0);
    }
    ready
}

impl Stack {
    /// `epoll_create1(2)`.
    pub fn epoll_create(&self) -> Result<Handle> {
        self.call(|posix, _| posix.epoll_create())
    }

    /// `epoll_ctl(2)`.
    pub fn epoll_ctl(
        &self,
        set: Handle,
        operation: i32,
        handle: Handle,
        event: EpollEvent,
    ) -> Result<()> {
        self.call(|posix, _| posix.epoll_ctl(set, operation, handle, event))
    }

    /// `epoll_wait(2)`: waits until one of the set is ready, at most so long (`None`: forever);
    /// how many of `out` were filled.
    pub fn epoll_wait(
        &self,
        set: Handle,
        out: &mut [EpollEvent],
        span: Option<Nanos>,
    ) -> Result<usize> {
        let ready = self.wait(
            &[set],
            |_, now| until(now, span),
            |posix, now| {
                let ready = posix.epoll_wait(now, set, out)?;
                Ok((ready > 0).then_some(ready))
            },
        )?;
        Ok(ready.unwrap_or(0))
    }
}
