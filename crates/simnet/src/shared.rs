//! The network with its clock, which the runtime's tasks share.

use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use fullsend_wire::{Instant, Nanos};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{self, Sleep};

use crate::kernel::Kernel;

/// Most times that tasks are woken at one instant: two hosts that answer each other over links
/// without delay and rate would otherwise never let time pass.
const MAX_ROUNDS_PER_INSTANT: u32 = 100_000;

/// The resolution of tokio's timers.
const TICK: Nanos = Nanos::from_millis(1);

/// The network and its clock.
///
/// The clock is tokio's, which is paused: it advances only when no task can run, by
/// [`on_idle`](Self::on_idle) to the exact time of the next event of the network, and by tokio to
/// its own timers, which fire at whole milliseconds.
pub(crate) struct Shared {
    start: time::Instant,
    kernel: Mutex<Kernel>,
    ticker: Mutex<Ticker>,
}

/// A timer of tokio's that is set to the millisecond of the network's next event. When it has
/// fired, all timers up to that millisecond have.
#[derive(Default)]
struct Ticker {
    sleep: Option<Pin<Box<Sleep>>>,
    /// The millisecond that it is set to.
    tick: u64,
    /// The time of the last call of `on_idle`, and how often tasks were woken since.
    now: Instant,
    rounds: u32,
    /// Whether the limit of rounds has been exceeded.
    stalled: bool,
}

impl Shared {
    /// Returns a network at time zero. Must be called within the runtime.
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self {
            start: time::Instant::now(),
            kernel: Mutex::new(kernel),
            ticker: Mutex::default(),
        }
    }

    /// Locks the network. No other lock is acquired while it is locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock()
    }

    /// Returns the time since the start. Must be called within the runtime.
    pub(crate) fn now(&self) -> Instant {
        self.instant(time::Instant::now())
    }

    /// Converts a time of tokio's.
    pub(crate) fn instant(&self, at: time::Instant) -> Instant {
        let span = at.saturating_duration_since(self.start);
        Instant::ZERO + Nanos::from(span)
    }

    /// Returns whether time has stopped because tasks wake each other without end.
    pub(crate) fn is_stalled(&self) -> bool {
        self.ticker.lock().stalled
    }

    /// Ignores what the stacks still send, and releases what refers to the runtime, which refers to
    /// this network in turn.
    pub(crate) fn close(&self) {
        let sleep = self.ticker.lock().sleep.take();
        let mut kernel = self.lock();
        kernel.closed = true;
        let drivers = kernel.cards.iter_mut().map(|card| card.driver.take());
        let drivers: Vec<_> = drivers.collect();
        let released = (sleep, drivers, kernel.runner.take(), kernel.observer.take());
        // Destructors may use the network.
        drop(kernel);
        drop(released);
    }

    /// Runs the network when no task can run: wakes the tasks of events that are due, or advances
    /// the clock towards the next event. The runtime calls it before it parks.
    pub(crate) fn on_idle(&self) {
        let mut wakers = Vec::new();
        loop {
            let now = self.now();
            let mut kernel = self.lock();
            kernel.run_due(now, &mut wakers);
            let next = kernel.agenda.next_at();
            drop(kernel);
            if !wakers.is_empty() {
                if self.ticker.lock().is_stalled_at(now) {
                    wakers.extend(self.lock().runner.take());
                }
                return wakers.into_iter().for_each(Waker::wake);
            }
            let Some(next) = next else {
                return;
            };
            if !self.ticker.lock().has_fired(self.start, now, next) {
                return;
            }
            advance(next.since(now));
        }
    }
}

impl Ticker {
    /// Counts a round at `now`. Returns whether there were too many.
    fn is_stalled_at(&mut self, now: Instant) -> bool {
        if now > self.now {
            (self.now, self.rounds) = (now, 0);
        }
        self.rounds += 1;
        self.stalled |= self.rounds > MAX_ROUNDS_PER_INSTANT;
        self.stalled
    }

    /// Returns whether tokio's timers have fired up to the millisecond of `next`, so that the clock
    /// may be set to `next`. Otherwise the runtime must park: it fires those that are due, or
    /// advances the clock to the next one.
    fn has_fired(&mut self, start: time::Instant, now: Instant, next: Instant) -> bool {
        let tick = next.as_millis();
        let sleep = match &mut self.sleep {
            Some(sleep) => {
                if self.tick != tick {
                    sleep.as_mut().reset(start + Duration::from_millis(tick));
                }
                sleep
            }
            none => none.insert(Box::pin(time::sleep_until(
                start + Duration::from_millis(tick),
            ))),
        };
        self.tick = tick;
        let mut cx = Context::from_waker(Waker::noop());
        if sleep.as_mut().poll(&mut cx).is_ready() {
            return true;
        }
        let past_tick = now.as_nanos() % TICK.as_nanos();
        if past_tick > 0 && tick > now.as_millis() {
            // Tokio advances its clock by whole milliseconds. No timer fires before the next one.
            advance(TICK.saturating_sub(Nanos::from_nanos(past_tick)));
        }
        false
    }
}

/// Advances tokio's clock.
fn advance(span: Nanos) {
    let before = time::Instant::now();
    // The first poll advances the clock; what follows is a yield, which is not needed here.
    let future = pin!(time::advance(span.into()));
    let _ = future.poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(
        time::Instant::now() - before,
        Duration::from(span),
        "tokio::time::advance did not advance the clock"
    );
}
