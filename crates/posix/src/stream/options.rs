//! Options of a stream, which the socket keeps with or without a connection.

use core::mem::discriminant;

use fullsend_stack::{Host, ListenerId, TcpId};
use fullsend_tcp::{SocketOption, SocketOptions};
use fullsend_wire::Instant;

use super::{HostSocket, Stream};
use crate::errno::Result;

/// Returns whether an option applies to listeners only.
const fn is_listener_only(option: &SocketOption) -> bool {
    matches!(
        option,
        SocketOption::TcpFastopen(_)
            | SocketOption::TcpFastopenKey(_)
            | SocketOption::TcpDeferAccept(_)
            | SocketOption::TcpSaveSyn(_)
    )
}

/// Returns whether a listener's connections do not inherit an option.
const fn is_not_inherited(option: &SocketOption) -> bool {
    matches!(option, SocketOption::TcpQuickack(_))
}

impl Stream {
    /// Sets an option of the connection or listener, and of later ones.
    pub(crate) fn set_option(
        &mut self,
        host: &mut Host,
        now: Instant,
        option: SocketOption,
    ) -> Result<()> {
        match self.host_socket {
            HostSocket::Connection(_) if is_listener_only(&option) => {}
            HostSocket::Connection(id) => host.tcp(id).set_option(now, option)?,
            HostSocket::Listener(_) if is_not_inherited(&option) => {}
            HostSocket::Listener(id) => host.listener(id).set_option(option)?,
            HostSocket::None => {}
        }
        self.remove_option(&option);
        self.options.push(option);
        Ok(())
    }

    fn remove_option(&mut self, option: &SocketOption) {
        use SocketOption as O;
        let same = |known: &SocketOption| {
            discriminant(known) == discriminant(option)
                || matches!(
                    (known, option),
                    (O::SoSndbuf(_), O::SoSndbufforce(_))
                        | (O::SoSndbufforce(_), O::SoSndbuf(_))
                        | (O::SoRcvbuf(_), O::SoRcvbufforce(_))
                        | (O::SoRcvbufforce(_), O::SoRcvbuf(_))
                )
        };
        self.options.retain(|known| !same(known));
    }

    /// Discards `TCP_MAXSEG`: setting it to 0 removes the limit of later connections.
    pub(crate) fn clear_maxseg(&mut self) {
        self.remove_option(&SocketOption::TcpMaxseg(0));
    }

    /// Returns the value of an option that was set.
    pub(crate) fn find_option<T>(&self, value: impl Fn(&SocketOption) -> Option<T>) -> Option<T> {
        self.options.iter().find_map(value)
    }

    /// Returns whether an option was set.
    pub(crate) fn has_option(&self, predicate: impl Fn(&SocketOption) -> bool) -> bool {
        self.options.iter().any(predicate)
    }

    /// Returns the connection's options, if there is one.
    pub(crate) fn connection_options(&self, host: &mut Host) -> Option<SocketOptions> {
        match self.host_socket {
            HostSocket::Connection(id) => host.tcp(id).options().ok(),
            _ => None,
        }
    }

    /// Applies the options that were set to a new connection.
    pub(super) fn apply_options(&self, host: &mut Host, now: Instant, id: TcpId) -> Result<()> {
        for option in self
            .options
            .iter()
            .filter(|option| !is_listener_only(option))
        {
            host.tcp(id).set_option(now, *option)?;
        }
        if let Some(name) = self.congestion {
            host.tcp(id).set_congestion(now, name)?;
        }
        Ok(())
    }

    /// Applies the options that were set to a new listener.
    pub(super) fn apply_listener_options(&self, host: &mut Host, id: ListenerId) -> Result<()> {
        for option in self
            .options
            .iter()
            .filter(|option| !is_not_inherited(option))
        {
            host.listener(id).set_option(*option)?;
        }
        if let Some(name) = self.congestion {
            host.listener(id).set_congestion(name)?;
        }
        Ok(())
    }

    /// Returns a socket for a connection that this listener accepted.
    pub(super) fn accepted(&self, id: TcpId) -> Self {
        let mut new = Self::new(self.domain);
        new.connect_state = super::ConnectState::Connected;
        new.host_socket = HostSocket::Connection(id);
        new.common = self.common.clone();
        new.congestion = self.congestion;
        new.inq = self.inq;
        new.options.clone_from(&self.options);
        new.options
            .retain(|option| !is_not_inherited(option) && !is_listener_only(option));
        new
    }
}
