//! Lets time pass when packetdrill waits for an event that only a timer can cause.
//!
//! This happens in a call that the script gives no end, and when the script ends or makes its next
//! call while another call waits. With the kernel, time passes by itself.

use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fullsend_wire::Nanos;

use crate::instance::Instance;

/// Real time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Stack size of the thread, enough to read a file. It is low, as packetdrill locks all memory.
const STACK_BYTES: usize = 128 << 10;

/// Starts the thread that watches a run. It ends with the run.
pub(crate) fn start(instance: &Arc<Instance>, main: i32) -> io::Result<()> {
    let watched = Arc::downgrade(instance);
    let body = move || {
        let mut previous_state = None;
        let mut reported = false;
        loop {
            thread::sleep(CHECK_INTERVAL);
            let Some(instance) = watched.upgrade() else {
                return;
            };
            let state = instance
                .is_stuck()
                .then(|| futex_wait_state(main))
                .flatten();
            // Equal twice, so the thread has not run in between.
            if state.is_some()
                && state == previous_state
                && !instance.advance_to_next_timer()
                && !reported
            {
                reported = true;
                eprintln!(
                    "fullsend: a blocking call cannot return, as no packet and no timer is \
                     pending; check the script"
                );
            }
            previous_state = state;
        }
    };
    let thread = thread::Builder::new().stack_size(STACK_BYTES);
    thread.name("fullsend-idle".to_owned()).spawn(body)?;
    Ok(())
}

/// Returns the state of a thread that waits for another thread of this process, or `None`.
fn futex_wait_state(tid: i32) -> Option<String> {
    let syscall = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).ok()?;
    let number = syscall.split(' ').next()?.parse().ok();
    (number == Some(libc::SYS_futex)).then_some(syscall)
}

/// Returns whether a thread does anything but wait for another thread of this process. A thread of
/// which the system shows no state counts as waiting.
pub(crate) fn is_running(tid: i32) -> bool {
    fs::metadata(format!("/proc/self/task/{tid}/syscall")).is_ok()
        && futex_wait_state(tid).is_none()
}

impl Instance {
    /// Returns whether a thread waits in a call and every woken thread has run.
    fn is_stuck(&self) -> bool {
        self.stack.has_sleepers() && !self.has_busy_threads()
    }

    /// Advances the time to the next timer. Returns false if there is none.
    fn advance_to_next_timer(&self) -> bool {
        let next = self.stack.deadline();
        if let Some(next) = next {
            self.advance_until(next.max(self.now() + Nanos::from_nanos(1)), || false);
        }
        next.is_some()
    }
}
