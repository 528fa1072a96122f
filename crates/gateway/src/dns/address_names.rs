//! The names of the addresses that the guest has resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Longest time for which an answer gives an address its name, without the grace time.
const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest time for which an address has its name, including the grace time: a guest connects after it
/// has received the answer.
const LIFETIME_MIN: Duration = Duration::from_secs(5);
/// Most names of one address, bounded because the policy compares them for each new or refused flow.
pub(crate) const NAMES_MAX: usize = 16;
/// Most addresses of one name, so that the owner of a name cannot displace the others.
pub(crate) const ADDRESSES_MAX: usize = 64;

/// Pairs of an address and one of its names, at most a fixed number. A new pair replaces the one that was
/// learned the least recently, regardless of its TTL.
///
/// The relay records only pairs of answers that it passes on, so that the guest alone cannot add any.
pub(crate) struct AddressNames {
    max: usize,
    grace: Duration,
    pairs: BTreeMap<(IpAddr, Arc<str>), Learned>,
    /// The pairs in the order in which they were learned.
    order: BTreeMap<u64, (IpAddr, Arc<str>)>,
    /// The addresses of each name in the order in which they were learned.
    by_name: BTreeSet<(Arc<str>, u64)>,
    /// The next value of [`Learned::at`].
    next: u64,
}

/// The last time at which a pair was learned, and its expiry.
#[derive(Clone, Copy)]
struct Learned {
    /// A number that grows with each pair that is learned.
    at: u64,
    expiry: Instant,
    /// Time until which the guest has the address for this name itself; `None` if the name was only an
    /// alias.
    queried_until: Option<Instant>,
}

/// The place of a name in the answer that gave it an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learnt {
    /// The guest has queried the name.
    Queried,
    /// The name is in the chain of aliases of a name that the guest has queried.
    Alias,
}

/// The names that an address has now.
#[derive(Default)]
pub(crate) struct Names {
    /// Names that the guest has queried.
    pub(crate) queried: Vec<Arc<str>>,
    /// Other names of the chains of aliases.
    pub(crate) aliases: Vec<Arc<str>>,
}

