//! `epoll(7)`: sets of handles, each with a list of the members that may be ready. The cost of a call
//! depends on the length of that list, not on the size of the set.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};

use fullsend_wire::Instant;

use crate::abi::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP,
    EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDBAND, EPOLLRDNORM, EPOLLWAKEUP, EPOLLWRBAND,
    EPOLLWRNORM,
};
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Handle};
use crate::wake::WakeKey;
use crate::{Posix, files::File};

/// Maximum nesting of sets.
const MAX_NESTING: usize = 4;
/// Bits that are modes, not events.
const MODE_BITS: u32 = EPOLLWAKEUP | EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE;
/// Bits that are valid together with `EPOLLEXCLUSIVE`.
const WITH_EXCLUSIVE: u32 =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
/// The events that a wake of readers, and one of writers, may have caused.
const READ_EVENTS: u32 = EPOLLIN | EPOLLPRI | EPOLLRDNORM | EPOLLRDBAND;
const WRITE_EVENTS: u32 = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;

/// `struct epoll_event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EpollEvent {
    /// `EPOLL*` bits.
    pub events: u32,
    /// Data of the caller.
    pub data: u64,
}

#[derive(Debug)]
struct EpollItem {
    event: EpollEvent,
    /// Whether the member is in the ready list.
    linked: bool,
}

/// An epoll set.
#[derive(Default, Debug)]
pub(crate) struct Epoll {
    items: BTreeMap<Handle, EpollItem>,
    /// Members that may be ready, in the order of their changes.
    ready_list: VecDeque<Handle>,
    /// Whether the last `epoll_wait` found nothing, so that its caller is waiting.
    has_waiter: bool,
}

impl Epoll {
    fn link(&mut self, handle: Handle) {
        if let Some(item) = self.items.get_mut(&handle)
            && !item.linked
        {
            item.linked = true;
            self.ready_list.push_back(handle);
        }
    }

    fn remove(&mut self, handle: Handle) -> Option<EpollItem> {
        let item = self.items.remove(&handle)?;
        if item.linked {
            self.ready_list.retain(|&linked| linked != handle);
        }
        Some(item)
    }
}

fn as_epoll(file: &mut File) -> Option<&mut Epoll> {
    match &mut file.kind {
        FileKind::Epoll(epoll) => Some(epoll),
        _ => None,
    }
}

impl Posix {
    /// Creates an epoll set: `epoll_create1(2)`.
    ///
    /// # Errors
    /// EMFILE if no handle is free.
    pub fn epoll_create(&mut self) -> Result<Handle> {
        self.files.insert(FileKind::Epoll(Box::default()), false)
    }

    fn epoll(&mut self, set: Handle) -> Result<&mut Epoll> {
        as_epoll(self.files.get_mut(set)?).ok_or(Errno::EINVAL)
    }

    /// Adds, modifies or removes a member of an epoll set: `epoll_ctl(2)`. `EPOLLWAKEUP` has no
    /// effect.
    ///
    /// # Errors
    /// EEXIST if a member is added twice, ENOENT if the handle to modify or remove is no member, ELOOP if
    /// sets would contain each other or be nested too deeply, EINVAL for an unknown operation, a set
    /// added to itself, a `set` that is no epoll set, or `EPOLLEXCLUSIVE` where it is not allowed; EBADF
    /// for a handle that is not open.
    pub fn epoll_ctl(
        &mut self,
        set: Handle,
        operation: i32,
        handle: Handle,
        event: EpollEvent,
    ) -> Result<()> {
        self.process_wakes();
        self.files.get(set)?;
        let is_set = matches!(self.files.get(handle)?.kind, FileKind::Epoll(_));
        if set == handle {
            return Err(Errno::EINVAL);
        }
        let items = &self.epoll(set)?.items;
        let known = items.get(&handle).map(|item| item.event.events);
        let exclusive = event.events & EPOLLEXCLUSIVE != 0;
        let event = EpollEvent {
            events: event.events | EPOLLERR | EPOLLHUP,
            ..event
        };
        match operation {
            EPOLL_CTL_ADD if exclusive && (is_set || event.events & !WITH_EXCLUSIVE != 0) => {
                Err(Errno::EINVAL)
            }
            EPOLL_CTL_ADD if is_set && self.would_loop(set, handle) => Err(Errno::ELOOP),
            EPOLL_CTL_ADD if known.is_some() => Err(Errno::EEXIST),
            EPOLL_CTL_ADD => self.epoll_add(set, handle, event),
            EPOLL_CTL_DEL => {
                self.epoll(set)?.remove(handle).ok_or(Errno::ENOENT)?;
                self.files
                    .get_mut(handle)?
                    .watchers
                    .retain(|watcher| *watcher != set);
                Ok(())
            }
            EPOLL_CTL_MOD if exclusive => Err(Errno::EINVAL),
            EPOLL_CTL_MOD => match known.ok_or(Errno::ENOENT)? {
                events if events & EPOLLEXCLUSIVE != 0 => Err(Errno::EINVAL),
                _ => self.epoll_modify(set, handle, event),
            },
            _ => Err(Errno::EINVAL),
        }
    }

