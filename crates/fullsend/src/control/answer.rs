//! Requests that are answered at once, with the stack's lock held for a short time each.

use std::net::SocketAddr;

use fullsend_stack::{Host, SocketCursor, TcpId};
use fullsend_units::Instant;
use serde::Serialize;

use super::options::{self, Setting};
use super::view::{AddressView, Counters, LinkView, QdiscView, SockStatView, SocketView};
use super::{Reply, Request};
use crate::engine::Engine;
use crate::error::io_error;

/// Slots of the socket tables looked at under one hold of the lock.
const SLOTS: usize = 128;

fn ok(what: impl Serialize) -> Result<Reply, String> {
    serde_json::to_value(what)
        .map(Reply::Ok)
        .map_err(|error| error.to_string())
}

/// Answers a request that takes one reply.
pub(super) fn answer(engine: &Engine, request: &Request) -> Result<Reply, String> {
    match request {
        Request::Counters => ok(engine.look_now(|host, now| Counters {
            started: engine.started(),
            uptime_ns: now.as_nanos(),
            counters: named(host.counters()),
        })),
        Request::Sockstat => ok(SockStatView::from(engine.look(Host::sockstat))),
        Request::Addresses => {
            let addresses = engine.look(Host::addresses);
            let link = engine.link_name();
            let views = addresses.iter().map(|own| AddressView::new(link, own));
            ok(views.collect::<Vec<_>>())
        }
        Request::Links => ok([LinkView::new(
            engine.link_name(),
            &engine.link_stats().unwrap_or_default(),
        )]),
        Request::Qdisc => {
            let stats = engine.qdisc_stats().ok_or("the stack has no link")?;
            ok([QdiscView::new(engine.link_name(), &stats)])
        }
        Request::Sysctl { key, value } => sysctl(engine, key.as_deref(), value.as_deref()),
        Request::Set {
            flow,
            option,
            value,
        } => set(engine, flow, option, value),
        Request::Stop => Err("no capture runs on this connection".to_owned()),
        Request::Sockets | Request::Capture(_) => unreachable!("these take several replies"),
    }
}

fn named(counters: Vec<(&'static str, u64)>) -> Vec<(String, u64)> {
    counters
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn sysctl(engine: &Engine, key: Option<&str>, value: Option<&str>) -> Result<Reply, String> {
    let Some(key) = key else {
        if value.is_some() {
            return Err("a value without a key: say which tunable to set".to_owned());
        }
        return ok(engine.look(|host| host.sysctl().list().collect::<Vec<_>>()));
    };
    if let Some(value) = value {
        engine
            .set_sysctl(key, value)
            .map_err(|error| error.to_string())?;
    }
    let value = engine
        .look(|host| host.sysctl().get(key))
        .map_err(|error| error.to_string())?;
    ok([(key, value)])
}

/// A connection as a user names it: `sk:1f00001`, `1f00001`, or `LOCAL:PORT-PEER:PORT`.
fn find(host: &mut Host, flow: &str) -> Result<TcpId, String> {
    if let Some((local, peer)) = flow.split_once('-') {
        let addr = |text: &str| {
            text.parse::<SocketAddr>().map_err(|_| {
                format!("{text:?} is not an address with a port, as in 10.0.0.1:80 or [fd00::1]:80")
            })
        };
        let (local, peer) = (addr(local)?, addr(peer)?);
        return host.tcp_find(local, peer).ok_or_else(|| {
            format!("no connection from {local} to {peer}: `ss` lists those there are")
        });
    }
    let digits = flow.strip_prefix("sk:").unwrap_or(flow);
    u64::from_str_radix(digits, 16).map(TcpId).map_err(|_| {
        format!(
            "{flow:?} names no connection: write its id as `ss` shows it (sk:1000000), or \
             LOCAL:PORT-PEER:PORT"
        )
    })
}

fn set(engine: &Engine, flow: &str, option: &str, value: &str) -> Result<Reply, String> {
    let setting = options::parse(option, value)?;
    let call = |host: &mut Host, now: Instant| {
        let id = match find(host, flow) {
            Ok(id) => id,
            Err(text) => return Ok(Err(text)),
        };
        let done = match &setting {
            Setting::Option(option) => host.tcp_set_option(now, id, *option),
            Setting::Congestion(name) => host.tcp_set_congestion(now, id, name),
        };
        Ok(done.map_err(|error| match error {
            fullsend_stack::StackError::NoSuchSocket => {
                format!("{flow} is no connection that a user holds: `ss` lists those there are")
            }
            error => format!("{option}={value} on {flow}: {}", io_error(error)),
        }))
    };
    engine.op(call).map_err(|error| error.to_string())??;
    ok(())
}

/// A listing of sockets under way.
pub(super) struct Listing {
    at: Option<SocketCursor>,
}

impl Default for Listing {
    fn default() -> Self {
        Self {
            at: Some(SocketCursor::default()),
        }
    }
}

impl Listing {
    /// The next items; `None` at the end.
    pub(super) fn next(&mut self, engine: &Engine) -> Result<Option<Vec<Reply>>, Reply> {
        let Some(at) = self.at else {
            return Ok(None);
        };
        let mut sockets = Vec::new();
        self.at = engine.look_now(|host, now| host.sockets(now, at, SLOTS, &mut sockets));
        let item = |socket| serde_json::to_value(SocketView::from(socket)).map(Reply::Item);
        sockets
            .into_iter()
            .map(item)
            .collect::<Result<_, _>>()
            .map(Some)
            .map_err(|error| Reply::Error(error.to_string()))
    }
}
