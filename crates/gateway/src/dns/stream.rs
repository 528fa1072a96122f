//! The relay of queries over TCP: the length precedes each message (RFC 1035 4.2.2).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fullsend::TcpStream as GuestStream;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::race::first_answer;
use super::relay::{MAX_QUERY, answer_locally, count_query, hold_query};
use super::screen::screen_answer;
use super::upstream::{UpstreamQuery, connect_tcp};
use crate::counters::add;
use crate::gateway::Shared;
use crate::guests::Guest;
use crate::message::dns::{Query, ResponseCode};
use crate::tcp::RelayMemory;

/// Time for which a guest's connection may be idle (RFC 7766 6.2.3 leaves it to the server), and for
/// which a message may take.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer, bytes.
const MAX_ANSWER: usize = 65_535;
const NO_MEMORY: io::ErrorKind = io::ErrorKind::OutOfMemory;
/// Timeout of one resolver.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers the queries on a connection of the guest, one after another, and closes it when the guest
/// closes it or is idle. Resets it if the relays' memory does not suffice for a message.
pub(crate) async fn relay_stream(shared: &Arc<Shared>, owner: &Arc<Guest>, mut guest: GuestStream) {
    let mut upstream = None;
    let result = async {
        shared.guests.share_relays(owner);
        let memory = &owner.relays;
        while let Some(message) = read_message(&mut guest, memory, MAX_QUERY).await? {
            count_query(shared);
            let _held = memory.try_hold(message.len()).ok_or(NO_MEMORY)?;
            owner.tx_rate.take(message.len()).await;
            let answer = answer((shared, owner), &mut upstream, &message).await;
            let Some(answer) = answer else {
                add(&shared.counters.dns_dropped, 1);
                return Err(io::ErrorKind::InvalidData.into());
            };
            // The memory is in use until the guest has read the answer, which may take long.
            let _held = memory.try_hold(2 * answer.len()).ok_or(NO_MEMORY)?;
            owner.rx_rate.take(answer.len()).await;
            within_timeout(write_message(&mut guest, &answer)).await?;
            add(&shared.counters.dns_answers, 1);
        }
        Ok::<(), io::Error>(())
    }
    .await;
    if let Err(error) = result {
        tracing::debug!(%error, "a DNS connection failed");
        guest.abort();
    }
}

/// Returns the answer to a query, or `None` if the query is malformed.
async fn answer(
    (shared, owner): (&Shared, &Arc<Guest>),
    upstream: &mut Option<Upstream>,
    message: &[u8],
) -> Option<Vec<u8>> {
    let query = Query::parse(message)?;
    if let Some(answer) = answer_locally((shared, owner), &query) {
        return Some(answer);
    }
    let Some(_share) = hold_query(shared, owner) else {
        return Some(query.respond(ResponseCode::ServerFailure));
    };
    // Fails only if the semaphore is closed, which it never is.
    let _permit = shared.dns_permits.acquire().await.ok()?;
    let to_resolver = UpstreamQuery::new(&query, message);
    let kept = Mutex::new(upstream.take());
    let attempt = |resolver| {
        let kept = kept.lock().take_if(|kept| kept.resolver == resolver);
        let to_resolver = &to_resolver;
        async move {
            // A resolver may have closed the connection of the last query. A connection whose answer is
            // missing or wrong is dropped, as a late answer would be mistaken for that of the next query.
            if let Some(mut kept) = kept
                && let Ok(answer) = ask(&owner.relays, &mut kept.stream, to_resolver).await
            {
                return Ok((kept, answer));
            }
            let mut stream = connect_tcp(resolver, &shared.config.outbound).await?;
            let answer = ask(&owner.relays, &mut stream, to_resolver).await?;
            Ok((Upstream { resolver, stream }, answer))
        }
    };
    let first = first_answer((shared, owner), RESOLVER_TIMEOUT, attempt).await;
    let Some((used, answer)) = first else {
        return Some(query.respond(ResponseCode::ServerFailure));
    };
    *upstream = Some(used);
    Some(screen_answer((shared, owner), &query, answer))
}

