//! Pipes, through which `splice` moves data from one socket to another.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Empty pipes that are kept for the next use.
const MAX_KEPT: usize = 16;
/// Capacity of a large pipe in bytes, the largest without privileges (pipe(7)).
const LARGE: usize = 1 << 20;
/// Most large pipes: a quarter of the pages that a user's pipes may have before the kernel makes all
/// of the user's new pipes tiny.
const MAX_LARGE: usize = 16;

/// A pipe.
pub(super) struct Pipe {
    pub(super) read: OwnedFd,
    pub(super) write: OwnedFd,
    /// Counts it among the large pipes.
    _large: Option<Arc<()>>,
}

/// The empty pipes of a gateway.
#[derive(Default)]
pub(crate) struct Pipes {
    kept: Mutex<Vec<Pipe>>,
    /// Each large pipe has a reference.
    large: Arc<()>,
}

impl Pipes {
    /// Returns an empty pipe.
    ///
    /// # Errors
    /// The error of the operating system, e.g. for lack of descriptors.
    pub(super) fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.kept.lock().pop() {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let has_few = Arc::strong_count(&self.large) <= MAX_LARGE;
        let is_large = has_few && fcntl_setpipe_size(&write, LARGE).is_ok();
        Ok(Pipe {
            read,
            write,
            _large: is_large.then(|| self.large.clone()),
        })
    }

    /// Keeps an empty pipe for the next use, or closes it.
    pub(super) fn put(&self, pipe: Pipe) {
        let mut kept = self.kept.lock();
        if kept.len() < MAX_KEPT {
            kept.push(pipe);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::fcntl_getpipe_size;

    use super::*;

    #[test]
    fn only_some_pipes_are_large() {
        let pipes = Pipes::default();
        let taken: Vec<_> = (0..20).map(|_| pipes.take().unwrap()).collect();
        let is_large = |pipe: &&Pipe| fcntl_getpipe_size(&pipe.write).unwrap() == LARGE;
        assert_eq!(taken.iter().filter(is_large).count(), MAX_LARGE);
        drop(taken);
        let pipe = pipes.take().unwrap();
        assert!(is_large(&&pipe));
    }
}
