//! Options of `SOL_SOCKET`.

use alloc::vec::Vec;

use fullsend_stack::Host;
use fullsend_tcp::{Linger, SocketOption, State};
use fullsend_wire::{Instant, Nanos};

use super::{IpOptions, OptionValue, int, strict_flag};
use crate::abi::{
    IPPROTO_TCP, SO_ACCEPTCONN, SO_BROADCAST, SO_DOMAIN, SO_ERROR, SO_INCOMING_CPU,
    SO_INCOMING_NAPI_ID, SO_KEEPALIVE, SO_LINGER, SO_MARK, SO_MAX_PACING_RATE, SO_MEMINFO,
    SO_OOBINLINE, SO_PRIORITY, SO_PROTOCOL, SO_RCVBUF, SO_RCVBUFFORCE, SO_RCVLOWAT,
    SO_RCVTIMEO_NEW, SO_RCVTIMEO_OLD, SO_REUSEADDR, SO_REUSEPORT, SO_SNDBUF, SO_SNDBUFFORCE,
    SO_SNDLOWAT, SO_SNDTIMEO_NEW, SO_SNDTIMEO_OLD, SO_TIMESTAMP_NEW, SO_TIMESTAMP_OLD,
    SO_TIMESTAMPING_NEW, SO_TIMESTAMPING_OLD, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPNS_OLD, SO_TYPE,
    SO_ZEROCOPY, SOCK_STREAM,
};
use crate::errno::{Errno, Result};
use crate::stream::{HostSocket, Stream};
use crate::timestamps::TimestampOptions;

/// The options of this level, and of level IP, that every socket has.
#[derive(Clone, Debug)]
pub(crate) struct CommonOptions {
    pub(crate) reuse_addr: bool,
    pub(crate) reuse_port: bool,
    pub(crate) broadcast: bool,
    /// `None` means no timeout.
    pub(crate) rcvtimeo: Option<Nanos>,
    pub(crate) sndtimeo: Option<Nanos>,
    pub(crate) zerocopy: bool,
    incoming_cpu: i32,
    pub(crate) timestamps: TimestampOptions,
    pub(crate) ip: IpOptions,
}

impl CommonOptions {
    pub(crate) const fn new() -> Self {
        Self {
            reuse_addr: false,
            reuse_port: false,
            broadcast: false,
            rcvtimeo: None,
            sndtimeo: None,
            zerocopy: false,
            incoming_cpu: -1,
            timestamps: TimestampOptions::new(),
            ip: IpOptions::new(),
        }
    }

