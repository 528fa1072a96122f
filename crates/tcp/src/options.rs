//! Socket options under their Linux names.

use fullsend_units::Nanos;

/// `SO_LINGER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linger {
    /// `close` returns at once, data is sent in the background.
    Background,
    /// `close` waits this long for data to be acknowledged; zero resets the connection.
    For(Nanos),
}

/// `IP_MTU_DISCOVER` (`IPV6_MTU_DISCOVER`): how a socket finds out what its path carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MtuDiscover {
    /// Routers may fragment: DF is not set, and ICMP does not shrink segments.
    Dont,
    /// DF is set, and ICMP shrinks segments. A datagram that does not fit the path MTU is fragmented.
    #[default]
    Want,
    /// As `Want` for TCP, whose segments fit the path MTU. A datagram that does not fit it is refused.
    Do,
    /// DF is set, and the path MTU that ICMP reports is ignored: the application probes. A datagram
    /// that does not fit the interface's MTU is refused.
    Probe,
}

/// `TCP_FASTOPEN_KEY`: what a listener's cookies are made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastopenKeys {
    /// New cookies are made with it.
    pub primary: [u8; 16],
    /// Cookies made with it are taken, too, and replaced (rotation).
    pub backup: Option<[u8; 16]>,
}

/// An option of one connection, with its value. Get and set use the same shape.
///
/// `TcpDeferAccept`, `TcpFastopen` and `TcpFastopenKey` are a listener's; a connection refuses
/// the last two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is the Linux option of that name")]
pub enum SocketOption {
    TcpNodelay(bool),
    TcpCork(bool),
    TcpQuickack(bool),
    TcpMaxseg(u16),
    TcpUserTimeout(Nanos),
    TcpSyncnt(u8),
    TcpKeepidle(Nanos),
    TcpKeepintvl(Nanos),
    TcpKeepcnt(u8),
    /// From 1 s to 120 s.
    TcpRtoMax(Nanos),
    /// Bytes; 0 means the sysctl decides.
    TcpNotsentLowat(u32),
    SoKeepalive(bool),
    SoLinger(Linger),
    /// Bytes as asked for; doubled for bookkeeping as Linux does, and autotuning ends.
    SoSndbuf(u32),
    /// Bytes as asked for; doubled for bookkeeping as Linux does, and autotuning ends.
    SoRcvbuf(u32),
    /// As `SoSndbuf`, whatever `wmem_max` says.
    SoSndbufforce(u32),
    /// As `SoRcvbuf`, whatever `rmem_max` says.
    SoRcvbufforce(u32),
    SoRcvlowat(u32),
    /// Bytes per second; `u64::MAX` for none.
    SoMaxPacingRate(u64),
    /// Seconds that an established connection without data is kept from `accept`; 0 is off.
    TcpDeferAccept(u32),
    /// Most connections that sent data in their SYN and did not finish the handshake yet; 0
    /// turns Fast Open off.
    TcpFastopen(u32),
    TcpFastopenKey(FastopenKeys),
    TcpFastopenNoCookie(bool),
    /// Keep the headers of the SYNs that connections begin with.
    TcpSaveSyn(bool),
    /// How long an orphan stays in FIN-WAIT-2; zero: the sysctl decides; `None`: not at all.
    TcpLinger2(Option<Nanos>),
    /// Bytes; 0: none.
    TcpWindowClamp(u32),
    /// The traffic class of IPv6, too. The two ECN bits are the stack's.
    IpTos(u8),
    /// The hop limit of IPv6, too; `None`: the default.
    IpTtl(Option<u8>),
    IpMtuDiscover(MtuDiscover),
    /// What ICMP tells of a connection that stands is an error at once, for the next call, and not
    /// only once the connection has timed out. It goes on all the same.
    IpRecverr(bool),
    /// Kept for the user; nothing here looks at it.
    SoMark(u32),
    /// Kept for the user; nothing here looks at it.
    SoPriority(u32),
    /// Keep the time of arrival of what is received (`SO_TIMESTAMPNS`, `SO_TIMESTAMPING`'s
    /// `RX_SOFTWARE`).
    SoTimestampRx(bool),
}

/// `TCP_DEFER_ACCEPT`: how many timeouts of the SYN-ACK the seconds come to.
pub fn defer_accept_timeouts(seconds: u32) -> u8 {
    let mut timeouts = 0;
    while defer_accept_seconds(timeouts) < seconds && timeouts < u8::MAX {
        timeouts += 1;
    }
    timeouts
}

/// `TCP_DEFER_ACCEPT`: how many seconds these timeouts take, as `getsockopt` gives them.
pub fn defer_accept_seconds(timeouts: u8) -> u32 {
    (0..u32::from(timeouts))
        .map(|n| (1 << n.min(7)).min(120))
        .sum()
}

/// How a write ends (`sendmsg` flags).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteFlags {
    /// `MSG_MORE`.
    pub more: bool,
    /// `MSG_EOR`: what is written later does not share a segment with this.
    pub eor: bool,
    /// `MSG_OOB`: the last byte is urgent.
    pub oob: bool,
}

/// The options of one connection as `getsockopt` gives them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is the Linux option of that name")]
pub struct SocketOptions {
    pub tcp_nodelay: bool,
    pub tcp_cork: bool,
    pub tcp_quickack: bool,
    /// Text bytes of a full segment.
    pub tcp_maxseg: u32,
    /// Zero: the retries decide.
    pub tcp_user_timeout: Nanos,
    pub tcp_syncnt: u32,
    pub tcp_keepidle: Nanos,
    pub tcp_keepintvl: Nanos,
    pub tcp_keepcnt: u32,
    pub tcp_rto_max: Nanos,
    /// Bytes; 0: the sysctl decides.
    pub tcp_notsent_lowat: u32,
    pub tcp_congestion: &'static str,
    pub so_keepalive: bool,
    pub so_linger: Linger,
    /// Bytes of memory: twice what was asked for.
    pub so_sndbuf: u32,
    /// Bytes of memory: twice what was asked for.
    pub so_rcvbuf: u32,
    pub so_rcvlowat: u32,
    /// Bytes per second; `u64::MAX` for none.
    pub so_max_pacing_rate: u64,
    /// Seconds.
    pub tcp_defer_accept: u32,
    pub tcp_fastopen_no_cookie: bool,
    pub tcp_linger2: Option<Nanos>,
    /// Bytes; 0: none.
    pub tcp_window_clamp: u32,
    pub ip_tos: u8,
    /// `None`: the default.
    pub ip_ttl: Option<u8>,
    pub ip_mtu_discover: MtuDiscover,
    pub ip_recverr: bool,
    /// `IP_MTU`: bytes of the largest packet that the path is known to carry.
    pub ip_mtu: u32,
    pub so_mark: u32,
    pub so_priority: u32,
    pub so_timestamp_rx: bool,
}
