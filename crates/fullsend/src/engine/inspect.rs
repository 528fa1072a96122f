//! What the control socket sees of an engine, and does to it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use fullsend_control::Inspect;
use fullsend_device::{Device, TapPoint};
use fullsend_offload::Link;
use fullsend_stack::{Host, IfaceId};
use fullsend_units::Instant;

use super::Engine;
use crate::control::Control;
use crate::error::sysctl_error;

impl Engine {
    /// Names its link, once.
    pub(crate) fn name_link(&self, name: &str) {
        let _ = self.link_name.set(name.to_owned());
    }

    pub(crate) fn link_name(&self) -> &str {
        self.link_name.get().map_or("link0", String::as_str)
    }

    /// Sets a tunable.
    pub(crate) fn set_sysctl(&self, key: &str, value: &str) -> io::Result<()> {
        self.op(|host, now| {
            host.set_sysctl(now, key, value)
                .map_err(|error| sysctl_error(&error))
        })
    }

    /// Opens a control socket that lasts as long as the engine is driven.
    pub(crate) fn open_control(self: &Arc<Self>, path: &Path) -> io::Result<()> {
        let control = Control::open(self, path)?;
        self.controls.lock().push(control);
        Ok(())
    }

    /// Begins to record what passes the device, at the tap point that `point` makes for its kind
    /// of link: the recording's number, or `None` if another one runs.
    pub(crate) fn begin_tap(
        &self,
        point: impl FnOnce(Link) -> io::Result<TapPoint>,
    ) -> io::Result<Option<u64>> {
        let mut shard = self.shard.lock();
        if shard.tap.is_some() {
            return Ok(None);
        }
        let point = point(shard.pump.device().caps().link)?;
        shard.taps += 1;
        shard.tap = Some(shard.taps);
        shard.pump.device_mut().set_tap(Some(point));
        Ok(shard.tap)
    }

    /// Ends a recording, if it is still the one that runs.
    pub(crate) fn end_tap(&self, number: u64) {
        let mut shard = self.shard.lock();
        if shard.tap == Some(number) {
            shard.tap = None;
            shard.pump.device_mut().set_tap(None);
        }
    }
}

impl Inspect for Engine {
    fn look<R>(&self, call: impl FnOnce(&mut Host, IfaceId, Instant) -> R) -> R {
        let (mut shard, now) = self.lock();
        let iface = shard.pump.iface();
        call(&mut shard.host, iface, now)
    }

    fn change<R>(&self, call: impl FnOnce(&mut Host, Instant) -> R) -> Result<R, String> {
        self.op(|host, now| Ok(call(host, now)))
            .map_err(|error| error.to_string())
    }

    fn started(&self) -> u64 {
        self.started
    }

    fn link_name(&self) -> &str {
        Self::link_name(self)
    }
}
