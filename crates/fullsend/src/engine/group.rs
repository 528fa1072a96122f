//! The state that the shards of a stack share, and calls on all of them.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use fullsend_device::DeviceCounters;
use fullsend_driver::Handover;
use fullsend_stack::Host;
use fullsend_tcp::{Sysctl, SysctlError};
use parking_lot::Mutex;

#[cfg(feature = "control")]
use super::inspect::ControlState;
use super::{DriverWaker, Engine};
use crate::error::sysctl_error;
use crate::resolve::{Resolve, SystemResolver};
use crate::stack::Stack;

/// The state that the shards of one stack share.
pub(crate) struct Group {
    /// The shards; set once all exist.
    engines: OnceLock<Box<[Weak<Engine>]>>,
    driver_wakers: Vec<Arc<DriverWaker>>,
    pub(super) handles: HandleCount,
    /// Number of connections opened, which are distributed over the shards in turn.
    connects: AtomicUsize,
    /// The reason why the stack has stopped: the first reason of any shard.
    stop_reason: OnceLock<(io::ErrorKind, String)>,
    /// Locked by a change of the tunables, which each host applies in turn.
    changing: Mutex<()>,
    /// The tunables of the whole stack, of which each host has a share.
    sysctl: Mutex<Sysctl>,
    /// The counters of the packets that passed between shards; `None` with one shard.
    handover: Option<Handover>,
    /// The resolver of names; `None` until one is chosen.
    resolver: Mutex<Option<Arc<dyn Resolve>>>,
    /// Whether the operating system has resolved a name without being chosen as the resolver.
    warned_of_system_resolver: AtomicBool,
    #[cfg(feature = "control")]
    pub(super) control: ControlState,
}

/// The number of handles to any shard. When the last one is dropped, the drivers end if no
/// connection is left. Every driver reads it in each poll, so it has a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct HandleCount(pub(super) AtomicUsize);

impl Group {
    pub(crate) fn new(
        sysctl: Sysctl,
        driver_wakers: Vec<Arc<DriverWaker>>,
        handover: Option<Handover>,
        resolver: Option<Arc<dyn Resolve>>,
    ) -> Self {
        Self {
            engines: OnceLock::new(),
            driver_wakers,
            handles: HandleCount::default(),
            connects: AtomicUsize::new(0),
            stop_reason: OnceLock::new(),
            changing: Mutex::new(()),
            sysctl: Mutex::new(sysctl),
            handover,
            resolver: Mutex::new(resolver),
            warned_of_system_resolver: AtomicBool::new(false),
            #[cfg(feature = "control")]
            control: ControlState::new(),
        }
    }

    /// Sets the shards, in their order. Later calls have no effect.
    pub(crate) fn set_engines(&self, engines: &[Arc<Engine>]) {
        let engines = engines.iter().map(Arc::downgrade).collect();
        let _ = self.engines.set(engines);
    }

    /// Returns the shards that still exist: all of them while the stack runs.
    pub(crate) fn engines(&self) -> Vec<Arc<Engine>> {
        let engines = self.engines.get().into_iter().flatten();
        engines.filter_map(Weak::upgrade).collect()
    }

    /// Sets the resolver of names.
    pub(crate) fn set_resolver(&self, resolver: Arc<dyn Resolve>) {
        let old = self.resolver.lock().replace(resolver);
        // The application's resolver is dropped without the lock.
        drop(old);
    }

