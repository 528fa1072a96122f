//! The control socket's access to an engine.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use fullsend_control::{BoundSocket, Gateway, Inspect};
use fullsend_device::{CaptureInterface, Device};
use fullsend_offload::Link;
use fullsend_stack::{Host, IfaceId};
use fullsend_wire::Instant;
use parking_lot::Mutex;

use super::Engine;
use crate::clock::wall_clock_ns;
use crate::control::ControlSocket;

/// The state of an engine that only control sockets use.
pub(super) struct ControlState {
    /// When the engine was created, in ns since the Unix epoch.
    started: u64,
    /// The name of the device in the output of tools.
    link_name: OnceLock<String>,
    gateway: OnceLock<Weak<dyn Gateway>>,
    /// The control sockets; emptied when the stack stops.
    sockets: Mutex<Vec<ControlSocket>>,
}

impl ControlState {
    pub(super) fn new() -> Self {
        Self {
            started: wall_clock_ns(),
            link_name: OnceLock::new(),
            gateway: OnceLock::new(),
            sockets: Mutex::default(),
        }
    }

    pub(super) fn close_sockets(&self) {
        self.sockets.lock().clear();
    }
}

/// The captures of a shard's device, of which one at a time runs.
#[derive(Default)]
pub(super) struct Captures {
    /// The number of the capture that is running.
    running: Option<u64>,
    /// The number of captures started.
    started: u64,
}

impl Engine {
    /// Sets the name of the link. Later calls have no effect.
    pub(crate) fn name_link(&self, name: &str) {
        let _ = self.control.link_name.set(name.to_owned());
    }

    pub(crate) fn link_name(&self) -> &str {
        self.control.link_name.get().map_or("link0", String::as_str)
    }

    /// Sets the gateway that the stack belongs to. Later calls have no effect.
    pub(crate) fn set_gateway(&self, gateway: Weak<dyn Gateway>) {
        let _ = self.control.gateway.set(gateway);
    }

    /// Opens a control socket that is closed when the stack stops.
    pub(crate) fn open_control_socket(self: &Arc<Self>, path: &Path) -> io::Result<()> {
        self.serve_control(BoundSocket::bind(path)?)
    }

    /// Serves the clients of a control socket until the stack stops.
    pub(crate) fn serve_control(self: &Arc<Self>, socket: BoundSocket) -> io::Result<()> {
        let socket = ControlSocket::serve(self, socket)?;
        self.control.sockets.lock().push(socket);
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
        if shard.captures.running.is_some() {
            return Ok(None);
        }
        let capture_interface = capture_interface(shard.pump.device().caps().link)?;
        shard.captures.started += 1;
        shard.captures.running = Some(shard.captures.started);
        shard.pump.device_mut().begin_capture(capture_interface);
        Ok(shard.captures.running)
    }

    /// Ends capture `number` if it is still running.
    pub(crate) fn end_capture(&self, number: u64) {
        let mut shard = self.shard.lock();
        if shard.captures.running == Some(number) {
            shard.captures.running = None;
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
        self.control.started
    }

    fn link_name(&self) -> &str {
        Self::link_name(self)
    }

    fn gateway(&self) -> Option<Arc<dyn Gateway>> {
        self.control.gateway.get()?.upgrade()
    }
}
