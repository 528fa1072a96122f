//! Registration of sockets with tokio's reactor.

use std::io;

use socket2::Socket;
use tokio::io::unix::AsyncFd;

/// Adds a non-blocking socket to the reactor of the current runtime.
///
/// # Errors
/// The error of the operating system.
#[allow(
    unsafe_code,
    reason = "tokio has no safe way to register a socket that it does not know"
)]
pub(crate) fn register(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: the `AsyncFd` owns the socket, so no other code can close its descriptor, and a
    // `Socket` always returns the same one.
    unsafe { AsyncFd::register(socket) }.map_err(io::Error::from)
}
