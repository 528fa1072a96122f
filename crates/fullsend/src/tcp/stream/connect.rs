//! Opening connections.

use std::io;
use std::net::SocketAddr;

use fullsend_stack::Interest as HostInterest;

use super::TcpStream;
use crate::addr::{self, Addrs, ToAddrs};
use crate::error::io_error;
use crate::stack::Stack;
use crate::tcp::socket::SocketSettings;

impl TcpStream {
    /// Connects to `remote` and waits for the end of the handshake. The addresses of a name are tried
    /// in order.
    ///
    /// # Errors
    /// - `ConnectionRefused` if the peer answers with a RST, `TimedOut` if it does not answer.
    /// - `NetworkUnreachable` without a route, `HostUnreachable` if neighbor discovery fails or
    ///   a router reports it.
    /// - `AddrNotAvailable` if all ephemeral ports to `remote` are in use.
    /// - `InvalidInput` if `remote` is not a host with a port, or has port 0.
    /// - Errors of the resolver of a name.
    /// - The stack's error if it has stopped ([`Stack::closed`]).
    ///
    /// With several addresses it returns the error of the last one.
    pub async fn connect(stack: &Stack, remote: impl ToAddrs) -> io::Result<Self> {
        Self::connect_any(stack, None, remote.to_addrs()?).await
    }

    async fn connect_any(
        stack: &Stack,
        local: Option<SocketAddr>,
        remote: Addrs,
    ) -> io::Result<Self> {
        let mut addrs = remote.resolve(&stack.engine).await?.into_iter();
        let last = addrs.next_back();
        for remote in addrs {
            if let Ok(stream) = Self::connect_inner(stack, local, remote).await {
                return Ok(stream);
            }
        }
        let last = last.ok_or(io::ErrorKind::InvalidInput)?;
        Self::connect_inner(stack, local, last).await
    }

    /// Connects to `remote` from `local`. The unspecified address and port 0 leave the choice to
    /// the stack.
    ///
    /// # Errors
    /// `AddrInUse` and `AddrNotAvailable` for `local`, and the errors of [`connect`](Self::connect).
    pub async fn connect_from(
        stack: &Stack,
        local: impl ToAddrs,
        remote: impl ToAddrs,
    ) -> io::Result<Self> {
        let local = local.to_addrs()?.local()?[0];
        Self::connect_any(stack, Some(local), remote.to_addrs()?).await
    }

    /// Connects to `remote` with the first bytes of `data` on the SYN (TCP Fast Open, RFC 7413), if
    /// `remote` has sent a cookie before or none is required (`tcp_fastopen`). Returns the stream
    /// and the number of bytes accepted; pass the rest to
    /// [`write`](tokio::io::AsyncWriteExt::write). If any bytes were accepted, it does not wait for
    /// the handshake, and the next read or write returns the error of a failed handshake.
    ///
    /// The peer's application may receive data on a SYN twice: send only data that may be repeated.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect).
    pub async fn connect_with(
        stack: &Stack,
        remote: impl ToAddrs,
        data: &[u8],
    ) -> io::Result<(Self, usize)> {
        let addrs = remote.to_addrs()?;
        let remote = addrs.resolve_first(&stack.engine).await?;
        Self::connect_with_data(stack, None, remote, data, &SocketSettings::default()).await
    }

    /// Connects with data on the SYN, with the options of a [`TcpSocket`](crate::TcpSocket).
    pub(in crate::tcp) async fn connect_with_data(
        stack: &Stack,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        data: &[u8],
        settings: &SocketSettings,
    ) -> io::Result<(Self, usize)> {
        addr::check_port(remote)?;
        let known = stack.fastopen_server(remote.ip());
        let (engine, (id, addrs, accepted)) =
            stack.open_connection(local, remote, |host, now| {
                if let Some(server) = known {
                    host.add_fastopen_server(remote.ip(), server);
                }
                let id = host
                    .tcp_connect_deferred(now, local, remote)
                    .map_err(io_error)?;
                settings.apply(host, now, id)?;
                let addrs = host.tcp(id).addrs().map_err(io_error)?;
                let accepted = if host.tcp(id).is_fastopen_ready(now).map_err(io_error)? {
                    host.tcp(id).write(now, data, false).map_err(io_error)?
                } else {
                    host.tcp(id).send_syn(now).map_err(io_error)?;
                    0
                };
                Ok((id, addrs, accepted))
            })?;
        let stream = Self::new(engine, id, addrs.0, addrs.1);
        if accepted == 0 {
            stream.established().await?;
        }
        Ok((stream, accepted))
    }

    /// Connects to `remote` from `local`, whose address need not be the stack's: a gateway passes
    /// the address of its client on. Port 0 leaves the choice to the stack.
    ///
    /// # Errors
    /// `AddrInUse` for `local`; `AddrNotAvailable` if it cannot be the address of a host or is of
    /// the other family; and those of [`connect`](Self::connect).
    pub async fn connect_transparent(
        stack: &Stack,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<Self> {
        addr::check_port(remote)?;
        let (engine, (id, (local, remote))) =
            stack.open_connection(Some(local), remote, |host, now| {
                let id = host
                    .tcp_connect_from(now, local, remote)
                    .map_err(io_error)?;
                Ok((id, host.tcp(id).addrs().map_err(io_error)?))
            })?;
        let stream = Self::new(engine, id, local, remote);
        stream.established().await?;
        Ok(stream)
    }

    async fn connect_inner(
        stack: &Stack,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> io::Result<Self> {
        Self::connect_configured(stack, local, remote, &SocketSettings::default()).await
    }

    /// Connects with the options of a [`TcpSocket`](crate::TcpSocket), which apply from the SYN on.
    pub(in crate::tcp) async fn connect_configured(
        stack: &Stack,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        settings: &SocketSettings,
    ) -> io::Result<Self> {
        addr::check_port(remote)?;
        let (engine, (id, (local, remote))) =
            stack.open_connection(local, remote, |host, now| {
                let id = host.tcp_connect(now, local, remote).map_err(io_error)?;
                settings.apply(host, now, id)?;
                Ok((id, host.tcp(id).addrs().map_err(io_error)?))
            })?;
        // From here on, dropping this future closes the connection.
        let stream = Self::new(engine, id, local, remote);
        stream.established().await?;
        Ok(stream)
    }

    /// Waits for the end of the handshake.
    pub(crate) async fn established(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Write).await?;
        self.take_error()?.map_or(Ok(()), Err)
    }
}
