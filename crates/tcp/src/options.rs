//! Socket options under their Linux names.

use fullsend_wire::Nanos;

/// `SO_LINGER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linger {
    /// `close` returns at once, data is sent in the background.
    Background,
    /// `close` waits this long for data to be acknowledged; zero resets the connection.
    For(Nanos),
}

/// `IP_MTU_DISCOVER` (`IPV6_MTU_DISCOVER`): path MTU discovery of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MtuDiscover {
    /// Routers may fragment: DF is not set, and ICMP does not reduce the segment size.
    Dont,
    /// DF is set, and ICMP reduces the segment size. A datagram larger than the path MTU is
    /// fragmented.
    #[default]
    Want,
    /// As `Want` for TCP, whose segments fit the path MTU. A datagram larger than it is refused.
    Do,
    /// DF is set, and the path MTU that ICMP reports is ignored: the application probes. A datagram
    /// larger than the interface's MTU is refused.
    Probe,
}

/// `TCP_FASTOPEN_KEY`: the keys of a listener's Fast Open cookies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastopenKeys {
    /// The key that new cookies are made with.
    pub primary: [u8; 16],
    /// A former key: cookies made with it are accepted and replaced (rotation).
    pub backup: Option<[u8; 16]>,
}

/// A socket option of one connection, with its value. Setting and getting use the same type.
///
/// `TcpDeferAccept`, `TcpFastopen` and `TcpFastopenKey` belong to listeners; a connection refuses
/// the last two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is the Linux option of that name")]
#[non_exhaustive]
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
    /// The largest retransmission timeout, from 1 s to 120 s.
    TcpRtoMax(Nanos),
    /// Bytes; 0: the sysctl applies.
    TcpNotsentLowat(u32),
    SoKeepalive(bool),
    SoLinger(Linger),
    /// Bytes as requested. The buffer becomes twice that, as on Linux, and autotuning ends.
    SoSndbuf(u32),
    /// Bytes as requested. The buffer becomes twice that, as on Linux, and autotuning ends.
    SoRcvbuf(u32),
    /// As `SoSndbuf`, but not limited by `wmem_max`.
    SoSndbufforce(u32),
    /// As `SoRcvbuf`, but not limited by `rmem_max`.
    SoRcvbufforce(u32),
    SoRcvlowat(u32),
    /// Bytes per second; `u64::MAX`: unlimited.
    SoMaxPacingRate(u64),
    /// Seconds during which an established connection without data is not reported to `accept`; 0:
    /// off.
    TcpDeferAccept(u32),
    /// Most connections that sent data in their SYN and have not finished the handshake; 0 disables
    /// Fast Open.
    TcpFastopen(u32),
    TcpFastopenKey(FastopenKeys),
    TcpFastopenNoCookie(bool),
    /// Keep the headers of the SYNs that open connections.
    TcpSaveSyn(bool),
    /// Time that an orphan stays in FIN-WAIT-2; zero: the sysctl applies; `None`: it skips that state.
    TcpLinger2(Option<Nanos>),
    /// Bytes; 0: none.
    TcpWindowClamp(u32),
    /// The type of service, and the traffic class of IPv6. The two ECN bits belong to the stack.
    IpTos(u8),
    /// The TTL, and the hop limit of IPv6; `None`: the default.
    IpTtl(Option<u8>),
    IpMtuDiscover(MtuDiscover),
    /// Report an ICMP error of an established connection from the next call, rather than only once
    /// the connection has timed out. The connection continues in either case.
    IpRecverr(bool),
    /// Stored for the application; the connection does not use it.
    SoMark(u32),
    /// Stored for the application; the connection does not use it.
    SoPriority(u32),
    /// Record the arrival time of received data (`SO_TIMESTAMPNS`, `SO_TIMESTAMPING`'s
    /// `RX_SOFTWARE`).
    SoTimestampRx(bool),
}

/// Returns the number of SYN-ACK timeouts that the seconds of `TCP_DEFER_ACCEPT` correspond to.
pub fn defer_accept_timeouts(seconds: u32) -> u8 {
    let mut timeouts = 0;
    while defer_accept_seconds(timeouts) < seconds && timeouts < u8::MAX {
        timeouts += 1;
    }
    timeouts
}

/// Returns the duration of these timeouts in seconds, as `getsockopt` of `TCP_DEFER_ACCEPT` does.
pub fn defer_accept_seconds(timeouts: u8) -> u32 {
    (0..u32::from(timeouts))
        .map(|n| (1 << n.min(7)).min(120))
        .sum()
}

/// The flags of a write (`sendmsg` flags).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteFlags {
    /// `MSG_MORE`.
    pub more: bool,
    /// `MSG_EOR`: data written later does not share a segment with this data.
    pub eor: bool,
    /// `MSG_OOB`: the last byte is urgent.
    pub oob: bool,
}

/// The options of one connection as `getsockopt` returns them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is the Linux option of that name")]
pub struct SocketOptions {
    pub tcp_nodelay: bool,
    pub tcp_cork: bool,
    pub tcp_quickack: bool,
    /// Payload bytes of a full segment.
    pub tcp_maxseg: u32,
    /// Zero: the number of retransmissions decides.
    pub tcp_user_timeout: Nanos,
    pub tcp_syncnt: u32,
    pub tcp_keepidle: Nanos,
    pub tcp_keepintvl: Nanos,
    pub tcp_keepcnt: u32,
    pub tcp_rto_max: Nanos,
    /// Bytes; 0: the sysctl applies.
    pub tcp_notsent_lowat: u32,
    pub tcp_congestion: &'static str,
    pub so_keepalive: bool,
    pub so_linger: Linger,
    /// Bytes of memory: twice the requested size.
    pub so_sndbuf: u32,
    /// Bytes of memory: twice the requested size.
    pub so_rcvbuf: u32,
    pub so_rcvlowat: u32,
    /// Bytes per second; `u64::MAX`: unlimited.
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
    /// `IP_MTU`: size of the largest packet that the path is known to carry, in bytes.
    pub ip_mtu: u32,
    pub so_mark: u32,
    pub so_priority: u32,
    pub so_timestamp_rx: bool,
}
