//! The resolvers of one query: after a head start of the first one, others are queried in parallel.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Timeout, sleep_until, timeout};

use super::relay::hold_query;
use crate::counters::add;
use crate::gateway::Shared;
use crate::guests::{Guest, HeldShare};
use crate::resolvers::ResolverHealth;

/// Time without an answer after which the next resolver is queried in parallel.
const HEAD_START: Duration = Duration::from_millis(300);

/// A query at one resolver.
struct Attempt<F, P> {
    resolver: SocketAddr,
    started: Instant,
    answer: Pin<Box<Timeout<F>>>,
    _permit: Option<P>,
}

/// Queries the resolvers with `ask`; each may take `limit`. Returns the first answer, or `None` if there
/// is none. Silent resolvers come last in later queries. Each further resolver counts as a query of the
/// guest.
pub(super) async fn first_answer<T, F>(
    (shared, owner): (&Shared, &Arc<Guest>),
    limit: Duration,
    ask: impl Fn(SocketAddr) -> F,
) -> Option<T>
where
    F: Future<Output = io::Result<T>>,
{
    let health = shared.resolvers.health();
    let list = health.ordered(shared.resolvers.list().await);
    let race = Race {
        health,
        permit: &|| {
            let of_all = shared.dns_permits.clone().try_acquire_owned().ok()?;
            Some(Permit {
                _of_guest: hold_query(shared, owner)?,
                _of_all: of_all,
            })
        },
        limit,
    };
    let (answer, queried) = race.run(list, ask).await;
    add(&shared.counters.dns_other_resolvers, queried - 1);
    answer
}

/// A permit to query a further resolver: one of the gateway's, and one of the guest's share.
struct Permit {
    _of_all: OwnedSemaphorePermit,
    _of_guest: HeldShare,
}

struct Race<'a, P> {
    health: &'a ResolverHealth,
    /// Returns a permit for a further resolver, or `None` if there is none.
    permit: &'a (dyn Fn() -> Option<P> + Sync),
    limit: Duration,
}

impl<P> Race<'_, P> {
    /// Returns the first answer, and the number of resolvers that were queried, at least 1.
    async fn run<T, F>(
        &self,
        list: Vec<SocketAddr>,
        ask: impl Fn(SocketAddr) -> F,
    ) -> (Option<T>, u64)
    where
        F: Future<Output = io::Result<T>>,
    {
        let mut waiting = list.into_iter().peekable();
        let mut running: Vec<Attempt<F, P>> = Vec::new();
        let mut queried = 0;
        loop {
            // The query's own permit covers its first resolver.
            let permit = if running.is_empty() || waiting.peek().is_none() {
                None
            } else {
                (self.permit)()
            };
            if (running.is_empty() || permit.is_some())
                && let Some(resolver) = waiting.next()
            {
                queried += 1;
                running.push(Attempt {
                    resolver,
                    started: Instant::now(),
                    answer: Box::pin(timeout(self.limit, ask(resolver))),
                    _permit: permit,
                });
            }
            if running.is_empty() {
                return (None, queried.max(1));
            }
            let next = Instant::now() + HEAD_START;
            let ended = tokio::select! {
                biased;
                ended = next_ended(&mut running) => ended,
                () = sleep_until(next), if waiting.peek().is_some() => continue,
            };
            if let Some(answer) = self.on_ended(ended, &running) {
                return (Some(answer), queried);
            }
        }
    }

    /// Records the end of an attempt; `running` are the other attempts. Returns its answer.
    fn on_ended<T, F>(&self, ended: Ended<T>, running: &[Attempt<F, P>]) -> Option<T> {
        let Ended {
            resolver,
            started,
            result,
        } = ended;
        match result {
            Ok(answer) => {
                self.health.on_answer(resolver);
                let now = Instant::now();
                let silent = running.iter().filter(|a| now - a.started >= HEAD_START);
                silent.for_each(|a| self.health.on_silence(a.resolver, a.started));
                Some(answer)
            }
            Err(error) => {
                tracing::debug!(%error, %resolver, "a resolver did not answer");
                if error.kind() == io::ErrorKind::TimedOut {
                    self.health.on_timeout(resolver, started);
                } else if is_of_resolver(&error) {
                    self.health.on_failure(resolver);
                }
                None
            }
        }
    }
}

/// An attempt that has ended.
struct Ended<T> {
    resolver: SocketAddr,
    started: Instant,
    result: io::Result<T>,
}

