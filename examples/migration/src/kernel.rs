//! The kernel's network: the sockets of `tokio::net`.

use std::io;
use std::net::{IpAddr, SocketAddr};

pub use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
pub use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

/// The addresses of a program on the kernel's network, and what opens its sockets.
#[derive(Clone, Debug)]
pub struct Net {
    ips: [IpAddr; 2],
}

impl Net {
    pub(crate) const fn new(ips: [IpAddr; 2]) -> Self {
        Self { ips }
    }

    /// Returns the program's IPv4 address and its IPv6 address.
    pub const fn ips(&self) -> [IpAddr; 2] {
        self.ips
    }

    /// Listens on an address; port 0 chooses a free port.
    ///
    /// # Errors
    /// Those of `TcpListener::bind`.
    pub async fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(at).await
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// Those of `TcpStream::connect`.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(to).await
    }

    /// Creates a TCP socket for IPv4.
    ///
    /// # Errors
    /// Those of `TcpSocket::new_v4`.
    pub fn tcp_socket(&self) -> io::Result<TcpSocket> {
        TcpSocket::new_v4()
    }

    /// Binds a UDP socket to an address; port 0 chooses a free port.
    ///
    /// # Errors
    /// Those of `UdpSocket::bind`.
    pub async fn bind_udp(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        UdpSocket::bind(at).await
    }
}
