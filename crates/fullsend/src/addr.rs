//! Conversion to socket addresses. Names are not resolved: that would need a resolver on the stack.

use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Conversion to a socket address, for `SocketAddr`, `"10.0.0.2:80"`, `"[fd00::2]:80"` and
/// `(ip, port)`.
pub trait ToAddr {
    /// Returns the address.
    ///
    /// # Errors
    /// `InvalidInput` for a string that is not an IP address with a port.
    fn to_addr(&self) -> io::Result<SocketAddr>;
}

macro_rules! to_addr {
    ($($ty:ty),*) => {$(
        impl ToAddr for $ty {
            fn to_addr(&self) -> io::Result<SocketAddr> {
                Ok(SocketAddr::from(*self))
            }
        }
    )*};
}

to_addr!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16),
    ([u8; 4], u16)
);

impl ToAddr for str {
    fn to_addr(&self) -> io::Result<SocketAddr> {
        self.parse().map_err(|_| {
            let text = format!(
                "{self:?} is not an IP address with a port (names are not resolved); write e.g. \
                 10.0.0.2:80 or [fd00::2]:80"
            );
            Error::new(ErrorKind::InvalidInput, text)
        })
    }
}

impl ToAddr for String {
    fn to_addr(&self) -> io::Result<SocketAddr> {
        self.as_str().to_addr()
    }
}

impl<T: ToAddr + ?Sized> ToAddr for &T {
    fn to_addr(&self) -> io::Result<SocketAddr> {
        (**self).to_addr()
    }
}

/// Returns an error for port 0, which cannot be a destination.
pub(crate) fn check_port(remote: SocketAddr) -> io::Result<()> {
    if remote.port() == 0 {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("{remote} has port 0; write the port to connect to"),
        ));
    }
    Ok(())
}
