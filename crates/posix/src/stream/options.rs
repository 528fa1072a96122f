//! Options of a stream, which the socket keeps with or without a connection.

use core::mem::discriminant;

use fullsend_stack::{Host, ListenerId, TcpId};
use fullsend_tcp::{SocketOption, SocketOptions};
use fullsend_units::Instant;

use super::{Core, Stream};
use crate::errno::Result;

/// Returns whether an option applies to listeners only.
const fn is_listeners(option: &SocketOption) -> bool {
    matches!(
        option,
        SocketOption::TcpFastopen(_)
            | SocketOption::TcpFastopenKey(_)
            | SocketOption::TcpDeferAccept(_)
            | SocketOption::TcpSaveSyn(_)
    )
}

/// Returns whether a listener's connections do not inherit an option.
const fn is_own(option: &SocketOption) -> bool {
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
        match self.core {
            Core::Connection(_) if is_listeners(&option) => {}
            Core::Connection(id) => host.tcp_set_option(now, id, option)?,
            Core::Listener(_) if is_own(&option) => {}
            Core::Listener(id) => host.listener_set_option(id, option)?,
            Core::None => {}
        }
        self.forget_option(&option);
        self.set.push(option);
        Ok(())
    }

    fn forget_option(&mut self, option: &SocketOption) {
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
        self.set.retain(|known| !same(known));
    }

    /// Discards `TCP_MAXSEG`: setting it to 0 removes the limit of later connections.
    pub(crate) fn forget_maxseg(&mut self) {
        self.forget_option(&SocketOption::TcpMaxseg(0));
    }

    /// Returns the value of an option that was set.
    pub(crate) fn find<T>(&self, value: impl Fn(&SocketOption) -> Option<T>) -> Option<T> {
        self.set.iter().find_map(value)
    }

    /// Returns whether an option was set.
    pub(crate) fn has_set(&self, is_it: impl Fn(&SocketOption) -> bool) -> bool {
        self.set.iter().any(is_it)
    }

    /// Returns the connection's options, if there is one.
    pub(crate) fn live(&self, host: &mut Host) -> Option<SocketOptions> {
        match self.core {
            Core::Connection(id) => host.tcp_options(id).ok(),
            _ => None,
        }
    }

    /// Applies the options that were set to a new connection.
    pub(super) fn equip(&self, host: &mut Host, now: Instant, id: TcpId) -> Result<()> {
        for option in self.set.iter().filter(|option| !is_listeners(option)) {
            host.tcp_set_option(now, id, *option)?;
        }
        if let Some(name) = self.congestion {
            host.tcp_set_congestion(now, id, name)?;
        }
        Ok(())
    }

    /// Applies the options that were set to a new listener.
    pub(super) fn equip_listener(&self, host: &mut Host, id: ListenerId) -> Result<()> {
        for option in self.set.iter().filter(|option| !is_own(option)) {
            host.listener_set_option(id, *option)?;
        }
        if let Some(name) = self.congestion {
            host.listener_set_congestion(id, name)?;
        }
        Ok(())
    }

    /// Returns a socket for a connection that this listener accepted.
    pub(super) fn accepted(&self, id: TcpId) -> Self {
        let mut new = Self::new(self.domain);
        new.phase = super::Phase::Connected;
        new.core = Core::Connection(id);
        new.common = self.common.clone();
        new.congestion = self.congestion;
        new.inq = self.inq;
        new.set.clone_from(&self.set);
        new.set
            .retain(|option| !is_own(option) && !is_listeners(option));
        new
    }
}
