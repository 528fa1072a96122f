//! ICMP messages that an application processes instead of the stack.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::task::Poll;

use fullsend_stack::{IcmpMessage, WaitOn};

use crate::engine::EngineHandle;
use crate::error::io_error;
use crate::stack::Stack;
use crate::wait_registration::{WaitRegistration, waiter};

/// Socket of a transparent gateway for ICMP and ICMPv6: it receives the echo requests to addresses
/// that are not the stack's, and router solicitations, and sends any message from any address. A
/// stack has at most one.
///
/// # Example
/// A gateway that answers for every address:
///
/// ```no_run
/// # async fn answer(stack: &fullsend::Stack) -> std::io::Result<()> {
/// use fullsend::IcmpSocket;
///
/// let socket = IcmpSocket::open(stack)?;
/// loop {
///     let request = socket.recv().await?;
///     let mut message = vec![0; request.message.len()];
///     request.message.copy_to(&mut message);
///     message[0] = if request.from.is_ipv6() { 129 } else { 0 }; // echo reply
///     socket.send(request.to, request.from, message, None)?;
/// }
/// # }
/// ```
pub struct IcmpSocket {
    engine: EngineHandle,
}

impl IcmpSocket {
    /// Opens the socket.
    ///
    /// # Errors
    /// `AddrInUse` if the stack has one already; the stack's error if it has stopped.
    pub fn open(stack: &Stack) -> io::Result<Self> {
        stack
            .engine
            .op(|host, _| host.icmp_open().map_err(io_error))?;
        Ok(Self {
            engine: stack.engine.clone(),
        })
    }

    /// Receives the next message. Cancel safe: dropping the future loses no message.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn recv(&self) -> io::Result<IcmpMessage> {
        let mut wait_registration = WaitRegistration::new(&self.engine, WaitOn::Icmp);
        poll_fn(|cx| {
            let next = self.engine.op(|host, _| {
                let mut key = wait_registration.key();
                while host.icmp_poll_ready(waiter(cx, &mut key)) {
                    if let Some(message) = host.icmp_recv() {
                        return Ok(Some(message));
                    }
                }
                Ok(None)
            })?;
            next.map_or(Poll::Pending, |message| Poll::Ready(Ok(message)))
        })
        .await
    }

    /// Sends `message`, which begins with its type, from `from`, an address of any host, to `to`.
    /// The checksum need not be set. `ttl` is the TTL or hop limit; with `None`, the default.
    ///
    /// # Errors
    /// `InvalidInput` for a message of fewer than 8 bytes; `AddrNotAvailable` if the addresses are
    /// of different families; `NetworkUnreachable` without a route; the stack's error if it has
    /// stopped.
    pub fn send(
        &self,
        from: IpAddr,
        to: IpAddr,
        message: Vec<u8>,
        ttl: Option<u8>,
    ) -> io::Result<()> {
        self.engine.op(|host, now| {
            host.icmp_send(now, (from, to), message, ttl)
                .map_err(io_error)
        })
    }
}

impl Drop for IcmpSocket {
    fn drop(&mut self) {
        self.engine.close((), |(), host, _| host.icmp_close());
    }
}

impl std::fmt::Debug for IcmpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IcmpSocket").finish_non_exhaustive()
    }
}
