//! The interface of a stack to its control socket.

use std::sync::Arc;

use fullsend_stack::{Host, IfaceId};
use fullsend_wire::Instant;

use crate::Gateway;

/// A stack that a control socket can inspect and change.
pub trait Inspect {
    /// Calls `call` with the host, the number of its interface and the time, under the stack's
    /// lock. `call` must not send or wake tasks.
    fn with_host<R>(&self, call: impl FnOnce(&mut Host, IfaceId, Instant) -> R) -> R;

    /// Calls `call` under the stack's lock, then transmits what it made ready and wakes waiters.
    ///
    /// # Errors
    /// A message with the reason why the stack accepts no calls.
    fn change<R>(&self, call: impl FnOnce(&mut Host, Instant) -> R) -> Result<R, String>;

    /// Returns when the stack was created, in ns since the Unix epoch.
    fn started(&self) -> u64;

    /// Returns the name of the stack's interface.
    fn link_name(&self) -> &str;

    /// Returns the gateway that the stack belongs to, if there is one.
    fn gateway(&self) -> Option<Arc<dyn Gateway>> {
        None
    }
}
