//! Support for `axum::serve` on a [`TcpListener`].

use std::io;
use std::net::SocketAddr;

use crate::{TcpListener, TcpStream};

impl axum::serve::Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        match Self::accept(self).await {
            Ok(accepted) => accepted,
            Err(error) => {
                // The stack has stopped for good, and the trait cannot return an error. A server
                // can end through `with_graceful_shutdown` on `Stack::closed`.
                tracing::error!(%error, "no more connections");
                std::future::pending().await
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}
