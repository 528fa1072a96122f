//! Lists of tasks that wait for an event of a socket.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Waker;

use fullsend_wire::cold_path;

/// The event that a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitEvent {
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
pub struct WaitKey(Option<ListPosition>);

impl WaitKey {
    /// Returns whether the future may have an entry in a list.
    #[inline]
    pub const fn is_set(&self) -> bool {
        self.0.is_some()
    }
}

#[derive(Clone, Copy, Debug)]
struct ListPosition {
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
    others: Option<Box<OtherWaiters>>,
    round: u32,
    /// Whether `first` belongs to a future.
    first_has_key: bool,
}

/// The tasks other than the first.
#[derive(Default, Debug)]
struct OtherWaiters {
    polled: Option<Waker>,
    futures: Vec<Option<Waker>>,
    free: Vec<u32>,
}

impl OtherWaiters {
    fn is_empty(&self) -> bool {
        self.polled.is_none() && self.futures.len() == self.free.len()
    }

    #[cold]
    fn wake(self, out: &mut Vec<Waker>) {
        out.extend(self.polled);
        out.extend(self.futures.into_iter().flatten());
    }
}

/// Stores `waker` in `slot` unless it is there already. A replaced waker moves to `replaced_wakers`.
#[inline]
fn store_waker(slot: &mut Option<Waker>, waker: &Waker, replaced_wakers: &mut Vec<Waker>) {
    match slot {
        None => *slot = Some(waker.clone()),
        Some(stored) => replace_waker(stored, waker, replaced_wakers),
    }
}

#[inline(never)]
fn replace_waker(stored: &mut Waker, waker: &Waker, replaced_wakers: &mut Vec<Waker>) {
    if !stored.will_wake(waker) {
        replaced_wakers.push(core::mem::replace(stored, waker.clone()));
    }
}

