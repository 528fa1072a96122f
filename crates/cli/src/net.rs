//! The common interface of the stacks that a test runs on: the kernel's sockets and this stack's.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use fullsend_tcp::FlowReport;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::usage::Counters;

pub(crate) mod embedded;
pub(crate) mod kernel;

/// A connected stream socket.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Sets `TCP_NODELAY`.
    fn set_nodelay(&self) -> io::Result<()>;
    /// Returns the send report, or `None` if the stack does not provide one, like the kernel's.
    fn flow_report(&self) -> Option<FlowReport>;
    /// Sets `TCP_CONGESTION`.
    fn set_congestion(&self, name: &str) -> io::Result<()>;
    /// Writes all of `data` without copying it.
    fn write_bytes(&mut self, data: Bytes) -> impl Future<Output = io::Result<()>> + Send;
    /// Reads without copying. Returns no bytes at the end of the stream.
    fn read_chunk(&mut self) -> impl Future<Output = io::Result<Bytes>> + Send;
}

/// A network stack with stream sockets.
pub(crate) trait NetStack: Clone + Send + Sync + 'static {
    type Socket: Socket;
    type Listener: Send + 'static;

    fn connect(&self, to: SocketAddr) -> impl Future<Output = io::Result<Self::Socket>> + Send;
    fn listen(&self, on: SocketAddr) -> impl Future<Output = io::Result<Self::Listener>> + Send;
    fn accept(
        listener: &mut Self::Listener,
    ) -> impl Future<Output = io::Result<(Self::Socket, SocketAddr)>> + Send;
    /// Returns the address that the listener is bound to.
    fn local_addr(listener: &Self::Listener) -> io::Result<SocketAddr>;
    /// Returns the counters since the start of the stack.
    fn counters(&self) -> io::Result<Counters>;
}