/// The connection to the resolver that answered the last query.
struct Upstream {
    resolver: SocketAddr,
    stream: TcpStream,
}

/// Sends a query and reads its answer.
///
/// # Errors
/// `InvalidData` if the received message answers another query.
async fn ask(
    memory: &RelayMemory,
    stream: &mut TcpStream,
    query: &UpstreamQuery<'_>,
) -> io::Result<Vec<u8>> {
    write_message(stream, &query.message).await?;
    let answer = read_message(stream, memory, MAX_ANSWER)
        .await?
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    query
        .accept(answer)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads a message. Returns `None` at the end of the stream, or if no message begins in time.
///
/// # Errors
/// `InvalidData` for a message of more than `max` bytes; `OutOfMemory` if `memory` does not suffice for
/// it.
async fn read_message(
    stream: &mut (impl AsyncReadExt + Unpin),
    memory: &RelayMemory,
    max: usize,
) -> io::Result<Option<Vec<u8>>> {
    let mut first = [0];
    let idle = timeout(IDLE_TIMEOUT, stream.read(&mut first));
    if idle.await.unwrap_or(Ok(0))? == 0 {
        return Ok(None);
    }
    within_timeout(async {
        let len = u16::from_be_bytes([first[0], stream.read_u8().await?]);
        if usize::from(len) > max {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let _held = memory.try_hold(len.into()).ok_or(NO_MEMORY)?;
        let mut message = vec![0; len.into()];
        stream.read_exact(&mut message).await?;
        Ok(Some(message))
    })
    .await
}

/// Limits the rest of a message, or its transmission, to [`IDLE_TIMEOUT`].
async fn within_timeout<T>(done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(IDLE_TIMEOUT, done)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn write_message(
    stream: &mut (impl AsyncWriteExt + Unpin),
    message: &[u8],
) -> io::Result<()> {
    let len = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut framed = Vec::with_capacity(2 + message.len());
    framed.extend(len.to_be_bytes());
    framed.extend(message);
    stream.write_all(&framed).await
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_ends_and_a_part_of_a_message_fails() {
        let (mut relay, mut guest) = duplex(100);
        let start = Instant::now();
        let memory = RelayMemory::new(1000);
        let read = async |relay: &mut _| read_message(relay, &memory, MAX_QUERY).await;
        assert_eq!(read(&mut relay).await.unwrap(), None);
        assert_eq!(start.elapsed(), IDLE_TIMEOUT);
        guest.write_all(b"\0\x02ab\0\x02a").await.unwrap();
        let message = read(&mut relay).await.unwrap();
        assert_eq!(message.unwrap(), b"ab");
        let error = read(&mut relay).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(guest);
        assert_eq!(read(&mut relay).await.unwrap(), None);
    }

    #[tokio::test]
    async fn messages_beyond_the_memory_or_the_longest_query_are_refused() {
        let memory = RelayMemory::new(1000);
        let first_of = |len: u16| len.to_be_bytes();
        for (len, kind) in [
            (MAX_QUERY as u16 + 1, io::ErrorKind::InvalidData),
            (u16::MAX, io::ErrorKind::InvalidData),
            (1001, io::ErrorKind::OutOfMemory),
        ] {
            let (mut relay, mut guest) = duplex(100);
            guest.write_all(&first_of(len)).await.unwrap();
            let read = read_message(&mut relay, &memory, MAX_QUERY).await;
            assert_eq!(read.unwrap_err().kind(), kind, "{len}");
        }
        assert_eq!((memory.held(), memory.refused()), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_the_guest_does_not_read_fails() {
        let (mut relay, _guest) = duplex(100);
        let start = Instant::now();
        let written = within_timeout(write_message(&mut relay, &[7; 99]));
        assert_eq!(written.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), IDLE_TIMEOUT);
    }
}
