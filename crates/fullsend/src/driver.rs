//! The driver task of a stack: reception, timers, and the transmissions that no socket call made.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fullsend_driver::{PollOutcome, RX_BATCH};
use fullsend_wire::{Instant, Nanos};
use tokio::time::Sleep;

use crate::device_file::{DeviceFile, Readable};
use crate::driver_timer::DriverTimer;
use crate::engine::Engine;
#[cfg(target_os = "linux")]
use crate::fine_timer::FineTimer;
use crate::runtime::new_timer;

#[cfg(test)]
mod tests;

/// Batches processed in one poll of the task, before other tasks run.
const BATCH_BUDGET: usize = 16;

pub(crate) struct Driver {
    engine: Arc<Engine>,
    file: Option<DeviceFile>,
    /// Whether the device is lost, e.g. deleted.
    lost: bool,
    timer: Pin<Box<Sleep>>,
    /// The time that `timer` is set to.
    timer_at: Instant,
    /// The kernel's timer, created for the first packet with a departure time, or the error of its
    /// creation.
    #[cfg(target_os = "linux")]
    fine_timer: Option<io::Result<FineTimer>>,
    /// The caller's timer, which replaces both.
    custom_timer: Option<Box<dyn DriverTimer>>,
    /// Time for which the device is polled after it received something.
    busy_poll: Option<Nanos>,
    /// Time at which busy polling ends.
    poll_until: Option<Instant>,
}

impl Driver {
    /// Returns the driver of `engine`. Must be called within a tokio runtime whose I/O and time
    /// drivers are enabled; an error reports that one is not. For `busy_poll` and `custom_timer` see
    /// [`Builder`](crate::Builder::busy_poll).
    pub(crate) fn new(
        engine: Arc<Engine>,
        busy_poll: Option<Nanos>,
        custom_timer: Option<Box<dyn DriverTimer>>,
    ) -> io::Result<Self> {
        let file = engine.device_file()?;
        let timer_at = Instant::FAR_FUTURE;
        let timer = new_timer(engine.clock.timer(timer_at))?;
        Ok(Self {
            engine,
            file,
            lost: false,
            timer,
            timer_at,
            #[cfg(target_os = "linux")]
            fine_timer: None,
            custom_timer,
            busy_poll,
            poll_until: None,
        })
    }

    /// Receives, runs timers and transmits. Returns false when nothing is left to do now, and true
    /// to be polled again: when the budget is used up, or when tasks that a full batch woke should
    /// run first.
    ///
    /// The answers of those tasks carry the acknowledgements. If the driver received everything in
    /// the device before they run, the peer would wait for both, and its timers would fire.
    fn process_batches(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        for _ in 0..BATCH_BUDGET {
            // Obtained before the device is read, so that frames which arrive after the read set
            // the readiness again.
            let ready = self.poll_readable(cx)?;
            let has_no_readiness = self.file.is_none() || self.lost;
            let receive = has_no_readiness || ready.is_some() || self.is_busy_polling();
            let polled = self.engine.poll(receive)?;
            let pumped = polled.pumped;
            // A full batch means that the device may have more frames; with fewer, it is empty.
            let full = pumped.received >= RX_BATCH;
            let more = match ready {
                Some(mut guard) if !full => {
                    guard.clear_ready();
                    self.poll_readable(cx)?.is_some()
                }
                _ => full,
            };
            if pumped.received > 0 {
                self.poll_until = self.busy_poll.map(|span| self.engine.clock.now() + span);
            }
            if more && polled.woke {
                return Ok(true);
            }
            if !more && !pumped.more {
                let retry = self.poll_writable(cx, pumped.blocked)?;
                if !retry {
                    let again = !self.set_timer(cx, &pumped) || self.is_busy_polling();
                    return Ok(again || self.poll_lost(cx));
                }
            }
        }
        Ok(true)
    }

    /// Returns whether frames arrived so recently that the device should be polled instead of
    /// sleeping.
    fn is_busy_polling(&self) -> bool {
        self.poll_until
            .is_some_and(|until| self.engine.clock.now() < until)
    }

