//! The references that keep a stack running while its sockets exist.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fullsend_stack::Host;
use fullsend_wire::Instant;

use super::Engine;
use crate::callbacks;

/// A reference to an engine that keeps the drivers of its stack running.
pub(crate) struct EngineHandle(Arc<Engine>);

impl EngineHandle {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        engine.group.handles.0.fetch_add(1, Ordering::Relaxed);
        Self(engine)
    }

    /// Closes a dropped socket now, or after the callback that this thread runs. Has no effect if the
    /// stack has stopped.
    pub(crate) fn close<Id: 'static>(&self, id: Id, close: fn(Id, &mut Host, Instant)) {
        if callbacks::are_running() {
            let engine = self.clone();
            return callbacks::defer(move || engine.close(id, close));
        }
        let _ = self.op(|host, now| {
            close(id, host, now);
            Ok(())
        });
    }
}

impl Clone for EngineHandle {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if self.0.group.handles.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.group.wake_drivers();
        }
    }
}

impl Deref for EngineHandle {
    type Target = Arc<Engine>;
    #[inline]
    fn deref(&self) -> &Arc<Engine> {
        &self.0
    }
}