impl WaitList {
    /// Returns whether no task waits.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.first.is_none() && self.others.is_none()
    }

    /// Adds a task, or updates its waker. Replaced wakers move to `replaced_wakers`. Drop them without
    /// holding any lock, as the last reference to a task may drop its sockets.
    #[inline]
    pub fn register(&mut self, waiter: Waiter<'_>, replaced_wakers: &mut Vec<Waker>) {
        let Waiter { waker, key } = waiter;
        match key {
            None if self.first.is_none() || !self.first_has_key => {
                store_waker(&mut self.first, waker, replaced_wakers);
                self.first_has_key = false;
                // An earlier caller may have polled while a future was first.
                if self.others.is_some() {
                    self.replace_earlier_caller(replaced_wakers);
                }
            }
            None => {
                cold_path();
                let others = self.others.get_or_insert_default();
                store_waker(&mut others.polled, waker, replaced_wakers);
            }
            Some(key) => self.register_future(waker, key, replaced_wakers),
        }
    }

    /// Moves the waker of a caller other than the first to `replaced_wakers`.
    #[cold]
    fn replace_earlier_caller(&mut self, replaced_wakers: &mut Vec<Waker>) {
        if let Some(others) = &mut self.others {
            replaced_wakers.extend(others.polled.take());
            if others.is_empty() {
                self.others = None;
            }
        }
    }

    #[inline(never)]
    fn register_future(
        &mut self,
        waker: &Waker,
        key: &mut WaitKey,
        replaced_wakers: &mut Vec<Waker>,
    ) {
        if let Some(slot) = self.slot_for_key(key) {
            return store_waker(slot, waker, replaced_wakers);
        }
        let slot = if self.first.is_none() {
            self.first = Some(waker.clone());
            self.first_has_key = true;
            FIRST
        } else {
            let others = self.others.get_or_insert_default();
            if let Some(slot) = others.free.pop() {
                others.futures[slot as usize] = Some(waker.clone());
                slot
            } else {
                others.futures.push(Some(waker.clone()));
                others.futures.len() as u32 - 1
            }
        };
        let round = self.round;
        key.0 = Some(ListPosition { slot, round });
    }

    /// Returns the entry of a future that has not been woken.
    fn slot_for_key(&mut self, key: &WaitKey) -> Option<&mut Option<Waker>> {
        let position = key.0.filter(|position| position.round == self.round)?;
        if position.slot == FIRST {
            return Some(&mut self.first);
        }
        self.others
            .as_mut()?
            .futures
            .get_mut(position.slot as usize)
    }

    /// Removes a future or, without a key, the caller that polled. Returns its waker unless it has
    /// been woken; drop it without holding any lock.
    pub fn remove(&mut self, key: Option<&mut WaitKey>) -> Option<Waker> {
        let Some(key) = key else {
            return match &mut self.others {
                _ if !self.first_has_key => self.first.take(),
                Some(others) => others.polled.take(),
                None => None,
            };
        };
        let waker = self.slot_for_key(key).and_then(Option::take);
        let position = key.0.take()?;
        if waker.is_some()
            && position.slot != FIRST
            && let Some(others) = &mut self.others
        {
            others.free.push(position.slot);
            if others.is_empty() {
                self.others = None;
            }
        }
        waker
    }

    /// Moves all wakers to `out`.
    #[inline]
    pub fn wake(&mut self, out: &mut Vec<Waker>) {
        if !self.is_empty() {
            self.wake_all(out);
        }
    }

    #[inline(never)]
    fn wake_all(&mut self, out: &mut Vec<Waker>) {
        if let Some(first) = self.first.take() {
            out.push(first);
        }
        self.round = self.round.wrapping_add(1);
        if let Some(others) = self.others.take() {
            others.wake(out);
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
    fn list(&mut self, event: WaitEvent) -> &mut WaitList {
        match event {
            WaitEvent::Read => &mut self.reader,
            WaitEvent::Write => &mut self.writer,
            WaitEvent::Flush => self.flush.get_or_insert_default(),
        }
    }

    /// Adds a task; see [`WaitList::register`].
    #[inline]
    pub(crate) fn register(
        &mut self,
        event: WaitEvent,
        waiter: Waiter<'_>,
        replaced_wakers: &mut Vec<Waker>,
    ) {
        self.list(event).register(waiter, replaced_wakers);
    }

    /// Removes a task; see [`WaitList::remove`].
    pub(crate) fn remove(&mut self, event: WaitEvent, key: Option<&mut WaitKey>) -> Option<Waker> {
        self.list(event).remove(key)
    }

    /// Moves the wakers of the tasks that wait for `event` to `out`.
    #[inline]
    pub(crate) fn wake(&mut self, event: WaitEvent, out: &mut Vec<Waker>) {
        match event {
            WaitEvent::Read => self.reader.wake(out),
            WaitEvent::Write => self.writer.wake(out),
            WaitEvent::Flush => {
                if let Some(list) = &mut self.flush {
                    list.wake(out);
                }
            }
        }
    }

    /// Moves the wakers of all tasks to `replaced_wakers` without waking them.
    pub(crate) fn clear(&mut self, replaced_wakers: &mut Vec<Waker>) {
        for event in [WaitEvent::Read, WaitEvent::Write, WaitEvent::Flush] {
            self.wake(event, replaced_wakers);
        }
    }

    /// Returns whether a task waits for a flush.
    #[inline]
    pub(crate) fn has_flush_waiter(&self) -> bool {
        self.flush.as_ref().is_some_and(|list| !list.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use alloc::vec::Vec;
    use core::task::Waker;

    use super::{WaitEvent, WaitKey, WaitList, Waiter, Waiters};

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    fn task() -> (Arc<Task>, Waker) {
        let task = Arc::new(Task);
        (task.clone(), Waker::from(task))
    }

    /// Returns the number of references to a task besides the test's own two.
    fn references(task: &Arc<Task>) -> usize {
        Arc::strong_count(task) - 2
    }

    #[test]
    fn every_future_is_woken_once_for_its_event() {
        let tasks: [_; 3] = core::array::from_fn(|_| task());
        let mut keys: [WaitKey; 9] = Default::default();
        let mut waiters = Waiters::default();
        let mut replaced_wakers = Vec::new();
        let kinds = [WaitEvent::Read, WaitEvent::Write, WaitEvent::Flush];
        for (k, event) in kinds.into_iter().enumerate() {
            for i in [0, 0, 1, 2, 1, 0] {
                let waiter = Waiter::future(&tasks[i].1, &mut keys[3 * k + i]);
                waiters.register(event, waiter, &mut replaced_wakers);
            }
        }
        for event in [WaitEvent::Flush, WaitEvent::Read, WaitEvent::Write] {
            assert_eq!(waiters.has_flush_waiter(), event == WaitEvent::Flush);
            let mut out = Vec::new();
            waiters.wake(event, &mut out);
            assert_eq!(out.len(), 3);
            assert!(tasks.iter().all(|t| out.iter().any(|w| w.will_wake(&t.1))));
            waiters.wake(event, &mut out);
            assert_eq!(out.len(), 3);
        }
        assert!(replaced_wakers.is_empty());
        assert!(tasks.iter().all(|(task, _)| references(task) == 0));
    }

    #[test]
    fn removing_a_future_removes_only_its_waker() {
        let tasks: Vec<_> = (0..5).map(|_| task()).collect();
        let mut keys: Vec<_> = tasks.iter().map(|_| WaitKey::default()).collect();
        let mut list = WaitList::default();
        let mut replaced_wakers = Vec::new();
        for ((_, waker), key) in tasks.iter().zip(&mut keys) {
            list.register(Waiter::future(waker, key), &mut replaced_wakers);
        }
        for i in [3, 0] {
            assert!(list.remove(Some(&mut keys[i])).is_some());
            assert!(!keys[i].is_set());
            assert!(list.remove(Some(&mut keys[i])).is_none());
        }
        let all = |tasks: &[(Arc<Task>, Waker)]| -> Vec<_> {
            tasks.iter().map(|(task, _)| references(task)).collect()
        };
        assert_eq!(all(&tasks), [0, 1, 1, 0, 1]);
        // Slots are reused, and a key of an earlier round refers to none of them.
        list.register(
            Waiter::future(&tasks[0].1, &mut keys[0]),
            &mut replaced_wakers,
        );
        let mut out = Vec::new();
        list.wake(&mut out);
        assert_eq!(out.len(), 4);
        out.clear();
        list.register(
            Waiter::future(&tasks[3].1, &mut keys[3]),
            &mut replaced_wakers,
        );
        assert!(list.remove(Some(&mut keys[0])).is_none());
        assert!(list.remove(Some(&mut keys[1])).is_none());
        list.register(
            Waiter::future(&tasks[1].1, &mut keys[1]),
            &mut replaced_wakers,
        );
        assert_eq!(all(&tasks), [0, 1, 0, 1, 0]);
        assert!(list.remove(Some(&mut keys[1])).is_some());
        assert!(list.others.is_none());
        assert!(list.remove(Some(&mut keys[3])).is_some());
        assert!(list.is_empty());
    }

    #[test]
    fn only_the_last_polling_caller_is_woken() {
        let (first, second, third) = (task(), task(), task());
        let mut key = WaitKey::default();
        for future_first in [false, true] {
            let mut list = WaitList::default();
            let mut replaced_wakers = Vec::new();
            if future_first {
                list.register(Waiter::future(&third.1, &mut key), &mut replaced_wakers);
            }
            list.register(Waiter::polled(&first.1), &mut replaced_wakers);
            list.register(Waiter::polled(&second.1), &mut replaced_wakers);
            list.register(Waiter::polled(&second.1), &mut replaced_wakers);
            assert!(replaced_wakers.len() == 1 && replaced_wakers[0].will_wake(&first.1));
            assert!(list.remove(None).unwrap().will_wake(&second.1));
            assert!(list.remove(None).is_none());
            list.register(Waiter::polled(&first.1), &mut replaced_wakers);
            let mut out = Vec::new();
            list.wake(&mut out);
            assert_eq!(out.len(), 1 + usize::from(future_first));
        }
    }

    #[test]
    fn a_polling_caller_replaces_an_earlier_one_next_to_a_future() {
        let (first, second, future) = (task(), task(), task());
        let mut key = WaitKey::default();
        let mut list = WaitList::default();
        let mut replaced_wakers = Vec::new();
        list.register(Waiter::future(&future.1, &mut key), &mut replaced_wakers);
        list.register(Waiter::polled(&first.1), &mut replaced_wakers);
        assert!(list.remove(Some(&mut key)).is_some());
        list.register(Waiter::polled(&second.1), &mut replaced_wakers);
        assert!(replaced_wakers.len() == 1 && replaced_wakers[0].will_wake(&first.1));
        assert!(list.remove(None).unwrap().will_wake(&second.1));
        assert!(list.is_empty());
    }

    #[test]
    fn clearing_drops_no_waker() {
        let tasks: [_; 3] = core::array::from_fn(|_| task());
        let mut waiters = Waiters::default();
        let mut replaced_wakers = Vec::new();
        for (event, (_, waker)) in [WaitEvent::Read, WaitEvent::Write, WaitEvent::Flush]
            .into_iter()
            .zip(&tasks)
        {
            waiters.register(event, Waiter::polled(waker), &mut replaced_wakers);
        }
        waiters.clear(&mut replaced_wakers);
        assert_eq!(replaced_wakers.len(), 3);
        assert!(tasks.iter().all(|(task, _)| references(task) == 1));
        assert!(!waiters.has_flush_waiter());
    }
}
