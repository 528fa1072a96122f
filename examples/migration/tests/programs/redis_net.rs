//! What mini-redis imports in place of `tokio::net`, and how its clients connect.

use std::net::SocketAddr;

use fullsend::Stack;
pub(crate) use fullsend::{TcpListener, TcpStream, ToAddrs as ToSocketAddrs};
use fullsend_migration::{kernel, stack};

tokio::task_local! {
    /// The stack that the library's `client::connect`, which has no argument for it, connects on.
    static STACK: Stack;
}

/// Returns the stack on which the task connects.
pub(crate) fn stack() -> Stack {
    STACK.with(Clone::clone)
}

/// mini-redis as published, for tokio's sockets.
pub(crate) mod on_kernel {
    use super::{SocketAddr, kernel};
    pub(crate) use ::mini_redis::{client, server};

    pub(crate) async fn connect(_: &kernel::Net, to: SocketAddr) -> client::Client {
        client::connect(to).await.unwrap()
    }
}

/// mini-redis with the sockets of fullsend.
pub(crate) mod on_stack {
    use super::{STACK, SocketAddr, stack};
    pub(crate) use crate::redis_on_stack::{client, server};

    pub(crate) async fn connect(net: &stack::Net, to: SocketAddr) -> client::Client {
        let connect = client::connect(to);
        STACK.scope(net.stack().clone(), connect).await.unwrap()
    }
}
