//! The machine of a host, from its start to its crash: a tokio runtime with all tasks and timers of the
//! host's software and the driver of its stack.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use fullsend_wire::{Instant, Nanos};
use parking_lot::Mutex;
use tokio::runtime::{self, Runtime};
use tokio::task::JoinHandle;
use tokio::time;

use crate::error::SoftwareResult;
use crate::host::SoftwareFuture;

/// The resolution of tokio's timers.
const TICK: Nanos = Nanos::from_millis(1);

/// Returns the last whole millisecond not after `at`; tokio's timers fire at whole milliseconds.
pub(crate) const fn tick_before(at: Instant) -> Instant {
    Instant::from_nanos(at.as_nanos() - at.as_nanos() % TICK.as_nanos())
}

/// Returns the first whole millisecond after `at`.
pub(crate) fn tick_after(at: Instant) -> Instant {
    tick_before(at) + TICK
}

/// The relation of a machine's clock to the simulation's clock.
#[derive(Clone, Copy)]
pub(crate) struct Epoch {
    /// A time on the machine's clock.
    start: time::Instant,
    /// The simulation's time at `start`.
    origin: Instant,
}

impl Epoch {
    /// Converts a time on the machine's clock to the simulation's.
    pub(crate) fn instant(&self, at: time::Instant) -> Instant {
        self.origin + Nanos::from(at.saturating_duration_since(self.start))
    }

    fn machine_time(&self, at: Instant) -> time::Instant {
        self.start + at.since(self.origin).into()
    }
}

/// The action of a machine's runtime when none of its tasks can run.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum IdleAction {
    /// The runtime returns.
    #[default]
    Return,
    /// The runtime first advances its clock to its next timer.
    AdvanceClock,
}

/// The end of a call of [`Runtime::block_on`], reported by the runtime's callbacks.
#[derive(Default)]
struct Idle {
    action: Mutex<IdleAction>,
    is_over: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Idle {
    fn begin(&self, action: IdleAction) {
        *self.action.lock() = action;
        self.is_over.store(false, Ordering::Relaxed);
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_over.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        *self.waker.lock() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The machine of a host. Dropping it ends all tasks of the host at the points where they wait.
pub(crate) struct Machine {
    runtime: Runtime,
    idle: Arc<Idle>,
    epoch: Epoch,
    state: Mutex<MachineState>,
}

struct MachineState {
    /// The time of the machine's clock, in the simulation's time. It may be ahead of the simulation's
    /// clock if the machine has no earlier timer.
    clock: Instant,
    /// Whether tasks may be able to run at `clock`.
    has_work: bool,
}

impl Machine {
    /// Creates a machine whose clock has the simulation's time.
    pub(crate) fn new(now: Instant, seed: u64) -> io::Result<Self> {
        let idle = Arc::<Idle>::default();
        let (before, after) = (idle.clone(), idle.clone());
        let mut builder = runtime::Builder::new_current_thread();
        // Without I/O, the operating system's sockets fail instead of making results differ.
        builder.enable_time().start_paused(true);
        // A crash must end the machine before another of its tasks runs.
        builder.event_interval(1);
        builder.on_thread_park(move || {
            if *before.action.lock() == IdleAction::Return {
                before.end();
            }
        });
        builder.on_thread_unpark(move || after.end());
        set_rng_seed(&mut builder, seed);
        let runtime = builder.build()?;
        let context = runtime.enter();
        // The machine's timers fire at whole milliseconds of the simulation.
        let epoch = Epoch {
            start: time::Instant::now(),
            origin: tick_before(now),
        };
        advance(now.since(epoch.origin));
        drop(context);
        Ok(Self {
            runtime,
            idle,
            epoch,
            state: Mutex::new(MachineState {
                clock: now,
                has_work: false,
            }),
        })
    }

    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Calls `call` within the machine's runtime.
    pub(crate) fn within<R>(&self, call: impl FnOnce() -> R) -> R {
        let _context = self.runtime.enter();
        call()
    }

    /// Starts a software, and returns its task.
    pub(crate) fn start(&self, software: SoftwareFuture) -> JoinHandle<SoftwareResult> {
        self.state.lock().has_work = true;
        self.runtime.spawn(software)
    }

    /// Returns the time at which tasks of the machine may be able to run: `now`, or the machine's clock
    /// if that is ahead. `None` if none can.
    pub(crate) fn ready_at(&self, now: Instant) -> Option<Instant> {
        let state = self.state.lock();
        let is_ready = state.has_work || self.runtime.metrics().global_queue_depth() > 0;
        is_ready.then(|| state.clock.max(now))
    }

    /// Runs tasks at `now`, which must not be before the machine's clock, until none can run or
    /// [`stop`](Self::stop) is called.
    pub(crate) fn run(&self, now: Instant) {
        let mut state = self.state.lock();
        let behind = now.since(state.clock);
        state.clock = now;
        state.has_work = false;
        drop(state);
        if behind > Nanos::ZERO {
            self.within(|| advance(behind));
        }
        self.idle.begin(IdleAction::Return);
        self.runtime.block_on(poll_fn(|cx| self.idle.poll(cx)));
    }

    /// Ends [`run`](Self::run) before another task runs. Called by a task of the machine.
    pub(crate) fn stop(&self) {
        self.idle.end();
    }

    /// Advances the clock to the machine's next timer, at most to `tick`, a whole millisecond.
    ///
    /// A running thread of the machine (`spawn_blocking`) stops the clock.
    pub(crate) fn advance_to_timer(&self, tick: Instant) {
        if self.is_advanced_to(tick) {
            return;
        }
        let clock = self.state.lock().clock;
        if clock > tick_before(clock) {
            // tokio advances a clock by whole milliseconds, and no timer fires before the next one.
            self.within(|| advance(tick_after(clock).since(clock)));
        }
        let machine_time = self.epoch.machine_time(tick);
        self.idle.begin(IdleAction::AdvanceClock);
        let now = self.runtime.block_on(async {
            let mut sleep = pin!(time::sleep_until(machine_time));
            poll_fn(|cx| {
                let _ = sleep.as_mut().poll(cx);
                self.idle.poll(cx)
            })
            .await;
            time::Instant::now()
        });
        let mut state = self.state.lock();
        state.clock = self.epoch.instant(now);
        state.has_work = true;
    }

    /// Returns whether the clock has reached `at`, or the machine can run before `at`.
    fn is_advanced_to(&self, at: Instant) -> bool {
        let clock = self.state.lock().clock;
        clock >= at || self.ready_at(at).is_some()
    }

    /// Ends the tasks of the machine if this is the last reference to it. Does not wait for its threads.
    pub(crate) fn shut_down(self: Arc<Self>) {
        if let Some(machine) = Arc::into_inner(self) {
            machine.runtime.shutdown_background();
        }
    }
}

/// Seeds the random choices of tokio (`select!`), if tokio permits it.
#[allow(
    unexpected_cfgs,
    reason = "set by programs that use tokio's unstable features"
)]
fn set_rng_seed(builder: &mut runtime::Builder, seed: u64) {
    #[cfg(tokio_unstable)]
    builder.rng_seed(runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    #[cfg(not(tokio_unstable))]
    let _ = (builder, seed);
}

/// Advances the clock of the current runtime.
fn advance(span: Nanos) {
    let before = time::Instant::now();
    // The first poll advances the clock; later polls only yield, which is not needed here.
    let future = pin!(time::advance(span.into()));
    let _ = future.poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(
        time::Instant::now() - before,
        std::time::Duration::from(span),
        "tokio::time::advance did not advance the clock"
    );
}
