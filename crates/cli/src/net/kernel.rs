//! The implementation of a test's sockets with the kernel's, through tokio.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use fullsend_tcp::FlowReport;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{NetStack, Socket};
use crate::usage::{self, Counters};

/// Listen backlog that suffices for most values of `--flows`; the kernel limits it to net.core.somaxconn.
const BACKLOG: u32 = 4096;

/// The kernel's stack.
#[derive(Clone, Copy)]
pub(crate) struct Kernel;

impl NetStack for Kernel {
    type Socket = TcpStream;
    type Listener = TcpListener;

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(to).await
    }

    async fn listen(&self, on: SocketAddr) -> io::Result<TcpListener> {
        let (socket, on) = match on {
            SocketAddr::V4(_) => (TcpSocket::new_v4()?, on),
            SocketAddr::V6(v6) => match TcpSocket::new_v6() {
                Ok(socket) => (socket, on),
                // Without IPv6, the kernel listens on any IPv4 address instead.
                Err(_) if v6.ip().is_unspecified() => {
                    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, v6.port()));
                    (TcpSocket::new_v4()?, any)
                }
                Err(error) => return Err(error),
            },
        };
        socket.set_reuseaddr(true)?;
        socket.bind(on)?;
        socket.listen(BACKLOG)
    }

    async fn accept(listener: &mut TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, peer) = listener.accept().await?;
        // An IPv4 peer of an IPv6 listener is shown as an IPv4 address.
        Ok((
            socket,
            SocketAddr::new(peer.ip().to_canonical(), peer.port()),
        ))
    }

    fn local_addr(listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    fn counters(&self) -> io::Result<Counters> {
        usage::kernel_counters()
    }
}

impl Socket for TcpStream {
    fn set_nodelay(&self) -> io::Result<()> {
        TcpStream::set_nodelay(self, true)
    }

    fn flow_report(&self) -> Option<FlowReport> {
        None
    }

    fn set_congestion(&self, name: &str) -> io::Result<()> {
        Ok(setsockopt(
            self,
            sockopt::TcpCongestion,
            &OsString::from(name),
        )?)
    }

    async fn write_bytes(&mut self, data: Bytes) -> io::Result<()> {
        self.write_all(&data).await
    }

    async fn read_chunk(&mut self) -> io::Result<Bytes> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
