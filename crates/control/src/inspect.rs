//! The interface of a stack to its control socket.

use std::sync::Arc;

use fullsend_stack::{Host, IfaceId};
use fullsend_wire::Instant;

use crate::Gateway;

/// A stack that a control socket can inspect and change. It has one or more shards, each of which
/// is a host with its lock and its queue of the stack's device.
pub trait Inspect {
    /// Returns the number of shards, at least 1.
    fn shards(&self) -> usize {
        1
    }

    /// Calls `call` with a shard's host, the number of its interface and the time, under the
    /// shard's lock. `call` must not send or wake tasks. `shard` is less than
    /// [`shards`](Self::shards).
    fn with_host<R>(&self, shard: usize, call: impl FnOnce(&mut Host, IfaceId, Instant) -> R) -> R;

    /// Calls `call` under a shard's lock, then transmits ready packets and wakes waiters.
    ///
    /// # Errors
    /// A message with the reason why the stack accepts no calls.
    fn change<R>(
        &self,
        shard: usize,
        call: impl FnOnce(&mut Host, Instant) -> R,
    ) -> Result<R, String>;

    /// Returns every counter of the stack by its `nstat` name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.with_host(0, |host, _, _| host.counters())
    }

    /// Returns every tunable of the stack with its value.
    fn sysctls(&self) -> Vec<(&'static str, String)> {
        self.with_host(0, |host, _, _| host.sysctl().list().collect())
    }

    /// Returns the value of a tunable.
    ///
    /// # Errors
    /// A message if there is no tunable of that name.
    fn sysctl(&self, key: &str) -> Result<String, String> {
        self.with_host(0, |host, _, _| host.sysctl().get(key))
            .map_err(|error| error.to_string())
    }

    /// Sets a tunable.
    ///
    /// # Errors
    /// A message if there is no tunable of that name, if the value is invalid, or if the stack has
    /// stopped.
    fn set_sysctl(&self, key: &str, value: &str) -> Result<(), String> {
        self.change(0, |host, now| host.set_sysctl(now, key, value))?
            .map_err(|error| error.to_string())
    }

    /// Returns when the stack was created, in ns since the Unix epoch.
    fn started(&self) -> u64;

    /// Returns the name of the stack's interface.
    fn link_name(&self) -> &str;

    /// Returns the gateway that the stack belongs to, if there is one.
    fn gateway(&self) -> Option<Arc<dyn Gateway>> {
        None
    }
}
