//! axum serves on our listener as on tokio's.

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
                // The stack has stopped for good, and the trait has no error. A server ends by
                // `with_graceful_shutdown` on `Stack::closed`.
                tracing::error!(%error, "no more connections");
                std::future::pending().await
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}
