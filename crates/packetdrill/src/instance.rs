//! The stack of a packetdrill run, and its clock.

use std::ffi::{c_int, c_long};
use std::io;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use fullsend_blocking::c::Descriptors;
use fullsend_blocking::{Clock, ConfigError, Errno, Handle, Outbox, Stack, UserDrivenOptions};
use fullsend_wire::{Instant, Nanos};
use parking_lot::{Mutex, RwLock};

use crate::counters::CountersFile;
use crate::files::{DescriptorTable, kernel_close};
use crate::flags::Flags;
use crate::idle;
use crate::settings::SettingsFile;

/// The clock at the start, in us since the Unix epoch. It is fixed so that runs are repeatable.
const EPOCH_MICROS: u64 = 1_000_000_000_000_000;
/// Limit of polls without an advance of the time.
const MAX_POLLS_WITHOUT_ADVANCE: usize = 1000;
/// Limit of the time that a woken thread needs to finish its work.
const MAX_IDLE_WAIT: Duration = Duration::from_secs(10);
/// Limit of the time that a thread needs to read the clock after its call has returned.
const MAX_CLOCK_READ_WAIT: Duration = Duration::from_millis(500);

pub(crate) struct Instance {
    pub(crate) stack: Stack,
    pub(crate) outbox: Outbox,
    pub(crate) files: DescriptorTable,
    settings: Mutex<SettingsFile>,
    counters: Mutex<CountersFile>,
    clock: Clock,
    /// The thread that started the run, which lets time pass.
    main: ThreadId,
    /// The state of the other threads, which do not let time pass.
    others: Mutex<OtherThreads>,
}

#[derive(Default)]
struct OtherThreads {
    /// The number of threads in a call.
    in_call: usize,
    /// The last thread whose call has returned.
    returned: Option<ReturnedThread>,
}

/// A thread whose call has returned. Time stands still until it has finished with the result.
///
/// It is kept until its next call: while packetdrill's main thread reads the clock, it holds the lock
/// that this thread waits for, and only after it has released the lock can this thread store the
/// result.
struct ReturnedThread {
    thread: ThreadId,
    /// The kernel's id of the thread.
    tid: i32,
    /// Whether the thread has read the clock, which packetdrill does first, to check when the call
    /// returned. After that it stores the result, and sleeps until the script's next call that waits.
    has_read_clock: bool,
}

impl ReturnedThread {
    /// Returns whether it is still working on the result.
    fn is_busy(&self) -> bool {
        !self.has_read_clock || idle::is_running(self.tid)
    }
}

/// The current run.
static CURRENT: RwLock<Option<Arc<Instance>>> = RwLock::new(None);

/// Returns the current run, or EBADF once it has ended.
pub(crate) fn current() -> Result<Arc<Instance>, Errno> {
    CURRENT.read().clone().ok_or(Errno::EBADF)
}

/// Ends the run.
pub(crate) fn end_run() {
    let instance = CURRENT.write().take();
    if let Some(instance) = instance {
        instance.stack.end(Errno::EBADF);
    }
}

/// Starts a run with `flags`.
pub(crate) fn start_run(flags: &str) -> io::Result<()> {
    let instance = Arc::new(Instance::new(Flags::parse(flags)?)?);
    idle::start(&instance, gettid())?;
    *CURRENT.write() = Some(instance);
    Ok(())
}

/// Returns the kernel's id of this thread.
fn gettid() -> i32 {
    // SAFETY: a system call without arguments.
    unsafe { libc::gettid() }
}

impl Instance {
    pub(crate) fn new(flags: Flags) -> io::Result<Self> {
        let clock = Clock::manual();
        // Not zero, so that times shortly before the start can be represented.
        clock.advance_to(Instant::ZERO + Nanos::from_secs(1));
        let options = UserDrivenOptions {
            offload: true,
            completes_on_output: true,
            retains_packets: true,
        };
        let stack = Stack::user_driven(&flags.config, clock.clone(), options)?;
        // Matches packetdrill's TUN, which accepts no super-segments.
        stack.set("tso", "off")?;
        for (key, value) in &flags.link {
            stack.set(key, value)?;
        }
        stack.set_epoch(Nanos::from_micros(EPOCH_MICROS));
        let outbox = stack.outbox().cloned().ok_or(io::ErrorKind::Unsupported)?;
        let mut settings = SettingsFile::new(flags.settings);
        flags
            .unknown
            .iter()
            .for_each(|e: &ConfigError| settings.warn(e));
        let instance = Self {
            stack,
            outbox,
            files: DescriptorTable::default(),
            settings: Mutex::new(settings),
            counters: Mutex::new(CountersFile::new(flags.counters)),
            clock,
            main: thread::current().id(),
            others: Mutex::default(),
        };
        instance.refresh();
        Ok(instance)
    }

