//! The options of a listener: its own, and those that its connections inherit.

use alloc::vec::Vec;

use fullsend_tcp::congestion;
use fullsend_tcp::{FastopenKeys, SocketOption, Sysctl, TcpError, defer_accept_timeouts};
use fullsend_units::{Instant, Nanos};
use fullsend_wire::EcnField;
use fullsend_wire::tcp::TcpRepr;

use super::ListenerId;
use super::listen::Listeners;
use super::socket::Socket;
use crate::{Host, StackError};

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
    /// Options that its connections inherit, at most one of each kind.
    inherited: Vec<SocketOption>,
}

impl ListenerSettings {
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

    /// Returns the maximum interval between two SYN-ACKs.
    pub(super) fn rto_max(&self, listener: u32, sysctl: &Sysctl) -> Nanos {
        let own = self.table.get(listener).and_then(|l| l.settings.rto_max);
        own.unwrap_or(Nanos::from_millis(sysctl.tcp_rto_max_ms.into()))
    }
}

impl Host {
    /// Sets an option of a listener. Options that do not concern the listener itself are inherited
    /// by its connections, from their SYN-ACK on.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn listener_set_option(
        &mut self,
        id: ListenerId,
        option: SocketOption,
    ) -> Result<(), StackError> {
        use SocketOption as O;
        let listener = self.tcp.listeners.get_mut(id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        let settings = &mut listener.settings;
        match option {
            O::TcpDeferAccept(seconds) => settings.defer_accept = defer_accept_timeouts(seconds),
            O::TcpFastopen(qlen) => settings.fastopen_qlen = qlen,
            O::TcpFastopenKey(keys) => settings.fastopen_keys = Some(keys),
            O::TcpFastopenNoCookie(on) => settings.fastopen_no_cookie = on,
            O::TcpSaveSyn(on) => settings.save_syn = on,
            other => {
                match other {
                    O::TcpRtoMax(span) => settings.rto_max = Some(span),
                    O::TcpSyncnt(n) => settings.syncnt = Some(n),
                    _ => {}
                }
                let kind = core::mem::discriminant(&other);
                settings
                    .inherited
                    .retain(|known| core::mem::discriminant(known) != kind);
                settings.inherited.push(other);
            }
        }
        Ok(())
    }

    /// Sets the congestion control of a listener's connections by name (`TCP_CONGESTION`). It
    /// applies from their SYN-ACK on, as some need ECN.
    ///
    /// # Errors
    /// [`InvalidValue`](TcpError::InvalidValue) if the name is unknown or not allowed;
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn listener_set_congestion(
        &mut self,
        id: ListenerId,
        name: &str,
    ) -> Result<(), StackError> {
        let allowed = self
            .env
            .sysctl
            .tcp_allowed_congestion_control
            .contains(name);
        let known = congestion::AVAILABLE
            .into_iter()
            .find(|known| *known == name);
        let name = known.filter(|_| allowed).ok_or(TcpError::InvalidValue)?;
        let listener = self.tcp.listeners.get_mut(id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        listener.settings.congestion = Some(name);
        Ok(())
    }

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
}
