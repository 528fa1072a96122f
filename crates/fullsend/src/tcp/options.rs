//! Options under their Linux names.

use std::io;
use std::time::Duration;

use fullsend_tcp::{FlowReport, Linger, SocketOption, SocketOptions, State, TcpInfo};

use crate::error::io_error;
use crate::tcp::TcpStream;

impl TcpStream {
    /// Sets any option.
    ///
    /// # Errors
    /// `InvalidInput` for a value out of range.
    pub fn set_option(&self, option: SocketOption) -> io::Result<()> {
        self.engine.op(|host, now| {
            host.tcp_set_option(now, self.id, option)
                .map_err(|error| with_option(&io_error(error), option))
        })
    }

    /// `TCP_NODELAY`: small segments are sent without waiting for acknowledgements.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.set_option(SocketOption::TcpNodelay(on))
    }

    /// `TCP_CORK`: only full segments are sent until it is taken off.
    pub fn set_cork(&self, on: bool) -> io::Result<()> {
        self.set_option(SocketOption::TcpCork(on))
    }

    /// `TCP_QUICKACK`: acknowledge at once for a while.
    pub fn set_quickack(&self, on: bool) -> io::Result<()> {
        self.set_option(SocketOption::TcpQuickack(on))
    }

    /// `TCP_MAXSEG`: largest segment sent, bytes.
    pub fn set_maxseg(&self, bytes: u16) -> io::Result<()> {
        self.set_option(SocketOption::TcpMaxseg(bytes))
    }

    /// `TCP_USER_TIMEOUT`: how long data may stay unacknowledged; zero is the system's rule.
    pub fn set_user_timeout(&self, span: Duration) -> io::Result<()> {
        self.set_option(SocketOption::TcpUserTimeout(span.into()))
    }

    /// `TCP_SYNCNT`: SYN retransmissions.
    pub fn set_syncnt(&self, count: u8) -> io::Result<()> {
        self.set_option(SocketOption::TcpSyncnt(count))
    }

    /// `SO_KEEPALIVE`.
    pub fn set_keepalive(&self, on: bool) -> io::Result<()> {
        self.set_option(SocketOption::SoKeepalive(on))
    }

    /// `TCP_KEEPIDLE`: silence before the first probe.
    pub fn set_keepidle(&self, span: Duration) -> io::Result<()> {
        self.set_option(SocketOption::TcpKeepidle(span.into()))
    }

    /// `TCP_KEEPINTVL`: time between probes.
    pub fn set_keepintvl(&self, span: Duration) -> io::Result<()> {
        self.set_option(SocketOption::TcpKeepintvl(span.into()))
    }

    /// `TCP_KEEPCNT`: probes without an answer before the connection is given up.
    pub fn set_keepcnt(&self, count: u8) -> io::Result<()> {
        self.set_option(SocketOption::TcpKeepcnt(count))
    }

    /// `TCP_NOTSENT_LOWAT`: most bytes queued and not yet sent; 0 leaves it to the sysctl. A
    /// writer that met the limit is woken below half of it.
    pub fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::TcpNotsentLowat(bytes))
    }

    /// `SO_LINGER`: `Some(ZERO)` makes the drop reset the connection; otherwise what was written
    /// is delivered in the background (a drop cannot wait; await
    /// [`flushed`](Self::flushed) for that).
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let linger = linger.map_or(Linger::Background, |span| Linger::For(span.into()));
        self.set_option(SocketOption::SoLinger(linger))
    }

    /// `SO_SNDBUF`, bytes; doubled for bookkeeping as on Linux, and autotuning ends.
    pub fn set_sndbuf(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::SoSndbuf(bytes))
    }

    /// `SO_RCVBUF`, bytes; doubled for bookkeeping as on Linux, and autotuning ends.
    pub fn set_rcvbuf(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::SoRcvbuf(bytes))
    }

    /// `SO_RCVLOWAT`: bytes to be there before the socket is readable.
    pub fn set_rcvlowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::SoRcvlowat(bytes))
    }

    /// `SO_MAX_PACING_RATE`, bytes per second; `u64::MAX` for none.
    pub fn set_max_pacing_rate(&self, rate: u64) -> io::Result<()> {
        self.set_option(SocketOption::SoMaxPacingRate(rate))
    }

    /// `TCP_WINDOW_CLAMP`: the largest window to offer, bytes; 0 for none.
    pub fn set_window_clamp(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::TcpWindowClamp(bytes))
    }

    /// `TCP_LINGER2`: how long the connection stays in FIN-WAIT-2 once dropped; `None`: not at
    /// all.
    pub fn set_linger2(&self, span: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::TcpLinger2(span.map(Into::into)))
    }

    /// `IP_TOS`, `IPV6_TCLASS`; the two ECN bits are the stack's.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.set_option(SocketOption::IpTos(tos))
    }

    /// `IP_TTL`, `IPV6_UNICAST_HOPS`.
    pub fn set_ttl(&self, ttl: u8) -> io::Result<()> {
        self.set_option(SocketOption::IpTtl(Some(ttl)))
    }

    /// `TCP_CONGESTION`: the congestion control, by name.
    ///
    /// # Errors
    /// `InvalidInput` for a name that the stack does not have.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        self.engine.op(|host, now| {
            host.tcp_set_congestion(now, self.id, name)
                .map_err(|error| {
                    let error = io_error(error);
                    let text = format!(
                        "congestion control {name:?}: {error}; see tcp_available_congestion_control"
                    );
                    io::Error::new(error.kind(), text)
                })
        })
    }

    /// All options, as `getsockopt` gives them.
    pub fn options(&self) -> io::Result<SocketOptions> {
        self.engine
            .op(|host, _| host.tcp_options(self.id).map_err(io_error))
    }

    /// `TCP_NODELAY`.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.options().map(|o| o.tcp_nodelay)
    }

    /// `TCP_CORK`.
    pub fn cork(&self) -> io::Result<bool> {
        self.options().map(|o| o.tcp_cork)
    }

    /// `TCP_NOTSENT_LOWAT`; 0: the sysctl decides.
    pub fn notsent_lowat(&self) -> io::Result<u32> {
        self.options().map(|o| o.tcp_notsent_lowat)
    }

    /// `SO_LINGER`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.options().map(|o| match o.so_linger {
            Linger::Background => None,
            Linger::For(span) => Some(span.into()),
        })
    }

    /// `SO_KEEPALIVE`.
    pub fn keepalive(&self) -> io::Result<bool> {
        self.options().map(|o| o.so_keepalive)
    }

    /// `SO_SNDBUF`: bytes of memory, twice what was asked for, or what tuning has made of it.
    pub fn sndbuf(&self) -> io::Result<u32> {
        self.options().map(|o| o.so_sndbuf)
    }

    /// `SO_RCVBUF`: bytes of memory, twice what was asked for, or what tuning has made of it.
    pub fn rcvbuf(&self) -> io::Result<u32> {
        self.options().map(|o| o.so_rcvbuf)
    }

    /// `TCP_CONGESTION`.
    pub fn congestion(&self) -> io::Result<&'static str> {
        self.options().map(|o| o.tcp_congestion)
    }

    /// `TCP_INFO`.
    pub fn tcp_info(&self) -> io::Result<TcpInfo> {
        self.engine
            .op(|host, now| host.tcp_info(now, self.id).map_err(io_error))
    }

    /// What this connection sent, and what held it back: why it is slow.
    pub fn flow_report(&self) -> io::Result<FlowReport> {
        self.engine
            .op(|host, now| host.tcp_flow_report(now, self.id).map_err(io_error))
    }

    /// The state (RFC 9293 3.3.2).
    pub fn state(&self) -> io::Result<State> {
        self.engine
            .op(|host, _| host.tcp_state(self.id).map_err(io_error))
    }
}

/// The error with the option that caused it.
fn with_option(error: &io::Error, option: SocketOption) -> io::Error {
    io::Error::new(error.kind(), format!("{option:?}: {error}"))
}
