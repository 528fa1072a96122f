//! The stacks that a test can run on, behind one face: the kernel's sockets and ours.

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
    /// `TCP_NODELAY`.
    fn set_nodelay(&self) -> io::Result<()>;
    /// What was sent and what held it back; `None` where the stack does not tell (the kernel's).
    fn flow_report(&self) -> Option<FlowReport>;
    /// `TCP_CONGESTION`.
    fn set_congestion(&self, name: &str) -> io::Result<()>;
    /// Writes all of `data` without copying it.
    fn write_bytes(&mut self, data: Bytes) -> impl Future<Output = io::Result<()>> + Send;
    /// Reads without copying; empty at the end.
    fn read_chunk(&mut self) -> impl Future<Output = io::Result<Bytes>> + Send;
}

/// A stack.
pub(crate) trait Net: Clone + Send + Sync + 'static {
    type Socket: Socket;
    type Listener: Send + 'static;

    fn connect(&self, to: SocketAddr) -> impl Future<Output = io::Result<Self::Socket>> + Send;
    fn listen(&self, on: SocketAddr) -> impl Future<Output = io::Result<Self::Listener>> + Send;
    fn accept(
        listener: &mut Self::Listener,
    ) -> impl Future<Output = io::Result<(Self::Socket, SocketAddr)>> + Send;
    /// Where the listener listens.
    fn local_addr(listener: &Self::Listener) -> io::Result<SocketAddr>;
    /// Absolute counters.
    fn counters(&self) -> io::Result<Counters>;
}
