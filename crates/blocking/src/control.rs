//! The control socket of a stack.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fullsend_control::{Inspect, Server};
use fullsend_stack::{Host, IfaceId};
use fullsend_wire::{Instant, Nanos};

use crate::config::{Config, ConfigError, DeviceChoice, invalid};
use crate::signals;
use crate::stack::Shared;

/// The path of the control socket.
#[derive(Clone, Debug)]
pub(crate) enum ControlPath {
    /// [`fullsend_control::default_path`].
    Default,
    At(PathBuf),
}

impl ControlPath {
    /// Parses the setting `control`.
    pub(crate) fn parse(value: &str) -> Result<Option<Self>, ConfigError> {
        match value {
            "on" => Ok(Some(Self::Default)),
            "off" => Ok(None),
            path if path.contains('/') => Ok(Some(Self::At(path.into()))),
            _ => Err(invalid(
                "control",
                value,
                "on, off or a path that contains a slash",
            )),
        }
    }

    /// Returns the path. Creates the directory of the default path.
    fn resolve(&self) -> io::Result<PathBuf> {
        match self {
            Self::Default => fullsend_control::default_path(),
            Self::At(path) => Ok(path.clone()),
        }
    }
}

/// The properties of a stack, beside its host, that the control socket reports.
pub(crate) struct StackIdentity {
    link_name: String,
    /// The start of the stack, in ns since the Unix epoch.
    started: u64,
}

impl StackIdentity {
    /// Returns the identity of a stack that starts at `now`, a time since the Unix epoch.
    pub(crate) fn new(config: &Config, now: Nanos) -> Self {
        let link_name = match &config.device {
            DeviceChoice::UserDriven(_) => "link0",
            DeviceChoice::Tun(name) | DeviceChoice::Tap(name) => name,
        };
        Self {
            link_name: link_name.to_owned(),
            started: now.as_nanos(),
        }
    }
}

/// Opens the control socket of the settings, if they have one.
pub(crate) fn open(config: &Config, shared: &Arc<Shared>) -> io::Result<Option<Server>> {
    let Some(path) = &config.control else {
        return Ok(None);
    };
    let stack = Arc::downgrade(shared);
    Server::open(&path.resolve()?, stack, signals::block_all).map(Some)
}

impl Inspect for Shared {
    fn with_host<R>(
        &self,
        _shard: usize,
        call: impl FnOnce(&mut Host, IfaceId, Instant) -> R,
    ) -> R {
        let (mut shard, now) = self.lock();
        let iface = shard.iface();
        call(shard.posix.host_mut(), iface, now)
    }

    fn change<R>(
        &self,
        _shard: usize,
        call: impl FnOnce(&mut Host, Instant) -> R,
    ) -> Result<R, String> {
        let (mut shard, now) = self.lock();
        shard.check_alive().map_err(|error| error.to_string())?;
        let result = call(shard.posix.host_mut(), now);
        self.transmit_and_wake(&mut shard, now);
        Ok(result)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let (mut shard, _) = self.lock();
        let mut all = shard.posix.host_mut().counters();
        all.extend(shard.device_counters().iter());
        all
    }

    fn started(&self) -> u64 {
        self.identity.started
    }

    fn link_name(&self) -> &str {
        &self.identity.link_name
    }
}
