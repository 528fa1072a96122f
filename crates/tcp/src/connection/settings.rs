//! Socket options: the common ones inline, the others in a box that most connections never need.

use alloc::boxed::Box;

use fullsend_wire::tcp::TcpRepr;
use fullsend_wire::{EcnField, Instant, Mss, Nanos, Rate};

use super::{Connection, State};
use crate::congestion::{CongestionControl, UnknownCongestion};
use crate::ecn::Ecn;
use crate::{Cx, Linger, MtuDiscover, SocketOption, SocketOptions, Sysctl, TcpError};

/// The options that the application set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) nodelay: bool,
    pub(crate) cork: bool,
    pub(crate) keepalive: bool,
    uncommon: Option<Box<UncommonOptions>>,
}

/// Rarely set options; `None` and zero mean that the sysctl applies.
#[derive(Clone, Debug)]
struct UncommonOptions {
    user_timeout: Nanos,
    keepidle: Option<Nanos>,
    keepintvl: Option<Nanos>,
    keepcnt: Option<u8>,
    syncnt: Option<u8>,
    notsent_lowat: Option<u32>,
    rcvlowat: u32,
    linger: Linger,
    linger2: Option<Nanos>,
    defer_accept: u32,
    fastopen_no_cookie: bool,
    window_clamp: u32,
    tos: u8,
    ttl: Option<u8>,
    mtu_discover: MtuDiscover,
    recverr: bool,
    mark: u32,
    priority: u32,
}

impl Default for UncommonOptions {
    fn default() -> Self {
        Self {
            user_timeout: Nanos::ZERO,
            keepidle: None,
            keepintvl: None,
            keepcnt: None,
            syncnt: None,
            notsent_lowat: None,
            rcvlowat: 1,
            linger: Linger::Background,
            linger2: Some(Nanos::ZERO),
            defer_accept: 0,
            fastopen_no_cookie: false,
            window_clamp: 0,
            tos: 0,
            ttl: None,
            mtu_discover: MtuDiscover::Want,
            recverr: false,
            mark: 0,
            priority: 0,
        }
    }
}

/// The fields of the IP headers of a connection's or a socket's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpSettings {
    /// Type of service or traffic class, without ECN.
    pub tos: u8,
    /// Time to live or hop limit; `None`: the default.
    pub ttl: Option<u8>,
    /// With [`MtuDiscover::Dont`], IPv4's DF is not set.
    pub mtu_discover: MtuDiscover,
}

impl Settings {
    fn uncommon_mut(&mut self) -> &mut UncommonOptions {
        self.uncommon.get_or_insert_default()
    }

    fn seconds(value: u32) -> Nanos {
        Nanos::from_secs(value.into())
    }

    pub(crate) fn keepidle(&self, sysctl: &Sysctl) -> Nanos {
        let own = self.uncommon.as_ref().and_then(|r| r.keepidle);
        own.unwrap_or(Self::seconds(sysctl.tcp_keepalive_time))
    }

    pub(crate) fn keepintvl(&self, sysctl: &Sysctl) -> Nanos {
        let own = self.uncommon.as_ref().and_then(|r| r.keepintvl);
        own.unwrap_or(Self::seconds(sysctl.tcp_keepalive_intvl))
    }

    pub(crate) fn keepcnt(&self, sysctl: &Sysctl) -> u32 {
        let own = self.uncommon.as_ref().and_then(|r| r.keepcnt);
        own.map_or(sysctl.tcp_keepalive_probes, u32::from)
            .min(MAX_KEEPCNT.into())
    }

    /// Returns whether ICMP errors are reported immediately (`IP_RECVERR`).
    pub(crate) fn recverr(&self) -> bool {
        self.uncommon
            .as_ref()
            .is_some_and(|uncommon| uncommon.recverr)
    }

    pub(crate) fn syn_retries(&self, sysctl: &Sysctl) -> u32 {
        let own = self.uncommon.as_ref().and_then(|r| r.syncnt);
        own.map_or(sysctl.tcp_syn_retries, u32::from)
    }

    /// Returns the number of SYN-ACK retransmissions: the listener's `TCP_SYNCNT`, or
    /// `tcp_synack_retries` and `more`.
    pub(crate) fn synack_retries(&self, sysctl: &Sysctl, more: u32) -> u32 {
        let own = self.uncommon.as_ref().and_then(|r| r.syncnt);
        own.map_or(sysctl.tcp_synack_retries + more, u32::from)
    }

