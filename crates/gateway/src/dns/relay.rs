//! The relay of queries over UDP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fullsend::{Chain, Slice};

use super::race::first_answer;
use super::screen::{learn_redirected, screen_answer};
use super::upstream::{UpstreamQuery, connect_udp, receive_answer};
use super::zones::Found;
use crate::counters::add;
use crate::gateway::Shared;
use crate::guests::{Guest, HeldShare, Share};
use crate::message::dns::{Query, ResponseCode};
use crate::policy::DnsVerdict;

/// Timeout of one resolver, shorter than the 5 s for which the guest's own resolver waits.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest query that is relayed.
pub(super) const MAX_QUERY: usize = 4096;

/// Relays a query of the guest to the host's resolvers, or answers it as the policy says.
pub(crate) fn relay_query(
    shared: &Arc<Shared>,
    owner: &Arc<Guest>,
    (guest, relay): (SocketAddr, SocketAddr),
    payload: &Chain,
) {
    add(&shared.counters.dns_queries, 1);
    if !owner.tx_rate.try_take(payload.len()) {
        return add(&shared.counters.dns_dropped, 1);
    }
    let mut message = vec![0; payload.len().min(MAX_QUERY)];
    payload.copy_to(&mut message);
    let Some(query) = Query::parse(&message).filter(|_| payload.len() <= MAX_QUERY) else {
        return add(&shared.counters.dns_dropped, 1);
    };
    if let Some(answer) = answer_locally((shared, owner), &query) {
        return send_answer((shared, owner), (guest, relay), answer);
    }
    let permit = shared.dns_permits.clone().try_acquire_owned().ok();
    let share = hold_query(shared, owner);
    let Some(permits) = permit.zip(share) else {
        return add(&shared.counters.dns_dropped, 1);
    };
    let (shared_by_task, owner) = (shared.clone(), owner.clone());
    shared.spawn(async move {
        let shared = shared_by_task;
        if let Some(answer) = resolve((&shared, &owner), &message).await {
            send_answer((&shared, &owner), (guest, relay), answer);
        }
        drop(permits);
    });
}

/// Counts a query in its guest's share. Returns `None` if the share is used up.
pub(super) fn hold_query(shared: &Shared, owner: &Arc<Guest>) -> Option<HeldShare> {
    let (all, limits) = (shared.limits.dns, &shared.config.limits);
    let max = shared.guests.part_of(all, limits.dns_queries);
    owner.try_hold(Share::Dns, max)
}

/// Returns the answer of a zone or the policy, or `None` if the resolvers must be queried.
pub(super) fn answer_locally(
    (shared, owner): (&Shared, &Guest),
    query: &Query<'_>,
) -> Option<Vec<u8>> {
    if !query.is_standard() {
        return Some(query.respond(ResponseCode::NotImplemented));
    }
    match shared.policy().dns(&query.name, query.query_type) {
        DnsVerdict::Allow => match shared.zones.find(&query.name) {
            Found::InNoZone => None,
            Found::NoSuchName => Some(query.respond(ResponseCode::NameError)),
            Found::Address(address) => Some(query.respond_with(ResponseCode::NoError, &[address])),
        },
        DnsVerdict::Deny => {
            shared.deny_name(owner, query);
            Some(query.respond(ResponseCode::NameError))
        }
        DnsVerdict::Refuse => {
            shared.deny_name(owner, query);
            Some(query.respond(ResponseCode::Refused))
        }
        DnsVerdict::Redirect(addresses) => {
            learn_redirected((shared, owner), query, &addresses);
            Some(query.respond_with(ResponseCode::NoError, &addresses))
        }
    }
}

fn send_answer(
    (shared, owner): (&Shared, &Guest),
    (guest, relay): (SocketAddr, SocketAddr),
    answer: Vec<u8>,
) {
    if !owner.rx_rate.try_take(answer.len()) {
        return add(&shared.counters.dns_dropped, 1);
    }
    let answer = Slice::from(bytes::Bytes::from(answer));
    // Fails only if the stack has stopped.
    let sent = shared.udp.socket().send_batch([(answer, relay, guest)]);
    add(
        &shared.counters.dns_answers,
        sent.map_or(0, |sent| sent as u64),
    );
}

/// Queries the resolvers. Returns the first answer, or a failure message if there is none.
async fn resolve((shared, owner): (&Shared, &Arc<Guest>), message: &[u8]) -> Option<Vec<u8>> {
    let query = Query::parse(message)?;
    let upstream = UpstreamQuery::new(&query, message);
    let ask = |resolver| ask(shared, resolver, &upstream);
    Some(
        match first_answer((shared, owner), RESOLVER_TIMEOUT, ask).await {
            Some(answer) => screen_answer((shared, owner), &query, answer),
            None => query.respond(ResponseCode::ServerFailure),
        },
    )
}

/// Sends a query from its own port, and waits for the answer.
async fn ask(
    shared: &Shared,
    resolver: SocketAddr,
    query: &UpstreamQuery<'_>,
) -> std::io::Result<Vec<u8>> {
    let socket = connect_udp(resolver, &shared.config.outbound)?;
    socket.send(&query.message).await?;
    loop {
        if let Some(answer) = query.accept(receive_answer(&socket).await?) {
            return Ok(answer);
        }
    }
}

/// Counts a query over TCP.
pub(super) fn count_query(shared: &Shared) {
    shared.counters.dns_queries.fetch_add(1, Ordering::Relaxed);
}
