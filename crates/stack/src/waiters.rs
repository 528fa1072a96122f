//! Who waits for something of a connection.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Waker;

/// What a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Something to read.
    Read,
    /// Room to write.
    Write,
    /// Everything acknowledged.
    Flush,
}

/// Wakers of the tasks that wait. One reader and one writer, as a rule: that case costs no
/// allocation. Each is woken once; one that gave up meanwhile is woken for nothing.
#[derive(Default, Debug)]
pub(crate) struct Waiters {
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Further ones, by [`Wait`].
    more: Option<Box<[Vec<Waker>; 3]>>,
}

impl Waiters {
    #[inline]
    fn first(&mut self, what: Wait) -> Option<&mut Option<Waker>> {
        match what {
            Wait::Read => Some(&mut self.reader),
            Wait::Write => Some(&mut self.writer),
            Wait::Flush => None,
        }
    }

    /// Adds a waker, without a clone if it is there already.
    #[inline]
    pub(crate) fn register(&mut self, what: Wait, waker: &Waker) {
        match self.first(what) {
            Some(slot @ None) => *slot = Some(waker.clone()),
            Some(Some(known)) if known.will_wake(waker) => {}
            _ => self.register_another(what, waker),
        }
    }

    #[cold]
    fn register_another(&mut self, what: Wait, waker: &Waker) {
        let list = &mut self.more.get_or_insert_default()[what as usize];
        if !list.iter().any(|known| known.will_wake(waker)) {
            list.push(waker.clone());
        }
    }

    /// Moves those who wait for `what` to `out`.
    #[inline]
    pub(crate) fn wake(&mut self, what: Wait, out: &mut Vec<Waker>) {
        if let Some(slot) = self.first(what) {
            out.extend(slot.take());
        }
        if let Some(more) = &mut self.more {
            out.append(&mut more[what as usize]);
            if more.iter().all(Vec::is_empty) {
                self.more = None;
            }
        }
    }

    /// Somebody waits for a flush.
    #[inline]
    pub(crate) fn any_flush(&self) -> bool {
        let list = self.more.as_ref();
        list.is_some_and(|more| !more[Wait::Flush as usize].is_empty())
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use alloc::vec::Vec;
    use core::task::Waker;

    use super::{Wait, Waiters};

    struct Nothing;
    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn everybody_is_woken_for_what_they_wait_for_and_nobody_twice() {
        let tasks: [Waker; 3] = core::array::from_fn(|_| Waker::from(Arc::new(Nothing)));
        let mut waiters = Waiters::default();
        for what in [Wait::Read, Wait::Write, Wait::Flush] {
            for i in [0, 0, 1, 2, 1, 0] {
                waiters.register(what, &tasks[i]);
            }
        }
        for what in [Wait::Flush, Wait::Read, Wait::Write] {
            assert_eq!(waiters.any_flush(), what == Wait::Flush);
            let mut out = Vec::new();
            waiters.wake(what, &mut out);
            assert_eq!(out.len(), 3);
            assert!(tasks.iter().all(|t| out.iter().any(|w| w.will_wake(t))));
            waiters.wake(what, &mut out);
            assert_eq!(out.len(), 3);
        }
        assert!(waiters.more.is_none());
    }
}
