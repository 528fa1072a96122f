//! The policy's view of answers: which addresses have which names, and which answers the guest may
//! have.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::address_names::ADDRESSES_MAX;
use crate::counters::add;
use crate::gateway::Shared;
use crate::guests::Guest;
use crate::message::dns::{Query, ResponseCode, TTL};
use crate::message::dns_answer::Answer;

/// Returns the answer for the guest, given that of a resolver: the policy may refuse it. Records the
/// addresses of the name.
pub(super) fn screen_answer(
    (shared, owner): (&Shared, &Guest),
    query: &Query<'_>,
    answer: Vec<u8>,
) -> Vec<u8> {
    let policy = shared.policy();
    if !policy.filters_names() {
        return answer;
    }
    let Some(parsed) = Answer::parse(query, &answer) else {
        tracing::debug!(name = query.name, "the answer of a resolver is malformed");
        return query.respond(ResponseCode::ServerFailure);
    };
    if parsed.is_truncated {
        // Without its records, as some of them may be missing.
        return query.respond_truncated();
    }
    let with_place = |address: IpAddr| (address, shared.config.is_local(address));
    let is_denied = |&(address, is_local): &(IpAddr, bool)| {
        !policy.allows_address(&query.name, address, is_local)
    };
    let mut addresses = parsed.addresses.iter().map(|a| with_place(a.address));
    if let Some((address, is_local)) = addresses.find(is_denied) {
        shared.deny_answer(&query.name, address, is_local);
        return query.respond(ResponseCode::Refused);
    }
    let of_name = |(address, ttl): (IpAddr, Option<u32>)| Some((address, ttl?));
    let all = parsed.addresses.iter().map(|a| (a.address, a.ttl));
    learn((shared, owner), query, all.filter_map(of_name));
    answer
}

/// Records the addresses that the policy itself gives a name.
pub(super) fn learn_redirected(
    (shared, owner): (&Shared, &Guest),
    query: &Query<'_>,
    addresses: &[IpAddr],
) {
    if shared.policy().filters_names() {
        learn(
            (shared, owner),
            query,
            addresses.iter().map(|address| (*address, TTL)),
        );
    }
}

/// Records addresses of the name of a query, with their TTLs in seconds, as far as a name may have them.
fn learn(
    (shared, owner): (&Shared, &Guest),
    query: &Query<'_>,
    addresses: impl IntoIterator<Item = (IpAddr, u32)>,
) {
    let now = Instant::now();
    let name: Arc<str> = query.name.as_str().into();
    let mut names = owner.address_names.lock();
    let mut addresses = addresses.into_iter();
    let mut replaced = 0;
    for (address, ttl) in addresses.by_ref().take(ADDRESSES_MAX) {
        let ttl = Duration::from_secs(ttl.into());
        replaced += u64::from(names.learn(&name, address, ttl, now));
    }
    replaced += addresses.count() as u64;
    add(&shared.counters.dns_addresses_replaced, replaced);
}