    #[inline]
    pub(crate) fn notsent_lowat(&self, sysctl: &Sysctl) -> u32 {
        let own = self.uncommon.as_ref().and_then(|r| r.notsent_lowat);
        own.unwrap_or(sysctl.tcp_notsent_lowat)
    }

    #[inline]
    pub(crate) fn user_timeout(&self) -> Nanos {
        self.uncommon
            .as_ref()
            .map_or(Nanos::ZERO, |r| r.user_timeout)
    }

    #[inline]
    pub(crate) fn rcvlowat(&self) -> u32 {
        self.uncommon.as_ref().map_or(1, |r| r.rcvlowat)
    }

    pub(super) fn set_rcvlowat(&mut self, bytes: u32) {
        self.uncommon_mut().rcvlowat = bytes;
    }

    /// Returns how long an orphan stays in FIN-WAIT-2; `None`: not at all.
    pub(crate) fn linger2(&self, sysctl: &Sysctl) -> Option<Nanos> {
        match self
            .uncommon
            .as_ref()
            .map_or(Some(Nanos::ZERO), |r| r.linger2)
        {
            Some(Nanos::ZERO) => Some(Self::seconds(sysctl.tcp_fin_timeout)),
            own => own,
        }
    }

    pub(crate) fn fastopen_no_cookie(&self) -> bool {
        self.uncommon.as_ref().is_some_and(|r| r.fastopen_no_cookie)
    }

    pub(crate) fn mtu_discover(&self) -> MtuDiscover {
        self.uncommon
            .as_ref()
            .map_or(MtuDiscover::Want, |r| r.mtu_discover)
    }

    pub(crate) fn linger(&self) -> Linger {
        self.uncommon
            .as_ref()
            .map_or(Linger::Background, |r| r.linger)
    }
}

impl Connection {
    /// Sets an option.
    ///
    /// # Errors
    ///
    /// [`TcpError::InvalidValue`] if the value is out of range, or the option belongs to listeners.
    pub fn set_option(&mut self, cx: &mut Cx<'_>, option: SocketOption) -> Result<(), TcpError> {
        self.change_option(cx, option)?;
        if !self.state.is_synchronized() && self.recovery.rtx.is_empty() {
            let most = cx.sysctl.tcp_rmem[2].max(cx.sysctl.rmem_max);
            self.rcv.choose_scale(most);
        }
        if self.state == State::SynReceived && self.recovery.rtx.is_empty() {
            // The option may change the window in the SYN-ACK, which is not sent yet.
            let (scaled, segment_size) = (self.negotiated.window_scale, self.syn_segment_size());
            self.rcv.restart_window(cx.now, scaled, segment_size);
        }
        Ok(())
    }

    fn change_option(&mut self, cx: &mut Cx<'_>, option: SocketOption) -> Result<(), TcpError> {
        use SocketOption as O;
        let settings = &mut self.settings;
        match option {
            O::TcpNodelay(on) => {
                settings.nodelay = on;
                // Queued data is sent immediately, even if corked.
                if on {
                    self.snd.flush();
                }
            }
            O::TcpCork(on) => {
                settings.cork = on;
                if !on {
                    self.snd.uncork();
                }
            }
            O::TcpQuickack(on) => self.rcv.set_quickack(on),
            O::TcpMaxseg(mss) => self.set_maxseg(cx, mss)?,
            O::TcpUserTimeout(span) => settings.uncommon_mut().user_timeout = span,
            O::TcpSyncnt(n) => settings.uncommon_mut().syncnt = Some(in_range(n, 1..=127)?),
            O::TcpKeepidle(span) => {
                settings.uncommon_mut().keepidle = Some(keepalive_span(span)?);
                self.arm_keepalive(cx);
            }
            O::TcpKeepintvl(span) => {
                settings.uncommon_mut().keepintvl = Some(keepalive_span(span)?);
            }
            O::TcpKeepcnt(n) => {
                settings.uncommon_mut().keepcnt = Some(in_range(n, 1..=MAX_KEEPCNT)?);
            }
            O::TcpRtoMax(span) => {
                let bounds = Nanos::from_secs(1)..=Nanos::from_secs(120);
                self.rtt.set_rto_max(in_range(span, bounds)?);
            }
            O::TcpNotsentLowat(bytes) => {
                settings.uncommon_mut().notsent_lowat = (bytes != 0).then_some(bytes);
                self.wake_writer_if_room(cx);
            }
            O::SoKeepalive(on) => {
                settings.keepalive = on;
                self.arm_keepalive(cx);
            }
            O::SoLinger(linger) => settings.uncommon_mut().linger = linger,
            O::SoSndbuf(bytes) => self.set_sndbuf(cx, bytes.min(cx.sysctl.wmem_max)),
            O::SoSndbufforce(bytes) => self.set_sndbuf(cx, bytes),
            O::SoRcvbuf(bytes) => self.set_rcvbuf(cx, bytes.min(cx.sysctl.rmem_max)),
            O::SoRcvbufforce(bytes) => self.set_rcvbuf(cx, bytes),
            O::SoRcvlowat(bytes) => self.set_rcvlowat(cx, bytes),
            O::SoMaxPacingRate(rate) => self.snd.set_max_pacing_rate(Rate(rate)),
            other => return self.set_uncommon_option(other),
        }
        Ok(())
    }

