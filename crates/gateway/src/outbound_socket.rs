//! The source address and interface of the host's sockets.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

use crate::config::Outbound;

/// Binds a socket that will send to `to`, as the settings require.
///
/// # Errors
/// The error of the operating system, e.g. if the host does not have the address.
pub(crate) fn bind_outbound(
    socket: &Socket,
    to: SocketAddr,
    outbound: &Outbound,
) -> io::Result<()> {
    let (address, interface) = outbound.settings_for(to.ip());
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(address) = address {
        // The port is chosen when the socket connects or first sends, so that several destinations can
        // share a TCP port.
        nix::sys::socket::setsockopt(
            socket,
            nix::sys::socket::sockopt::IpBindAddressNoPort,
            &true,
        )?;
        socket.bind(&SocketAddr::new(address, 0).into())?;
    }
    Ok(())
}
