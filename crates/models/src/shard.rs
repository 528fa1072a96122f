//! A model of the state behind the sleepers' lock.

use crate::wait::Sleepers;

/// A shard whose calls wait for one flag.
#[derive(Default)]
pub struct Shard {
    pub(crate) sleepers: Sleepers,
    pub ready: bool,
}

impl Shard {
    /// Makes `handle` ready, and wakes the threads that wait for it.
    pub fn make_ready(&mut self, handle: fullsend_posix::Handle) {
        self.ready = true;
        self.sleepers.wake(&[handle]);
    }
}
