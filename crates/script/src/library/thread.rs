//! The thread for calls that may block. As in packetdrill, a call counts as blocked when the thread
//! sleeps in the kernel.

use std::fs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::table::Table;
use super::{Done, Job};

/// Real-time limit for a blocked call, in case virtual time does not advance.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Asked(Job),
    Runs,
    Done(Done),
    Over,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.lock() = state;
        self.changed.notify_all();
    }

    fn wait_while(&self, wanted: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), PATIENCE, |state| wanted(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

pub(super) struct CallThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    tid: i32,
    busy: bool,
}

impl CallThread {
    pub(super) fn new(table: &Table) -> Result<Self, String> {
        let shared = Arc::<Shared>::default();
        let (theirs, table) = (shared.clone(), *table);
        let (tell, told) = std::sync::mpsc::channel();
        let body = move || {
            // SAFETY: a system call without arguments.
            let _ = tell.send(unsafe { libc::gettid() });
            work(&theirs, &table);
        };
        let thread = thread::Builder::new().name("calls".to_owned()).spawn(body);
        let thread = thread
            .map_err(|error| format!("cannot start the thread for blocking calls: {error}"))?;
        let tid = told.recv().map_err(|error| error.to_string())?;
        Ok(Self {
            shared,
            thread: Some(thread),
            tid,
            busy: false,
        })
    }

    /// Returns whether a call was started whose result is not taken yet.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Starts a call; returns its result unless it blocks.
    pub(super) fn begin(&mut self, job: Job) -> Option<Done> {
        self.busy = true;
        self.shared.set(State::Asked(job));
        drop(
            self.shared
                .wait_while(|state| matches!(state, State::Asked(_))),
        );
        while matches!(*self.shared.lock(), State::Runs) && !self.sleeps() {
            thread::yield_now();
        }
        self.take()
    }

    fn sleeps(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", self.tid));
        // The state follows the name, which may contain any character.
        let state = stat
            .as_deref()
            .ok()
            .and_then(|stat| stat.rsplit(") ").next());
        state.is_some_and(|state| state.starts_with('S'))
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(*self.shared.lock(), State::Done(_))
    }

    /// Returns the result of the started call; `None` until it has returned.
    pub(super) fn take(&mut self) -> Option<Done> {
        let mut state = self.shared.lock();
        if !matches!(*state, State::Done(_)) {
            return None;
        }
        self.busy = false;
        match std::mem::take(&mut *state) {
            State::Done(done) => Some(done),
            _ => None,
        }
    }

    /// Waits until the started call returns, like packetdrill between two calls; returns whether it did.
    pub(super) fn wait(&self) -> bool {
        let state = self.shared.wait_while(|state| matches!(state, State::Runs));
        matches!(*state, State::Done(_))
    }
}

fn work(shared: &Shared, table: &Table) {
    loop {
        let mut state = shared.lock();
        while !matches!(*state, State::Asked(_) | State::Over) {
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let State::Asked(job) = std::mem::replace(&mut *state, State::Runs) else {
            return;
        };
        drop(state);
        shared.changed.notify_all();
        let mut done = job(table);
        done.at_us = table.now_us();
        shared.set(State::Done(done));
    }
}

impl Drop for CallThread {
    fn drop(&mut self) {
        let waits = matches!(*self.shared.lock(), State::Runs);
        if !waits {
            self.shared.set(State::Over);
            if let Some(thread) = self.thread.take() {
                // The thread has no result.
                let _ = thread.join();
            }
        }
    }
}
