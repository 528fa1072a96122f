//! A stack whose packets the program carries.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fullsend_blocking::{Clock, Outbox};
use libc::iovec;

/// `struct fs_callbacks`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FsCallbacks {
    context: *mut c_void,
    pub(super) output: Option<unsafe extern "C" fn(*mut c_void, *const iovec, c_int)>,
    now: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
}

// SAFETY: the header says that the functions may be called from any thread that calls the stack,
// with that context.
unsafe impl Send for FsCallbacks {}
// SAFETY: as above; output is never called twice at once.
unsafe impl Sync for FsCallbacks {}

impl FsCallbacks {
    /// The program's clock, or one that fs_stack_poll sets.
    pub(super) fn clock(self) -> Clock {
        match self.now {
            None => Clock::manual(),
            Some(now) => {
                let all = self;
                Clock::asked(move || {
                    let context = all.context();
                    // SAFETY: the program's function with the program's context.
                    unsafe { now(context) }
                })
            }
        }
    }

    fn context(&self) -> *mut c_void {
        self.context
    }

    /// Gives each packet in the outbox to the program; one thread at a time does, so that they
    /// keep their order.
    pub(super) fn carrier(self, outbox: Outbox) -> impl Fn() -> bool + Send + Sync + 'static {
        let busy = Arc::new(AtomicBool::new(false));
        move || {
            if busy.swap(true, Ordering::AcqRel) {
                return false;
            }
            while let Some((_, packet)) = outbox.take() {
                let pieces = packet.slices().map(|piece| iovec {
                    iov_base: piece.as_ptr().cast_mut().cast(),
                    iov_len: piece.len(),
                });
                let pieces: Vec<iovec> = pieces.collect();
                if let Some(output) = self.output {
                    let (start, count) = (pieces.as_ptr(), pieces.len() as c_int);
                    // SAFETY: the program's function with the program's context; the pieces and
                    // what they point to live until it returns.
                    unsafe { output(self.context(), start, count) };
                }
            }
            busy.store(false, Ordering::Release);
            true
        }
    }
}
