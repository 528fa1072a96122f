//! A stack's network: the sockets of `fullsend`.

use std::io;
use std::net::{IpAddr, SocketAddr};

use fullsend::Stack;
pub use fullsend::{OwnedReadHalf, OwnedWriteHalf, TcpListener, TcpSocket, TcpStream, UdpSocket};

/// The addresses of a program on a stack, and what opens its sockets.
#[derive(Clone)]
pub struct Net {
    stack: Stack,
    ips: [IpAddr; 2],
}

impl Net {
    pub(crate) const fn new(stack: Stack, ips: [IpAddr; 2]) -> Self {
        Self { stack, ips }
    }

    /// Returns the stack.
    pub const fn stack(&self) -> &Stack {
        &self.stack
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
        TcpListener::bind(&self.stack, at)
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// Those of `TcpStream::connect`.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(&self.stack, to).await
    }

    /// Creates a TCP socket for IPv4.
    ///
    /// # Errors
    /// Those of `TcpSocket::new_v4`.
    pub fn tcp_socket(&self) -> io::Result<TcpSocket> {
        TcpSocket::new_v4(&self.stack)
    }

    /// Binds a UDP socket to an address; port 0 chooses a free port.
    ///
    /// # Errors
    /// Those of `UdpSocket::bind`.
    pub async fn bind_udp(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        UdpSocket::bind(&self.stack, at)
    }
}
