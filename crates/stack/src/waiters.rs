//! Who waits for something of a socket.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Waker;

/// Wakers of the tasks that wait for one thing. Nobody or one task, as a rule: that case costs no
/// allocation. Each is woken once; one that gave up meanwhile is woken for nothing.
#[derive(Default, Debug)]
pub(crate) struct Waiters {
    first: Option<Waker>,
    #[expect(
        clippy::box_collection,
        reason = "eight bytes where nearly always nothing is"
    )]
    more: Option<Box<Vec<Waker>>>,
}

impl Waiters {
    /// Adds a waker, without a clone if it is there already.
    #[inline]
    pub(crate) fn register(&mut self, waker: &Waker) {
        match &self.first {
            None => self.first = Some(waker.clone()),
            Some(known) if known.will_wake(waker) => {}
            Some(_) => self.register_another(waker),
        }
    }

    #[cold]
    fn register_another(&mut self, waker: &Waker) {
        let more = self.more.get_or_insert_default();
        if !more.iter().any(|known| known.will_wake(waker)) {
            more.push(waker.clone());
        }
    }

    /// Moves all of them to `out`.
    #[inline]
    pub(crate) fn wake(&mut self, out: &mut Vec<Waker>) {
        if let Some(first) = self.first.take() {
            out.push(first);
            if let Some(more) = self.more.take() {
                out.extend(*more);
            }
        }
    }

    /// Nobody waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use alloc::vec::Vec;
    use core::task::Waker;

    use super::Waiters;

    struct Nothing;
    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn everybody_is_woken_and_nobody_twice() {
        let tasks: [Waker; 3] = core::array::from_fn(|_| Waker::from(Arc::new(Nothing)));
        let mut waiters = Waiters::default();
        for i in [0, 0, 1, 2, 1, 0] {
            waiters.register(&tasks[i]);
        }
        let mut out = Vec::new();
        waiters.wake(&mut out);
        assert!(waiters.is_empty());
        assert_eq!(out.len(), 3);
        assert!(tasks.iter().all(|t| out.iter().any(|w| w.will_wake(t))));
        waiters.wake(&mut out);
        assert_eq!(out.len(), 3);
    }
}
