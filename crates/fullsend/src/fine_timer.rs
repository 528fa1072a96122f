//! A timer for what tokio's, which counts in milliseconds, is too coarse for: departures of paced
//! flows.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use fullsend_units::Instant;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::driver::register;

/// A kernel timer, exact to some microseconds.
pub(crate) struct FineTimer {
    fd: AsyncFd<OwnedFd>,
    /// What it is set to, if it has not fired since.
    at: Option<Instant>,
    /// When it was set last.
    set_at: Option<Instant>,
}

impl FineTimer {
    /// Must be called within a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            fd: register(fd)?,
            at: None,
            set_at: None,
        })
    }

    /// Wakes the task at `at` or before: one that is set to an earlier time stays so, as setting
    /// it anew for each packet would cost more than a look in vain. False if the clock, tokio's,
    /// stands still: it is paused, and goes on only when nothing but tokio's timer wakes anybody.
    pub(crate) fn set(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        at: Instant,
    ) -> io::Result<bool> {
        // The task is registered before the timer is set, or it could fire unseen.
        let mut fired = false;
        while self.poll_fired(cx)?.is_ready() {
            fired = true;
        }
        if fired && self.set_at == Some(now) {
            return Ok(false);
        }
        if self.at.is_none_or(|set| at < set) {
            // Zero would stop it.
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

    /// Each time it fires counts once; the task is registered when it has not.
    fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Read or not, it is heard of again when it is set again and fires.
        ready!(self.fd.poll_read_ready(cx))?.clear_ready();
        self.at = None;
        Poll::Ready(Ok(()))
    }
}
