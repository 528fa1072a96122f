//! Waiting for events of several files through one descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Most events that one system call returns.
const EVENTS: usize = 32;
/// The events of a file without those for room.
const INPUT: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);
/// The events of an error, and of a peer that sends no more.
const END: EventFlags = EventFlags::RDHUP
    .union(EventFlags::HUP)
    .union(EventFlags::ERR);
/// Number of calls with room after which the events for room are switched off. Bulk transfers keep
/// running out of room, and keep them on.
const CALLS_WITH_ROOM: u8 = 32;

/// A descriptor that becomes readable when one of its files does, or when a file whose [`RoomEvents`] are
/// on becomes writable.
pub(crate) struct Events(OwnedFd);

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a file. It is removed when its last descriptor is closed.
    pub(crate) fn add(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.add_with(file, 0)
    }

    /// Adds a file with a token for its events.
    pub(crate) fn add_with(&self, file: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.0, file, EventData::new_u64(token), INPUT)?)
    }

    /// Removes a file. Needed if other descriptors of the file may exist.
    pub(crate) fn remove(&self, file: BorrowedFd<'_>) {
        // Fails only if the file was not added.
        let _ = epoll::delete(&self.0, file);
    }

    /// Clears all past events, so that the descriptor becomes readable only at the next one. Returns
    /// whether one of them was the end of a peer.
    pub(crate) fn clear(&self) -> bool {
        let mut has_end = false;
        self.take(|event| has_end |= event.is_end);
        has_end
    }

    /// Clears all past events, and passes each to `on_event`.
    pub(crate) fn take(&self, mut on_event: impl FnMut(FileEvent)) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let buffer = spare_capacity(&mut events);
            // Fails only if interrupted; the next call then clears the events.
            let _ = epoll::wait(&self.0, buffer, Some(&Timespec::default()));
            for event in &events {
                let flags = event.flags;
                on_event(FileEvent {
                    token: event.data.u64(),
                    is_end: flags.intersects(END),
                });
            }
            // Fewer events than requested were all events.
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
    /// Whether the peer has ended; data that it has sent may still be unread.
    pub(crate) is_end: bool,
}

/// Whether an [`Events`] reports room at one of its files, which it does only while packets wait. The
/// kernel reports room at a Unix socket each time its peer has read, which would wake the driver for each
/// packet sent.
#[derive(Debug, Default)]
pub(crate) struct RoomEvents {
    is_on: bool,
    calls_with_room: u8,
}

impl RoomEvents {
    /// Switches the events after a call that has written all packets or is blocked. If there is room when
    /// they are switched on, the event occurs at once.
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
        // Fails only for lack of memory; the next call tries again.
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

/// Makes the file readable.
pub(crate) fn wake(file: BorrowedFd<'_>) {
    // Fails only after 2^64 - 1 wake-ups, when the file is readable anyway.
    let _ = rustix::io::write(file, &1u64.to_ne_bytes());
}

/// A file that becomes readable at a set time.
pub(super) struct Timer(OwnedFd);

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Makes the file readable after `delay`, instead of at the time set before.
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
