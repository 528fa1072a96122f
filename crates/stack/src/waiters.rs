//! Lists of tasks that wait for an event of a socket.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Waker;

/// The event that a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Data to read.
    Read,
    /// Space in the send buffer.
    Write,
    /// The acknowledgement of all written data.
    Flush,
}

/// A future's entry in a [`WaitList`]. The future keeps it from poll to poll and passes it to
/// [`Host::stop_waiting`](crate::Host::stop_waiting) when it is dropped.
#[derive(Default, Debug)]
pub struct WaitKey(Option<Place>);

impl WaitKey {
    /// Returns whether the future may have an entry in a list.
    #[inline]
    pub const fn is_set(&self) -> bool {
        self.0.is_some()
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    slot: u32,
    /// The list's round when the entry was made; entries of earlier rounds have been woken.
    round: u32,
}

/// The slot number that stands for `WaitList::first`.
const FIRST: u32 = u32::MAX;

/// A waiting task, with the key by which it can stop waiting.
#[derive(Debug)]
pub struct Waiter<'a> {
    waker: &'a Waker,
    key: Option<&'a mut WaitKey>,
}

impl<'a> Waiter<'a> {
    /// Returns a waiter for a future that waits under `key`; any number of futures can wait. A
    /// dropped future must take its waker back with
    /// [`Host::stop_waiting`](crate::Host::stop_waiting).
    #[inline]
    pub const fn future(waker: &'a Waker, key: &'a mut WaitKey) -> Self {
        Self {
            waker,
            key: Some(key),
        }
    }

    /// Returns a waiter for the caller of a poll function. Only the last such caller is woken, as
    /// nothing reports when an earlier one has given up.
    #[inline]
    pub const fn polled(waker: &'a Waker) -> Self {
        Self { waker, key: None }
    }
}

impl<'a> From<&'a Waker> for Waiter<'a> {
    #[inline]
    fn from(waker: &'a Waker) -> Self {
        Self::polled(waker)
    }
}

/// The wakers of the tasks that wait for one event. Adding, removing and waking a task take
/// constant time, however many there are. A single task needs no allocation.
#[derive(Default, Debug)]
pub struct WaitList {
    first: Option<Waker>,
    more: Option<Box<More>>,
    round: u32,
    /// Whether `first` belongs to a future.
    first_has_key: bool,
}

/// The tasks other than the first.
#[derive(Default, Debug)]
struct More {
    polled: Option<Waker>,
    futures: Vec<Option<Waker>>,
    free: Vec<u32>,
}

impl More {
    fn is_empty(&self) -> bool {
        self.polled.is_none() && self.futures.len() == self.free.len()
    }
}

/// Stores `waker` in `slot` unless it is there already. A replaced waker moves to `spent`.
#[inline]
fn put(slot: &mut Option<Waker>, waker: &Waker, spent: &mut Vec<Waker>) {
    if !slot.as_ref().is_some_and(|known| known.will_wake(waker)) {
        spent.extend(slot.replace(waker.clone()));
    }
}

impl WaitList {
    /// Returns whether no task waits.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.is_none()
    }

    /// Adds a task, or updates its waker. Replaced wakers move to `spent`. Drop them without
    /// holding any lock, as the last reference to a task may drop its sockets.
    #[inline]
    pub fn register(&mut self, waiter: Waiter<'_>, spent: &mut Vec<Waker>) {
        let Waiter { waker, key } = waiter;
        match key {
            None if self.first.is_none() || !self.first_has_key => {
                put(&mut self.first, waker, spent);
                self.first_has_key = false;
                // An earlier caller may have polled while a future was first.
                if let Some(more) = &mut self.more {
                    spent.extend(more.polled.take());
                    if more.is_empty() {
                        self.more = None;
                    }
                }
            }
            None => put(&mut self.more.get_or_insert_default().polled, waker, spent),
            Some(key) => self.register_future(waker, key, spent),
        }
    }

    fn register_future(&mut self, waker: &Waker, key: &mut WaitKey, spent: &mut Vec<Waker>) {
        if let Some(slot) = self.slot_of(key) {
            return put(slot, waker, spent);
        }
        let slot = if self.first.is_none() {
            self.first = Some(waker.clone());
            self.first_has_key = true;
            FIRST
        } else {
            let more = self.more.get_or_insert_default();
            if let Some(slot) = more.free.pop() {
                more.futures[slot as usize] = Some(waker.clone());
                slot
            } else {
                more.futures.push(Some(waker.clone()));
                more.futures.len() as u32 - 1
            }
        };
        let round = self.round;
        key.0 = Some(Place { slot, round });
    }

    /// Returns the entry of a future that has not been woken.
    fn slot_of(&mut self, key: &WaitKey) -> Option<&mut Option<Waker>> {
        let place = key.0.filter(|place| place.round == self.round)?;
        if place.slot == FIRST {
            return Some(&mut self.first);
        }
        self.more.as_mut()?.futures.get_mut(place.slot as usize)
    }

    /// Removes a future or, without a key, the caller that polled. Returns its waker unless it has
    /// been woken; drop it without holding any lock.
    pub fn remove(&mut self, key: Option<&mut WaitKey>) -> Option<Waker> {
        let Some(key) = key else {
            return match &mut self.more {
                _ if !self.first_has_key => self.first.take(),
                Some(more) => more.polled.take(),
                None => None,
            };
        };
        let waker = self.slot_of(key).and_then(Option::take);
        let place = key.0.take()?;
        if waker.is_some()
            && place.slot != FIRST
            && let Some(more) = &mut self.more
        {
            more.free.push(place.slot);
            if more.is_empty() {
                self.more = None;
            }
        }
        waker
    }

    /// Moves all wakers to `out`.
    #[inline]
    pub fn wake(&mut self, out: &mut Vec<Waker>) {
        if self.is_empty() {
            return;
        }
        out.extend(self.first.take());
        self.round = self.round.wrapping_add(1);
        if let Some(more) = self.more.take() {
            out.extend(more.polled);
            out.extend(more.futures.into_iter().flatten());
        }
    }
}

