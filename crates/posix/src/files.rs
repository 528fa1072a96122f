//! The table of open files.

use alloc::boxed::Box;
use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::datagram::Datagram;
use crate::epoll::Epoll;
use crate::errno::{Errno, Result};
use crate::pipe::Pipe;
use crate::stream::Stream;
use crate::wake::Wakers;

/// A handle of a socket, an epoll set or one end of a pipe. No value is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle {
    slot: u32,
    /// Number of earlier uses of the slot.
    generation: u32,
}

/// The object that a handle refers to.
#[derive(Debug)]
pub(crate) enum FileKind {
    Stream(Box<Stream>),
    Datagram(Box<Datagram>),
    Epoll(Box<Epoll>),
    /// The read end, which owns the pipe.
    PipeReader(Box<Pipe>),
    /// The write end, with the handle of the read end.
    PipeWriter(Handle),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) kind: FileKind,
    pub(crate) nonblocking: bool,
    /// Whether the file is in the list of handles whose readiness may have changed.
    pub(crate) is_in_ready_list: bool,
    /// Epoll sets that contain the file.
    pub(crate) watchers: SmallVec<[Handle; 1]>,
    /// The wakers, created at the first request of a wake.
    pub(crate) wakers: Option<Wakers>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    file: Option<File>,
}

/// All open files.
#[derive(Default, Debug)]
pub(crate) struct Files {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Files {
    /// Opens a file and returns its handle.
    pub(crate) fn insert(&mut self, kind: FileKind, nonblocking: bool) -> Result<Handle> {
        let file = Some(File {
            kind,
            nonblocking,
            is_in_ready_list: false,
            watchers: SmallVec::new(),
            wakers: None,
        });
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.slots[slot as usize];
            entry.file = file;
            return Ok(Handle {
                slot,
                generation: entry.generation,
            });
        }
        let slot = u32::try_from(self.slots.len()).map_err(|_| Errno::EMFILE)?;
        self.slots.push(Slot {
            generation: 0,
            file,
        });
        Ok(Handle {
            slot,
            generation: 0,
        })
    }

    /// Returns the number of open files.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the file of a handle, or EBADF if it is closed.
    pub(crate) fn get(&self, handle: Handle) -> Result<&File> {
        let slot = self.slots.get(handle.slot as usize);
        let slot = slot.filter(|slot| slot.generation == handle.generation);
        slot.and_then(|slot| slot.file.as_ref()).ok_or(Errno::EBADF)
    }

    /// Returns the file of a handle, or EBADF if it is closed.
    pub(crate) fn get_mut(&mut self, handle: Handle) -> Result<&mut File> {
        let slot = self.slots.get_mut(handle.slot as usize);
        let slot = slot.filter(|slot| slot.generation == handle.generation);
        slot.and_then(|slot| slot.file.as_mut()).ok_or(Errno::EBADF)
    }

    /// Closes a file and returns it. A slot whose counter is used up is not used again.
    pub(crate) fn remove(&mut self, handle: Handle) -> Result<File> {
        let slot = self.slots.get_mut(handle.slot as usize);
        let slot = slot.filter(|slot| slot.generation == handle.generation);
        let slot = slot.ok_or(Errno::EBADF)?;
        let file = slot.file.take().ok_or(Errno::EBADF)?;
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            self.free.push(handle.slot);
        }
        Ok(file)
    }
}