    /// Sets an option that is stored here. Returns `None` for other options.
    pub(crate) fn set(&mut self, name: i32, value: &[u8]) -> Result<Option<()>> {
        match name {
            SO_REUSEADDR => self.reuse_addr = int(value)? != 0,
            SO_REUSEPORT => self.reuse_port = int(value)? != 0,
            SO_BROADCAST => self.broadcast = int(value)? != 0,
            SO_RCVTIMEO_OLD | SO_RCVTIMEO_NEW => self.rcvtimeo = timeout(value)?,
            SO_SNDTIMEO_OLD | SO_SNDTIMEO_NEW => self.sndtimeo = timeout(value)?,
            SO_ZEROCOPY => self.zerocopy = strict_flag(value)?,
            SO_INCOMING_CPU => self.incoming_cpu = int(value)?,
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    pub(crate) fn get(&self, name: i32) -> Option<OptionValue> {
        Some(match name {
            SO_REUSEADDR => self.reuse_addr.into(),
            SO_REUSEPORT => self.reuse_port.into(),
            SO_BROADCAST => self.broadcast.into(),
            SO_RCVTIMEO_OLD | SO_RCVTIMEO_NEW => timeval(self.rcvtimeo),
            SO_SNDTIMEO_OLD | SO_SNDTIMEO_NEW => timeval(self.sndtimeo),
            SO_ZEROCOPY => self.zerocopy.into(),
            SO_INCOMING_CPU => OptionValue::Int(self.incoming_cpu),
            SO_INCOMING_NAPI_ID => OptionValue::Int(0),
            SO_SNDLOWAT => OptionValue::Int(1),
            name => return self.timestamps.get(name),
        })
    }
}

/// Parses a timeout in `struct timeval`; zero means no timeout.
fn timeout(value: &[u8]) -> Result<Option<Nanos>> {
    let (seconds, rest) = value.split_first_chunk().ok_or(Errno::EINVAL)?;
    let micros = rest.first_chunk().ok_or(Errno::EINVAL)?;
    let (seconds, micros) = (i64::from_ne_bytes(*seconds), i64::from_ne_bytes(*micros));
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    Ok(match (seconds, micros) {
        (0, 0) => None,
        (..0, _) => Some(Nanos::ZERO),
        _ => {
            let micros = (seconds as u64)
                .saturating_mul(1_000_000)
                .saturating_add(micros as u64);
            Some(Nanos::from_micros(1).saturating_mul(micros))
        }
    })
}

fn timeval(timeout: Option<Nanos>) -> OptionValue {
    let micros = timeout.map_or(0, Nanos::as_micros);
    let [seconds, micros] = [micros / 1_000_000, micros % 1_000_000].map(u64::to_ne_bytes);
    OptionValue::Bytes([seconds, micros].concat())
}

/// Parses `struct linger`. A time that does not fit an `int` of seconds means forever.
fn linger(value: &[u8]) -> Result<Linger> {
    let (on, rest) = value.split_first_chunk().ok_or(Errno::EINVAL)?;
    let seconds = i32::from_ne_bytes(*rest.first_chunk().ok_or(Errno::EINVAL)?);
    Ok(if i32::from_ne_bytes(*on) == 0 {
        Linger::Background
    } else {
        Linger::For(Nanos::from_secs(u64::from(seconds as u32)))
    })
}

fn linger_value(linger: Linger) -> OptionValue {
    let (on, seconds) = match linger {
        Linger::Background => (0_i32, 0),
        Linger::For(span) => (1, (span.as_micros() / 1_000_000) as i32),
    };
    OptionValue::Bytes([on.to_ne_bytes(), seconds.to_ne_bytes()].concat())
}

/// Parses a rate in bytes per second: a `u64`, or a `u32` of which all ones mean no limit.
fn rate(value: &[u8]) -> Result<u64> {
    if let Ok(value) = value.try_into() {
        return Ok(u64::from_ne_bytes(value));
    }
    match int(value)? as u32 {
        u32::MAX => Ok(u64::MAX),
        rate => Ok(rate.into()),
    }
}

impl Stream {
    pub(crate) fn set_socket(
        &mut self,
        host: &mut Host,
        now: Instant,
        name: i32,
        value: &[u8],
    ) -> Result<()> {
        if self.common.set(name, value)?.is_some() {
            return Ok(());
        }
        if self.set_timestamp_option(host, now, name, value)?.is_some() {
            return Ok(());
        }
        let option = match name {
            SO_KEEPALIVE => SocketOption::SoKeepalive(int(value)? != 0),
            SO_LINGER => SocketOption::SoLinger(linger(value)?),
            // As on Linux, a negative number counts as a very large one.
            SO_SNDBUF => SocketOption::SoSndbuf(int(value)? as u32),
            SO_RCVBUF => SocketOption::SoRcvbuf(int(value)? as u32),
            SO_SNDBUFFORCE => SocketOption::SoSndbufforce(int(value)?.max(0) as u32),
            SO_RCVBUFFORCE => SocketOption::SoRcvbufforce(int(value)?.max(0) as u32),
            SO_RCVLOWAT => SocketOption::SoRcvlowat(self.rcvlowat(host, int(value)?)),
            SO_PRIORITY => SocketOption::SoPriority(int(value)? as u32),
            SO_MARK => SocketOption::SoMark(int(value)? as u32),
            SO_MAX_PACING_RATE => SocketOption::SoMaxPacingRate(rate(value)?),
            // Urgent data always stays in the stream, as RFC 6093 advises.
            SO_OOBINLINE if int(value)? != 0 => return Ok(()),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        self.set_option(host, now, option)
    }

    /// Returns the effective `SO_RCVLOWAT`: at most half of the buffer, so that it can be reached.
    fn rcvlowat(&self, host: &mut Host, value: i32) -> u32 {
        let value = if value < 0 { i32::MAX } else { value } as u32;
        let locked = self.has_option(|o| matches!(o, SocketOption::SoRcvbuf(_)));
        let most = if locked {
            self.buffers(host).1 / 2
        } else {
            host.sysctl().tcp_rmem[2] / 2
        };
        value.min(most).max(1)
    }

    pub(crate) fn get_socket(
        &mut self,
        host: &mut Host,
        name: i32,
        room: usize,
    ) -> Result<OptionValue> {
        if let Some(value) = self.common.get(name) {
            return Ok(value);
        }
        Ok(match name {
            SO_TYPE => OptionValue::Int(SOCK_STREAM),
            SO_DOMAIN => OptionValue::Int(self.domain),
            SO_PROTOCOL => OptionValue::Int(IPPROTO_TCP),
            SO_ACCEPTCONN => matches!(self.host_socket, HostSocket::Listener(_)).into(),
            SO_ERROR => OptionValue::Int(self.take_error(host).map_or(0, |errno| errno.0)),
            SO_SNDBUF => OptionValue::Int(self.buffers(host).0 as i32),
            SO_RCVBUF => OptionValue::Int(self.buffers(host).1 as i32),
            SO_KEEPALIVE => setting!(self, host, so_keepalive, SoKeepalive, false).into(),
            SO_LINGER => {
                let linger = setting!(self, host, so_linger, SoLinger, Linger::Background);
                linger_value(linger)
            }
            SO_RCVLOWAT => {
                OptionValue::Int(setting!(self, host, so_rcvlowat, SoRcvlowat, 1) as i32)
            }
            SO_PRIORITY => {
                OptionValue::Int(setting!(self, host, so_priority, SoPriority, 0) as i32)
            }
            SO_MARK => OptionValue::Int(setting!(self, host, so_mark, SoMark, 0) as i32),
            SO_MAX_PACING_RATE => {
                let rate = setting!(self, host, so_max_pacing_rate, SoMaxPacingRate, u64::MAX);
                if room >= 8 {
                    OptionValue::Bytes(Vec::from(rate.to_ne_bytes()))
                } else {
                    OptionValue::Int(u32::try_from(rate).unwrap_or(u32::MAX) as i32)
                }
            }
            SO_OOBINLINE => OptionValue::Int(1),
            SO_MEMINFO => self.meminfo(host),
            SO_TIMESTAMP_OLD | SO_TIMESTAMP_NEW | SO_TIMESTAMPNS_OLD | SO_TIMESTAMPNS_NEW
            | SO_TIMESTAMPING_OLD | SO_TIMESTAMPING_NEW => OptionValue::Int(0),
            _ => return Err(Errno::ENOPROTOOPT),
        })
    }

    /// Returns `SO_SNDBUF` and `SO_RCVBUF`.
    pub(crate) fn buffers(&self, host: &mut Host) -> (u32, u32) {
        let sysctl = host.sysctl().clone();
        let doubled = |bytes: u32, most: u32| bytes.min(most).saturating_mul(2).max(MIN_BUFFER);
        let sndbuf = self.find_option(|option| match *option {
            SocketOption::SoSndbuf(bytes) => Some(doubled(bytes, sysctl.wmem_max)),
            SocketOption::SoSndbufforce(bytes) => Some(doubled(bytes, u32::MAX)),
            _ => None,
        });
        let rcvbuf = self.find_option(|option| match *option {
            SocketOption::SoRcvbuf(bytes) => Some(doubled(bytes, sysctl.rmem_max)),
            SocketOption::SoRcvbufforce(bytes) => Some(doubled(bytes, u32::MAX)),
            _ => None,
        });
        let connection_options = self.connection_options(host);
        (
            connection_options
                .map_or_else(|| sndbuf.unwrap_or(sysctl.tcp_wmem[1]), |o| o.so_sndbuf),
            connection_options
                .map_or_else(|| rcvbuf.unwrap_or(sysctl.tcp_rmem[1]), |o| o.so_rcvbuf),
        )
    }

    /// Returns `SK_MEMINFO_*`: receive memory and its limit, send memory in the device's queue and
    /// its limit, forward allocation, total send memory, options, backlog, drops.
    fn meminfo(&self, host: &mut Host) -> OptionValue {
        let (sndbuf, rcvbuf) = self.buffers(host);
        let memory = match self.host_socket {
            HostSocket::Connection(id) if self.state(host) != State::Closed => {
                host.tcp(id).memory()
            }
            _ => None,
        };
        let memory = memory.unwrap_or_default();
        let fields = [
            memory.rmem_alloc as u32,
            rcvbuf,
            memory.wmem_alloc as u32,
            sndbuf,
            0,
            memory.wmem_queued as u32,
            0,
            0,
            0,
        ];
        OptionValue::Bytes(fields.iter().flat_map(|n| n.to_ne_bytes()).collect())
    }
}

/// Minimum buffer size in bytes, same as that of a connection.
const MIN_BUFFER: u32 = 4608;

#[cfg(test)]
mod tests {
    use fullsend_wire::Nanos;

    use super::{timeout, timeval};
    use crate::errno::Errno;
    use crate::sockopt::OptionValue;

    #[test]
    fn a_timeout_is_a_timeval() {
        let bytes = |s: i64, us: i64| [s.to_ne_bytes(), us.to_ne_bytes()].concat();
        assert_eq!(timeout(&bytes(0, 0)), Ok(None));
        let some = Nanos::from_millis(1_500);
        assert_eq!(timeout(&bytes(1, 500_000)), Ok(Some(some)));
        assert_eq!(timeout(&bytes(-1, 0)), Ok(Some(Nanos::ZERO)));
        assert_eq!(timeout(&bytes(0, 1_000_000)), Err(Errno::EDOM));
        assert_eq!(timeout(&bytes(0, 0)[..15]), Err(Errno::EINVAL));
        assert!(timeout(&bytes(i64::MAX, 0)).unwrap() > Some(some));
        match timeval(Some(some)) {
            OptionValue::Bytes(value) => assert_eq!(value, bytes(1, 500_000)),
            other => panic!("{other:?}"),
        }
    }
}