/// The wakers of the tasks that wait for events of one connection. Each is woken once.
#[derive(Default, Debug)]
pub(crate) struct Waiters {
    reader: WaitList,
    writer: WaitList,
    flush: Option<Box<WaitList>>,
}

impl Waiters {
    #[inline]
    fn list(&mut self, what: Wait) -> &mut WaitList {
        match what {
            Wait::Read => &mut self.reader,
            Wait::Write => &mut self.writer,
            Wait::Flush => self.flush.get_or_insert_default(),
        }
    }

    /// Adds a task; see [`WaitList::register`].
    #[inline]
    pub(crate) fn register(&mut self, what: Wait, waiter: Waiter<'_>, spent: &mut Vec<Waker>) {
        self.list(what).register(waiter, spent);
    }

    /// Removes a task; see [`WaitList::remove`].
    pub(crate) fn remove(&mut self, what: Wait, key: Option<&mut WaitKey>) -> Option<Waker> {
        self.list(what).remove(key)
    }

    /// Moves the wakers of the tasks that wait for `what` to `out`.
    #[inline]
    pub(crate) fn wake(&mut self, what: Wait, out: &mut Vec<Waker>) {
        match what {
            Wait::Read => self.reader.wake(out),
            Wait::Write => self.writer.wake(out),
            Wait::Flush => {
                if let Some(list) = &mut self.flush {
                    list.wake(out);
                }
            }
        }
    }

    /// Moves the wakers of all tasks to `spent` without waking them.
    pub(crate) fn clear(&mut self, spent: &mut Vec<Waker>) {
        for what in [Wait::Read, Wait::Write, Wait::Flush] {
            self.wake(what, spent);
        }
    }

