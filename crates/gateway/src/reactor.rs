//! Registration of sockets with tokio's reactor.

use std::io;

use socket2::Socket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const INTEREST: Interest = Interest::READABLE
    .add(Interest::WRITABLE)
    .add(Interest::PRIORITY);

/// Adds a non-blocking socket to the reactor of the current runtime. The reactor reports urgent data
/// as [`Interest::PRIORITY`].
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
    unsafe { AsyncFd::register_with_interest(socket, INTEREST) }.map_err(io::Error::from)
}
