//! Memory that calls with `MSG_ZEROCOPY` lend, and its way back to the error queue.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::{AtomicBool, Ordering};

use fullsend_buf::{Loan, Slice};
use spin::Mutex;

use crate::Handle;
use crate::wake::{Key, WakeQueue};

/// A loan that was returned: the number of its call, and whether a receiver got a copy.
pub(super) type Returned = (u32, bool);

/// The returned loans of one socket that its error queue does not hold yet. Loans outlive the socket
/// and return on any thread that drops a packet.
#[derive(Debug)]
struct Ledger {
    returned: Mutex<Vec<Returned>>,
    wakes: Arc<WakeQueue>,
    handle: Handle,
}

/// What one call lent.
#[derive(Debug)]
pub(super) struct LentCall {
    data: Slice,
    number: u32,
    /// Not all of the memory reached its receiver as a reference.
    copied: AtomicBool,
    /// The call took nothing.
    is_void: AtomicBool,
    ledger: Arc<Ledger>,
}

/// A call with `MSG_ZEROCOPY` that copies and takes several calls of
/// [`Posix::sendmsg_in_parts`](crate::Posix::sendmsg_in_parts). Its completion is queued when this is
/// dropped.
#[derive(Debug)]
pub struct CopiedCall {
    _call: Arc<LentCall>,
}

impl LentCall {
    /// The call took nothing of the memory: its end is no return.
    pub(super) fn void(&self) {
        self.is_void.store(true, Ordering::Relaxed);
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
        // The owner of the memory goes first: a completion must not overtake it.
        drop(mem::take(&mut self.data));
        if *self.is_void.get_mut() {
            return;
        }
        let ledger = &self.ledger;
        let returned = (self.number, *self.copied.get_mut());
        ledger.returned.lock().push(returned);
        ledger.wakes.push(ledger.handle, Key::Any);
    }
}

/// The loans of one socket.
#[derive(Debug, Default)]
pub(super) struct Loans {
    ledger: Option<Arc<Ledger>>,
    /// Calls whose memory has not been returned.
    outstanding: usize,
}

impl Loans {
    pub(super) const fn new() -> Self {
        Self {
            ledger: None,
            outstanding: 0,
        }
    }

    /// Calls whose memory has not been returned, as far as [`take`](Self::take) has seen.
    pub(super) const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Wraps the memory of call `number`. Its return wakes `handle`.
    pub(super) fn begin(
        &mut self,
        data: Slice,
        number: u32,
        (wakes, handle): (&Arc<WakeQueue>, Handle),
    ) -> Arc<LentCall> {
        let ledger = self.ledger.get_or_insert_with(|| {
            Arc::new(Ledger {
                returned: Mutex::default(),
                wakes: wakes.clone(),
                handle,
            })
        });
        Arc::new(LentCall {
            data,
            number,
            copied: AtomicBool::new(false),
            is_void: AtomicBool::new(false),
            ledger: ledger.clone(),
        })
    }

    /// Counts a call that copies its memory, and queues its completion when the returned value is
    /// dropped.
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

    /// Counts a call that took at least a part of its memory.
    pub(super) fn commit(&mut self) {
        self.outstanding += 1;
    }

    /// Returns whether [`take`](Self::take) would give something.
    pub(super) fn has_returned(&self) -> bool {
        let ledger = self.ledger.as_ref();
        ledger.is_some_and(|ledger| !ledger.returned.lock().is_empty())
    }

    /// Takes the loans returned since the last call, in the order of their return.
    pub(super) fn take(&mut self) -> Vec<Returned> {
        let Some(ledger) = &self.ledger else {
            return Vec::new();
        };
        let returned = mem::take(&mut *ledger.returned.lock());
        self.outstanding = self.outstanding.saturating_sub(returned.len());
        returned
    }
}
