//! The control socket's access to a stack.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use fullsend_control::{BoundSocket, Gateway, Inspect};
use fullsend_device::{CaptureInterface, Device};
use fullsend_offload::Link;
use fullsend_stack::{Host, IfaceId};
use fullsend_wire::Instant;
use parking_lot::Mutex;

use super::{Engine, Group};
use crate::clock::wall_clock_ns;
use crate::control::ControlSocket;

/// The state of a stack that only control sockets use.
pub(super) struct ControlState {
    /// The time at which the stack was created, in ns since the Unix epoch.
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

/// The captures of a shard's device, at most one of which runs.
#[derive(Default)]
pub(super) struct Captures {
    /// The number of the capture that is running.
    running: Option<u64>,
    /// The number of captures started.
    started: u64,
}

impl Group {
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

    /// Returns the view of the stack for one request, or `None` if the stack has ended.
    pub(crate) fn inspector(self: &Arc<Self>) -> Option<Inspector> {
        let engines = self.engines();
        let complete = !engines.is_empty() && engines.len() == self.len();
        complete.then(|| Inspector {
            group: self.clone(),
            engines,
        })
    }
}

impl Engine {
    /// Calls `call` with the host and the time. It must not send or wake tasks.
    pub(crate) fn inspect<R>(&self, call: impl FnOnce(&mut Host, Instant) -> R) -> R {
        let (mut shard, now) = self.lock();
        call(&mut shard.host, now)
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

/// The view of a stack for its control socket.
pub(crate) struct Inspector {
    group: Arc<Group>,
    engines: Vec<Arc<Engine>>,
}

impl Inspect for Inspector {
    fn shards(&self) -> usize {
        self.engines.len()
    }

    fn with_host<R>(&self, shard: usize, call: impl FnOnce(&mut Host, IfaceId, Instant) -> R) -> R {
        let (mut shard, now) = self.engines[shard].lock();
        let iface = shard.pump.iface();
        call(&mut shard.host, iface, now)
    }

    fn change<R>(
        &self,
        shard: usize,
        call: impl FnOnce(&mut Host, Instant) -> R,
    ) -> Result<R, String> {
        self.engines[shard]
            .op(|host, now| Ok(call(host, now)))
            .map_err(|error| error.to_string())
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.group.counters(&self.engines)
    }

    fn sysctls(&self) -> Vec<(&'static str, String)> {
        self.group.sysctls()
    }

    fn sysctl(&self, key: &str) -> Result<String, String> {
        self.group.sysctl(key).map_err(|error| error.to_string())
    }

    fn set_sysctl(&self, key: &str, value: &str) -> Result<(), String> {
        let set = self.group.set_sysctl(key, value);
        set.map_err(|error| error.to_string())
    }

    fn started(&self) -> u64 {
        self.group.control.started
    }

    fn link_name(&self) -> &str {
        self.group.link_name()
    }

    fn gateway(&self) -> Option<Arc<dyn Gateway>> {
        self.group.control.gateway.get()?.upgrade()
    }
}
