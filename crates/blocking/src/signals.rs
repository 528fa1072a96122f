//! Signals are the program's: none is delivered to a thread of ours.

/// Blocks all signals for this thread.
#[allow(unsafe_code, reason = "std has no signal masks")]
pub(crate) fn block_all() {
    // SAFETY: a set on our own stack, filled before it is used; the old mask is not asked for.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}
