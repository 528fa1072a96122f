//! The table of what handles stand for.

use alloc::boxed::Box;
use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::datagram::Datagram;
use crate::epoll::Epoll;
use crate::errno::{Errno, Result};
use crate::pipe::Pipe;
use crate::stream::Stream;
use crate::wake::Wakers;

/// Stands for a socket, an epoll set or one end of a pipe. Small, and never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle {
    slot: u32,
    /// How often the slot has been used before.
    turn: u32,
}

/// What a handle stands for.
#[derive(Debug)]
pub(crate) enum Kind {
    Stream(Box<Stream>),
    Datagram(Box<Datagram>),
    Epoll(Box<Epoll>),
    /// It has the pipe.
    PipeReader(Box<Pipe>),
    /// Names the other end.
    PipeWriter(Handle),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) kind: Kind,
    pub(crate) nonblocking: bool,
    /// Stands in the list of handles whose readiness may have changed.
    pub(crate) listed: bool,
    /// Epoll sets that it is a member of.
    pub(crate) watchers: SmallVec<[Handle; 1]>,
    /// Made when the host was first asked to wake.
    pub(crate) wakers: Option<Wakers>,
}

#[derive(Debug)]
struct Slot {
    turn: u32,
    file: Option<File>,
}

/// All open files.
#[derive(Default, Debug)]
pub(crate) struct Files {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Files {
    /// Opens.
    pub(crate) fn insert(&mut self, kind: Kind, nonblocking: bool) -> Result<Handle> {
        let file = Some(File {
            kind,
            nonblocking,
            listed: false,
            watchers: SmallVec::new(),
            wakers: None,
        });
        if let Some(slot) = self.free.pop() {
            let place = &mut self.slots[slot as usize];
            place.file = file;
            return Ok(Handle {
                slot,
                turn: place.turn,
            });
        }
        let slot = u32::try_from(self.slots.len()).map_err(|_| Errno::EMFILE)?;
        self.slots.push(Slot { turn: 0, file });
        Ok(Handle { slot, turn: 0 })
    }

    /// How many are open.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The file of a handle; EBADF when it is closed.
    pub(crate) fn get(&self, handle: Handle) -> Result<&File> {
        let slot = self.slots.get(handle.slot as usize);
        let slot = slot.filter(|slot| slot.turn == handle.turn);
        slot.and_then(|slot| slot.file.as_ref()).ok_or(Errno::EBADF)
    }

    /// The file of a handle; EBADF when it is closed.
    pub(crate) fn get_mut(&mut self, handle: Handle) -> Result<&mut File> {
        let slot = self.slots.get_mut(handle.slot as usize);
        let slot = slot.filter(|slot| slot.turn == handle.turn);
        slot.and_then(|slot| slot.file.as_mut()).ok_or(Errno::EBADF)
    }

    /// Closes. A slot whose turns are used up is not used again.
    pub(crate) fn remove(&mut self, handle: Handle) -> Result<File> {
        let slot = self.slots.get_mut(handle.slot as usize);
        let slot = slot.filter(|slot| slot.turn == handle.turn);
        let slot = slot.ok_or(Errno::EBADF)?;
        let file = slot.file.take().ok_or(Errno::EBADF)?;
        if let Some(turn) = slot.turn.checked_add(1) {
            slot.turn = turn;
            self.free.push(handle.slot);
        }
        Ok(file)
    }
}
