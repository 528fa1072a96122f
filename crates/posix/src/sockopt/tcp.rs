//! Options of `IPPROTO_TCP`.

use alloc::vec::Vec;

use fullsend_stack::Host;
use fullsend_tcp::congestion::{self, CcInfo};
use fullsend_tcp::{FastopenKeys, SocketOption, State};
use fullsend_wire::{Instant, Nanos};

use super::{OptionValue, int, int_in, strict_flag};
use crate::abi::{
    TCP_CC_INFO, TCP_CONGESTION, TCP_CORK, TCP_DEFER_ACCEPT, TCP_FASTOPEN, TCP_FASTOPEN_CONNECT,
    TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE, TCP_INFO, TCP_INQ, TCP_IS_MPTCP, TCP_KEEPCNT,
    TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_LINGER2, TCP_MAXSEG, TCP_NODELAY, TCP_NOTSENT_LOWAT,
    TCP_QUICKACK, TCP_RTO_MAX_MS, TCP_SAVE_SYN, TCP_SYNCNT, TCP_TIMESTAMP, TCP_USER_TIMEOUT,
    TCP_WINDOW_CLAMP,
};
use crate::errno::{Errno, Result};
use crate::stream::{HostSocket, Stream, may_fastopen};
use crate::tcp_info;

/// Length of a congestion control's name in bytes (`TCP_CA_NAME_MAX`).
const CA_NAME_MAX: usize = 16;
/// Maximum of `TCP_LINGER2`.
const LINGER2_MAX_SECONDS: i32 = 120;
/// Maximum of `TCP_KEEPIDLE` and `TCP_KEEPINTVL`.
const KEEP_MAX_SECONDS: i32 = 32_767;
/// `TCP_MSS_DEFAULT`: the value of `TCP_MAXSEG` without a path.
const MSS_DEFAULT: u32 = 536;
/// `BBR_UNIT`: the unit of gains in `struct tcp_bbr_info`.
const BBR_UNIT: f64 = 256.0;

const fn seconds(value: i32) -> Nanos {
    Nanos::from_secs(value as u64)
}

const fn to_seconds(span: Nanos) -> i32 {
    (span.as_millis() / 1000) as i32
}

fn fastopen_keys(value: &[u8]) -> Result<FastopenKeys> {
    let (&primary, rest) = value.split_first_chunk().ok_or(Errno::EINVAL)?;
    let backup = match rest {
        [] => None,
        rest => Some(rest.try_into().map_err(|_| Errno::EINVAL)?),
    };
    Ok(FastopenKeys { primary, backup })
}

