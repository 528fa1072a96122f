//! Lets time pass when packetdrill waits for an event that only a timer can cause.
//!
//! This happens in a call that the script gives no end, and when the script ends or makes its next
//! call while another call waits. With the kernel, time passes by itself.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
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
    let call = FutexCall::parse(&syscall)?;
    (!call.has_ended()).then_some(syscall)
}

/// A futex call of a thread, as `/proc/self/task/TID/syscall` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FutexCall {
    /// Address of the futex.
    address: u64,
    operation: libc::c_int,
    /// The value of the futex with which the thread waits.
    value: u32,
}

impl FutexCall {
    /// Returns the call in a line of numbers: the system call's, and its arguments in hexadecimal.
    fn parse(line: &str) -> Option<Self> {
        let (number, arguments) = line.split_once(' ')?;
        if number.parse() != Ok(libc::SYS_futex) {
            return None;
        }
        let mut arguments = arguments
            .split(' ')
            .map_while(|arg| u64::from_str_radix(arg.strip_prefix("0x")?, 16).ok());
        Some(Self {
            address: arguments.next()?,
            operation: arguments.next()? as libc::c_int,
            // The kernel compares 32 bits.
            value: arguments.next()? as u32,
        })
    }

    /// Returns whether the reason to wait is gone, so that the thread will run without another event,
    /// though it may not have been scheduled yet: the lock that it waits for is free, or the futex
    /// has changed before it slept.
    fn has_ended(self) -> bool {
        let waits = matches!(
            self.operation & libc::FUTEX_CMD_MASK,
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET
        );
        let mut value = [0; 4];
        let memory = File::open("/proc/self/mem");
        let read = memory.and_then(|memory| memory.read_exact_at(&mut value, self.address));
        waits && read.is_ok() && u32::from_ne_bytes(value) != self.value
    }
}

/// Returns whether a thread does anything but wait for another thread of this process. A thread that
/// was woken, or whose lock is free, is running. A thread of which the system shows no state counts as
/// waiting.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
    use std::{ptr, thread};

    use super::{FutexCall, is_running};
    use crate::flags::Flags;
    use crate::instance::Instance;

    /// The value of a lock that is held, with waiters.
    const HELD: u32 = 2;

    fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
        // SAFETY: the futex outlives the call, and no time limit is passed.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                ptr::null::<libc::timespec>(),
            );
        }
    }

    /// packetdrill's main thread reads the clock while it holds its lock, releases it, and sleeps in
    /// virtual time, which takes no real time. A thread whose call has returned waits for the lock to
    /// store the result: time must not pass before it has.
    #[test]
    fn time_waits_for_a_thread_whose_lock_is_free() {
        if std::fs::metadata("/proc/thread-self/syscall").is_err() {
            println!("skipped: the system does not show the system calls of threads");
            return;
        }
        let flags = Flags::parse("local=192.168.0.1").unwrap();
        let instance = Instance::new(flags).unwrap();
        let (word, tid) = (AtomicU32::new(HELD), AtomicI32::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                instance.run_call(|_| ());
                instance.on_clock_read();
                // SAFETY: a system call without arguments.
                tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                while word.load(Ordering::SeqCst) == HELD {
                    futex(&word, libc::FUTEX_WAIT, HELD);
                }
            });
            while tid.load(Ordering::SeqCst) == 0 || is_running(tid.load(Ordering::SeqCst)) {
                thread::yield_now();
            }
            let is_busy_with_lock = instance.has_busy_threads();
            // The lock is free, and the waiting thread has not been woken yet.
            word.store(0, Ordering::SeqCst);
            let is_busy_without_lock = instance.has_busy_threads();
            futex(&word, libc::FUTEX_WAKE, 1);
            assert!(!is_busy_with_lock && is_busy_without_lock);
        });
    }

    #[test]
    fn a_futex_call_has_its_first_three_arguments() {
        let line = format!(
            "{} 0x7f01 0x189 0xffffffff00000002 0x0 0x0 0x0 0x7f02 0x7f03",
            libc::SYS_futex
        );
        let call = FutexCall {
            address: 0x7f01,
            operation: 0x189,
            value: 2,
        };
        assert_eq!(FutexCall::parse(&line), Some(call));
        for other in ["running", "-1 0x7f01 0x7f02", "", "202 0x7f01"] {
            assert_eq!(FutexCall::parse(other), None, "{other}");
        }
    }
}