    /// Returns the addresses of a host.
    pub(crate) async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let engines = self.engines();
        if engines.is_empty() {
            return Err(self.close_reason().unwrap_or_else(|| {
                io::Error::new(io::ErrorKind::ConnectionAborted, "the stack has stopped")
            }));
        }
        let resolver = self.resolver.lock().clone();
        let resolver = resolver.unwrap_or_else(|| self.default_resolver(name));
        resolver.resolve(&Stack::new(engines), name).await
    }

    /// Returns the operating system's resolver, which queries through the host's network: a stack in a
    /// tunnel reveals the name outside of it.
    #[cold]
    fn default_resolver(&self, name: &str) -> Arc<dyn Resolve> {
        if !self.warned_of_system_resolver.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{name:?} is resolved by the operating system, outside of the stack, as the stack \
                 has no resolver; set DNS servers with Builder::dns_server, or this resolver with \
                 Builder::resolver(SystemResolver)"
            );
        }
        Arc::new(SystemResolver)
    }

    /// Returns the number of shards.
    pub(crate) fn len(&self) -> usize {
        self.driver_wakers.len()
    }

    /// Returns the index of the shard on which the next connection is opened.
    pub(crate) fn next_index(&self) -> usize {
        self.connects.fetch_add(1, Ordering::Relaxed) % self.len()
    }

    /// Returns whether no handle is left and every connection of every shard has ended. `engine` is
    /// the caller's shard.
    pub(super) fn is_abandoned(&self, engine: &Engine) -> bool {
        let is_empty = |engine: &Engine| engine.with_host(|host| host.tcp_socket_count() == 0);
        self.handles.0.load(Ordering::Acquire) == 0
            && is_empty(engine)
            && self.engines().iter().all(|engine| is_empty(engine))
    }

    /// Returns the reason why the stack has stopped, or `None` while it runs.
    pub(crate) fn close_reason(&self) -> Option<io::Error> {
        let (kind, text) = self.stop_reason.get()?;
        Some(io::Error::new(*kind, text.clone()))
    }

    /// Records the reason why the stack stops. Returns it, or an earlier one, which remains.
    pub(super) fn stop_reason(&self, kind: io::ErrorKind, why: &str) -> (io::ErrorKind, String) {
        let reason = || (kind, why.to_owned());
        self.stop_reason.get_or_init(reason).clone()
    }

    /// Wakes the drivers of all shards.
    pub(super) fn wake_drivers(&self) {
        self.driver_wakers.iter().for_each(|waker| waker.wake());
    }

    /// Wakes the driver of a shard.
    pub(super) fn wake_driver(&self, index: usize) {
        self.driver_wakers[index].wake();
    }

    /// Returns the value of a tunable of the whole stack.
    pub(crate) fn sysctl(&self, key: &str) -> Result<String, SysctlError> {
        self.sysctl.lock().get(key)
    }

    /// Returns every tunable of the whole stack with its value.
    pub(crate) fn sysctls(&self) -> Vec<(&'static str, String)> {
        self.sysctl.lock().list().collect()
    }

    /// Sets a tunable of the whole stack, and its share on each host.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown name or an invalid value; the stack's error if it has stopped.
    pub(crate) fn set_sysctl(&self, key: &str, value: &str) -> io::Result<()> {
        let _changing = self.changing.lock();
        let mut changed = self.sysctl.lock().clone();
        changed
            .set(key, value)
            .map_err(|error| sysctl_error(&error))?;
        let share = changed.share(self.len() as u32);
        let value = share.get(key).map_err(|error| sysctl_error(&error))?;
        for engine in self.engines() {
            // Woken tasks may read tunables, so their lock is not held.
            engine.op(|host, now| {
                host.set_sysctl(now, key, &value)
                    .map_err(|error| sysctl_error(&error))
            })?;
        }
        *self.sysctl.lock() = changed;
        Ok(())
    }

    /// Returns every counter, summed over all shards, which are `engines`.
    pub(crate) fn counters(&self, engines: &[Arc<Engine>]) -> Vec<(&'static str, u64)> {
        let mut all: Vec<(&str, u64)> = Vec::new();
        for engine in engines {
            let counters = engine.with_host(Host::counters);
            if all.is_empty() {
                all = counters;
            } else {
                // Each host has the same counters in the same order.
                let sums = all.iter_mut().zip(counters);
                sums.for_each(|((_, sum), (_, value))| *sum += value);
            }
        }
        let mut of_devices = DeviceCounters::default();
        for engine in engines {
            of_devices.add(&engine.device_counters());
        }
        all.extend(of_devices.iter());
        let handover = self.handover.as_ref();
        all.extend([
            ("SoftnetReceivedRps", handover.map_or(0, Handover::received)),
            ("SoftnetDropped", handover.map_or(0, Handover::dropped)),
        ]);
        all
    }
}
