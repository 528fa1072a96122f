//! Time that nobody lets pass: packetdrill waits, outside of the library or in a call, for
//! something that only time brings.
//!
//! It does so in a call that the script gives no end, and where the script ends, or makes its next
//! call, while one waits. With the kernel time passes by itself then.

use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fullsend_units::Nanos;

use crate::instance::Instance;

/// How often to look, in real time.
const STEP: Duration = Duration::from_millis(1);
/// Enough to look at a file: packetdrill locks all memory.
const STACK_BYTES: usize = 128 << 10;

/// Starts the thread that watches over a run; it ends with it.
pub(crate) fn watch(instance: &Arc<Instance>, main: i32) -> io::Result<()> {
    let watched = Arc::downgrade(instance);
    let body = move || {
        let mut seen = None;
        let mut told = false;
        loop {
            thread::sleep(STEP);
            let Some(instance) = watched.upgrade() else {
                return;
            };
            let now = instance.is_stuck().then(|| waits(main)).flatten();
            // Twice the same: it has not run in between.
            if now.is_some() && now == seen && !instance.pass_some() && !told {
                told = true;
                eprintln!("fullsend: a call waits for something that no timer will bring");
            }
            seen = now;
        }
    };
    let thread = thread::Builder::new().stack_size(STACK_BYTES);
    thread.name("fullsend-idle".to_owned()).spawn(body)?;
    Ok(())
}

/// Where a thread is while it waits for another of this process.
fn waits(tid: i32) -> Option<String> {
    let place = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).ok()?;
    let number = place.split(' ').next()?.parse().ok();
    (number == Some(libc::SYS_futex)).then_some(place)
}

/// Returns whether a thread does anything else than wait for another of this process. One of which
/// the system says nothing is taken to wait.
pub(crate) fn runs(tid: i32) -> bool {
    fs::metadata(format!("/proc/self/task/{tid}/syscall")).is_ok() && waits(tid).is_none()
}

impl Instance {
    /// Somebody sleeps in a call, and everybody who was woken has run.
    fn is_stuck(&self) -> bool {
        self.stack.has_sleepers() && !self.is_restless()
    }

    /// Lets time pass up to the next timer; false if there is none.
    fn pass_some(&self) -> bool {
        let next = self.stack.deadline();
        if let Some(next) = next {
            self.pass(next.max(self.now() + Nanos::from_nanos(1)), || false);
        }
        next.is_some()
    }
}
