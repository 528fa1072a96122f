//! The options of a listener: its own, and those that its connections inherit.

use alloc::vec::Vec;

use fullsend_tcp::congestion::CongestionFactory;
use fullsend_tcp::{FastopenKeys, SocketOption, Sysctl, TcpError, defer_accept_timeouts};
use fullsend_wire::tcp::TcpRepr;
use fullsend_wire::{EcnField, Instant, Nanos};

use super::listen::Listeners;
use super::socket::{ConnectionOwner, Socket};
use crate::Host;

/// The options that the application has set on a listener.
#[derive(Clone, Debug, Default)]
pub(super) struct ListenerSettings {
    /// `TCP_DEFER_ACCEPT`, as a number of SYN-ACK timeouts.
    pub(super) defer_accept: u8,
    /// `TCP_FASTOPEN`.
    pub(super) fastopen_qlen: u32,
    /// `TCP_FASTOPEN_KEY`; `None` means the host's keys.
    pub(super) fastopen_keys: Option<FastopenKeys>,
    /// `TCP_FASTOPEN_NO_COOKIE`.
    pub(super) fastopen_no_cookie: bool,
    /// `TCP_SAVE_SYN`.
    pub(super) save_syn: bool,
    /// `TCP_RTO_MAX_MS`; `None` means the host's value.
    rto_max: Option<Nanos>,
    /// `TCP_SYNCNT`: retransmissions of the SYN-ACK; `None` means the host's value.
    pub(super) syncnt: Option<u8>,
    /// `TCP_CONGESTION` of its connections; `None` means the host's default.
    congestion: Option<&'static str>,
    /// The congestion control that the program brings along for its connections; `None` means the
    /// host's, unless `congestion` is set.
    congestion_factory: Option<CongestionFactory>,
    /// Options that its connections inherit, at most one of each kind.
    inherited: Vec<SocketOption>,
}

impl ListenerSettings {
    /// Sets an option. Those that do not concern the listener itself are inherited.
    pub(super) fn set_option(&mut self, option: SocketOption) {
        use SocketOption as O;
        match option {
            O::TcpDeferAccept(seconds) => self.defer_accept = defer_accept_timeouts(seconds),
            O::TcpFastopen(qlen) => self.fastopen_qlen = qlen,
            O::TcpFastopenKey(keys) => self.fastopen_keys = Some(keys),
            O::TcpFastopenNoCookie(on) => self.fastopen_no_cookie = on,
            O::TcpSaveSyn(on) => self.save_syn = on,
            other => {
                match other {
                    O::TcpRtoMax(span) => self.rto_max = Some(span),
                    O::TcpSyncnt(n) => self.syncnt = Some(n),
                    _ => {}
                }
                let kind = core::mem::discriminant(&other);
                self.inherited
                    .retain(|known| core::mem::discriminant(known) != kind);
                self.inherited.push(other);
            }
        }
    }

    /// Sets the congestion control that connections inherit.
    pub(super) fn set_congestion(&mut self, name: &'static str) {
        self.congestion = Some(name);
        self.congestion_factory = None;
    }

    /// Sets the congestion control that the program brings along for later connections.
    pub(super) fn set_congestion_with(&mut self, factory: CongestionFactory) {
        self.congestion = None;
        self.congestion_factory = Some(factory);
    }

    fn has_inherited_options(&self) -> bool {
        self.congestion.is_some() || !self.inherited.is_empty()
    }
}

impl Listeners {
    /// Returns whether connections of this listener inherit options.
    pub(super) fn has_inherited_options(&self, listener: u32) -> bool {
        let listener = self.table.get(listener);
        listener.is_some_and(|l| l.settings.has_inherited_options())
    }

    /// Returns the congestion control that the program brings along for connections of this listener:
    /// the listener's own, or the one of the `host` if the listener has none.
    fn congestion_factory<'a>(
        &'a self,
        listener: u32,
        host: Option<&'a CongestionFactory>,
    ) -> Option<&'a CongestionFactory> {
        let Some(settings) = self.table.get(listener).map(|l| &l.settings) else {
            return host;
        };
        let host = host.filter(|_| settings.congestion.is_none());
        settings.congestion_factory.as_ref().or(host)
    }

    /// Returns the maximum interval between two SYN-ACKs.
    pub(super) fn rto_max(&self, listener: u32, sysctl: &Sysctl) -> Nanos {
        let own = self.table.get(listener).and_then(|l| l.settings.rto_max);
        own.unwrap_or(Nanos::from_millis(sysctl.tcp_rto_max_ms.into()))
    }
}

impl Host {
    /// Applies the listener's options to a new connection that answers `syn`.
    pub(super) fn inherit(
        &mut self,
        now: Instant,
        listener: u32,
        socket: &mut Socket,
        syn: (&TcpRepr, EcnField),
    ) {
        let Some(listener) = self.tcp.listeners.table.get(listener) else {
            return;
        };
        if !listener.settings.has_inherited_options() {
            return;
        }
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        // Errors are ignored: the listener keeps options without checking that their values are
        // valid.
        if let Some(name) = listener.settings.congestion {
            let _: Result<(), TcpError> = socket.conn.set_congestion_for_syn(&mut cx, name, syn);
        }
        for option in &listener.settings.inherited {
            let _: Result<(), TcpError> = socket.conn.set_option(&mut cx, *option);
        }
        socket.apply_ip_settings();
    }

    /// Gives a new connection the congestion control that the program brings along, if there is one.
    pub(super) fn set_custom_congestion(&mut self, now: Instant, socket: &mut Socket) {
        let of_host = self.tcp.congestion_factory.as_ref();
        let factory = match socket.owner {
            ConnectionOwner::Listener(listener) => {
                self.tcp.listeners.congestion_factory(listener, of_host)
            }
            _ => of_host,
        };
        if let Some(factory) = factory {
            let control = factory.create();
            let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
            socket.conn.set_congestion_with(&mut cx, control);
        }
    }
}
