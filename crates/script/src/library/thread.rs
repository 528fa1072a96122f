//! The thread for calls that may block. As in packetdrill, a call counts as blocked when the thread
//! sleeps in the kernel.

use std::fs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::table::Table;
use super::{CallOutput, Job};

/// Real-time limit for a blocked call, in case virtual time does not advance.
const BLOCKED_CALL_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Requested(Job),
    Running,
    Done(CallOutput),
    ShutDown,
}

#[derive(Default)]
struct SharedState {
    state: Mutex<State>,
    changed: Condvar,
}

impl SharedState {
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
            .wait_timeout_while(self.lock(), BLOCKED_CALL_TIMEOUT, |state| wanted(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

pub(super) struct CallThread {
    shared: Arc<SharedState>,
    thread: Option<JoinHandle<()>>,
    tid: i32,
    busy: bool,
}

impl CallThread {
    pub(super) fn new(table: &Table) -> Result<Self, String> {
        let shared = Arc::<SharedState>::default();
        let (theirs, table) = (shared.clone(), *table);
        let (tid_tx, tid_rx) = std::sync::mpsc::channel();
        let body = move || {
            // SAFETY: a system call without arguments.
            let _ = tid_tx.send(unsafe { libc::gettid() });
            thread_main(&theirs, &table);
        };
        let thread = thread::Builder::new().name("calls".to_owned()).spawn(body);
        let thread = thread
            .map_err(|error| format!("cannot start the thread for blocking calls: {error}"))?;
        let tid = tid_rx.recv().map_err(|error| error.to_string())?;
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
    pub(super) fn begin(&mut self, job: Job) -> Option<CallOutput> {
        self.busy = true;
        self.shared.set(State::Requested(job));
        drop(
            self.shared
                .wait_while(|state| matches!(state, State::Requested(_))),
        );
        while matches!(*self.shared.lock(), State::Running) && !self.is_sleeping() {
            thread::yield_now();
        }
        self.take()
    }

    fn is_sleeping(&self) -> bool {
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
    pub(super) fn take(&mut self) -> Option<CallOutput> {
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

    /// Waits until the started call returns, like packetdrill between two calls; returns whether it
    /// did.
    pub(super) fn wait(&self) -> bool {
        let state = self
            .shared
            .wait_while(|state| matches!(state, State::Running));
        matches!(*state, State::Done(_))
    }
}

fn thread_main(shared: &SharedState, table: &Table) {
    loop {
        let mut state = shared.lock();
        while !matches!(*state, State::Requested(_) | State::ShutDown) {
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let State::Requested(job) = std::mem::replace(&mut *state, State::Running) else {
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
        let is_running = matches!(*self.shared.lock(), State::Running);
        if !is_running {
            self.shared.set(State::ShutDown);
            if let Some(thread) = self.thread.take() {
                // The thread has no result.
                let _ = thread.join();
            }
        }
    }
}