    fn set_uncommon_option(&mut self, option: SocketOption) -> Result<(), TcpError> {
        use SocketOption as O;
        let uncommon = self.settings.uncommon_mut();
        match option {
            O::TcpDeferAccept(seconds) => uncommon.defer_accept = seconds,
            O::TcpFastopenNoCookie(on) => uncommon.fastopen_no_cookie = on,
            O::TcpLinger2(span) => uncommon.linger2 = span.map(|s| s.min(MAX_LINGER2)),
            O::TcpWindowClamp(bytes) => {
                let least = MIN_BUFFER / 2;
                uncommon.window_clamp = if bytes == 0 { 0 } else { bytes.max(least) };
                self.rcv.set_window_clamp(uncommon.window_clamp);
            }
            O::IpTos(tos) => uncommon.tos = tos & !ECN_BITS,
            O::IpTtl(ttl) => uncommon.ttl = ttl.map(|n| in_range(n, 1..=255)).transpose()?,
            O::IpMtuDiscover(how) => uncommon.mtu_discover = how,
            O::IpRecverr(on) => uncommon.recverr = on,
            O::SoMark(mark) => uncommon.mark = mark,
            O::SoPriority(priority) => uncommon.priority = priority,
            O::SoTimestampRx(on) => self.set_rx_times(on),
            // An option of listeners.
            _ => return Err(TcpError::InvalidValue),
        }
        Ok(())
    }

    /// Returns the fields of the IP headers.
    pub fn ip_settings(&self) -> IpSettings {
        self.settings
            .uncommon
            .as_ref()
            .map_or_else(IpSettings::default, |uncommon| IpSettings {
                tos: uncommon.tos,
                ttl: uncommon.ttl,
                mtu_discover: uncommon.mtu_discover,
            })
    }

    /// Sets `TCP_MAXSEG`, which before the handshake also bounds the MSS that we advertise.
    fn set_maxseg(&mut self, cx: &Cx<'_>, mss: u16) -> Result<(), TcpError> {
        let mss = in_range(mss, 88..=32_767)?;
        self.snd.limit_mss_clamp(mss);
        if !self.state.is_synchronized() {
            let bound = mss.min(self.adv_mss.get());
            self.adv_mss = Mss::clamped(bound);
        }
        self.sync_mss(cx);
        Ok(())
    }

    fn set_rcvbuf(&mut self, cx: &Cx<'_>, bytes: u32) {
        let bytes = bytes.saturating_mul(2).clamp(MIN_BUFFER, MAX_BUFFER);
        self.rcv.set_rcvbuf(bytes);
        self.wake_reader_if_enough(cx.mem);
    }

    fn set_sndbuf(&mut self, cx: &Cx<'_>, bytes: u32) {
        let bytes = bytes.saturating_mul(2).min(MAX_BUFFER);
        self.snd.set_sndbuf(bytes.max(MIN_BUFFER));
        self.wake_writer_if_room(cx);
    }

