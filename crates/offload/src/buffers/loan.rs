//! Memory that an application lends until it is no longer read.

use crate::{Chain, Pool, Slice};

/// Memory that its owner lends for as long as a [`Slice`] refers to it ([`Slice::lend`]).
///
/// The last slice drops its reference to the loan, on any thread. Queues, devices and readers on
/// the same host all hold slices, so that nothing reads a loan after it was dropped. A state in one
/// place, such as the acknowledged part of a stream, does not imply that.
pub trait Loan: Send + Sync {
    /// Returns the memory: the same bytes at every call, but not always at the same address.
    ///
    /// An owner may replace the memory by a copy while slices refer to the loan, and free it when
    /// no call of this function can be in progress. Slices therefore call this at each use, and
    /// never keep the address.
    fn bytes(&self) -> &[u8];

    /// Reports that a receiver on this host got a copy of a part instead of a reference.
    fn on_copied(&self);
}

impl Chain {
    /// Returns whether a slice of the chain is on loan.
    #[inline]
    pub fn has_loans(&self) -> bool {
        self.slices().iter().any(Slice::is_loan)
    }

    /// Replaces lent memory with copies from `pool`, so that a slow receiver does not keep the
    /// lender waiting. Returns `false`, and leaves the chain empty, if the allocator fails.
    #[must_use]
    pub fn copy_loans(&mut self, pool: &Pool) -> bool {
        let mut owned = Self::new();
        for slice in core::mem::take(self) {
            let Some(loan) = slice.loan() else {
                owned.push(slice);
                continue;
            };
            let mut data = &slice[..];
            while !data.is_empty() {
                let Some(mut buf) = pool.try_alloc_from_reserve(data.len()) else {
                    return false;
                };
                data = &data[buf.write(data)..];
                owned.push(buf.freeze());
            }
            loan.on_copied();
        }
        *self = owned;
        true
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::Loan;
    use crate::{Chain, Pool, Slice};

    #[derive(Default)]
    struct LoanCounts {
        returned: AtomicUsize,
        copied: AtomicUsize,
    }

    struct TestLoan(vec::Vec<u8>, Arc<LoanCounts>);

    impl Loan for TestLoan {
        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn on_copied(&self) {
            self.1.copied.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Drop for TestLoan {
        fn drop(&mut self) {
            self.1.returned.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lend(len: usize) -> (Slice, Arc<LoanCounts>) {
        let counters = Arc::<LoanCounts>::default();
        let data = (0..len).map(|i| (i % 251) as u8).collect();
        (
            Slice::lend(Arc::new(TestLoan(data, counters.clone()))),
            counters,
        )
    }

    fn counts(counters: &LoanCounts) -> (usize, usize) {
        let of = |n: &AtomicUsize| n.load(Ordering::Relaxed);
        (of(&counters.returned), of(&counters.copied))
    }

    #[test]
    fn a_loan_returns_with_the_last_reference() {
        let (mut whole, counters) = lend(1000);
        let head = whole.split_to(10);
        let part = whole.slice(5..20);
        drop(whole);
        drop(head);
        assert_eq!(counts(&counters), (0, 0));
        assert_eq!(part[0], 15);
        drop(part);
        assert_eq!(counts(&counters), (1, 0));
    }

    #[test]
    fn bytes_of_a_loan_are_a_copy() {
        let (lent, counters) = lend(1000);
        let address = lent[5..].as_ptr();
        let bytes = lent.slice(5..20).into_bytes();
        assert_ne!(bytes.as_ptr(), address);
        drop(lent);
        assert_eq!(counts(&counters), (1, 1));
        assert_eq!(bytes[0], 5);
    }

    #[test]
    fn copying_a_chain_returns_its_loans_and_leaves_other_memory_alone() {
        let pool = Pool::new(1 << 20);
        let (lent, counters) = lend(300_000);
        let own = Slice::copied_from(b"own");
        let memory = own.as_ptr();
        let mut chain: Chain = [own, lent.slice(1..300_000)].into_iter().collect();
        assert!(chain.has_loans());
        let expected = chain.clone();
        assert!(chain.copy_loans(&pool));
        assert!(!chain.has_loans());
        assert_eq!(chain, expected);
        assert_eq!(chain.slices()[0].as_ptr(), memory);
        drop((expected, lent));
        assert_eq!(counts(&counters), (1, 1));
    }
}
