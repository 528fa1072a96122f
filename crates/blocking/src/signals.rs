//! Signal masks: the program's signals are never delivered to a thread of the stack.

/// Blocks all signals for the calling thread.
#[allow(unsafe_code, reason = "std has no signal masks")]
pub(crate) fn block_all() {
    // SAFETY: the set is a local that is filled before its use; the null pointer discards the old
    // mask.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}
