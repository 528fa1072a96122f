//! Port forwards from the host to the guest.

use std::net::SocketAddr;

/// The protocol of a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A side of the gateway.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// The host.
    Host,
    /// The guest.
    Guest,
}

/// A port of one side that leads to a port of the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forward {
    /// The side of the clients. For clients in the guest the gateway needs
    /// [`Builder::guest_sockets`](crate::Builder::guest_sockets), and the [policy](crate::Policy) may deny
    /// them.
    pub from: Side,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The host's address. For clients in the host, port 0 chooses a free port, which
    /// [`Handle::list_forwards`](crate::Handle::list_forwards) returns; the unspecified IPv6 address
    /// accepts IPv6 only: add a second forward for IPv4.
    pub host: SocketAddr,
    /// The guest's address. It may be of the other family. For clients in the guest, port 0 chooses
    /// a free port.
    pub guest: SocketAddr,
    /// The interface of the host that clients must use (`SO_BINDTODEVICE`).
    pub interface: Option<String>,
}

/// The number of a forward. Numbers begin at 1 and are not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ForwardId(pub u64);

impl Forward {
    /// Returns a forward from `listen`, an address of the clients' side, to `target` on the other
    /// side, for clients on all interfaces.
    pub const fn new(
        from: Side,
        protocol: Protocol,
        listen: SocketAddr,
        target: SocketAddr,
    ) -> Self {
        let (host, guest) = match from {
            Side::Host => (listen, target),
            Side::Guest => (target, listen),
        };
        Self {
            from,
            protocol,
            host,
            guest,
            interface: None,
        }
    }

    /// Returns the address to which clients connect.
    pub const fn listen(&self) -> SocketAddr {
        match self.from {
            Side::Host => self.host,
            Side::Guest => self.guest,
        }
    }

    /// Returns the address that clients reach.
    pub const fn target(&self) -> SocketAddr {
        match self.from {
            Side::Host => self.guest,
            Side::Guest => self.host,
        }
    }

    /// Sets the address to which clients connect.
    pub(crate) const fn set_listen(&mut self, listen: SocketAddr) {
        match self.from {
            Side::Host => self.host = listen,
            Side::Guest => self.guest = listen,
        }
    }
}
