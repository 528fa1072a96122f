//! The order in which resolvers are queried: those that do not answer come last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Consecutive unanswered queries after which a resolver comes last.
const SILENT_MAX: u32 = 3;
/// Time for which a silent resolver comes last, short because a guest can query names that no resolver
/// finds, and must not demote a resolver that others need for long.
const LAST_TIME: Duration = Duration::from_secs(20);

/// The results of past queries for each resolver.
#[derive(Default)]
pub(crate) struct ResolverHealth(Mutex<BTreeMap<SocketAddr, Health>>);

#[derive(Clone, Copy, Default)]
struct Health {
    /// Queries since the last answer for which another resolver was queried because of this one's
    /// silence.
    silent: u32,
    answered: Option<Instant>,
    /// Time until which the resolver comes after the others.
    last_until: Option<Instant>,
}

impl Health {
    fn comes_last(&self, now: Instant) -> bool {
        self.last_until.is_some_and(|until| now < until)
    }

    fn has_answered_since(&self, start: Instant) -> bool {
        self.answered.is_some_and(|answered| answered >= start)
    }

    fn put_last(&mut self) {
        self.silent = SILENT_MAX;
        self.last_until = Some(Instant::now() + LAST_TIME);
    }
}

impl ResolverHealth {
    /// Returns the resolvers in the order in which they are queried. Removes the records of all other
    /// resolvers.
    pub(crate) fn ordered(&self, mut list: Vec<SocketAddr>) -> Vec<SocketAddr> {
        let now = Instant::now();
        let mut known = self.0.lock();
        known.retain(|resolver, _| list.contains(resolver));
        // The sort is stable, so that the order of the file remains.
        list.sort_by_key(|resolver| known.get(resolver).is_some_and(|h| h.comes_last(now)));
        list
    }

    /// Records an answer.
    pub(crate) fn on_answer(&self, resolver: SocketAddr) {
        let health = Health {
            answered: Some(Instant::now()),
            ..Health::default()
        };
        self.0.lock().insert(resolver, health);
    }

    /// Records that another resolver has answered first, long after this one was queried at `start`. Has
    /// no effect if this one has answered another query since.
    pub(crate) fn on_silence(&self, resolver: SocketAddr, start: Instant) {
        self.change(resolver, |health| {
            if !health.has_answered_since(start) {
                health.silent += 1;
            }
            if health.silent >= SILENT_MAX {
                health.put_last();
            }
        });
    }

    /// Records that a resolver has not answered a query sent at `start` in time.
    pub(crate) fn on_timeout(&self, resolver: SocketAddr, start: Instant) {
        self.change(resolver, |health| {
            if !health.has_answered_since(start) {
                health.put_last();
            }
        });
    }

    /// Records that a resolver cannot be reached.
    pub(crate) fn on_failure(&self, resolver: SocketAddr) {
        self.change(resolver, Health::put_last);
    }

    fn change(&self, resolver: SocketAddr, change: impl FnOnce(&mut Health)) {
        change(self.0.lock().entry(resolver).or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver(n: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, n], 53))
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_fails_or_stays_silent_comes_last_for_a_time() {
        let health = ResolverHealth::default();
        let list = || health.ordered([1, 2, 3].map(resolver).into());
        let order = |order: [u8; 3]| Vec::from(order.map(resolver));
        let start = Instant::now();
        health.on_failure(resolver(2));
        assert_eq!(list(), order([1, 3, 2]));
        for _ in 1..SILENT_MAX {
            health.on_silence(resolver(1), start);
            assert_eq!(list(), order([1, 3, 2]));
        }
        health.on_silence(resolver(1), start);
        assert_eq!(list(), order([3, 1, 2]));
        health.on_answer(resolver(2));
        assert_eq!(list(), order([2, 3, 1]));
        tokio::time::advance(LAST_TIME).await;
        assert_eq!(list(), order([1, 2, 3]));
        // One more query without an answer is enough until it answers again.
        health.on_silence(resolver(1), Instant::now());
        assert_eq!(list(), order([2, 3, 1]));
        // Resolvers that are not in use any more are forgotten.
        assert_eq!(health.ordered(vec![resolver(4)]), [resolver(4)]);
        assert!(health.0.lock().is_empty());
    }
    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_answers_other_queries_is_not_silent() {
        let health = ResolverHealth::default();
        let order = || health.ordered([1, 2].map(resolver).into());
        let start = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        health.on_answer(resolver(1));
        for _ in 0..10 {
            health.on_silence(resolver(1), start);
            health.on_timeout(resolver(1), start);
        }
        assert_eq!(order(), [1, 2].map(resolver));
        tokio::time::advance(Duration::from_secs(1)).await;
        health.on_timeout(resolver(1), Instant::now());
        assert_eq!(order(), [2, 1].map(resolver));
    }
}
