//! `MSG_ZEROCOPY`: memory that C code lends until the error queue reports its completion or the
//! socket is closed.

use std::collections::BTreeMap;
use std::slice;
use std::sync::{Arc, OnceLock, Weak};

use fullsend_offload::{Loan, Slice};
use fullsend_posix::{Handle, Result};
use libc::{MSG_ZEROCOPY, SO_ZEROCOPY, SOL_SOCKET, c_int};
use parking_lot::Mutex;

use crate::stack::Stack;

/// Least number of recorded loans of one socket at which returned loans are removed.
const PRUNE_THRESHOLD: usize = 16;

/// Memory of C code; once its socket is closed, a copy of it.
struct CMemory {
    start: *const u8,
    len: usize,
    copy: OnceLock<Box<[u8]>>,
}

// SAFETY: the bytes do not change, so any thread may read them.
unsafe impl Send for CMemory {}
// SAFETY: as above.
unsafe impl Sync for CMemory {}

impl Loan for CMemory {
    fn bytes(&self) -> &[u8] {
        match self.copy.get() {
            Some(copy) => copy,
            // SAFETY: the caller of `send` guarantees the memory until its completion is reported,
            // which follows the drop of this loan, or until the socket is closed, which sets the
            // copy.
            None => unsafe { slice::from_raw_parts(self.start, self.len) },
        }
    }

    fn on_copied(&self) {}
}

/// The loans of each socket that may not have been returned.
#[derive(Default)]
pub(crate) struct SocketLoans(Mutex<BTreeMap<Handle, Vec<Weak<CMemory>>>>);

impl SocketLoans {
    fn add(&self, handle: Handle, lent: &Arc<CMemory>) {
        let mut all = self.0.lock();
        let loans = all.entry(handle).or_default();
        if loans.len() >= PRUNE_THRESHOLD && loans.len() == loans.capacity() {
            loans.retain(|loan| loan.strong_count() > 0);
            loans.reserve(loans.len().max(PRUNE_THRESHOLD));
        }
        loans.push(Arc::downgrade(lent));
    }

    /// Removes the loan of a call that failed: if the socket was closed before the call, nothing
    /// else would remove it.
    fn remove(&self, handle: Handle, lent: &Weak<CMemory>) {
        let mut all = self.0.lock();
        if let Some(loans) = all.get_mut(&handle) {
            loans.retain(|loan| !loan.ptr_eq(lent));
            if loans.is_empty() {
                all.remove(&handle);
            }
        }
    }

    /// Copies the memory that a socket still has on loan, which ends the loans. Returns whether
    /// there were any.
    ///
    /// Must be called under the stack's lock. All readers of packets hold it, except for the
    /// thread that drains a user-driven stack's outbox: the caller must wait until that thread has
    /// passed on its current packet.
    pub(crate) fn copy_all(&self, handle: Handle) -> bool {
        let loans = self.0.lock().remove(&handle).unwrap_or_default();
        let mut copied = false;
        for lent in loans.into_iter().filter_map(|loan| loan.upgrade()) {
            let copy = lent.bytes().into();
            // Set only once, as a socket is closed only once.
            let _ = lent.copy.set(copy);
            copied = true;
        }
        copied
    }
}

/// Returns whether the call lends its memory: it is one piece, and the socket has `SO_ZEROCOPY`.
pub(super) fn is_zerocopy(stack: &Stack, handle: Handle, pieces: &[&[u8]], flags: c_int) -> bool {
    if stack.copies_zerocopy
        || flags & MSG_ZEROCOPY == 0
        || pieces.len() != 1
        || pieces[0].is_empty()
    {
        return false;
    }
    let mut on = [0; 4];
    let got = stack.getsockopt(handle, SOL_SOCKET, SO_ZEROCOPY, &mut on);
    got.is_ok() && on != [0; 4]
}

/// Sends `piece` without a copy.
///
/// # Safety
/// The bytes must not change or be freed until the error queue has reported the call's completion,
/// the socket is closed, or the stack is gone.
pub(super) unsafe fn send(
    stack: &Stack,
    handle: Handle,
    piece: &[u8],
    flags: c_int,
) -> Result<usize> {
    let lent = Arc::new(CMemory {
        start: piece.as_ptr(),
        len: piece.len(),
        copy: OnceLock::new(),
    });
    stack.loans.add(handle, &lent);
    // A strong reference would outlive the completion, and closing the socket could then copy
    // memory that has been returned to C.
    let loan = Arc::downgrade(&lent);
    let sent = stack.send_lent(handle, &Slice::lend(lent), flags);
    if sent.is_err() {
        stack.loans.remove(handle, &loan);
    }
    sent
}

#[cfg(test)]
mod tests {
    use fullsend_posix::Errno;
    use fullsend_posix::abi::{AF_INET, SO_LINGER, SOCK_STREAM};

    use super::*;
    use crate::{Clock, Config, UserDrivenOptions};

    fn stack() -> Stack {
        let config = Config::parse("address=10.0.0.1/24,seed=1").unwrap();
        Stack::user_driven(&config, Clock::manual(), UserDrivenOptions::default()).unwrap()
    }

    #[test]
    fn close_on_an_ended_stack_closes_and_ends_loans() {
        for linger in [false, true] {
            let stack = stack();
            let socket = stack.socket(AF_INET, SOCK_STREAM, 0).unwrap();
            if linger {
                let value = [1i32.to_ne_bytes(), 5i32.to_ne_bytes()].concat();
                let set = stack.setsockopt(socket, SOL_SOCKET, SO_LINGER, &value);
                set.unwrap();
            }
            let memory = b"lent".to_vec();
            let lent = Arc::new(CMemory {
                start: memory.as_ptr(),
                len: memory.len(),
                copy: OnceLock::new(),
            });
            stack.loans.add(socket, &lent);
            stack.end(Errno(libc::ENETDOWN));
            assert_eq!(stack.close(socket), Err(Errno(libc::ENETDOWN)));
            drop(memory);
            assert_eq!(lent.copy.get().map(|copy| &copy[..]), Some(&b"lent"[..]));
            let (mut shard, now) = stack.shared.lock();
            assert_eq!(shard.posix.close(now, socket), Err(Errno::EBADF));
        }
    }

    #[test]
    fn a_failed_call_leaves_no_loan() {
        let stack = stack();
        let socket = stack.socket(AF_INET, SOCK_STREAM, 0).unwrap();
        stack.close(socket).unwrap();
        // SAFETY: the memory is static.
        let sent = unsafe { send(&stack, socket, b"lent", MSG_ZEROCOPY) };
        assert_eq!(sent, Err(Errno::EBADF));
        assert!(stack.loans.0.lock().is_empty());
    }
}
