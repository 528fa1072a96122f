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
/// The events of a file for which room is not reported.
const INPUT: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);
/// The events of a peer that sends no more, and of an error.
const END: EventFlags = EventFlags::RDHUP
    .union(EventFlags::HUP)
    .union(EventFlags::ERR);
/// Number of calls that found room after which room is no longer reported. Bulk transfers find none again
/// and again.
const CALLS_WITH_ROOM: u8 = 32;

/// A descriptor that becomes readable when one of its files does, or when one becomes writable for which
/// [`RoomEvents`] are on.
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
        Ok(epoll::add(&self.0, file, EventData::new_u64(token), INPUT)?)
    }

    /// Removes a file of which other descriptors may exist.
    pub(crate) fn remove(&self, file: BorrowedFd<'_>) {
        // Fails only if it is not there.
        let _ = epoll::delete(&self.0, file);
    }

    /// Clears the events that have occurred, so that the descriptor is not readable before the next one.
    /// Returns whether one of them was the end of a peer.
    pub(crate) fn clear(&self) -> bool {
        let mut has_end = false;
        self.take(|event| has_end |= event.is_end);
        has_end
    }

    /// Clears the events that have occurred, and passes each to `on_event`.
    pub(crate) fn take(&self, mut on_event: impl FnMut(FileEvent)) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let buffer = spare_capacity(&mut events);
            // Fails only if it is interrupted; the events are then cleared by the next call.
            let _ = epoll::wait(&self.0, buffer, Some(&Timespec::default()));
            for event in &events {
                let flags = event.flags;
                on_event(FileEvent {
                    token: event.data.u64(),
                    is_end: flags.intersects(END),
                });
            }
            // With fewer, there were no others.
            if events.len() < EVENTS {
                return;
            }
        }
    }
}

/// An event of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileEvent {
    pub(crate) token: u64,
    /// Whether its peer has ended: what it has sent may still be there.
    pub(crate) is_end: bool,
}

/// Whether an [`Events`] reports room at one of its files: only while packets wait for it. The kernel
/// reports room at a Unix socket whenever its peer has read something, which would wake the driver for each
/// packet that it sends.
#[derive(Debug, Default)]
pub(crate) struct RoomEvents {
    is_on: bool,
    calls_with_room: u8,
}

impl RoomEvents {
    /// Switches the events after a call that has written all packets, or else is blocked. If there is room
    /// when they are switched on, the event occurs at once.
    pub(crate) fn update(
        &mut self,
        (events, file, token): (&Events, BorrowedFd<'_>, u64),
        is_blocked: bool,
    ) {
        self.calls_with_room = if is_blocked {
            0
        } else {
            self.calls_with_room.saturating_add(1)
        };
        let on = is_blocked || self.is_on && self.calls_with_room < CALLS_WITH_ROOM;
        if on == self.is_on {
            return;
        }
        let flags = if on { INPUT | EventFlags::OUT } else { INPUT };
        // Fails only for lack of memory, and is then tried again by the next call.
        let changed = epoll::modify(&events.0, file, EventData::new_u64(token), flags);
        if changed.is_ok() {
            self.is_on = on;
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
