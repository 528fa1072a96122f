//! Waiting for one of several files with one descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Most events that one system call fetches.
const EVENTS: usize = 32;

/// A descriptor that becomes readable when one of its files does, or when one becomes writable.
pub(crate) struct Events(OwnedFd);

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a file. It is removed when its last descriptor is closed.
    pub(crate) fn add(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.add_with(file, 0)
    }

    /// Adds a file whose events have a token.
    pub(crate) fn add_with(&self, file: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.0, file, EventData::new_u64(token), flags)?)
    }

    /// Removes a file of which other descriptors may exist.
    pub(crate) fn remove(&self, file: BorrowedFd<'_>) {
        // Fails only if it is not there.
        let _ = epoll::delete(&self.0, file);
    }

    /// Clears the events that have occurred, so that the descriptor is not readable before the next one.
    pub(crate) fn clear(&self) {
        self.take(|_| {});
    }

    /// Clears the events that have occurred, and passes the token of each to `on_event`.
    pub(crate) fn take(&self, mut on_event: impl FnMut(u64)) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let buffer = spare_capacity(&mut events);
            // Fails only if it is interrupted; the events are then cleared by the next call.
            let _ = epoll::wait(&self.0, buffer, Some(&Timespec::default()));
            for event in &events {
                on_event(event.data.u64());
            }
            // With fewer, there were no others.
            if events.len() < EVENTS {
                return;
            }
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a file that [`wake`] makes readable.
pub(crate) fn wake_file() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes an event of the file.
pub(crate) fn wake(file: BorrowedFd<'_>) {
    // Fails only if it has been woken 2^64 times.
    let _ = rustix::io::write(file, &1u64.to_ne_bytes());
}

/// A file that becomes readable at a time.
pub(super) struct Timer(OwnedFd);

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Lets the file become readable after `delay`, and not at the time that was set before.
    pub(super) fn set(&self, delay: Duration) {
        let none = Timespec::default();
        let value = Itimerspec {
            it_interval: none,
            it_value: delay.try_into().unwrap_or(none),
        };
        // Fails only for invalid arguments.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &value);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
