//! The host's own addresses, queried from the kernel each time.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use fullsend_device::LogLimit;
use netlink_packet_core::NLM_F_ACK;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use parking_lot::Mutex;

use super::netlink::Netlink;

type Socket = Arc<Mutex<Netlink>>;

/// The socket that was opened before the sandbox forbade it.
static BEFORE_SANDBOX: OnceLock<Option<Socket>> = OnceLock::new();

/// The log lines about lookups that fail.
static FAILED: LogLimit = LogLimit::new();

/// Opens the socket for gateways that this process builds later. Must be called before the sandbox.
pub(super) fn open_before_sandbox() {
    BEFORE_SANDBOX.get_or_init(|| open().ok());
}

fn open() -> io::Result<Socket> {
    Ok(Arc::new(Mutex::new(Netlink::open_nonblocking()?)))
}

/// A lookup of the host's own addresses: those of its interfaces, and those with a route of the type
/// `local`. Each lookup queries the kernel's routes, so that changes take effect at once.
pub(crate) struct OwnAddresses(Option<Socket>);

impl OwnAddresses {
    /// Opens a socket in the calling thread's network namespace. In a sandbox, uses the one opened
    /// before.
    pub(crate) fn open() -> Self {
        let before = || BEFORE_SANDBOX.get()?.clone();
        Self(open().ok().or_else(before))
    }

    /// Returns whether this host receives packets to an address. Returns `true` if the kernel does not
    /// answer.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match self.route_type(address) {
            Ok(kind) => matches!(
                kind,
                Some(
                    RouteType::Local
                        | RouteType::Broadcast
                        | RouteType::Anycast
                        | RouteType::Multicast
                )
            ),
            Err(error) => {
                FAILED.warn(error.kind(), || {
                    format!(
                        "cannot look up whether {address} is an address of this host: {error}; it counts \
                         as one; build the gateway before the process gives up netlink sockets"
                    )
                });
                true
            }
        }
    }

    /// Returns the type of the route to an address, or `None` if there is none.
    fn route_type(&self, address: IpAddr) -> io::Result<Option<RouteType>> {
        let socket = self.0.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let mut request = RouteMessage::default();
        request.header.address_family = match address {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        request.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        request
            .attributes
            .push(RouteAttribute::Destination(address.into()));
        let request = RouteNetlinkMessage::GetRoute(request);
        let objects = match socket.lock().request(request, NLM_F_ACK) {
            Ok(objects) => objects,
            Err(error) if is_without_route(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let kind = objects.into_iter().find_map(|object| match object {
            RouteNetlinkMessage::NewRoute(route) => Some(route.header.kind),
            _ => None,
        });
        Ok(kind)
    }
}

/// Returns whether an error means that no packet can be sent to an address.
fn is_without_route(error: &io::Error) -> bool {
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
    // Routes of the types `blackhole` and `prohibit` give `EINVAL` and `EACCES`.
    matches!(
        errno,
        Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EACCES | Errno::EINVAL
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_loopback_is_of_the_host_and_other_addresses_are_not() {
        let own = OwnAddresses::open();
        assert!(own.contains(ip("127.0.0.1")) && own.contains(ip("::ffff:127.0.0.1")));
        for other in ["203.0.113.77", "2001:db8:77::1"] {
            assert!(!own.contains(ip(other)), "{other}");
        }
    }

    #[test]
    fn without_an_answer_each_address_counts() {
        assert!(OwnAddresses(None).contains(ip("203.0.113.77")));
    }
}
