//! The builder of a gateway.

use std::io;
use std::sync::Arc;

use fullsend_device::{Device, PortEvent};

use super::Gateway;
use crate::config::Config;
use crate::namespace::{FileOpener, GuestSockets};

/// Builder of a [`Gateway`]: its [`Config`] and its device.
#[derive(Default)]
pub struct Builder {
    config: Config,
    device: Option<Box<dyn Device>>,
    guests: Vec<Box<dyn Device>>,
    /// Whether guests reach each other; `None` for a gateway with one device, unless `guests` has
    /// entries.
    is_joined: Option<bool>,
    on_guest: Option<OnGuest>,
    helpers: Helpers,
}

/// Helper processes, which do what the gateway cannot do in its sandbox.
#[derive(Default)]
pub(super) struct Helpers {
    pub(super) guest_sockets: Option<GuestSockets>,
    /// The process that opens the file of the host's resolvers.
    pub(super) resolv_conf: Option<FileOpener>,
}

/// The callback that [`Builder::on_guest`] sets.
pub(super) type OnGuest = Box<dyn FnMut(PortEvent) + Send>;

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

    /// Adds a guest behind its own Ethernet device. Several guests are in one network: by DHCP, the first
    /// gets [`Ipv4Config::guest`](crate::Ipv4Config::guest) and the others addresses of the
    /// [range](crate::Ipv4Config::dhcp), by their Ethernet addresses. Each device has its own share of
    /// the [`Limits`](crate::Limits), and cannot use the addresses of another guest or of the gateway
    /// ([`Switch`](fullsend_device::Switch)). Guests do not reach each other unless they are
    /// [joined](Self::join_guests).
    ///
    /// ```no_run
    /// # fn example(first: fullsend_device::FrameLink, second: fullsend_device::FrameLink)
    /// # -> std::io::Result<()> {
    /// use fullsend_gateway::Gateway;
    ///
    /// let gateway = Gateway::builder()
    ///     .guest(Box::new(first))
    ///     .guest(Box::new(second))
    ///     .join_guests(true)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn guest(mut self, device: Box<dyn Device>) -> Self {
        self.guests.push(device);
        self
    }

    /// Sets whether several guests reach each other, as the hosts of an Ethernet do. In either case
    /// [`Handle::add_guest`](super::Handle::add_guest) can add guests, even if none was added before.
    #[must_use]
    pub fn join_guests(mut self, joined: bool) -> Self {
        self.is_joined = Some(joined);
        self
    }

    /// Calls `callback` when one of several guests has sent its first frame, and when its device has
    /// ended. The callback runs while the stack is locked, and must not use the gateway or block.
    #[must_use]
    pub fn on_guest(mut self, callback: impl FnMut(PortEvent) + Send + 'static) -> Self {
        self.on_guest = Some(Box::new(callback));
        self
    }

    /// Lets the gateway open sockets in the guest's network namespace, for clients in the guest
    /// ([`Forward::from`](crate::Forward::from)) and for [`Config::loopback_clients`].
    #[must_use]
    pub fn guest_sockets(mut self, sockets: GuestSockets) -> Self {
        self.helpers.guest_sockets = Some(sockets);
        self
    }

    /// Lets the gateway read [`DnsConfig::resolv_conf`](crate::DnsConfig::resolv_conf) where a
    /// [`Sandbox`](crate::namespace::Sandbox) hides it. `opener` must open this file.
    #[must_use]
    pub fn resolv_conf_opener(mut self, opener: FileOpener) -> Self {
        self.helpers.resolv_conf = Some(opener);
        self
    }

    /// Builds the gateway on the device and binds its forwards. Must be called within a tokio
    /// runtime whose I/O and time drivers are enabled.
    ///
    /// # Errors
    /// - `InvalidInput` without a device, and for an invalid setting; the message names the value
    ///   and what to write instead.
    /// - The error of the operating system if a forward cannot be bound.
    pub fn build(self) -> io::Result<Gateway> {
        let invalid = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let are_several = self.is_joined.is_some() || !self.guests.is_empty();
        match (self.device, are_several) {
            (Some(device), false) => {
                let parts = (device, None, Arc::default());
                Gateway::open(self.config, parts, self.helpers)
            }
            (None, true) if self.helpers.guest_sockets.is_some() => {
                invalid("several guests have no namespace in common; remove .guest_sockets(..)")
            }
            (None, true) => {
                let is_joined = self.is_joined.unwrap_or(false);
                let guests = (self.guests, self.on_guest);
                Gateway::open_joined(self.config, is_joined, guests, self.helpers)
            }
            (Some(_), true) => invalid("the gateway has a device and guests; use .guest(..) alone"),
            (None, false) => invalid("the gateway has no device; choose one with .device(..)"),
        }
    }
}
