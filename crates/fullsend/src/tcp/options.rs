//! Socket options of a connection, under their Linux names.

use std::io;
use std::time::Duration;

use fullsend_tcp::congestion::CongestionControl;
use fullsend_tcp::{FlowReport, Linger, SocketOption, SocketOptions, State, TcpInfo};
use fullsend_wire::numbers::DEFAULT_TTL;

use crate::error::{io_error, octet};
use crate::tcp::TcpStream;

impl TcpStream {
    /// Sets a socket option.
    ///
    /// # Errors
    /// `InvalidInput` for a value that is out of range, or an option that only listeners have; the
    /// stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn set_option(&self, option: SocketOption) -> io::Result<()> {
        self.engine.op(|host, now| {
            host.tcp(self.id)
                .set_option(now, option)
                .map_err(|error| with_option(&io_error(error), option))
        })
    }

    /// Sets `TCP_NODELAY`: whether small segments are sent without waiting for acknowledgements.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.set_option(SocketOption::TcpNodelay(on))
    }

    /// Sets `TCP_CORK`: whether partial segments are held back, for 200 ms at most. Clearing it
    /// releases them.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_cork(&self, on: bool) -> io::Result<()> {
        self.set_option(SocketOption::TcpCork(on))
    }

    /// Sets `TCP_QUICKACK`: whether data is acknowledged at once, until the connection becomes
    /// interactive.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_quickack(&self, on: bool) -> io::Result<()> {
        self.set_option(SocketOption::TcpQuickack(on))
    }

    /// Sets `TCP_MAXSEG`: the size of the largest segment to send, in bytes (88 to 32767).
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_maxseg(&self, bytes: u16) -> io::Result<()> {
        self.set_option(SocketOption::TcpMaxseg(bytes))
    }

    /// Sets `TCP_USER_TIMEOUT`: how long data may stay unacknowledged before the connection times
    /// out. With zero, `tcp_retries2` decides.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_user_timeout(&self, span: Duration) -> io::Result<()> {
        self.set_option(SocketOption::TcpUserTimeout(span.into()))
    }

    /// Sets `TCP_SYNCNT`: the number of SYN retransmissions (1 to 127).
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_syncnt(&self, count: u8) -> io::Result<()> {
        self.set_option(SocketOption::TcpSyncnt(count))
    }

    /// Sets `SO_KEEPALIVE`: whether an idle connection sends keepalive probes.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_keepalive(&self, on: bool) -> io::Result<()> {
        self.set_option(SocketOption::SoKeepalive(on))
    }

    /// Sets `TCP_KEEPIDLE`: the idle time before the first keepalive probe (1 s to 32767 s).
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_keepidle(&self, span: Duration) -> io::Result<()> {
        self.set_option(SocketOption::TcpKeepidle(span.into()))
    }

    /// Sets `TCP_KEEPINTVL`: the time between keepalive probes (1 s to 32767 s).
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_keepintvl(&self, span: Duration) -> io::Result<()> {
        self.set_option(SocketOption::TcpKeepintvl(span.into()))
    }

    /// Sets `TCP_KEEPCNT`: the number of unanswered keepalive probes after which the connection
    /// times out (1 to 127).
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_keepcnt(&self, count: u8) -> io::Result<()> {
        self.set_option(SocketOption::TcpKeepcnt(count))
    }

    /// Sets `TCP_NOTSENT_LOWAT`: the limit of data queued and not yet sent, in bytes; with 0, the
    /// tunable decides. A writer that reached the limit is woken when less than half of it is
    /// unsent.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::TcpNotsentLowat(bytes))
    }

    /// Sets `SO_LINGER`. With `Some(Duration::ZERO)`, dropping the stream resets the connection.
    /// With any other value, written data is delivered in the background: a drop cannot wait, so
    /// await [`flushed`](Self::flushed) where that is needed.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let linger = linger.map_or(Linger::Background, |span| Linger::For(span.into()));
        self.set_option(SocketOption::SoLinger(linger))
    }

    /// Sets `SO_LINGER` to zero: dropping the stream resets the connection, and undelivered data is
    /// lost.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Sets `SO_SNDBUF`: the size of the send buffer in bytes, at most `wmem_max`. As on Linux, the
    /// value is doubled for bookkeeping, and autotuning ends.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_sndbuf(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::SoSndbuf(bytes))
    }

    /// Sets `SO_RCVBUF`: the size of the receive buffer in bytes, at most `rmem_max`. As on Linux,
    /// the value is doubled for bookkeeping, and autotuning ends.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_rcvbuf(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::SoRcvbuf(bytes))
    }

    /// Sets `SO_RCVLOWAT`: the number of received bytes from which the stream is readable; at most half
    /// of the receive buffer, or of its largest size (`tcp_rmem`) if it grows by itself. The buffer
    /// grows to hold that much. The stream is readable with less if the window admits no more.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_rcvlowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::SoRcvlowat(bytes))
    }

    /// Sets `SO_MAX_PACING_RATE` in bytes per second; `u64::MAX` means no limit.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_max_pacing_rate(&self, rate: u64) -> io::Result<()> {
        self.set_option(SocketOption::SoMaxPacingRate(rate))
    }

    /// Sets `TCP_WINDOW_CLAMP`: the largest receive window to advertise, in bytes; 0 means no
    /// limit.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_window_clamp(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::TcpWindowClamp(bytes))
    }

    /// Sets `TCP_LINGER2`: how long the connection stays in FIN-WAIT-2 after the stream is dropped, at
    /// most 120 s. With zero, `tcp_fin_timeout` decides; with `None`, the connection skips that state.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_linger2(&self, span: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::TcpLinger2(span.map(Into::into)))
    }

    /// Sets `IP_TOS` (IPv4) or `IPV6_TCLASS`. The stack controls the two ECN bits and ignores them
    /// here.
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.set_option(SocketOption::IpTos(tos))
    }

    /// Sets `IP_TTL` (IPv4) or `IPV6_UNICAST_HOPS` (1 to 255).
    ///
    /// # Errors
    /// The errors of [`set_option`](Self::set_option).
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set_option(SocketOption::IpTtl(Some(octet("TTL", ttl, 1)?)))
    }

    /// Sets `TCP_CONGESTION`: the congestion control, by name.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is unknown or not in `tcp_allowed_congestion_control`.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        self.engine.op(|host, now| {
            host.tcp(self.id)
                .set_congestion(now, name)
                .map_err(|error| {
                    let error = io_error(error);
                    let text = format!(
                        "cannot set congestion control {name:?}: {error}; choose one of \
                         tcp_allowed_congestion_control"
                    );
                    io::Error::new(error.kind(), text)
                })
        })
    }

    /// Sets a congestion control of the program instead of the present one. It starts with its own
    /// window. To control a connection from its start, set it before data is sent, or for all connections
    /// of a listener ([`TcpListener::set_congestion_with`](crate::TcpListener::set_congestion_with)) or
    /// of a stack ([`Builder::congestion_with`](crate::Builder::congestion_with)).
    ///
    /// ```
    /// # use fullsend::{Pair, Stack, TcpListener, TcpStream};
    /// # use fullsend::congestion::{Ack, CongestionControl, CongestionEvent, Instant};
    /// /// Sends as fast as the receiver reads.
    /// #[derive(Debug)]
    /// struct Unlimited;
    ///
    /// impl CongestionControl for Unlimited {
    ///     fn name(&self) -> &'static str {
    ///         "unlimited"
    ///     }
    ///     fn window_bytes(&self) -> u64 {
    ///         u64::MAX
    ///     }
    ///     fn on_mss(&mut self, _: u32) {}
    ///     fn on_ack(&mut self, _: &Ack) {}
    ///     fn on_congestion(&mut self, _: CongestionEvent, _: Instant) {}
    /// }
    ///
    /// # #[tokio::main] async fn main() -> std::io::Result<()> {
    /// let (client, server) = Stack::pair(&Pair::default())?;
    /// let listener = TcpListener::bind(&server, "10.0.0.2:80")?;
    /// let stream = TcpStream::connect(&client, "10.0.0.2:80").await?;
    /// stream.set_congestion_with(Unlimited)?;
    /// assert_eq!(stream.congestion()?, "unlimited");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn set_congestion_with(&self, control: impl CongestionControl + 'static) -> io::Result<()> {
        self.engine.op(|host, now| {
            host.tcp(self.id)
                .set_congestion_with(now, Box::new(control))
                .map_err(io_error)
        })
    }

    /// Returns all socket options, with the values that `getsockopt` returns on Linux.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn options(&self) -> io::Result<SocketOptions> {
        self.engine
            .op(|host, _| host.tcp(self.id).options().map_err(io_error))
    }

    /// Returns `TCP_NODELAY`.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn nodelay(&self) -> io::Result<bool> {
        self.options().map(|o| o.tcp_nodelay)
    }

    /// Returns `TCP_QUICKACK`.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn quickack(&self) -> io::Result<bool> {
        self.options().map(|o| o.tcp_quickack)
    }

    /// Returns `IP_TTL` (IPv4) or `IPV6_UNICAST_HOPS`.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn ttl(&self) -> io::Result<u32> {
        self.options()
            .map(|o| o.ip_ttl.unwrap_or(DEFAULT_TTL).into())
    }

    /// Returns `IP_TOS` (IPv4) or `IPV6_TCLASS`.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn tos(&self) -> io::Result<u8> {
        self.options().map(|o| o.ip_tos)
    }

    /// Returns `TCP_CORK`.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn cork(&self) -> io::Result<bool> {
        self.options().map(|o| o.tcp_cork)
    }

    /// Returns `TCP_NOTSENT_LOWAT` in bytes; with 0, the tunable decides.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn notsent_lowat(&self) -> io::Result<u32> {
        self.options().map(|o| o.tcp_notsent_lowat)
    }

    /// Returns `SO_LINGER`.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.options().map(|o| match o.so_linger {
            Linger::Background => None,
            Linger::For(span) => Some(span.into()),
        })
    }

    /// Returns `SO_KEEPALIVE`.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn keepalive(&self) -> io::Result<bool> {
        self.options().map(|o| o.so_keepalive)
    }

    /// Returns `SO_SNDBUF` in bytes: twice the size that was set, or the result of autotuning.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn sndbuf(&self) -> io::Result<u32> {
        self.options().map(|o| o.so_sndbuf)
    }

    /// Returns `SO_RCVBUF` in bytes: twice the size that was set, or the result of autotuning.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn rcvbuf(&self) -> io::Result<u32> {
        self.options().map(|o| o.so_rcvbuf)
    }

    /// Returns `TCP_CONGESTION`: the name of the congestion control.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn congestion(&self) -> io::Result<&'static str> {
        self.options().map(|o| o.tcp_congestion)
    }

    /// Returns `TCP_INFO`.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn tcp_info(&self) -> io::Result<TcpInfo> {
        self.engine
            .op(|host, now| host.tcp(self.id).info(now).map_err(io_error))
    }

    /// Returns the sends of the connection and the limits that blocked them, which explain its speed.
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn flow_report(&self) -> io::Result<FlowReport> {
        self.engine
            .op(|host, now| host.tcp(self.id).flow_report(now).map_err(io_error))
    }

    /// Returns the state of the connection (RFC 9293 3.3.2).
    ///
    /// # Errors
    /// The errors of [`options`](Self::options).
    pub fn state(&self) -> io::Result<State> {
        self.engine
            .op(|host, _| host.tcp(self.id).state().map_err(io_error))
    }
}

/// Returns `error` with the option that caused it in the message.
fn with_option(error: &io::Error, option: SocketOption) -> io::Error {
    io::Error::new(error.kind(), format!("cannot set {option:?}: {error}"))
}
