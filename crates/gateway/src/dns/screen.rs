//! The policy's check of answers, and the names that their addresses get.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::address_names::{ADDRESSES_MAX, Learnt};
use crate::counters::add;
use crate::gateway::Shared;
use crate::guests::Guest;
use crate::message::dns::{Query, ResponseCode, TTL};
use crate::message::dns_answer::{Answer, AnsweredAddress};
use crate::policy::Policy;

/// Returns the answer for the guest, given a resolver's answer, which the policy may refuse. Records the
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
        // The records are left out, as some may be missing.
        return query.respond_truncated();
    }
    let mut denied = parsed.aliases.iter();
    if let Some(target) = denied.find(|target| !policy.allows_alias(&query.name, target)) {
        shared.deny_alias(owner, &query.name, target);
        return query.respond(ResponseCode::Refused);
    }
    if let Some((address, is_local)) = denied_address(shared, &*policy, &query.name, &parsed) {
        shared.deny_answer(owner, &query.name, (address, is_local));
        return query.respond(ResponseCode::Refused);
    }
    let of_name = |a: &AnsweredAddress| Some((a.address, a.ttl?));
    let addresses: Vec<_> = parsed.addresses.iter().filter_map(of_name).collect();
    let aliases = parsed.aliases.iter().filter(|a| policy.uses_alias(a));
    for alias in aliases {
        learn((shared, owner), (alias, Learnt::Alias), &addresses);
    }
    learn((shared, owner), (&query.name, Learnt::Queried), &addresses);
    answer
}

/// Returns the first address of an answer that the policy denies, and whether it is local.
fn denied_address(
    shared: &Shared,
    policy: &dyn Policy,
    name: &str,
    answer: &Answer,
) -> Option<(IpAddr, bool)> {
    let with_place = answer.addresses.iter().enumerate().map(|(n, answered)| {
        let address = answered.address;
        // The policy judges each flow again. The kernel is queried about at most the addresses that a
        // name may have.
        let is_local = if n < ADDRESSES_MAX {
            shared.is_local(address)
        } else {
            shared.config.is_local(address)
        };
        (address, is_local)
    });
    let is_denied =
        |&(address, is_local): &(IpAddr, bool)| !policy.allows_address(name, address, is_local);
    with_place.into_iter().find(is_denied)
}

/// Records the addresses that the policy itself gives a name.
pub(super) fn learn_redirected(
    (shared, owner): (&Shared, &Guest),
    query: &Query<'_>,
    addresses: &[IpAddr],
) {
    if shared.policy().filters_names() {
        let addresses: Vec<_> = addresses.iter().map(|address| (*address, TTL)).collect();
        learn((shared, owner), (&query.name, Learnt::Queried), &addresses);
    }
}

/// Records addresses of a name with their TTLs in seconds, up to the bound of a name.
fn learn(
    (shared, owner): (&Shared, &Guest),
    (name, how): (&str, Learnt),
    addresses: &[(IpAddr, u32)],
) {
    let now = Instant::now();
    let name: Arc<str> = name.into();
    let mut names = owner.address_names.lock();
    let learned = addresses.len().min(ADDRESSES_MAX);
    let mut replaced = addresses.len() - learned;
    for (address, ttl) in &addresses[..learned] {
        let ttl = Duration::from_secs((*ttl).into());
        replaced += usize::from(names.learn((&name, how), *address, ttl, now));
    }
    add(&shared.counters.dns_addresses_replaced, replaced as u64);
}
