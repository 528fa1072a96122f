//! Stacks whose packets the program carries through callbacks.

use std::ffi::{c_int, c_void};

use fullsend_blocking::Clock;
use fullsend_offload::Packet;
use libc::iovec;

/// `struct fs_callbacks`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FsCallbacks {
    context: *mut c_void,
    pub(super) output: Option<unsafe extern "C" fn(*mut c_void, *const iovec, c_int)>,
    now: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
}

// SAFETY: the header requires that the functions may be called with the context on any thread that
// calls the stack.
unsafe impl Send for FsCallbacks {}
// SAFETY: as above, and `output` is called on one thread at a time.
unsafe impl Sync for FsCallbacks {}

impl FsCallbacks {
    /// Returns the program's clock, or one that fs_stack_poll sets.
    pub(super) fn clock(self) -> Clock {
        match self.now {
            None => Clock::manual(),
            Some(now) => {
                let callbacks = self;
                Clock::from_fn(move || {
                    let context = callbacks.context();
                    // SAFETY: calls the program's function with the program's context.
                    unsafe { now(context) }
                })
            }
        }
    }

    fn context(&self) -> *mut c_void {
        self.context
    }

    /// Returns a function that passes a packet to the program.
    pub(super) fn output(self) -> impl Fn(&Packet) + Send + Sync + 'static {
        move |packet| {
            let pieces = packet.slices().map(|piece| iovec {
                iov_base: piece.as_ptr().cast_mut().cast(),
                iov_len: piece.len(),
            });
            let pieces: Vec<iovec> = pieces.collect();
            if let Some(output) = self.output {
                let (start, count) = (pieces.as_ptr(), pieces.len() as c_int);
                // SAFETY: calls the program's function with the program's context; the pieces and
                // the memory they point to live until it returns.
                unsafe { output(self.context(), start, count) };
            }
        }
    }
}
