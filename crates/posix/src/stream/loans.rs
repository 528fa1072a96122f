//! Memory lent by calls with `MSG_ZEROCOPY`, and its return to the error queue.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::{AtomicBool, Ordering};

use fullsend_offload::{Loan, Mutex, Slice};

use crate::Handle;
use crate::wake::{WakeKey, WakeQueue};

/// A returned loan: the number of its call, and whether the data was copied.
pub(super) type ReturnedLoan = (u32, bool);

/// Returned loans of one socket that are not in its error queue yet. Loans can outlive the socket
/// and return on any thread that drops a packet.
#[derive(Debug)]
struct ReturnedLoans {
    returned: Mutex<Vec<ReturnedLoan>>,
    wakes: Arc<WakeQueue>,
    handle: Handle,
}

/// The memory lent by one call.
#[derive(Debug)]
pub(super) struct LentCall {
    data: Slice,
    number: u32,
    /// Whether a part of the memory was copied on its way to the receiver.
    copied: AtomicBool,
    /// Whether the call accepted no bytes.
    is_cancelled: AtomicBool,
    returned_loans: Arc<ReturnedLoans>,
}

/// A copying call with `MSG_ZEROCOPY` that takes several calls of
/// [`Posix::sendmsg_in_parts`](crate::Posix::sendmsg_in_parts). Dropping it queues its completion.
#[derive(Debug)]
pub struct CopiedCall {
    _call: Arc<LentCall>,
}

impl LentCall {
    /// Records that the call accepted no bytes, so that dropping this value returns no loan.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
}

impl Loan for LentCall {
    fn bytes(&self) -> &[u8] {
        &self.data
    }

    fn on_copied(&self) {
        self.copied.store(true, Ordering::Relaxed);
    }
}

impl Drop for LentCall {
    fn drop(&mut self) {
        // The memory is dropped before its completion is reported.
        drop(mem::take(&mut self.data));
        if *self.is_cancelled.get_mut() {
            return;
        }
        let returned_loans = &self.returned_loans;
        let returned = (self.number, *self.copied.get_mut());
        returned_loans.returned.lock().push(returned);
        returned_loans
            .wakes
            .push(returned_loans.handle, WakeKey::Any);
    }
}

/// The loans of one socket.
#[derive(Debug, Default)]
pub(super) struct Loans {
    returned_loans: Option<Arc<ReturnedLoans>>,
    /// Number of calls whose memory has not been returned.
    outstanding: usize,
}

impl Loans {
    pub(super) const fn new() -> Self {
        Self {
            returned_loans: None,
            outstanding: 0,
        }
    }

    /// Returns the number of calls whose memory had not been returned at the last
    /// [`take`](Self::take).
    pub(super) const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Wraps the memory of call `number`. Its return wakes the handle.
    pub(super) fn begin(
        &mut self,
        data: Slice,
        number: u32,
        (wakes, handle): (&Arc<WakeQueue>, Handle),
    ) -> Arc<LentCall> {
        let returned_loans = self.returned_loans.get_or_insert_with(|| {
            Arc::new(ReturnedLoans {
                returned: Mutex::default(),
                wakes: wakes.clone(),
                handle,
            })
        });
        Arc::new(LentCall {
            data,
            number,
            copied: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            returned_loans: returned_loans.clone(),
        })
    }

    /// Counts a call that copies its memory. Dropping the returned value queues its completion.
    pub(super) fn begin_copied(
        &mut self,
        number: u32,
        wake: (&Arc<WakeQueue>, Handle),
    ) -> CopiedCall {
        let call = self.begin(Slice::default(), number, wake);
        call.on_copied();
        self.commit();
        CopiedCall { _call: call }
    }

    /// Counts a call that accepted at least a part of its memory.
    pub(super) fn commit(&mut self) {
        self.outstanding += 1;
    }

    /// Returns whether [`take`](Self::take) would return a loan.
    pub(super) fn has_returned(&self) -> bool {
        let returned_loans = self.returned_loans.as_ref();
        returned_loans.is_some_and(|returned_loans| !returned_loans.returned.lock().is_empty())
    }

    /// Takes the loans returned since the last call, in the order of their return.
    pub(super) fn take(&mut self) -> Vec<ReturnedLoan> {
        let Some(returned_loans) = &self.returned_loans else {
            return Vec::new();
        };
        let returned = mem::take(&mut *returned_loans.returned.lock());
        self.outstanding = self.outstanding.saturating_sub(returned.len());
        returned
    }
}
