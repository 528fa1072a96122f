//! Options between the socket, which has them always, and the connection, which comes and goes.

use core::mem::discriminant;

use fullsend_stack::{Host, ListenerId, TcpId};
use fullsend_tcp::{SocketOption, SocketOptions};
use fullsend_units::Instant;

use super::{Core, Stream};
use crate::errno::Result;

/// The option speaks of a listener.
const fn is_listeners(option: &SocketOption) -> bool {
    matches!(
        option,
        SocketOption::TcpFastopen(_)
            | SocketOption::TcpFastopenKey(_)
            | SocketOption::TcpDeferAccept(_)
            | SocketOption::TcpSaveSyn(_)
    )
}

/// The option is forgotten by the connections of a listener.
const fn is_own(option: &SocketOption) -> bool {
    matches!(option, SocketOption::TcpQuickack(_))
}

impl Stream {
    /// Sets an option of what stands behind the socket, and of what will.
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

    /// `TCP_MAXSEG` 0: as if it had never been set, from the next connection on.
    pub(crate) fn forget_maxseg(&mut self) {
        self.forget_option(&SocketOption::TcpMaxseg(0));
    }

    /// The value of an option that was set.
    pub(crate) fn find<T>(&self, value: impl Fn(&SocketOption) -> Option<T>) -> Option<T> {
        self.set.iter().find_map(value)
    }

    /// An option was set.
    pub(crate) fn has_set(&self, is_it: impl Fn(&SocketOption) -> bool) -> bool {
        self.set.iter().any(is_it)
    }

    /// The connection's options, if there is one.
    pub(crate) fn live(&self, host: &mut Host) -> Option<SocketOptions> {
        match self.core {
            Core::Connection(id) => host.tcp_options(id).ok(),
            _ => None,
        }
    }

    /// A connection begins with what was set.
    pub(super) fn equip(&self, host: &mut Host, now: Instant, id: TcpId) -> Result<()> {
        for option in self.set.iter().filter(|option| !is_listeners(option)) {
            host.tcp_set_option(now, id, *option)?;
        }
        if let Some(name) = self.congestion {
            host.tcp_set_congestion(now, id, name)?;
        }
        Ok(())
    }

    /// A listener begins with what was set.
    pub(super) fn equip_listener(&self, host: &mut Host, id: ListenerId) -> Result<()> {
        for option in self.set.iter().filter(|option| !is_own(option)) {
            host.listener_set_option(id, *option)?;
        }
        if let Some(name) = self.congestion {
            host.listener_set_congestion(id, name)?;
        }
        Ok(())
    }

    /// A socket for a connection that this listener took.
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
