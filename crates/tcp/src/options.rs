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
    /// Bytes; `u32::MAX` means the sysctl decides.
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
