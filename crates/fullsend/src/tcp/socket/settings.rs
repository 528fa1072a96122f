//! The options set on a socket before it connects or listens, and how a connection or listener gets
//! them.

use std::io;
use std::mem::discriminant;

use fullsend_stack::{Host, ListenerId, StackError, TcpId};
use fullsend_tcp::SocketOption;
use fullsend_wire::Instant;

use crate::error::io_error;

/// Options that are set on a socket before it connects or listens, at most one of each kind.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct SocketSettings {
    options: Vec<SocketOption>,
    pub(super) congestion: Option<String>,
}

impl SocketSettings {
    pub(super) fn set(&mut self, option: SocketOption) {
        let kind = discriminant(&option);
        self.options.retain(|known| discriminant(known) != kind);
        self.options.push(option);
    }

    pub(super) fn find<R>(&self, get: impl Fn(&SocketOption) -> Option<R>) -> Option<R> {
        self.options.iter().find_map(get)
    }

    /// Sets the options on a connection whose SYN has not been sent. If one is invalid, the
    /// connection is closed.
    pub(in crate::tcp) fn apply(&self, host: &mut Host, now: Instant, id: TcpId) -> io::Result<()> {
        let result = self.try_apply(host, now, id);
        if result.is_err() {
            host.tcp(id).abort(now);
        }
        result
    }

    fn try_apply(&self, host: &mut Host, now: Instant, id: TcpId) -> io::Result<()> {
        for option in &self.options {
            let set = host.tcp(id).set_option(now, *option);
            set.map_err(|error| invalid(&format!("{option:?}"), error))?;
        }
        if let Some(name) = &self.congestion {
            let set = host.tcp(id).set_congestion(now, name);
            set.map_err(|error| invalid(&format!("congestion control {name:?}"), error))?;
        }
        Ok(())
    }

    /// Returns the options for the listener on one of `shards` shards.
    pub(in crate::tcp) fn divided(&self, shards: u32) -> Self {
        let options = self.options.iter();
        Self {
            options: options.map(|option| divided(*option, shards)).collect(),
            congestion: self.congestion.clone(),
        }
    }

    /// Sets the options on a listener, for its connections.
    pub(in crate::tcp) fn apply_to_listener(
        &self,
        host: &mut Host,
        id: ListenerId,
    ) -> Result<(), StackError> {
        for option in &self.options {
            host.listener(id).set_option(*option)?;
        }
        match &self.congestion {
            Some(name) => host.listener(id).set_congestion(name),
            None => Ok(()),
        }
    }

    pub(in crate::tcp) fn ttl(&self) -> Option<u8> {
        self.find(|option| match option {
            SocketOption::IpTtl(ttl) => *ttl,
            _ => None,
        })
    }
}

/// Returns an option for the listener on one of `shards` shards, which divide the queue of Fast Open
/// like the backlog.
pub(in crate::tcp) const fn divided(option: SocketOption, shards: u32) -> SocketOption {
    match option {
        SocketOption::TcpFastopen(len) => SocketOption::TcpFastopen(len.div_ceil(shards)),
        option => option,
    }
}

fn invalid(what: &str, error: StackError) -> io::Error {
    let error = io_error(error);
    io::Error::new(error.kind(), format!("cannot set {what}: {error}"))
}