/// Waits until an attempt has ended, and removes it.
async fn next_ended<T, F, P>(running: &mut Vec<Attempt<F, P>>) -> Ended<T>
where
    F: Future<Output = io::Result<T>>,
{
    poll_fn(|cx| {
        let mut attempts = running.iter_mut().enumerate();
        let ended = attempts.find_map(|(n, a)| match a.answer.as_mut().poll(cx) {
            Poll::Ready(Ok(result)) => Some((n, result)),
            Poll::Ready(Err(_)) => Some((n, Err(io::ErrorKind::TimedOut.into()))),
            Poll::Pending => None,
        });
        match ended {
            Some((n, result)) => {
                let ended = running.swap_remove(n);
                Poll::Ready(Ended {
                    resolver: ended.resolver,
                    started: ended.started,
                    result,
                })
            }
            None => Poll::Pending,
        }
    })
    .await
}

/// Returns whether an error comes from the resolver or the network, rather than from a lack of
/// descriptors or memory in this process.
fn is_of_resolver(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable,
    };
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkUnreachable
    )
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(4);

    fn resolver(n: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, n], 53))
    }

    /// Resolvers, by what each of them does with a query.
    #[derive(Clone, Copy)]
    enum Kind {
        Silent,
        Refuses,
        AnswersAfter(Duration),
    }

    /// Runs a query. Returns the number of the resolver that answered first, how long that took, and how
    /// many were queried.
    async fn run(
        health: &ResolverHealth,
        kinds: &[Kind],
        permits: usize,
    ) -> (Option<u8>, Duration, u64) {
        let list = (0..kinds.len() as u8).map(resolver).collect();
        let ask = |at: SocketAddr| async move {
            let SocketAddr::V4(v4) = at else {
                unreachable!()
            };
            let n = v4.ip().octets()[3];
            match kinds[usize::from(n)] {
                Kind::Silent => std::future::pending().await,
                Kind::Refuses => Err(io::ErrorKind::ConnectionRefused.into()),
                Kind::AnswersAfter(time) => {
                    sleep(time).await;
                    Ok(n)
                }
            }
        };
        let start = Instant::now();
        let permits = Arc::new(Semaphore::new(permits));
        let race = Race {
            health,
            permit: &|| permits.clone().try_acquire_owned().ok(),
            limit: LIMIT,
        };
        let (answer, queried) = race.run(health.ordered(list), ask).await;
        (answer, start.elapsed(), queried)
    }

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_silent_resolver_costs_the_head_start_until_it_comes_last() {
        let health = ResolverHealth::default();
        let kinds = [Kind::Silent, Kind::AnswersAfter(10 * MS)];
        for _ in 0..3 {
            let (answer, time, queried) = run(&health, &kinds, 8).await;
            assert_eq!((answer, queried), (Some(1), 2));
            // The timer of tokio has a resolution of 1 ms.
            assert!((310 * MS..315 * MS).contains(&time), "{time:?}");
        }
        let (answer, time, queried) = run(&health, &kinds, 8).await;
        assert_eq!((answer, queried), (Some(1), 1));
        assert!(time < 15 * MS, "{time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_refuses_costs_nothing() {
        let health = ResolverHealth::default();
        let kinds = [Kind::Refuses, Kind::AnswersAfter(10 * MS)];
        for queried in [2, 1] {
            let (answer, time, asked) = run(&health, &kinds, 8).await;
            assert_eq!((answer, asked), (Some(1), queried));
            assert!(time < 15 * MS, "{time:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_of_a_slow_resolver_counts_if_it_is_the_first() {
        let health = ResolverHealth::default();
        let kinds = [Kind::AnswersAfter(500 * MS), Kind::Silent];
        let (answer, time, queried) = run(&health, &kinds, 8).await;
        assert_eq!((answer, queried), (Some(0), 2));
        assert!((500 * MS..505 * MS).contains(&time), "{time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_answer_all_end_at_their_limits() {
        let health = ResolverHealth::default();
        let (answer, time, queried) = run(&health, &[Kind::Silent; 3], 8).await;
        assert_eq!((answer, queried), (None, 3));
        let last = LIMIT + 2 * HEAD_START;
        assert!((last..last + 10 * MS).contains(&time), "{time:?}");
        assert_eq!(run(&health, &[Kind::Refuses; 3], 8).await.0, None);
        assert_eq!(run(&health, &[], 8).await, (None, Duration::ZERO, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_further_descriptor_resolvers_are_queried_one_by_one() {
        let health = ResolverHealth::default();
        let kinds = [Kind::Silent, Kind::AnswersAfter(10 * MS)];
        let (answer, time, queried) = run(&health, &kinds, 0).await;
        assert_eq!((answer, queried), (Some(1), 2));
        assert!(time >= LIMIT, "{time:?}");
        // The resolver that has used up its time comes last.
        assert!(run(&health, &kinds, 0).await.1 < 15 * MS);
    }
}