/// Encodes `union tcp_cc_info`: `struct tcp_bbr_info`, `struct tcp_dctcp_info`, or nothing.
fn cc_info(info: CcInfo) -> Vec<u8> {
    let words: &[u32] = match info {
        CcInfo::Bbr {
            bw,
            min_rtt,
            pacing_gain,
            cwnd_gain,
        } => {
            let gain = |gain: f64| (gain * BBR_UNIT) as u32;
            let min_rtt = min_rtt.as_micros().min(u32::MAX.into()) as u32;
            let bw = [bw.0 as u32, (bw.0 >> 32) as u32];
            &[bw[0], bw[1], min_rtt, gain(pacing_gain), gain(cwnd_gain)]
        }
        CcInfo::Dctcp {
            ce_state,
            alpha,
            ab_ecn,
            ab_tot,
        } => {
            let [enabled, ce_state] = [1, u16::from(ce_state)].map(u16::to_ne_bytes);
            let flags = [enabled[0], enabled[1], ce_state[0], ce_state[1]];
            &[u32::from_ne_bytes(flags), alpha, ab_ecn, ab_tot]
        }
        CcInfo::DctcpFallback => &[0; 4],
        _ => &[],
    };
    words.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

impl Stream {
    pub(crate) fn set_tcp(
        &mut self,
        host: &mut Host,
        now: Instant,
        name: i32,
        value: &[u8],
    ) -> Result<()> {
        use SocketOption as O;
        let option = match name {
            TCP_CONGESTION => return self.set_congestion(host, now, value),
            TCP_NODELAY => O::TcpNodelay(int(value)? != 0),
            TCP_CORK => O::TcpCork(int(value)? != 0),
            TCP_QUICKACK => O::TcpQuickack(int(value)? & 1 != 0),
            TCP_MAXSEG => match int(value)? {
                0 => {
                    self.clear_maxseg();
                    return Ok(());
                }
                mss => O::TcpMaxseg(int_in(&mss.to_ne_bytes(), 88..=32_767)? as u16),
            },
            TCP_KEEPIDLE => O::TcpKeepidle(seconds(int_in(value, 1..=KEEP_MAX_SECONDS)?)),
            TCP_KEEPINTVL => O::TcpKeepintvl(seconds(int_in(value, 1..=KEEP_MAX_SECONDS)?)),
            TCP_KEEPCNT => O::TcpKeepcnt(int_in(value, 1..=127)? as u8),
            TCP_SYNCNT => O::TcpSyncnt(int_in(value, 1..=127)? as u8),
            TCP_LINGER2 => O::TcpLinger2(match int(value)? {
                ..0 => None,
                n => Some(seconds(n.min(LINGER2_MAX_SECONDS))),
            }),
            TCP_DEFER_ACCEPT => O::TcpDeferAccept(defer_accept_seconds(int(value)?)),
            TCP_WINDOW_CLAMP => self.window_clamp(int(value)?)?,
            TCP_USER_TIMEOUT => {
                O::TcpUserTimeout(Nanos::from_millis(int_in(value, 0..=i32::MAX)? as u64))
            }
            TCP_NOTSENT_LOWAT => O::TcpNotsentLowat(int(value)? as u32),
            // 2 would also save the link header, which is not available.
            TCP_SAVE_SYN => O::TcpSaveSyn(int_in(value, 0..=2)? != 0),
            TCP_RTO_MAX_MS => {
                O::TcpRtoMax(Nanos::from_millis(int_in(value, 1000..=120_000)? as u64))
            }
            TCP_INQ => {
                self.inq = strict_flag(value)?;
                return Ok(());
            }
            TCP_FASTOPEN_CONNECT => return self.set_fastopen_connect(host, strict_flag(value)?),
            // On Linux, only a connection in repair mode accepts the option.
            TCP_TIMESTAMP => return Err(Errno::EPERM),
            _ => self.fastopen_option(host, name, value)?,
        };
        self.set_option(host, now, option)
    }

    fn window_clamp(&self, value: i32) -> Result<SocketOption> {
        // On Linux, a clamp can be removed only without a connection.
        if value == 0 && self.host_socket != HostSocket::None {
            return Err(Errno::EINVAL);
        }
        Ok(SocketOption::TcpWindowClamp(value as u32))
    }

    fn fastopen_option(
        &mut self,
        host: &mut Host,
        name: i32,
        value: &[u8],
    ) -> Result<SocketOption> {
        let idle = !matches!(self.host_socket, HostSocket::Connection(_))
            || self.state(host) == State::Closed;
        match name {
            TCP_FASTOPEN_KEY => Ok(SocketOption::TcpFastopenKey(fastopen_keys(value)?)),
            TCP_FASTOPEN => {
                let most = int_in(value, 0..=i32::MAX)? as u32;
                idle.then_some(SocketOption::TcpFastopen(most))
                    .ok_or(Errno::EINVAL)
            }
            TCP_FASTOPEN_NO_COOKIE => {
                let on = strict_flag(value)?;
                idle.then_some(SocketOption::TcpFastopenNoCookie(on))
                    .ok_or(Errno::EINVAL)
            }
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    fn set_fastopen_connect(&mut self, host: &Host, on: bool) -> Result<()> {
        if !may_fastopen(host) {
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.is_unconnected() {
            return Err(Errno::EINVAL);
        }
        self.fastopen_connect = on;
        Ok(())
    }

    fn set_congestion(&mut self, host: &mut Host, now: Instant, value: &[u8]) -> Result<()> {
        if value.is_empty() {
            return Err(Errno::EINVAL);
        }
        let name = value.split(|&byte| byte == 0).next().unwrap_or(&[]);
        let name = &name[..name.len().min(CA_NAME_MAX - 1)];
        let known = congestion::AVAILABLE.iter();
        let name = known.copied().find(|known| known.as_bytes() == name);
        let name = name.ok_or(Errno::ENOENT)?;
        match self.host_socket {
            HostSocket::Connection(id) => host.tcp(id).set_congestion(now, name)?,
            HostSocket::Listener(id) => host.listener(id).set_congestion(name)?,
            HostSocket::None => {}
        }
        self.congestion = Some(name);
        Ok(())
    }

    fn congestion_name(&self, host: &mut Host) -> &'static str {
        match self.connection_options(host) {
            Some(options) => options.tcp_congestion,
            None => self
                .congestion
                .unwrap_or(host.sysctl().tcp_congestion_control),
        }
    }

    fn nodelay(&self, host: &mut Host) -> bool {
        setting!(self, host, tcp_nodelay, TcpNodelay, false)
    }

    pub(crate) fn get_tcp(&self, host: &mut Host, now: Instant, name: i32) -> Result<OptionValue> {
        let zero = Nanos::ZERO;
        Ok(match name {
            TCP_INFO => OptionValue::Bytes(self.tcp_info(host, now)),
            TCP_CC_INFO => OptionValue::Bytes(match self.host_socket {
                HostSocket::Connection(id) => cc_info(host.tcp(id).cc_info()?.1),
                _ => Vec::new(),
            }),
            TCP_CONGESTION => {
                let mut name = Vec::from(self.congestion_name(host));
                name.resize(CA_NAME_MAX, 0);
                OptionValue::Bytes(name)
            }
            TCP_NODELAY => self.nodelay(host).into(),
            TCP_CORK => setting!(self, host, tcp_cork, TcpCork, false).into(),
            TCP_QUICKACK => setting!(self, host, tcp_quickack, TcpQuickack, true).into(),
            TCP_MAXSEG => OptionValue::Int(self.maxseg(host) as i32),
            TCP_USER_TIMEOUT => {
                let span = setting!(self, host, tcp_user_timeout, TcpUserTimeout, zero);
                OptionValue::Int(span.as_millis() as i32)
            }
            TCP_NOTSENT_LOWAT => {
                let lowat = setting!(self, host, tcp_notsent_lowat, TcpNotsentLowat, 0);
                OptionValue::Int(lowat as i32)
            }
            TCP_WINDOW_CLAMP => {
                let clamp = setting!(self, host, tcp_window_clamp, TcpWindowClamp, 0);
                OptionValue::Int(clamp as i32)
            }
            TCP_INQ => self.inq.into(),
            TCP_IS_MPTCP => OptionValue::Int(0),
            TCP_TIMESTAMP => OptionValue::Int(now.as_millis() as i32),
            _ => return self.get_tcp_tunable(host, name),
        })
    }

    /// Returns durations and counts whose defaults are tunables.
    fn get_tcp_tunable(&self, host: &mut Host, name: i32) -> Result<OptionValue> {
        let sysctl = host.sysctl().clone();
        let span = |n: u32| Nanos::from_secs(n.into());
        Ok(OptionValue::Int(match name {
            TCP_KEEPIDLE => {
                let default = span(sysctl.tcp_keepalive_time);
                to_seconds(setting!(self, host, tcp_keepidle, TcpKeepidle, default))
            }
            TCP_KEEPINTVL => {
                let default = span(sysctl.tcp_keepalive_intvl);
                to_seconds(setting!(self, host, tcp_keepintvl, TcpKeepintvl, default))
            }
            TCP_KEEPCNT => {
                let own = self.find_option(|o| match *o {
                    SocketOption::TcpKeepcnt(n) => Some(n),
                    _ => None,
                });
                own.map_or(sysctl.tcp_keepalive_probes as i32, i32::from)
            }
            TCP_SYNCNT => {
                let own = self.find_option(|o| match *o {
                    SocketOption::TcpSyncnt(n) => Some(n),
                    _ => None,
                });
                own.map_or(sysctl.tcp_syn_retries as i32, i32::from)
            }
            TCP_RTO_MAX_MS => {
                let default = Nanos::from_millis(sysctl.tcp_rto_max_ms.into());
                setting!(self, host, tcp_rto_max, TcpRtoMax, default).as_millis() as i32
            }
            TCP_LINGER2 => match setting!(self, host, tcp_linger2, TcpLinger2, Some(Nanos::ZERO)) {
                None => -1,
                Some(Nanos::ZERO) => sysctl.tcp_fin_timeout as i32,
                Some(span) => to_seconds(span),
            },
            _ => return self.get_listener_option(name),
        }))
    }

    /// Returns options that only a listener uses.
    fn get_listener_option(&self, name: i32) -> Result<OptionValue> {
        Ok(match name {
            TCP_DEFER_ACCEPT => OptionValue::Int(
                self.find_option(|o| match *o {
                    SocketOption::TcpDeferAccept(n) => Some(n as i32),
                    _ => None,
                })
                .unwrap_or(0),
            ),
            TCP_FASTOPEN => OptionValue::Int(
                self.find_option(|o| match *o {
                    SocketOption::TcpFastopen(n) => Some(n as i32),
                    _ => None,
                })
                .unwrap_or(0),
            ),
            TCP_FASTOPEN_NO_COOKIE => self
                .find_option(|o| match *o {
                    SocketOption::TcpFastopenNoCookie(on) => Some(on),
                    _ => None,
                })
                .unwrap_or(false)
                .into(),
            TCP_FASTOPEN_CONNECT => self.fastopen_connect.into(),
            TCP_SAVE_SYN => self
                .find_option(|o| match *o {
                    SocketOption::TcpSaveSyn(on) => Some(on),
                    _ => None,
                })
                .unwrap_or(false)
                .into(),
            TCP_FASTOPEN_KEY => {
                let keys = self.find_option(|o| match *o {
                    SocketOption::TcpFastopenKey(keys) => Some(keys),
                    _ => None,
                });
                let mut bytes = Vec::new();
                if let Some(FastopenKeys { primary, backup }) = keys {
                    bytes.extend(primary);
                    bytes.extend(backup.iter().flatten());
                }
                OptionValue::Bytes(bytes)
            }
            _ => return Err(Errno::ENOPROTOOPT),
        })
    }

    /// Returns `TCP_MAXSEG`: without a path, the value that was set.
    fn maxseg(&self, host: &mut Host) -> u32 {
        match self.connection_options(host) {
            Some(options) => options.tcp_maxseg,
            None => self
                .find_option(|o| match *o {
                    SocketOption::TcpMaxseg(mss) => Some(mss.into()),
                    _ => None,
                })
                .unwrap_or(MSS_DEFAULT),
        }
    }

    /// Returns and removes `TCP_SAVED_SYN`. Returns EINVAL, and keeps it, if it is longer than `room`
    /// bytes.
    pub(crate) fn saved_syn(&self, host: &mut Host, room: usize) -> Result<OptionValue> {
        let HostSocket::Connection(id) = self.host_socket else {
            return Ok(OptionValue::Bytes(Vec::new()));
        };
        if host.tcp(id).saved_syn().is_some_and(|syn| syn.len() > room) {
            return Err(Errno::EINVAL);
        }
        Ok(OptionValue::Bytes(
            host.tcp(id).take_saved_syn().unwrap_or_default(),
        ))
    }

    fn tcp_info(&self, host: &mut Host, now: Instant) -> Vec<u8> {
        let info = match self.host_socket {
            HostSocket::Connection(id) => host.tcp(id).info(now).ok(),
            HostSocket::Listener(id) => Some(tcp_info::listening(
                host.listener(id).accept_queue_len() as u32,
                self.backlog,
            )),
            HostSocket::None => None,
        };
        let info = info.unwrap_or_else(tcp_info::closed);
        Vec::from(tcp_info::encode(&info))
    }
}

/// Returns the effective `TCP_DEFER_ACCEPT` in seconds: the least sum of the timeouts of SYN-ACKs (1, 2,
/// 4 ... 64, 120, 120 ... seconds) that is not less than `requested`.
fn defer_accept_seconds(requested: i32) -> u32 {
    if requested <= 0 {
        return 0;
    }
    let (mut period, mut timeout) = (1_u32, 1_u32);
    let mut retries = 1;
    while (requested as u32) > period && retries < 255 {
        retries += 1;
        timeout = (timeout * 2).min(120);
        period += timeout;
    }
    period
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use fullsend_tcp::congestion::CcInfo;

    use super::{cc_info, defer_accept_seconds};

    /// `struct tcp_dctcp_info`: two fields of 16 bits, then three of 32.
    #[test]
    fn dctcp_info_has_linuxs_layout() {
        let encoded = cc_info(CcInfo::Dctcp {
            ce_state: true,
            alpha: 1024,
            ab_ecn: 1460,
            ab_tot: 14_600,
        });
        let halves = encoded[..4].as_chunks().0.iter().copied();
        let words = encoded[4..].as_chunks().0.iter().copied();
        assert_eq!(halves.map(u16::from_ne_bytes).collect::<Vec<_>>(), [1, 1]);
        let words: Vec<_> = words.map(u32::from_ne_bytes).collect();
        assert_eq!(words, [1024, 1460, 14_600]);
        assert_eq!(cc_info(CcInfo::DctcpFallback), [0; 16]);
    }

    #[test]
    fn defer_accept_is_rounded_up_to_retransmissions() {
        let got = [-1, 0, 1, 2, 3, 4, 10, 127, 128].map(defer_accept_seconds);
        assert_eq!(got, [0, 0, 1, 3, 3, 7, 15, 127, 247]);
    }
}