    /// Returns whether the device is lost. If not, the task is woken when it is.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> bool {
        if self.lost {
            return false;
        }
        self.lost = self.file.as_mut().is_some_and(|file| file.poll_lost(cx));
        self.lost
    }

    /// Returns the guard of a readable device. If the device is not readable, the task is woken
    /// when it is.
    fn poll_readable(&self, cx: &mut Context<'_>) -> io::Result<Option<Readable<'_>>> {
        match self.file.as_ref().map(|file| file.poll_readable(cx)) {
            Some(Poll::Ready(guard)) => guard.map(Some),
            Some(Poll::Pending) | None => Ok(None),
        }
    }

    /// Returns whether a blocked device may have become writable. If not, the task is woken when it
    /// has.
    fn poll_writable(&mut self, cx: &mut Context<'_>, is_blocked: bool) -> io::Result<bool> {
        // An in-process link wakes the driver when it has room.
        let Some(file) = &mut self.file else {
            return Ok(false);
        };
        if is_blocked {
            return file.poll_writable(cx);
        }
        file.on_room();
        Ok(false)
    }

    /// Sets the timer. Returns whether it will wake the task in time, or false if it is already
    /// due.
    ///
    /// The timer is moved only when the deadline becomes earlier: a timer that fires too early
    /// costs one poll, and setting it for each packet would cost more.
    fn set_timer(&mut self, cx: &mut Context<'_>, pumped: &PollOutcome) -> bool {
        if let Some(timer) = &mut self.custom_timer {
            let clock = self.engine.clock;
            let deadline = pumped.deadline.map(|at| clock.runtime_instant(at));
            let due = timer.poll_until(cx, deadline).is_ready();
            return !due
                && self
                    .engine
                    .arm(pumped.deadline.unwrap_or(Instant::FAR_FUTURE));
        }
        let fired = self.timer.as_mut().poll(cx).is_ready();
        let deadline = pumped.deadline.unwrap_or(Instant::FAR_FUTURE);
        if fired || deadline < self.timer_at {
            self.timer_at = deadline;
            let at = self.engine.clock.timer(deadline);
            self.timer.as_mut().reset(at);
            if self.timer.as_mut().poll(cx).is_ready() {
                self.timer_at = Instant::ZERO;
                return false;
            }
        }
        let armed = match pumped.deadline {
            Some(at) if pumped.departure == Some(at) && self.set_fine_timer(cx, at) => at,
            _ => self.timer_at,
        };
        self.engine.arm(armed)
    }

    #[cfg(target_os = "linux")]
    /// Sets the fine timer to `at`, as tokio's timer rounds up to milliseconds. Returns whether it
    /// is set.
    fn set_fine_timer(&mut self, cx: &mut Context<'_>, at: Instant) -> bool {
        let now = self.engine.clock.now();
        let fine_timer = self.fine_timer.get_or_insert_with(FineTimer::new);
        let Ok(timer) = fine_timer else {
            return false;
        };
        match timer.set(cx, now, at) {
            Ok(set) => set,
            Err(error) => {
                tracing::debug!(%error, "no timer finer than a millisecond");
                false
            }
        }
    }

    /// Returns false: this system has no timer finer than tokio's.
    #[cfg(not(target_os = "linux"))]
    #[allow(clippy::unused_self, reason = "Linux's signature")]
    fn set_fine_timer(&mut self, _: &mut Context<'_>, _: Instant) -> bool {
        false
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.engine.driver_waker.begin_poll(cx.waker());
        if self.engine.is_abandoned() {
            return Poll::Ready(());
        }
        match self.process_batches(cx) {
            // A timer of this poll may have ended the last connection.
            Ok(false) if self.engine.is_abandoned() => Poll::Ready(()),
            Ok(false) => Poll::Pending,
            Ok(true) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            // The engine has stopped the stack and recorded the reason.
            Err(_) => Poll::Ready(()),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.engine.stop(
            io::ErrorKind::ConnectionAborted,
            "the stack was shut down, or the tokio runtime of its driver has ended; build a new \
             stack",
        );
    }
}