    /// Applies the changes made by the script's commands.
    pub(crate) fn refresh(&self) {
        self.settings.lock().refresh(&self.stack);
    }

    pub(crate) fn handle(&self, fd: c_int) -> Result<Handle, Errno> {
        self.files.get(fd)
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns a time as packetdrill represents it, in us since the Unix epoch.
    pub(crate) fn micros(at: Instant) -> c_long {
        (EPOCH_MICROS + at.as_micros()) as c_long
    }

    /// Runs a call, and records the threads that are in one.
    pub(crate) fn run_call<R>(&self, call: impl FnOnce(&Self) -> R) -> R {
        let this = thread::current().id();
        if this == self.main {
            return call(self);
        }
        {
            let mut others = self.others.lock();
            others.in_call += 1;
            if others.returned.as_ref().is_some_and(|r| r.thread == this) {
                others.returned = None;
            }
        }
        let result = call(self);
        let mut others = self.others.lock();
        others.in_call -= 1;
        others.returned = Some(ReturnedThread {
            thread: this,
            tid: gettid(),
            has_read_clock: false,
        });
        result
    }

    /// Records that this thread reads the clock, as packetdrill does before each event.
    pub(crate) fn on_clock_read(&self) {
        self.counters.lock().write_if_changed(&self.stack);
        let mut others = self.others.lock();
        if let Some(returned) = &mut others.returned
            && returned.thread == thread::current().id()
        {
            returned.has_read_clock = true;
        }
    }

    /// Returns whether a woken thread has not run since, or has not finished with the result of its
    /// call.
    pub(crate) fn has_busy_threads(&self) -> bool {
        if self.stack.has_woken() {
            return true;
        }
        let asleep = self.stack.has_sleepers();
        let this = thread::current().id();
        let others = self.others.lock();
        let returned = others.returned.as_ref().filter(|r| r.thread != this);
        returned.is_some_and(ReturnedThread::is_busy) || others.in_call > 0 && !asleep
    }

    /// Waits until no thread is restless, as time must not pass before.
    fn wait_until_idle(&self) {
        let mut waited = Duration::ZERO;
        let step = Duration::from_micros(50);
        while self.has_busy_threads() && waited < MAX_IDLE_WAIT {
            if waited > MAX_CLOCK_READ_WAIT {
                // It does not read the clock.
                self.others
                    .lock()
                    .returned
                    .take_if(|returned| !returned.has_read_clock);
            }
            thread::sleep(step);
            waited += step;
        }
    }

    /// Advances the time from timer to timer, until `at` or until `is_done` returns true.
    pub(crate) fn advance_until(&self, at: Instant, mut is_done: impl FnMut() -> bool) {
        let mut polls = 0;
        loop {
            self.wait_until_idle();
            if is_done() {
                return;
            }
            let next = self.stack.deadline().filter(|&next| next <= at);
            let Some(next) = next.filter(|_| polls < MAX_POLLS_WITHOUT_ADVANCE) else {
                break;
            };
            polls = if next > self.now() { 0 } else { polls + 1 };
            self.clock.advance_to(next);
            self.stack.run_timers();
        }
        self.clock.advance_to(at);
        self.stack.run_timers();
        self.wait_until_idle();
    }

    /// Advances the time by `span`.
    pub(crate) fn sleep(&self, span: Nanos) {
        self.advance_until(self.now() + span, || false);
    }
}

impl<'a> Descriptors for &'a Instance {
    type Stack = &'a Stack;

    fn stack(&self) -> Result<&'a Stack, Errno> {
        Ok(&self.stack)
    }

    fn get(&self, fd: c_int) -> Result<(&'a Stack, Handle), Errno> {
        Ok((&self.stack, self.handle(fd)?))
    }

    fn add(&self, stack: &&'a Stack, handle: Handle) -> Result<c_int, Errno> {
        self.files.add(stack, handle)
    }

    fn close(&self, fd: c_int) -> Result<(), Errno> {
        let handle = self.files.remove(fd)?;
        let closed = self.stack.close(handle);
        kernel_close(fd);
        closed
    }
}
