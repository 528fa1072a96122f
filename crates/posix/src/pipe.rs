//! `pipe(2)`: a FIFO of bytes, which keeps references to the memory that they arrived in.

use alloc::boxed::Box;

use fullsend_offload::{Chain, Slice};

use crate::Posix;
use crate::abi::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDNORM, EPOLLWRNORM};
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Handle};
use crate::wake::WakeKey;

/// Capacity of a pipe in bytes, as on Linux.
pub(crate) const CAPACITY: usize = 65_536;
/// Largest write that is atomic, in bytes (`PIPE_BUF`).
const PIPE_BUF: usize = 4096;

/// A pipe, owned by its read end.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) data: Chain,
    /// The write end; `None` once it is closed.
    writer: Option<Handle>,
}

impl Pipe {
    pub(crate) fn room(&self) -> usize {
        CAPACITY.saturating_sub(self.data.len())
    }

    /// Returns whether the write end is open.
    pub(crate) const fn has_writer(&self) -> bool {
        self.writer.is_some()
    }

    pub(crate) fn reader_events(&self) -> u32 {
        let mut events = 0;
        if !self.data.is_empty() {
            events |= EPOLLIN | EPOLLRDNORM;
        }
        if !self.has_writer() {
            events |= EPOLLHUP;
        }
        events
    }

    /// Copies bytes out of the pipe.
    pub(crate) fn read(&mut self, data: &mut [&mut [u8]]) -> Result<usize> {
        if self.data.is_empty() && self.has_writer() && data.iter().any(|part| !part.is_empty()) {
            return Err(Errno::EAGAIN);
        }
        let mut done = 0;
        for part in data {
            let n = self.data.copy_to(part);
            self.data.advance(n);
            done += n;
        }
        Ok(done)
    }

    /// Copies bytes into the pipe. A write of up to `PIPE_BUF` bytes is atomic.
    pub(crate) fn write(&mut self, data: &[&[u8]]) -> Result<usize> {
        let len: usize = data.iter().map(|part| part.len()).sum();
        let room = self.room();
        if len > 0 && (room == 0 || len <= PIPE_BUF && room < len) {
            return Err(Errno::EAGAIN);
        }
        let mut done = 0;
        for part in data {
            let n = part.len().min(room.min(len) - done);
            if n > 0 {
                match Slice::try_copied_from([&part[..n]]) {
                    Some(slice) => self.data.push(slice),
                    None if done == 0 => return Err(Errno::ENOMEM),
                    None => break,
                }
            }
            done += n;
        }
        Ok(done)
    }
}

impl Posix {
    /// Creates a pipe: `pipe2(2)`. Returns its read end and its write end.
    ///
    /// # Errors
    /// EMFILE if no handles are free.
    pub fn pipe(&mut self, nonblocking: bool) -> Result<(Handle, Handle)> {
        let pipe = Pipe {
            data: Chain::new(),
            writer: None,
        };
        let reader = self
            .files
            .insert(FileKind::PipeReader(Box::new(pipe)), nonblocking)?;
        let writer = self
            .files
            .insert(FileKind::PipeWriter(reader), nonblocking)?;
        self.pipe_of(reader)?.writer = Some(writer);
        Ok((reader, writer))
    }

    /// Returns the pipe of a read end, or EPIPE if that is closed.
    pub(crate) fn pipe_of(&mut self, reader: Handle) -> Result<&mut Pipe> {
        match self.files.get_mut(reader).map(|file| &mut file.kind) {
            Ok(FileKind::PipeReader(pipe)) => Ok(pipe),
            _ => Err(Errno::EPIPE),
        }
    }

    /// Returns the readiness of the write end of `reader`'s pipe.
    pub(crate) fn pipe_writer_events(&self, reader: Handle) -> u32 {
        match self.files.get(reader).map(|file| &file.kind) {
            Ok(FileKind::PipeReader(pipe)) if pipe.room() > 0 => EPOLLOUT | EPOLLWRNORM,
            Ok(_) => 0,
            Err(_) => EPOLLOUT | EPOLLWRNORM | EPOLLERR,
        }
    }

    /// Notifies the read end of new data.
    pub(crate) fn pipe_filled(&mut self, reader: Handle) {
        self.notify(reader, WakeKey::Read);
    }

    /// Notifies the write end of new room.
    pub(crate) fn pipe_drained(&mut self, reader: Handle) {
        if let Ok(Pipe {
            writer: Some(writer),
            ..
        }) = self.pipe_of(reader)
        {
            let writer = *writer;
            self.notify(writer, WakeKey::Write);
        }
    }

    /// Notifies the other end that `end` was closed.
    pub(crate) fn pipe_closed(&mut self, end: &FileKind) {
        match end {
            FileKind::PipeReader(pipe) => {
                if let Some(writer) = pipe.writer {
                    self.notify(writer, WakeKey::Any);
                }
            }
            FileKind::PipeWriter(reader) => {
                if let Ok(pipe) = self.pipe_of(*reader) {
                    pipe.writer = None;
                    self.notify(*reader, WakeKey::Any);
                }
            }
            _ => {}
        }
    }
}
