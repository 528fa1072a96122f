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

/// An option of one connection, with its value. Get and set use the same shape.
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
    /// Bytes; 0 means the sysctl decides.
    TcpNotsentLowat(u32),
    SoKeepalive(bool),
    SoLinger(Linger),
    /// Bytes as asked for; doubled for bookkeeping as Linux does, and autotuning ends.
    SoSndbuf(u32),
    /// Bytes as asked for; doubled for bookkeeping as Linux does, and autotuning ends.
    SoRcvbuf(u32),
    SoRcvlowat(u32),
    /// Bytes per second; `u64::MAX` for none.
    SoMaxPacingRate(u64),
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
}
