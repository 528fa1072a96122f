//! Waiting for one of several files with one descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Most events that one call fetches: more than a link has files.
const EVENTS: usize = 8;

/// A descriptor that becomes readable when one of its files does, or when one becomes writable.
pub(super) struct Events(OwnedFd);

impl Events {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a file. It is removed when its last descriptor is closed.
    pub(super) fn add(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.0, file, EventData::new_u64(0), flags)?)
    }

    /// Clears the events that have occurred, so that the descriptor is not readable before the next one.
    pub(super) fn clear(&self) {
        let mut events = Vec::with_capacity(EVENTS);
        // Fails only if it is interrupted; the events are then cleared by the next call.
        let _ = epoll::wait(
            &self.0,
            spare_capacity(&mut events),
            Some(&Timespec::default()),
        );
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a file that [`wake`] makes readable.
pub(super) fn wake_file() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes an event of the file.
pub(super) fn wake(file: BorrowedFd<'_>) {
    // Fails only if it has been woken 2^64 times.
    let _ = rustix::io::write(file, &1u64.to_ne_bytes());
}
