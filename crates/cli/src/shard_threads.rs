//! The threads of a stack's shards, each with its own runtime.

use std::thread::{self, JoinHandle};

use anyhow::Result;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::perf;

/// The threads of shards, which end on drop.
pub(crate) struct ShardThreads {
    handles: Vec<Handle>,
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl ShardThreads {
    /// Starts a thread for each of `shards` shards, or none for a single shard, which runs on the current
    /// runtime. Must be called within a runtime.
    pub(crate) fn start(shards: usize) -> Result<Self> {
        let mut all = Self {
            handles: Vec::new(),
            threads: Vec::new(),
        };
        if shards == 1 {
            all.handles.push(Handle::current());
            return Ok(all);
        }
        for _ in 0..shards {
            let runtime = perf::runtime()?;
            all.handles.push(runtime.handle().clone());
            let (stop, stopped) = oneshot::channel();
            let thread = thread::spawn(move || {
                // Either result requests the end.
                let _ = runtime.block_on(stopped);
            });
            all.threads.push((stop, thread));
        }
        Ok(all)
    }

    /// Returns the runtime of each shard.
    pub(crate) fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

impl Drop for ShardThreads {
    fn drop(&mut self) {
        for (stop, thread) in self.threads.drain(..) {
            drop(stop);
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}
