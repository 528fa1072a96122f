//! The options of a socket that has neither been connected nor listens yet.

use std::io;
use std::time::Duration;

use fullsend_tcp::{Linger, SocketOption};

use super::TcpSocket;
use crate::error::octet;

impl TcpSocket {
    /// Sets any socket option of the connection, or of the listener and its connections. Its value is
    /// checked when the socket connects.
    pub fn set_option(&self, option: SocketOption) {
        self.draft.lock().settings.set(option);
    }

    #[allow(
        clippy::unnecessary_wraps,
        reason = "the signatures are those of tokio"
    )]
    fn set(&self, option: SocketOption) -> io::Result<()> {
        self.set_option(option);
        Ok(())
    }

    fn get<R>(&self, get: impl Fn(&SocketOption) -> Option<R>) -> Option<R> {
        self.draft.lock().settings.find(get)
    }

    /// Sets `SO_KEEPALIVE`: whether an idle connection sends keepalive probes.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
        self.set(SocketOption::SoKeepalive(keepalive))
    }

    /// Returns `SO_KEEPALIVE`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn keepalive(&self) -> io::Result<bool> {
        let on = self.get(|option| match option {
            SocketOption::SoKeepalive(on) => Some(*on),
            _ => None,
        });
        Ok(on.unwrap_or(false))
    }

    /// Sets `SO_REUSEADDR`. It has no effect: a listener may always be bound to the port of
    /// connections in TIME-WAIT.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn set_reuseaddr(&self, reuseaddr: bool) -> io::Result<()> {
        self.draft.lock().reuse_address = reuseaddr;
        Ok(())
    }

    /// Returns the value that [`set_reuseaddr`](Self::set_reuseaddr) has set.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn reuseaddr(&self) -> io::Result<bool> {
        Ok(self.draft.lock().reuse_address)
    }

    /// Sets `SO_REUSEPORT`: several listeners that set it may have the same address and port, and a
    /// hash of its addresses assigns each new connection to one of them.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn set_reuseport(&self, reuseport: bool) -> io::Result<()> {
        self.draft.lock().reuse_port = reuseport;
        Ok(())
    }

    /// Returns `SO_REUSEPORT`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn reuseport(&self) -> io::Result<bool> {
        Ok(self.draft.lock().reuse_port)
    }

    /// Sets `SO_SNDBUF`: the size of the send buffer in bytes, at most `wmem_max`. As on Linux, the
    /// value is doubled for bookkeeping, and autotuning is off.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_send_buffer_size(&self, size: u32) -> io::Result<()> {
        self.set(SocketOption::SoSndbuf(size))
    }

    /// Returns `SO_SNDBUF` in bytes: twice the size that was set, or the second value of
    /// `tcp_wmem`.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn send_buffer_size(&self) -> io::Result<u32> {
        let set = self.get(|option| match option {
            SocketOption::SoSndbuf(bytes) => Some(*bytes),
            _ => None,
        });
        self.buffer_size(set, "wmem_max", "tcp_wmem")
    }

    /// Sets `SO_RCVBUF`: the size of the receive buffer in bytes, at most `rmem_max`. As on Linux, the
    /// value is doubled for bookkeeping, and autotuning is off.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_recv_buffer_size(&self, size: u32) -> io::Result<()> {
        self.set(SocketOption::SoRcvbuf(size))
    }

    /// Returns `SO_RCVBUF` in bytes: twice the size that was set, or the second value of
    /// `tcp_rmem`.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn recv_buffer_size(&self) -> io::Result<u32> {
        let set = self.get(|option| match option {
            SocketOption::SoRcvbuf(bytes) => Some(*bytes),
            _ => None,
        });
        self.buffer_size(set, "rmem_max", "tcp_rmem")
    }

    fn buffer_size(&self, set: Option<u32>, most: &str, all: &str) -> io::Result<u32> {
        let number = |text: &str| text.parse().unwrap_or(u32::MAX);
        match set {
            Some(bytes) => {
                let most = number(&self.stack.sysctl(most)?);
                Ok(bytes.min(most).saturating_mul(2))
            }
            None => Ok(self
                .stack
                .sysctl(all)?
                .split_whitespace()
                .nth(1)
                .map_or(0, number)),
        }
    }

    /// Sets `SO_LINGER`, as [`TcpStream::set_linger`](crate::TcpStream::set_linger) does.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_linger(&self, dur: Option<Duration>) -> io::Result<()> {
        let linger = dur.map_or(Linger::Background, |span| Linger::For(span.into()));
        self.set(SocketOption::SoLinger(linger))
    }

    /// Sets `SO_LINGER` to zero: dropping the stream resets the connection.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Returns `SO_LINGER`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.get(|option| match option {
            SocketOption::SoLinger(Linger::For(span)) => Some((*span).into()),
            _ => None,
        }))
    }

    /// Sets `TCP_NODELAY`: whether small segments are sent without waiting for acknowledgements.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set(SocketOption::TcpNodelay(nodelay))
    }

    /// Returns `TCP_NODELAY`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn nodelay(&self) -> io::Result<bool> {
        let on = self.get(|option| match option {
            SocketOption::TcpNodelay(on) => Some(*on),
            _ => None,
        });
        Ok(on.unwrap_or(false))
    }

    /// Sets `IP_TOS`: the type of service, 0 to 255. The stack controls the two ECN bits and ignores
    /// them here. A socket has one value for both families: this is
    /// [`set_tclass_v6`](Self::set_tclass_v6).
    ///
    /// # Errors
    /// `InvalidInput` for a larger value.
    pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
        self.set(SocketOption::IpTos(octet("TOS", tos, 0)?))
    }

    /// Returns `IP_TOS`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn tos_v4(&self) -> io::Result<u32> {
        let tos = self.get(|option| match option {
            SocketOption::IpTos(tos) => Some(u32::from(*tos)),
            _ => None,
        });
        Ok(tos.unwrap_or(0))
    }

    /// Sets `IPV6_TCLASS`: the traffic class, 0 to 255. A socket has one value for both families: this
    /// is [`set_tos_v4`](Self::set_tos_v4).
    ///
    /// # Errors
    /// `InvalidInput` for a larger value.
    pub fn set_tclass_v6(&self, tclass: u32) -> io::Result<()> {
        self.set_tos_v4(tclass)
    }

    /// Returns `IPV6_TCLASS`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn tclass_v6(&self) -> io::Result<u32> {
        self.tos_v4()
    }

    /// Sets `IP_TTL` (IPv4) or `IPV6_UNICAST_HOPS`, 1 to 255.
    ///
    /// # Errors
    /// `InvalidInput` for another value.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set(SocketOption::IpTtl(Some(octet("TTL", ttl, 1)?)))
    }

    /// Sets `TCP_CONGESTION`: the congestion control, by name. DCTCP is negotiated in the handshake.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is not in `tcp_allowed_congestion_control`; the stack's error if
    /// it has stopped.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        let allowed = self.stack.sysctl("tcp_allowed_congestion_control")?;
        if !allowed.split_whitespace().any(|known| known == name) {
            let text = format!("congestion control {name:?} is not allowed; choose of {allowed}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.draft.lock().settings.congestion = Some(name.to_owned());
        Ok(())
    }

    /// Sets `TCP_FASTOPEN` of a listener: the most connections that sent data in their SYN and have
    /// not finished the handshake; 0 disables Fast Open. A client uses
    /// [`connect_with`](Self::connect_with).
    pub fn set_fastopen(&self, queue: u32) {
        self.draft.lock().fastopen_queue = queue;
    }
}
