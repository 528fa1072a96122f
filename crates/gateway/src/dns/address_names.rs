//! The names of the addresses that the guest has resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Longest time for which an answer gives an address its name, apart from the grace time.
const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Most names of one address, so that a flow has few to compare.
const NAMES_MAX: usize = 64;

/// Pairs of an address and one of its names, at most a fixed number.
///
/// The guest cannot add any without an answer: the relay records those that it passes on.
pub(crate) struct AddressNames {
    max: usize,
    grace: Duration,
    expiries: BTreeMap<(IpAddr, Arc<str>), Instant>,
    /// The pairs in the order in which they expire.
    order: BTreeSet<(Instant, IpAddr, Arc<str>)>,
}

impl AddressNames {
    /// Returns a table for `max` pairs, which exist for `grace` longer than their TTL.
    pub(crate) fn new(max: usize, grace: Duration) -> Self {
        Self {
            max: max.max(1),
            // An expiry must be a valid time.
            grace: grace.min(Duration::from_secs(u32::MAX.into())),
            expiries: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.expiries.len()
    }

    /// Gives an address a name, or prolongs the time for which it has it. Returns whether another pair
    /// was removed for it.
    pub(crate) fn learn(
        &mut self,
        name: &Arc<str>,
        address: IpAddr,
        ttl: Duration,
        now: Instant,
    ) -> bool {
        let address = address.to_canonical();
        let expiry = now + ttl.min(TTL_MAX) + self.grace;
        if let Some(known) = self.expiries.get_mut(&(address, name.clone())) {
            if *known < expiry {
                self.order.remove(&(*known, address, name.clone()));
                self.order.insert((expiry, address, name.clone()));
                *known = expiry;
            }
            return false;
        }
        self.expire(now);
        let replaced = self.oldest_of_full(address);
        if let Some(replaced) = &replaced {
            self.remove(replaced);
        }
        self.order.insert((expiry, address, name.clone()));
        self.expiries.insert((address, name.clone()), expiry);
        replaced.is_some()
    }

    /// Returns the names that an address has now.
    pub(crate) fn of(&self, address: IpAddr, now: Instant) -> Vec<Arc<str>> {
        let pairs = self.of_address(address.to_canonical());
        let current = pairs.filter(|(_, expiry)| **expiry > now);
        current.map(|((_, name), _)| name.clone()).collect()
    }

    /// Removes the pairs whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(first) = self.order.first().filter(|first| first.0 <= now).cloned() {
            self.remove(&first);
        }
    }

    fn of_address(&self, address: IpAddr) -> impl Iterator<Item = (&(IpAddr, Arc<str>), &Instant)> {
        let first = (address, Arc::from(""));
        let rest = self.expiries.range(first..);
        rest.take_while(move |((other, _), _)| *other == address)
    }

    /// Returns the pair to remove before `address` gets one more name, if the table is full or the
    /// address has many names: the one that expires first.
    fn oldest_of_full(&self, address: IpAddr) -> Option<(Instant, IpAddr, Arc<str>)> {
        if self.of_address(address).count() >= NAMES_MAX {
            let oldest = self.of_address(address).min_by_key(|(_, expiry)| **expiry);
            return oldest.map(|((_, name), expiry)| (*expiry, address, name.clone()));
        }
        self.order
            .first()
            .filter(|_| self.len() >= self.max)
            .cloned()
    }

    fn remove(&mut self, pair: &(Instant, IpAddr, Arc<str>)) {
        self.order.remove(pair);
        self.expiries.remove(&(pair.1, pair.2.clone()));
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
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn an_address_has_its_names_for_their_ttl_and_the_grace_time() {
        let mut table = AddressNames::new(10, GRACE);
        let (start, a, b) = (Instant::now(), Arc::from("a.test"), Arc::from("b.test"));
        table.learn(&a, ip(1), s(10), start);
        table.learn(&b, ip(1), s(0), start);
        table.learn(&b, ip(2), s(1 << 31), start);
        assert_eq!(names(&table, ip(1), start), ["a.test", "b.test"]);
        assert_eq!(names(&table, ip(3), start), [""; 0]);
        assert_eq!(names(&table, ip(1), start + s(60)), ["a.test"]);
        assert_eq!(names(&table, ip(1), start + s(70)), [""; 0]);
        // An earlier expiry does not shorten the time, and a later one prolongs it.
        table.learn(&a, ip(1), s(5), start);
        assert_eq!(names(&table, ip(1), start + s(69)), ["a.test"]);
        table.learn(&a, ip(1), s(10), start + s(20));
        assert_eq!(names(&table, ip(1), start + s(89)), ["a.test"]);
        table.expire(start + s(89));
        assert_eq!(table.len(), 2);
        table.expire(start + TTL_MAX + GRACE);
        assert_eq!((table.len(), table.order.len()), (0, 0));
    }

    #[test]
    fn an_ipv4_address_in_the_form_of_ipv6_is_the_same() {
        let mut table = AddressNames::new(10, GRACE);
        let now = Instant::now();
        table.learn(
            &Arc::from("a.test"),
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
    fn a_full_table_replaces_the_pair_that_expires_first() {
        let mut table = AddressNames::new(3, GRACE);
        let (now, name) = (Instant::now(), Arc::from("a.test"));
        for (n, ttl) in [(1, 30), (2, 10), (3, 20)] {
            assert!(!table.learn(&name, ip(n), s(ttl), now));
        }
        assert!(!table.learn(&name, ip(2), s(40), now));
        assert!(table.learn(&name, ip(4), s(5), now));
        let known = |table: &AddressNames, n| !table.of(ip(n), now).is_empty();
        assert_eq!(
            [1, 2, 3, 4].map(|n| known(&table, n)),
            [true, true, false, true]
        );
        // Those that have expired make room.
        assert!(!table.learn(&name, ip(5), s(5), now + s(65)));
        assert_eq!((table.len(), table.order.len()), (3, 3));
    }

    #[test]
    fn an_address_has_a_limited_number_of_names() {
        let mut table = AddressNames::new(10_000, GRACE);
        let now = Instant::now();
        for n in 0..NAMES_MAX {
            let name = Arc::from(format!("n{n}.test"));
            assert!(!table.learn(&name, ip(1), s(10 + n as u64), now));
        }
        assert!(table.learn(&Arc::from("more.test"), ip(1), s(5), now));
        let all = names(&table, ip(1), now);
        assert_eq!(all.len(), NAMES_MAX);
        assert!(all.contains(&"more.test".to_owned()) && !all.contains(&"n0.test".to_owned()));
        assert!(!table.learn(&Arc::from("n0.test"), ip(2), s(5), now));
    }
}