impl AddressNames {
    /// Returns a table of at most `max` pairs, which exist for `grace` longer than their TTL.
    pub(crate) fn new(max: usize, grace: Duration) -> Self {
        Self {
            max: max.max(1),
            // An expiry must be a valid time.
            grace: grace.min(Duration::from_secs(u32::MAX.into())),
            pairs: BTreeMap::new(),
            order: BTreeMap::new(),
            by_name: BTreeSet::new(),
            next: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Adds the pair of an address and a name, or extends its lifetime. Returns whether this removed
    /// another pair before its expiry.
    pub(crate) fn learn(
        &mut self,
        (name, how): (&Arc<str>, Learnt),
        address: IpAddr,
        ttl: Duration,
        now: Instant,
    ) -> bool {
        let pair = (address.to_canonical(), name.clone());
        let lifetime = ttl.min(TTL_MAX) + self.grace;
        let mut expiry = now + lifetime.max(LIFETIME_MIN);
        let mut queried_until = (how == Learnt::Queried).then_some(expiry);
        let mut replaced = None;
        if let Some(known) = self.remove(&pair) {
            expiry = expiry.max(known.expiry);
            queried_until = queried_until.max(known.queried_until);
        } else if let Some(full) = self.first_of_full(&pair) {
            replaced = self.remove(&full);
        }
        let at = self.next;
        self.next += 1;
        self.order.insert(at, pair.clone());
        self.by_name.insert((pair.1.clone(), at));
        let learned = Learned {
            at,
            expiry,
            queried_until,
        };
        self.pairs.insert(pair, learned);
        replaced.is_some_and(|replaced| replaced.expiry > now)
    }

    /// Sets the largest number of pairs, and removes the least recently learned ones beyond it.
    pub(crate) fn limit(&mut self, max: usize) {
        self.max = max.max(1);
        while self.len() > self.max
            && let Some(pair) = self.order.values().next().cloned()
        {
            self.remove(&pair);
        }
    }

    /// Returns the names that an address has now.
    pub(crate) fn of(&self, address: IpAddr, now: Instant) -> Names {
        let mut names = Names::default();
        for ((_, name), learned) in self.of_address(address.to_canonical()) {
            if learned.queried_until.is_some_and(|until| until > now) {
                names.queried.push(name.clone());
            } else if learned.expiry > now {
                names.aliases.push(name.clone());
            }
        }
        names
    }

    /// Removes the expired pairs.
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_over = |learned: &Learned| learned.expiry <= now;
        for ((_, name), learned) in self.pairs.iter().filter(|(_, learned)| is_over(learned)) {
            self.order.remove(&learned.at);
            self.by_name.remove(&(name.clone(), learned.at));
        }
        self.pairs.retain(|_, learned| !is_over(learned));
    }

    fn of_address(&self, address: IpAddr) -> impl Iterator<Item = (&(IpAddr, Arc<str>), &Learned)> {
        let first = (address, Arc::from(""));
        let rest = self.pairs.range(first..);
        rest.take_while(move |((other, _), _)| *other == address)
    }

    /// Returns the pair to remove before a new one is added: the least recently learned pair of its
    /// address if that has the most names, of its name if that has the most addresses, or of all if the
    /// table is full.
    fn first_of_full(&self, (address, name): &(IpAddr, Arc<str>)) -> Option<(IpAddr, Arc<str>)> {
        let names = self.of_address(*address);
        let of_name = self
            .by_name
            .range((name.clone(), 0)..=(name.clone(), u64::MAX));
        let first = if names.count() >= NAMES_MAX {
            self.of_address(*address)
                .map(|(_, learned)| learned.at)
                .min()
        } else if of_name.clone().count() >= ADDRESSES_MAX {
            of_name.map(|(_, at)| *at).next()
        } else if self.len() >= self.max {
            self.order.keys().next().copied()
        } else {
            None
        };
        self.order.get(&first?).cloned()
    }

    fn remove(&mut self, pair: &(IpAddr, Arc<str>)) -> Option<Learned> {
        let learned = self.pairs.remove(pair)?;
        self.order.remove(&learned.at);
        self.by_name.remove(&(pair.1.clone(), learned.at));
        Some(learned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ip(n: u16) -> IpAddr {
        let [high, low] = n.to_be_bytes();
        [192, 0, high, low].into()
    }

    fn names(table: &AddressNames, address: IpAddr, now: Instant) -> Vec<String> {
        table
            .of(address, now)
            .queried
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn an_address_has_its_names_for_their_ttl_and_the_grace_time() {
        let mut table = AddressNames::new(10, GRACE);
        let (start, a, b) = (Instant::now(), Arc::from("a.test"), Arc::from("b.test"));
        table.learn((&a, Learnt::Queried), ip(1), s(10), start);
        table.learn((&b, Learnt::Queried), ip(1), s(0), start);
        table.learn((&b, Learnt::Queried), ip(2), s(1 << 31), start);
        assert_eq!(names(&table, ip(1), start), ["a.test", "b.test"]);
        assert_eq!(names(&table, ip(3), start), [""; 0]);
        assert_eq!(names(&table, ip(1), start + s(60)), ["a.test"]);
        assert_eq!(names(&table, ip(1), start + s(70)), [""; 0]);
        // An earlier expiry does not shorten the time, and a later one prolongs it.
        table.learn((&a, Learnt::Queried), ip(1), s(5), start);
        assert_eq!(names(&table, ip(1), start + s(69)), ["a.test"]);
        table.learn((&a, Learnt::Queried), ip(1), s(10), start + s(20));
        assert_eq!(names(&table, ip(1), start + s(89)), ["a.test"]);
        table.expire(start + s(89));
        assert_eq!(table.len(), 2);
        table.expire(start + TTL_MAX + GRACE);
        assert_eq!(
            (table.len(), table.order.len(), table.by_name.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn an_ipv4_address_in_the_form_of_ipv6_is_the_same() {
        let mut table = AddressNames::new(10, GRACE);
        let now = Instant::now();
        table.learn(
            (&Arc::from("a.test"), Learnt::Queried),
            "::ffff:192.0.0.1".parse().unwrap(),
            s(1),
            now,
        );
        assert_eq!(names(&table, ip(1), now), ["a.test"]);
        assert_eq!(
            names(&table, "::ffff:192.0.0.1".parse().unwrap(), now),
            ["a.test"]
        );
    }

    #[test]
    fn an_alias_is_a_name_once_it_is_queried_and_for_that_time() {
        let mut table = AddressNames::new(10, Duration::ZERO);
        let (now, name) = (Instant::now(), Arc::from("a.test"));
        let known = |table: &AddressNames, now| {
            let names = table.of(ip(1), now);
            (names.queried.len(), names.aliases.len())
        };
        table.learn((&name, Learnt::Alias), ip(1), s(100), now);
        assert_eq!(known(&table, now), (0, 1));
        table.learn((&name, Learnt::Queried), ip(1), s(50), now);
        assert_eq!(known(&table, now), (1, 0));
        // An alias does not prolong the time of the name.
        table.learn((&name, Learnt::Alias), ip(1), s(100), now);
        assert_eq!(known(&table, now + s(49)), (1, 0));
        assert_eq!(known(&table, now + s(50)), (0, 1));
        assert_eq!(known(&table, now + s(100)), (0, 0));
        table.expire(now + s(100));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_pair_exists_for_a_few_seconds_at_least() {
        let mut table = AddressNames::new(10, Duration::ZERO);
        let (now, name) = (Instant::now(), Arc::from("a.test"));
        table.learn((&name, Learnt::Queried), ip(1), s(0), now);
        assert_eq!(names(&table, ip(1), now + s(4)), ["a.test"]);
        assert_eq!(names(&table, ip(1), now + s(5)), [""; 0]);
    }

    #[test]
    fn a_full_table_replaces_the_pair_that_was_learned_the_least_recently() {
        let mut table = AddressNames::new(3, GRACE);
        let (now, name) = (Instant::now(), Arc::from("a.test"));
        for (n, ttl) in [(1, 10), (2, 30), (3, 20)] {
            assert!(!table.learn((&name, Learnt::Queried), ip(n), s(ttl), now));
        }
        // Known already, and so the latest.
        assert!(!table.learn((&name, Learnt::Queried), ip(1), s(5), now));
        assert!(table.learn((&name, Learnt::Queried), ip(4), s(5), now));
        let known = |table: &AddressNames, n| !table.of(ip(n), now).queried.is_empty();
        assert_eq!(
            [1, 2, 3, 4].map(|n| known(&table, n)),
            [true, false, true, true]
        );
        // One that has expired is not missed.
        assert!(!table.learn((&name, Learnt::Queried), ip(5), s(5), now + s(80)));
        assert_eq!(
            (table.len(), table.order.len(), table.by_name.len()),
            (3, 3, 3)
        );
    }

    #[test]
    fn a_table_that_gets_smaller_keeps_what_was_learned_last() {
        let mut table = AddressNames::new(10, GRACE);
        let (now, name) = (Instant::now(), Arc::from("a.test"));
        for n in 1..=5 {
            table.learn((&name, Learnt::Queried), ip(n), s(10), now);
        }
        table.limit(2);
        let known = |table: &AddressNames, n| !table.of(ip(n), now).queried.is_empty();
        assert_eq!((table.len(), table.order.len()), (2, 2));
        assert!(known(&table, 4) && known(&table, 5));
        assert!(table.learn((&name, Learnt::Queried), ip(6), s(10), now));
        assert_eq!((table.len(), known(&table, 4)), (2, false));
    }

    #[test]
    fn one_name_with_many_addresses_does_not_displace_others() {
        let mut table = AddressNames::new(100, GRACE);
        let (now, many, other) = (
            Instant::now(),
            Arc::from("many.test"),
            Arc::from("other.test"),
        );
        table.learn((&other, Learnt::Queried), ip(0), s(1), now);
        let replaced =
            (1..=500).filter(|n| table.learn((&many, Learnt::Queried), ip(*n), TTL_MAX, now));
        assert_eq!(replaced.count(), 500 - ADDRESSES_MAX);
        assert_eq!(names(&table, ip(0), now), ["other.test"]);
        assert_eq!(names(&table, ip(500), now), ["many.test"]);
        assert_eq!(table.len(), 1 + ADDRESSES_MAX);
        // Nor do many such names: each new pair remains.
        for n in 1..=500 {
            table.learn(
                (&Arc::from(format!("n{n}.test")), Learnt::Queried),
                ip(n),
                TTL_MAX,
                now,
            );
        }
        for n in 501..=510 {
            table.learn((&other, Learnt::Queried), ip(n), s(1), now);
        }
        assert!((501..=510).all(|n| names(&table, ip(n), now) == ["other.test"]));
    }

    #[test]
    fn an_address_has_a_limited_number_of_names() {
        let mut table = AddressNames::new(10_000, GRACE);
        let now = Instant::now();
        for n in 0..NAMES_MAX {
            let name = Arc::from(format!("n{n}.test"));
            assert!(!table.learn((&name, Learnt::Queried), ip(1), s(10 + n as u64), now));
        }
        assert!(table.learn((&Arc::from("more.test"), Learnt::Queried), ip(1), s(5), now));
        let all = names(&table, ip(1), now);
        assert_eq!(all.len(), NAMES_MAX);
        assert!(all.contains(&"more.test".to_owned()) && !all.contains(&"n0.test".to_owned()));
        assert!(!table.learn((&Arc::from("n0.test"), Learnt::Queried), ip(2), s(5), now));
    }
}
