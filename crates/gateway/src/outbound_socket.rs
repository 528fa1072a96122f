//! The source address and interface of the host's sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::Socket;

use crate::config::Outbound;

/// Binds a socket that will be connected to `to` as the settings require. For destinations on the
/// host's loopback, interfaces do not apply, and addresses only with [`Outbound::loopback`].
///
/// # Errors
/// The error of the operating system, e.g. if the host does not have the address.
pub(crate) fn bind_outbound(
    socket: &Socket,
    to: SocketAddr,
    outbound: &Outbound,
) -> io::Result<()> {
    let is_loopback = to.ip().is_loopback();
    if is_loopback && !outbound.loopback {
        return Ok(());
    }
    let (address, interface) = match to {
        SocketAddr::V4(_) => (outbound.ipv4.map(IpAddr::V4), &outbound.ipv4_interface),
        SocketAddr::V6(_) => (outbound.ipv6.map(IpAddr::V6), &outbound.ipv6_interface),
    };
    if let Some(interface) = interface
        && !is_loopback
    {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(address) = address {
        // The port is chosen when the socket is connected, so that one port can serve several
        // destinations.
        nix::sys::socket::setsockopt(
            socket,
            nix::sys::socket::sockopt::IpBindAddressNoPort,
            &true,
        )?;
        socket.bind(&SocketAddr::new(address, 0).into())?;
    }
    Ok(())
}
