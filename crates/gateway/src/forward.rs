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

/// A port of the host that leads to a port of the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forward {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The host's address. Port 0 chooses a free port, which
    /// [`Handle::list_forwards`](crate::Handle::list_forwards) returns. The unspecified IPv6
    /// address accepts IPv6 only: add a second forward for IPv4.
    pub host: SocketAddr,
    /// The guest's address. It may be of the other family.
    pub guest: SocketAddr,
    /// The interface of the host that clients must use (`SO_BINDTODEVICE`).
    pub interface: Option<String>,
}

/// The number of a forward. Numbers begin at 1 and are not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ForwardId(pub u64);
