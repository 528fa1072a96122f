//! A gateway, its builder, and its handle.

use std::io;
use std::sync::Arc;

use fullsend::Stack;
use fullsend_device::Device;

use crate::config::Config;
use crate::counters::{AtomicCounters, Counters};
use crate::forward::{Forward, ForwardId};

/// What the tasks of a gateway share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) stack: Stack,
    pub(crate) counters: AtomicCounters,
    stop: tokio::sync::Notify,
}

/// A gateway between a guest behind a device and the host's sockets.
///
/// It works while [`run`](Self::run) is polled. Dropping it resets all flows.
#[must_use = "the gateway does nothing before `run` is awaited"]
pub struct Gateway {
    shared: Arc<Shared>,
}

/// Changes and inspects a gateway while it runs. Clones refer to the same gateway.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

/// Builder of a [`Gateway`]: its [`Config`] and its device.
#[derive(Default)]
pub struct Builder {
    config: Config,
    device: Option<Box<dyn Device>>,
}

impl Builder {
    /// Replaces all settings.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Changes settings in place.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Sets the device behind which the guest is: a TAP in the guest's network namespace
    /// ([`fullsend_device::Tun`]), or any other Ethernet device with a file descriptor.
    #[must_use]
    pub fn device(mut self, device: Box<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// Builds the gateway; see [`Gateway::new`].
    ///
    /// # Errors
    /// Those of [`Gateway::new`]; `InvalidInput` without a device.
    pub fn build(self) -> io::Result<Gateway> {
        let device = self.device.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the gateway has no device; choose one with .device(..)",
            )
        })?;
        Gateway::new(self.config, device)
    }
}

impl Gateway {
    /// Returns a builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Builds a gateway on `device` and binds its forwards. Must be called within a tokio runtime
    /// whose I/O and time drivers are enabled.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid setting; the message names the value and what to write
    ///   instead.
    /// - The error of the operating system if a forward cannot be bound.
    pub fn new(config: Config, device: Box<dyn Device>) -> io::Result<Self> {
        let mut builder = Stack::builder()
            .device(device)
            .mtu(config.mtu)
            .mac(config.mac);
        if let Some(v4) = &config.ipv4 {
            builder = builder
                .address(&format!("{}/{}", v4.gateway, v4.prefix))
                .route("0.0.0.0/0", None);
        }
        if let Some(v6) = &config.ipv6 {
            builder = builder
                .address(&format!("{}/{}", v6.gateway, v6.prefix))
                .route("::/0", None);
        }
        let stack = builder.build()?;
        let shared = Arc::new(Shared {
            config,
            stack,
            counters: AtomicCounters::default(),
            stop: tokio::sync::Notify::new(),
        });
        let gateway = Self { shared };
        for forward in gateway.shared.config.forwards.clone() {
            gateway.handle().add_forward(forward)?;
        }
        Ok(gateway)
    }

    /// Returns a handle.
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }

    /// Relays until [`Handle::stop`] is called or the device is lost. Then all flows are reset and
    /// all sockets closed.
    ///
    /// # Errors
    /// `NetworkDown` if the device was lost, e.g. because the namespace of a TAP has ended.
    pub async fn run(self) -> io::Result<()> {
        tokio::select! {
            error = self.shared.stack.closed() => Err(error),
            () = self.shared.stop.notified() => Ok(()),
        }
    }
}

impl Handle {
    /// Binds a forward, which accepts clients from now on. Must be called within the gateway's
    /// runtime.
    ///
    /// # Errors
    /// The error of the operating system if it cannot be bound, with the address in the message;
    /// `InvalidInput` for a guest address without a family in the configuration; `QuotaExceeded`
    /// beyond [`Limits::forwards`](crate::Limits::forwards).
    pub fn add_forward(&self, forward: Forward) -> io::Result<ForwardId> {
        let _ = forward;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a forward. Flows that use it go on.
    ///
    /// # Errors
    /// `NotFound` if there is no such forward.
    pub fn remove_forward(&self, id: ForwardId) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no forward with the number {}", id.0),
        ))
    }

    /// Returns the forwards, in the order in which they were added, with the ports that they are
    /// bound to.
    pub fn list_forwards(&self) -> Vec<(ForwardId, Forward)> {
        Vec::new()
    }

    /// Returns the gateway's counters.
    pub fn counters(&self) -> Counters {
        self.shared.counters.read()
    }

    /// Returns the stack behind the guest's device, e.g. for its own counters or a packet capture.
    pub fn stack(&self) -> &Stack {
        &self.shared.stack
    }

    /// Ends [`Gateway::run`].
    pub fn stop(&self) {
        self.shared.stop.notify_one();
    }
}
