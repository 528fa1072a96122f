//! Pipes through which `splice` moves data from one socket to another.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Most empty pipes that are kept for later use.
const MAX_KEPT: usize = 16;
/// Capacity of a large pipe, bytes; the largest without privileges (pipe(7)).
const LARGE: usize = 1 << 20;
/// Most large pipes of a gateway. A user may have many gateways, and beyond 64 MiB the kernel makes all
/// new pipes of the user tiny.
const MAX_LARGE: usize = 4;

/// A pipe, which is empty while no connection uses it.
pub(super) struct Pipe {
    pub(super) read: OwnedFd,
    pub(super) write: OwnedFd,
    /// A reference that counts the pipe among the large ones.
    large: Option<Arc<()>>,
}

/// The unused, empty pipes of a gateway.
#[derive(Default)]
pub(crate) struct Pipes {
    kept: Mutex<Vec<Pipe>>,
    /// The counter of large pipes: each has a reference.
    large: Arc<()>,
}

impl Pipes {
    /// Returns an empty pipe, preferably a large one.
    ///
    /// # Errors
    /// The error of the operating system, e.g. for lack of descriptors.
    pub(super) fn take(&self) -> io::Result<Pipe> {
        let kept = {
            let mut kept = self.kept.lock();
            let large = kept.iter().position(|pipe| pipe.large.is_some());
            large.map(|at| kept.swap_remove(at)).or_else(|| kept.pop())
        };
        if let Some(pipe) = kept {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let has_few = Arc::strong_count(&self.large) <= MAX_LARGE;
        let is_large = has_few && fcntl_setpipe_size(&write, LARGE).is_ok();
        Ok(Pipe {
            read,
            write,
            large: is_large.then(|| self.large.clone()),
        })
    }

    /// Keeps an empty pipe for the next use, or closes it.
    pub(super) fn put(&self, pipe: Pipe) {
        let mut kept = self.kept.lock();
        if kept.len() < MAX_KEPT {
            kept.push(pipe);
        } else if pipe.large.is_some()
            && let Some(small) = kept.iter_mut().find(|pipe| pipe.large.is_none())
        {
            *small = pipe;
        }
    }

    /// Closes the kept pipes.
    pub(crate) fn clear(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::fcntl_getpipe_size;

    use super::*;

    #[test]
    fn only_some_pipes_are_large_and_these_are_kept() {
        let pipes = Pipes::default();
        let mut taken: Vec<_> = (0..20).map(|_| pipes.take().unwrap()).collect();
        let is_large = |pipe: &&Pipe| fcntl_getpipe_size(&pipe.write).unwrap() == LARGE;
        let large = taken.iter().filter(is_large).count();
        // The user's other pipes may have used up the limit.
        assert!(large <= MAX_LARGE);
        taken.sort_by_key(|pipe| pipe.large.is_some());
        for pipe in taken {
            pipes.put(pipe);
        }
        let kept: Vec<_> = (0..MAX_KEPT).map(|_| pipes.take().unwrap()).collect();
        assert_eq!(kept[..large].iter().filter(is_large).count(), large);
        for pipe in kept {
            pipes.put(pipe);
        }
        pipes.clear();
        assert_eq!(Arc::strong_count(&pipes.large), 1);
    }
}
