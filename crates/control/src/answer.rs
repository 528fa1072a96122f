//! Requests with one immediate reply, each of which locks the stack for a short time.

use std::net::SocketAddr;

use fullsend_stack::{Host, LinkStats, SockStat, StackError, TcpId};
use fullsend_wire::Instant;
use serde::Serialize;

use crate::options::{self, ConnectionSetting};
use crate::view::{AddressView, Counters, LinkView, QdiscView, SockStatView};
use crate::{Inspect, Reply, Request};

/// The error reply to requests that only a gateway's stack answers.
pub(crate) const NO_GATEWAY: &str = "the stack is not a gateway's; name the control socket of a \
    gateway, e.g. of `fullsend gateway run --control`";

fn ok_reply(value: impl Serialize) -> Result<Reply, String> {
    serde_json::to_value(value)
        .map(Reply::Ok)
        .map_err(|error| error.to_string())
}

/// Answers a request that has one reply.
///
/// # Errors
/// The message of the error reply.
pub fn answer(engine: &impl Inspect, request: &Request) -> Result<Reply, String> {
    // A command that shares the files of its gateway can open the socket.
    if request.is_change() && engine.gateway().is_some() {
        return Err(
            "the control socket of a gateway is read-only, as its guest may reach it".to_owned(),
        );
    }
    match request {
        Request::Counters => {
            let gateway = engine.gateway().map(|gateway| gateway.counters());
            let now = engine.with_host(0, |_, _, now| now);
            let mut counters = engine.counters();
            counters.extend(gateway.into_iter().flatten());
            ok_reply(Counters {
                started: engine.started(),
                uptime_ns: now.as_nanos(),
                counters: owned_counters(counters),
            })
        }
        Request::Sockstat => {
            let mut all = SockStat::default();
            for shard in 0..engine.shards() {
                all += engine.with_host(shard, |host, _, _| host.sockstat());
            }
            ok_reply(SockStatView::from(all))
        }
        Request::Addresses => {
            let addresses = engine.with_host(0, |host, _, _| host.addresses());
            let link = engine.link_name();
            let views = addresses.iter().map(|own| AddressView::new(link, own));
            ok_reply(views.collect::<Vec<_>>())
        }
        Request::Links => {
            let mut all = LinkStats::default();
            for shard in 0..engine.shards() {
                let stats = engine.with_host(shard, |host, iface, _| host.link_stats(iface));
                all += stats.unwrap_or_default();
            }
            ok_reply([LinkView::new(engine.link_name(), &all)])
        }
        Request::Qdisc => {
            // One entry for each queue, as `tc` prints a device with several queues.
            let stats = |shard| engine.with_host(shard, |host, iface, _| host.qdisc_stats(iface));
            let all: Option<Vec<_>> = (0..engine.shards()).map(stats).collect();
            let all = all.ok_or("the stack has no link")?;
            let views = all
                .iter()
                .map(|stats| QdiscView::new(engine.link_name(), stats));
            ok_reply(views.collect::<Vec<_>>())
        }
        Request::Sysctl { key, value } => sysctl(engine, key.as_deref(), value.as_deref()),
        Request::Set {
            flow,
            option,
            value,
        } => set(engine, flow, option, value),
        Request::Stop => {
            Err("no capture is running on this connection; start one with `capture`".to_owned())
        }
        Request::Gateway => ok_reply(engine.gateway().ok_or(NO_GATEWAY)?.summary()),
        Request::Sockets | Request::GatewayFlows | Request::GatewayForwards => {
            Err("a list needs several replies".to_owned())
        }
        Request::Capture(_) => Err(
            "a stack of the C library cannot capture packets; run tcpdump on its interface instead"
                .to_owned(),
        ),
    }
}

fn owned_counters(counters: Vec<(&'static str, u64)>) -> Vec<(String, u64)> {
    counters
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn sysctl(engine: &impl Inspect, key: Option<&str>, value: Option<&str>) -> Result<Reply, String> {
    let Some(key) = key else {
        if value.is_some() {
            return Err(
                "the request has a value without a key; add the name of the tunable as key"
                    .to_owned(),
            );
        }
        return ok_reply(engine.sysctls());
    };
    if let Some(value) = value {
        engine.set_sysctl(key, value)?;
    }
    ok_reply([(key, engine.sysctl(key)?)])
}

/// Finds the connection that a user names: `sk:1f00001`, `1f00001`, or `LOCAL:PORT-PEER:PORT`.
/// Returns its shard and its ID there.
fn find_connection(engine: &impl Inspect, flow: &str) -> Result<(usize, TcpId), String> {
    if let Some((local, peer)) = flow.split_once('-') {
        let addr = |text: &str| {
            text.parse::<SocketAddr>().map_err(|_| {
                format!(
                    "{text:?} is not an address with a port; write e.g. 10.0.0.1:80 or [fd00::1]:80"
                )
            })
        };
        let (local, peer) = (addr(local)?, addr(peer)?);
        let find = |shard| {
            let id = engine.with_host(shard, |host, _, _| host.tcp_find(local, peer));
            id.map(|id| (shard, id))
        };
        return (0..engine.shards()).find_map(find).ok_or_else(|| {
            format!("there is no connection from {local} to {peer}; `ss` lists the connections")
        });
    }
    let id = flow.strip_prefix("sk:").unwrap_or(flow);
    // Ids of a stack with several shards begin with the index of the shard.
    let (shard, digits) = match id.split_once('.') {
        Some(parts) => parts,
        None if engine.shards() == 1 => ("0", id),
        None => {
            return Err(format!(
                "{flow:?} has no shard; write the id as `ss` shows it, e.g. sk:0.1000000"
            ));
        }
    };
    let parsed = (shard.parse(), u64::from_str_radix(digits, 16));
    let (Ok(shard), Ok(id)) = parsed else {
        return Err(format!(
            "{flow:?} is not the name of a connection; write its id as `ss` shows it (sk:1000000), \
             or LOCAL:PORT-PEER:PORT"
        ));
    };
    if shard >= engine.shards() {
        return Err(not_a_connection(flow));
    }
    Ok((shard, TcpId(id)))
}

fn not_a_connection(flow: &str) -> String {
    format!("{flow} is not a connection of an application; `ss` lists the connections")
}

fn set(engine: &impl Inspect, flow: &str, option: &str, value: &str) -> Result<Reply, String> {
    let setting = options::parse(option, value)?;
    let (shard, id) = find_connection(engine, flow)?;
    let call = |host: &mut Host, now: Instant| {
        let done = match &setting {
            ConnectionSetting::Option(option) => host.tcp(id).set_option(now, *option),
            ConnectionSetting::Congestion(name) => host.tcp(id).set_congestion(now, name),
        };
        done.map_err(|error| match error {
            StackError::NoSuchSocket => not_a_connection(flow),
            error => format!("cannot set {option}={value} on {flow}: {error}"),
        })
    };
    engine.change(shard, call)??;
    ok_reply(())
}
