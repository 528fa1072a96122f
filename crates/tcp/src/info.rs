//! `TCP_INFO` under Linux's field names.

/// What `tcp_info()` reports. Times in microseconds, rates in bytes per second, as Linux has them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "each is Linux's field of that name")]
pub struct TcpInfo {
    pub tcpi_state: u8,
    pub tcpi_rtt: u32,
    pub tcpi_snd_cwnd: u32,
}