    fn epoll_add(&mut self, set: Handle, handle: Handle, event: EpollEvent) -> Result<()> {
        let linked = false;
        self.epoll(set)?
            .items
            .insert(handle, EpollItem { event, linked });
        self.files.get_mut(handle)?.watchers.push(set);
        self.arm(handle);
        self.link_if_ready(set, handle, event.events)
    }

    fn epoll_modify(&mut self, set: Handle, handle: Handle, event: EpollEvent) -> Result<()> {
        if let Some(item) = self.epoll(set)?.items.get_mut(&handle) {
            item.event = event;
        }
        self.link_if_ready(set, handle, event.events)
    }

    fn link_if_ready(&mut self, set: Handle, handle: Handle, mask: u32) -> Result<()> {
        if self.events(handle)? & mask & !MODE_BITS != 0 {
            self.epoll(set)?.link(handle);
            self.notify(set, WakeKey::Read);
        }
        Ok(())
    }

    /// Returns whether adding `handle` to `set` would close a loop or exceed the maximum nesting.
    fn would_loop(&mut self, set: Handle, handle: Handle) -> bool {
        let above = self.nesting_depth(set, MAX_NESTING + 2, |file| file.watchers.to_vec());
        let below = self.nesting_depth(handle, MAX_NESTING + 2, |file| match &file.kind {
            FileKind::Epoll(epoll) => epoll.items.keys().copied().collect(),
            _ => alloc::vec::Vec::new(),
        });
        self.reaches(handle, set, MAX_NESTING + 2) || above + below + 1 > MAX_NESTING
    }

    /// Returns the nesting depth of sets above or below `set`, according to `next`.
    fn nesting_depth(
        &self,
        set: Handle,
        limit: usize,
        next: fn(&File) -> alloc::vec::Vec<Handle>,
    ) -> usize {
        let Ok(file) = self.files.get(set) else {
            return 0;
        };
        if limit == 0 || !matches!(file.kind, FileKind::Epoll(_)) {
            return 0;
        }
        let others = next(file).into_iter();
        others
            .filter(|&other| {
                let file = self.files.get(other);
                file.is_ok_and(|file| matches!(file.kind, FileKind::Epoll(_)))
            })
            .map(|other| 1 + self.nesting_depth(other, limit - 1, next))
            .max()
            .unwrap_or(0)
    }

    fn reaches(&self, from: Handle, to: Handle, limit: usize) -> bool {
        if from == to {
            return true;
        }
        match self.files.get(from).map(|file| &file.kind) {
            Ok(FileKind::Epoll(epoll)) if limit > 0 => epoll
                .items
                .keys()
                .any(|&next| self.reaches(next, to, limit - 1)),
            _ => false,
        }
    }

