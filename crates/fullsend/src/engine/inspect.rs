//! The control socket's access to an engine.

use std::io;
use std::path::Path;
use std::sync::Arc;

use fullsend_control::Inspect;
use fullsend_device::{CaptureInterface, Device};
use fullsend_offload::Link;
use fullsend_stack::{Host, IfaceId};
use fullsend_wire::Instant;

use super::Engine;
use crate::control::ControlSocket;
use crate::error::sysctl_error;

impl Engine {
    /// Sets the name of the link. Later calls have no effect.
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

    /// Opens a control socket that is closed when the stack stops.
    pub(crate) fn open_control_socket(self: &Arc<Self>, path: &Path) -> io::Result<()> {
        let control = ControlSocket::open(self, path)?;
        self.control_sockets.lock().push(control);
        Ok(())
    }

    /// Starts a capture of the device's packets. They are written to the interface that
    /// `capture_interface` creates for the type of link. Returns the capture's number, or `None` if
    /// another capture is running.
    pub(crate) fn begin_capture(
        &self,
        capture_interface: impl FnOnce(Link) -> io::Result<CaptureInterface>,
    ) -> io::Result<Option<u64>> {
        let mut shard = self.shard.lock();
        if shard.capture.is_some() {
            return Ok(None);
        }
        let capture_interface = capture_interface(shard.pump.device().caps().link)?;
        shard.captures_started += 1;
        shard.capture = Some(shard.captures_started);
        shard.pump.device_mut().begin_capture(capture_interface);
        Ok(shard.capture)
    }

    /// Ends capture `number` if it is still running.
    pub(crate) fn end_capture(&self, number: u64) {
        let mut shard = self.shard.lock();
        if shard.capture == Some(number) {
            shard.capture = None;
            shard.pump.device_mut().end_capture();
        }
    }
}

impl Inspect for Engine {
    fn with_host<R>(&self, call: impl FnOnce(&mut Host, IfaceId, Instant) -> R) -> R {
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