    /// Returns whether a task waits for a flush.
    #[inline]
    pub(crate) fn any_flush(&self) -> bool {
        self.flush.as_ref().is_some_and(|list| !list.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use alloc::vec::Vec;
    use core::task::Waker;

    use super::{Wait, WaitKey, WaitList, Waiter, Waiters};

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    fn task() -> (Arc<Task>, Waker) {
        let task = Arc::new(Task);
        (task.clone(), Waker::from(task))
    }

    /// Returns the number of references to a task besides the test's own two.
    fn held(task: &Arc<Task>) -> usize {
        Arc::strong_count(task) - 2
    }

    #[test]
    fn every_future_is_woken_for_what_it_waits_for_and_none_twice() {
        let tasks: [_; 3] = core::array::from_fn(|_| task());
        let mut keys: [WaitKey; 9] = Default::default();
        let mut waiters = Waiters::default();
        let mut spent = Vec::new();
        let kinds = [Wait::Read, Wait::Write, Wait::Flush];
        for (k, what) in kinds.into_iter().enumerate() {
            for i in [0, 0, 1, 2, 1, 0] {
                let waiter = Waiter::future(&tasks[i].1, &mut keys[3 * k + i]);
                waiters.register(what, waiter, &mut spent);
            }
        }
        for what in [Wait::Flush, Wait::Read, Wait::Write] {
            assert_eq!(waiters.any_flush(), what == Wait::Flush);
            let mut out = Vec::new();
            waiters.wake(what, &mut out);
            assert_eq!(out.len(), 3);
            assert!(tasks.iter().all(|t| out.iter().any(|w| w.will_wake(&t.1))));
            waiters.wake(what, &mut out);
            assert_eq!(out.len(), 3);
        }
        assert!(spent.is_empty());
        assert!(tasks.iter().all(|(task, _)| held(task) == 0));
    }

    #[test]
    fn a_future_that_leaves_takes_its_waker_along_and_no_other() {
        let tasks: Vec<_> = (0..5).map(|_| task()).collect();
        let mut keys: Vec<_> = tasks.iter().map(|_| WaitKey::default()).collect();
        let mut list = WaitList::default();
        let mut spent = Vec::new();
        for ((_, waker), key) in tasks.iter().zip(&mut keys) {
            list.register(Waiter::future(waker, key), &mut spent);
        }
        for i in [3, 0] {
            assert!(list.remove(Some(&mut keys[i])).is_some());
            assert!(!keys[i].is_set());
            assert!(list.remove(Some(&mut keys[i])).is_none());
        }
        let all = |tasks: &[(Arc<Task>, Waker)]| -> Vec<_> {
            tasks.iter().map(|(task, _)| held(task)).collect()
        };
        assert_eq!(all(&tasks), [0, 1, 1, 0, 1]);
        // Slots are reused, and a key of an earlier round refers to none of them.
        list.register(Waiter::future(&tasks[0].1, &mut keys[0]), &mut spent);
        let mut out = Vec::new();
        list.wake(&mut out);
        assert_eq!(out.len(), 4);
        out.clear();
        list.register(Waiter::future(&tasks[3].1, &mut keys[3]), &mut spent);
        assert!(list.remove(Some(&mut keys[0])).is_none());
        assert!(list.remove(Some(&mut keys[1])).is_none());
        list.register(Waiter::future(&tasks[1].1, &mut keys[1]), &mut spent);
        assert_eq!(all(&tasks), [0, 1, 0, 1, 0]);
        assert!(list.remove(Some(&mut keys[1])).is_some());
        assert!(list.more.is_none());
        assert!(list.remove(Some(&mut keys[3])).is_some());
        assert!(list.is_empty());
    }

    #[test]
    fn of_callers_that_poll_the_last_is_woken() {
        let (first, second, third) = (task(), task(), task());
        let mut key = WaitKey::default();
        for future_first in [false, true] {
            let mut list = WaitList::default();
            let mut spent = Vec::new();
            if future_first {
                list.register(Waiter::future(&third.1, &mut key), &mut spent);
            }
            list.register(Waiter::polled(&first.1), &mut spent);
            list.register(Waiter::polled(&second.1), &mut spent);
            list.register(Waiter::polled(&second.1), &mut spent);
            assert!(spent.len() == 1 && spent[0].will_wake(&first.1));
            assert!(list.remove(None).unwrap().will_wake(&second.1));
            assert!(list.remove(None).is_none());
            list.register(Waiter::polled(&first.1), &mut spent);
            let mut out = Vec::new();
            list.wake(&mut out);
            assert_eq!(out.len(), 1 + usize::from(future_first));
        }
    }

    #[test]
    fn a_caller_that_polls_replaces_one_that_polled_beside_a_future() {
        let (first, second, future) = (task(), task(), task());
        let mut key = WaitKey::default();
        let mut list = WaitList::default();
        let mut spent = Vec::new();
        list.register(Waiter::future(&future.1, &mut key), &mut spent);
        list.register(Waiter::polled(&first.1), &mut spent);
        assert!(list.remove(Some(&mut key)).is_some());
        list.register(Waiter::polled(&second.1), &mut spent);
        assert!(spent.len() == 1 && spent[0].will_wake(&first.1));
        assert!(list.remove(None).unwrap().will_wake(&second.1));
        assert!(list.is_empty());
    }

    #[test]
    fn clearing_drops_no_waker() {
        let tasks: [_; 3] = core::array::from_fn(|_| task());
        let mut waiters = Waiters::default();
        let mut spent = Vec::new();
        for (what, (_, waker)) in [Wait::Read, Wait::Write, Wait::Flush]
            .into_iter()
            .zip(&tasks)
        {
            waiters.register(what, Waiter::polled(waker), &mut spent);
        }
        waiters.clear(&mut spent);
        assert_eq!(spent.len(), 3);
        assert!(tasks.iter().all(|(task, _)| held(task) == 1));
        assert!(!waiters.any_flush());
    }
}
