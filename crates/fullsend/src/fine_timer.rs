//! A timer for the departures of paced packets, for which tokio's resolution of 1 ms is too coarse.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use fullsend_wire::Instant;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::device_file::register;

/// A kernel timer (timerfd), precise to some microseconds.
pub(crate) struct FineTimer {
    fd: AsyncFd<OwnedFd>,
    /// The time at which the timer fires, or `None` once it has fired.
    at: Option<Instant>,
    /// The time at which the timer was last set.
    set_at: Option<Instant>,
}

impl FineTimer {
    /// Creates a timer. Must be called within a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            fd: register(fd, Interest::READABLE)?,
            at: None,
            set_at: None,
        })
    }

    /// Wakes the task at `at` or earlier: a timer that is set to an earlier time is not moved, as
    /// setting it for each packet would cost more than a poll without work. Returns false if
    /// tokio's clock stands still: a paused clock only advances when no task is woken by anything
    /// but tokio's timer.
    pub(crate) fn set(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        at: Instant,
    ) -> io::Result<bool> {
        // The task is registered before the timer is set, as it could fire unnoticed otherwise.
        let mut fired = false;
        while self.poll_fired(cx)?.is_ready() {
            fired = true;
        }
        if fired && self.set_at == Some(now) {
            return Ok(false);
        }
        if self.at.is_none_or(|set| at < set) {
            // Zero would disarm the timer.
            let span = at.since(now).as_nanos().max(1);
            let value = Itimerspec {
                it_interval: Timespec::default(),
                it_value: Timespec {
                    tv_sec: (span / 1_000_000_000) as i64,
                    tv_nsec: (span % 1_000_000_000) as i64,
                },
            };
            timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &value)?;
            self.at = Some(at);
            self.set_at = Some(now);
        }
        Ok(true)
    }

    /// Polls the timer: ready once for each time it fires. If it has not fired, the task is
    /// registered.
    fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The count need not be read: setting the timer again clears it.
        ready!(self.fd.poll_read_ready(cx))?.clear_ready();
        self.at = None;
        Poll::Ready(Ok(()))
    }
}