    /// Writes the ready members of a set to `out` and returns their number: `epoll_wait(2)` without
    /// waiting. If it returns 0, [`take_ready`](Self::take_ready) reports `set` when a member may
    /// be ready.
    ///
    /// # Errors
    /// EINVAL if `out` is empty or `set` is not an epoll set, EBADF for a handle that is not open.
    pub fn epoll_wait(
        &mut self,
        _now: Instant,
        set: Handle,
        out: &mut [EpollEvent],
    ) -> Result<usize> {
        self.process_wakes();
        if out.is_empty() {
            self.epoll(set)?;
            return Err(Errno::EINVAL);
        }
        let mut found = 0;
        for _ in 0..self.epoll(set)?.ready_list.len() {
            let Some(slot) = out.get_mut(found) else {
                break;
            };
            if let Some(event) = self.take_event(set)? {
                *slot = event;
                found += 1;
            }
        }
        self.epoll(set)?.has_waiter = found == 0;
        Ok(found)
    }

    /// Removes the first entry of the list and returns its event if it is ready. A level-triggered
    /// member is appended again.
    fn take_event(&mut self, set: Handle) -> Result<Option<EpollEvent>> {
        let epoll = self.epoll(set)?;
        let Some(handle) = epoll.ready_list.pop_front() else {
            return Ok(None);
        };
        let Some(item) = epoll.items.get_mut(&handle) else {
            return Ok(None);
        };
        item.linked = false;
        let event = item.event;
        let events = self.events(handle)? & event.events & !MODE_BITS;
        if events == 0 {
            return Ok(None);
        }
        let epoll = self.epoll(set)?;
        if event.events & EPOLLONESHOT != 0 {
            if let Some(item) = epoll.items.get_mut(&handle) {
                item.event.events &= MODE_BITS;
            }
        } else if event.events & EPOLLET == 0 {
            epoll.link(handle);
        }
        let data = event.data;
        Ok(Some(EpollEvent { events, data }))
    }

    /// Returns the events of a set: it is readable if any of its members is ready.
    pub(crate) fn epoll_events(&mut self, set: Handle) -> u32 {
        let Ok(epoll) = self.epoll(set) else {
            return 0;
        };
        let list = core::mem::take(&mut epoll.ready_list);
        let any = list.iter().any(|&handle| {
            let item = self.epoll(set).ok().and_then(|e| e.items.get(&handle));
            let mask = item.map_or(0, |item| item.event.events & !MODE_BITS);
            self.events(handle).is_ok_and(|events| events & mask != 0)
        });
        if let Ok(epoll) = self.epoll(set) {
            epoll.ready_list = list;
        }
        if any { EPOLLIN | EPOLLRDNORM } else { 0 }
    }

    /// Adds a changed handle to the ready lists of its sets. Skips sets with `EPOLLEXCLUSIVE` after the
    /// first one whose caller is waiting.
    pub(crate) fn notify_watchers(&mut self, handle: Handle, key: WakeKey) {
        let Ok(file) = self.files.get(handle) else {
            return;
        };
        let key_events = match key {
            WakeKey::Read => READ_EVENTS,
            WakeKey::Write => WRITE_EVENTS,
            WakeKey::Any => u32::MAX,
        };
        let mut woke_exclusive = false;
        for set in file.watchers.clone() {
            let Ok(epoll) = self.epoll(set) else {
                continue;
            };
            let mask = epoll.items.get(&handle).map_or(0, |i| i.event.events);
            let exclusive = mask & EPOLLEXCLUSIVE != 0;
            if mask & !MODE_BITS & key_events == 0 || exclusive && woke_exclusive {
                continue;
            }
            woke_exclusive |= exclusive && core::mem::take(&mut epoll.has_waiter);
            epoll.link(handle);
            self.notify(set, WakeKey::Read);
        }
    }

    /// Removes a closed handle from its sets and, if it is a set, removes it from its members.
    pub(crate) fn remove_from_sets(&mut self, handle: Handle, file: &File) {
        for &set in &file.watchers {
            if let Ok(epoll) = self.epoll(set) {
                epoll.remove(handle);
            }
        }
        if let FileKind::Epoll(epoll) = &file.kind {
            for &member in epoll.items.keys() {
                if let Ok(member) = self.files.get_mut(member) {
                    member.watchers.retain(|watcher| *watcher != handle);
                }
            }
        }
    }
}