    /// Returns all options.
    pub fn options(&self, cx: &Cx<'_>) -> SocketOptions {
        let (settings, sysctl) = (&self.settings, cx.sysctl);
        let lowat = settings.uncommon.as_ref().and_then(|r| r.notsent_lowat);
        let default = UncommonOptions::default();
        let uncommon = settings.uncommon.as_deref().unwrap_or(&default);
        SocketOptions {
            tcp_nodelay: settings.nodelay,
            tcp_cork: settings.cork,
            tcp_quickack: self.rcv.is_quickack(),
            tcp_maxseg: self.snd.mss().bytes(),
            tcp_user_timeout: settings.user_timeout(),
            tcp_syncnt: settings.syn_retries(sysctl),
            tcp_keepidle: settings.keepidle(sysctl),
            tcp_keepintvl: settings.keepintvl(sysctl),
            tcp_keepcnt: settings.keepcnt(sysctl),
            tcp_rto_max: self.rtt.rto_max(),
            tcp_notsent_lowat: lowat.unwrap_or(0),
            tcp_congestion: self.congestion.algorithm().name(),
            so_keepalive: settings.keepalive,
            so_linger: settings.linger(),
            so_sndbuf: self.snd.sndbuf(),
            so_rcvbuf: self.rcv.rcvbuf(),
            so_rcvlowat: settings.rcvlowat(),
            so_max_pacing_rate: self.snd.max_pacing_rate().0,
            tcp_defer_accept: uncommon.defer_accept,
            tcp_fastopen_no_cookie: uncommon.fastopen_no_cookie,
            tcp_linger2: uncommon.linger2,
            tcp_window_clamp: uncommon.window_clamp,
            ip_tos: uncommon.tos,
            ip_ttl: uncommon.ttl,
            ip_mtu_discover: uncommon.mtu_discover,
            ip_mtu: self.snd.pmtu(),
            ip_recverr: uncommon.recverr,
            so_mark: uncommon.mark,
            so_priority: uncommon.priority,
            so_timestamp_rx: self.records_rx_times(),
        }
    }

    /// Selects the congestion control by name (`TCP_CONGESTION`).
    ///
    /// # Errors
    ///
    /// [`TcpError::InvalidValue`] if `tcp_allowed_congestion_control` does not contain `name`.
    pub fn set_congestion(&mut self, cx: &mut Cx<'_>, name: &str) -> Result<(), TcpError> {
        if !cx.sysctl.tcp_allowed_congestion_control.contains(name) {
            return Err(TcpError::InvalidValue);
        }
        let selected = self.congestion.select(name);
        selected.map_err(|UnknownCongestion| TcpError::InvalidValue)?;
        self.init_congestion(cx.now);
        self.adapt_ecn(cx);
        Ok(())
    }

    /// Gives the connection a congestion control of the program, which replaces the one in use and
    /// begins with its own window.
    pub fn set_congestion_with(&mut self, cx: &mut Cx<'_>, control: Box<dyn CongestionControl>) {
        self.congestion.select_custom(control, self.snd.mss());
        self.init_congestion(cx.now);
        self.adapt_ecn(cx);
    }

    /// Selects the congestion control of a connection that answers `syn`, before its SYN-ACK is
    /// sent: the congestion control affects the negotiation of ECN. `syn` includes the ECN field of
    /// its IP header.
    ///
    /// # Errors
    ///
    /// The errors of [`set_congestion`](Self::set_congestion).
    pub fn set_congestion_for_syn(
        &mut self,
        cx: &mut Cx<'_>,
        name: &str,
        syn: (&TcpRepr, EcnField),
    ) -> Result<(), TcpError> {
        self.set_congestion(cx, name)?;
        self.ecn = Ecn::for_accept(cx.sysctl, syn, self.congestion.algorithm().needs_ecn());
        Ok(())
    }

    /// Allocates the state that a newly selected congestion control needs.
    pub(crate) fn init_congestion(&mut self, now: Instant) {
        if self.congestion.algorithm().owns_cwnd() {
            // Only such an algorithm determines the pacing rate.
            self.snd.enable_pacing();
            self.recovery.rtx.start_delivery_sampling(now);
        } else {
            self.recovery.rtx.stop_delivery_sampling();
        }
    }
}

/// Least buffer size, whatever is requested: any full segment fits.
const MIN_BUFFER: u32 = 4608;
/// Largest buffer size: the sum of two fits in 32 bits.
const MAX_BUFFER: u32 = 0x7fff_fffe;

/// Linux's `MAX_TCP_KEEPCNT`.
const MAX_KEEPCNT: u8 = 127;

/// Linux's `TCP_FIN_TIMEOUT_MAX`.
const MAX_LINGER2: Nanos = Nanos::from_secs(120);

/// RFC 3168 5: the low two bits of the type of service.
const ECN_BITS: u8 = 0b11;

fn in_range<T: PartialOrd>(value: T, range: core::ops::RangeInclusive<T>) -> Result<T, TcpError> {
    range
        .contains(&value)
        .then_some(value)
        .ok_or(TcpError::InvalidValue)
}

/// Checks the range of a keepalive interval. Linux accepts whole seconds up to 32767.
fn keepalive_span(span: Nanos) -> Result<Nanos, TcpError> {
    in_range(span, Nanos::from_secs(1)..=Nanos::from_secs(32_767))
}
