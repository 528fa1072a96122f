//! Connections that one task serves in batches.

mod ready_queue;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use fullsend_stack::{Host, Interest, StackError, TcpId, WaitOn};
use fullsend_tcp::{State, TcpError};
use fullsend_wire::Instant;
use slab::Slab;

use self::ready_queue::ReadyQueue;
use super::TcpStream;
use crate::error::io_error;

/// Connections that are served under one lock. More amortize the lock and the transmission further,
/// fewer keep the data of all of them in the cache, and let other tasks run sooner.
const BATCH: usize = 32;

/// A set of TCP connections that one task serves: an epoll set for servers with many connections.
///
/// A task for each connection costs a wake-up, a poll and several locks for each message. A set
/// calls a closure for each connection that is ready, up to 32 of them under one lock of the stack,
/// and transmits what they have written at the end. With thousands of connections the data that one
/// side writes is still in the processor's cache when it is sent or read.
///
/// `T` is the application's state of a connection.
///
/// # Readiness
/// The closure is called for a connection
/// - that has data to read, the end of the stream or an error, again and again until a read has
///   returned `WouldBlock` or the end of the stream;
/// - that has space in its send buffer again after a write was incomplete or returned
///   `WouldBlock`; until then it is not called for data, so a peer that does not read its
///   responses cannot make the application store more of them;
/// - once more when the connection ends after the end of the stream, for example by a RST
///   ([`SetStream::has_ended`]);
/// - after [`schedule`](Self::schedule).
///
/// It may also be called without a reason. A connection that has ended stays in the set until the
/// application removes it.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fullsend::{Pair, Stack, TcpListener, TcpSet, TcpStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let (client_stack, server_stack) = Stack::pair(&Pair::default())?;
/// let listener = TcpListener::bind(&server_stack, "10.0.0.2:7")?;
///
/// // An echo server. The state of a connection is the data that waits for space.
/// tokio::spawn(async move {
///     let mut set = TcpSet::new();
///     let mut buf = vec![0; 64 << 10];
///     loop {
///         tokio::select! {
///             biased; // or every message would also poll the listener
///             served = set.serve(|stream, pending: &mut Vec<u8>| {
///                 if pending.is_empty() {
///                     match stream.try_read(&mut buf) {
///                         Ok(0) => return stream.remove(),
///                         Ok(n) => pending.extend(&buf[..n]),
///                         Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
///                         Err(_) => return stream.remove(),
///                     }
///                 }
///                 match stream.try_write(pending) {
///                     Ok(n) => drop(pending.drain(..n)),
///                     Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
///                     Err(_) => stream.remove(),
///                 }
///             }) => {
///                 served?;
///             }
///             accepted = listener.accept() => {
///                 set.insert(accepted?.0, Vec::new())?;
///             }
///         }
///     }
///     # #[allow(unreachable_code)]
///     # std::io::Result::Ok(())
/// });
///
/// let mut client = TcpStream::connect(&client_stack, "10.0.0.2:7").await?;
/// client.write_all(b"hello").await?;
/// let mut echoed = [0; 5];
/// client.read_exact(&mut echoed).await?;
/// assert_eq!(&echoed, b"hello");
/// # Ok(()) }
/// ```
pub struct TcpSet<T> {
    members: Slab<Member<T>>,
    queue: Arc<ReadyQueue>,
    /// Keys taken from the queue and not yet served.
    batch: VecDeque<usize>,
    /// Keys of a batch that are still ready, or that are removed after it. Empty between batches.
    again: Vec<usize>,
    removed: Vec<usize>,
    /// A batch was served since the task last gave way to others.
    must_yield: bool,
}

struct Member<T> {
    stream: TcpStream,
    state: T,
    /// Adds the connection to the queue.
    waker: Waker,
    flags: MemberState,
}

/// The results of the last calls on a connection.
#[derive(Default)]
struct MemberState {
    /// A write was incomplete, or would have blocked, in the call that runs.
    is_write_blocked: bool,
    /// A read has returned the end of the stream.
    has_read_all: bool,
    /// The closure was called after the end of the connection.
    was_called_after_end: bool,
    /// The application removes the connection.
    is_removed: bool,
}

/// A connection of a [`TcpSet`] while it is served.
///
/// The stack is locked meanwhile: only these methods may be used, not those of other sockets and
/// stacks. Sockets that are dropped meanwhile are closed afterwards.
pub struct SetStream<'a> {
    host: &'a mut Host,
    now: Instant,
    id: TcpId,
    key: usize,
    addrs: (SocketAddr, SocketAddr),
    member: &'a mut MemberState,
}

impl SetStream<'_> {
    /// Returns the key of the connection, as [`TcpSet::insert`] has returned it.
    #[must_use]
    pub const fn key(&self) -> usize {
        self.key
    }

    /// Returns the local address.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.addrs.0
    }

    /// Returns the peer's address.
    #[must_use]
    pub const fn peer_addr(&self) -> SocketAddr {
        self.addrs.1
    }

    /// Reads received data into `buf`. Returns the number of bytes, and 0 at the end of the stream
    /// or for an empty `buf`.
    ///
    /// # Errors
    /// `WouldBlock` if no data has been received, or the connection's error.
    pub fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let read = self.host.tcp(self.id).read(self.now, buf);
        let n = read.map_err(io_error)?;
        self.member.has_read_all |= n == 0;
        Ok(n)
    }

    /// Reads the next contiguous received bytes, at most `max`, without copying. Returns `None` at
    /// the end of the stream.
    ///
    /// The returned `Bytes` refers to the stack's memory, which counts as in use until it is
    /// dropped.
    ///
    /// # Errors
    /// `WouldBlock` if no data has been received, or the connection's error.
    pub fn try_read_chunk(&mut self, max: usize) -> io::Result<Option<Bytes>> {
        let read = self.host.tcp(self.id).read_slice(self.now, max);
        let slice = read.map_err(io_error)?;
        self.member.has_read_all |= slice.is_empty() && max > 0;
        Ok((!slice.is_empty()).then(|| slice.into_bytes()))
    }

    /// Writes the first bytes of `data`, up to the room of the send buffer. Returns the number of bytes. They
    /// are transmitted after the last connection of the batch was served.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer is full; `BrokenPipe` after a shutdown or the end of the
    /// connection; the connection's error.
    pub fn try_write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.host.tcp(self.id).write(self.now, data, false) {
            Ok(n) => {
                self.member.is_write_blocked |= n < data.len();
                Ok(n)
            }
            Err(error) => {
                self.member.is_write_blocked |= is_would_block(&error);
                Err(io_error(error))
            }
        }
    }

    /// Returns whether the connection has ended: by a RST, a timeout, or the FINs of both sides. Its
    /// error is that of the next write.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        let state = self.host.tcp(self.id).state();
        state.map_or(true, |state| state == State::Closed)
    }

    /// Shuts the write direction down (`SHUT_WR`): a FIN is sent after the written data.
    ///
    /// # Errors
    /// The connection's error.
    pub fn shutdown_write(&mut self) -> io::Result<()> {
        self.host
            .tcp(self.id)
            .shutdown_write(self.now)
            .map_err(io_error)
    }

    /// Removes the connection from the set and closes it, after the closure has returned. Written
    /// data is still delivered, as when a [`TcpStream`] is dropped.
    pub const fn remove(&mut self) {
        self.member.is_removed = true;
    }
}

fn is_would_block(error: &StackError) -> bool {
    matches!(error, StackError::Tcp(TcpError::WouldBlock))
}

impl<T> TcpSet<T> {
    /// Returns an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self {
            members: Slab::new(),
            queue: Arc::default(),
            batch: VecDeque::new(),
            again: Vec::new(),
            removed: Vec::new(),
            must_yield: false,
        }
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether the set has no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a connection with the application's state of it, and returns its key, which is unique
    /// until the connection is removed.
    ///
    /// All connections of a set belong to one shard of one stack: a stack with several shards needs
    /// a set for each ([`TcpStream::shard`]).
    ///
    /// # Errors
    /// `InvalidInput` if `stream` belongs to another stack or shard than the connections of the set.
    /// The stream is then closed.
    pub fn insert(&mut self, stream: TcpStream, state: T) -> io::Result<usize> {
        if let Some((_, other)) = self.members.iter().next()
            && !Arc::ptr_eq(&other.stream.engine, &stream.engine)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the connection belongs to another stack or shard than those of this TcpSet; use a \
                 TcpSet for each shard",
            ));
        }
        let entry = self.members.vacant_entry();
        let key = entry.key();
        entry.insert(Member {
            stream,
            state,
            waker: self.queue.waker(key),
            flags: MemberState::default(),
        });
        // The connection may already have data to read. Its first call finds out, and registers the
        // waker.
        self.queue.push(key);
        Ok(key)
    }

    /// Removes a connection and returns it with the application's state of it; `None` if there is
    /// none with this key.
    pub fn remove(&mut self, key: usize) -> Option<(TcpStream, T)> {
        let Member { stream, state, .. } = self.members.try_remove(key)?;
        for interest in [Interest::Read, Interest::Write] {
            let waits_for = WaitOn::Tcp(stream.id, interest);
            stream.engine.stop_polling(waits_for);
        }
        Some((stream, state))
    }

    /// Returns the application's state of a connection.
    #[must_use]
    pub fn get(&self, key: usize) -> Option<&T> {
        self.members.get(key).map(|member| &member.state)
    }

    /// Returns the application's state of a connection, to change it. Call
    /// [`schedule`](Self::schedule) if there is something to write then.
    pub fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        self.members.get_mut(key).map(|member| &mut member.state)
    }

    /// Serves a connection in one of the next batches even if it is not ready. No effect if there is
    /// none with this key.
    pub fn schedule(&mut self, key: usize) {
        if self.members.contains(key) {
            self.queue.push(key);
        }
    }

    /// Waits until connections are ready, and calls `on_ready` for up to 32 of them, in the order in
    /// which they became ready. Returns their number.
    ///
    /// The stack is locked during the calls: they should not take long. Waits forever if the set has no
    /// connection, or only connections that have ended and were called afterwards.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future loses no event.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    ///
    /// # Panics
    /// If `on_ready` panics; the connections stay in the set. It panics if it uses another socket than
    /// the [`SetStream`] that it gets, or a stack.
    pub async fn serve(
        &mut self,
        mut on_ready: impl FnMut(&mut SetStream<'_>, &mut T),
    ) -> io::Result<usize> {
        poll_fn(|cx| self.poll_serve(cx, &mut on_ready)).await
    }

    fn poll_serve(
        &mut self,
        cx: &Context<'_>,
        on_ready: &mut impl FnMut(&mut SetStream<'_>, &mut T),
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.batch.is_empty() {
                let taken = self.queue.poll_take(cx, BATCH, &mut self.batch);
                self.must_yield &= taken.is_ready();
                ready!(taken);
            }
            if std::mem::take(&mut self.must_yield) {
                // Other tasks run between two batches, so that they find the data of this one in
                // the cache.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // Skips connections that were removed meanwhile.
            self.batch.retain(|&key| self.members.contains(key));
            let served = self.batch.len();
            if served > 0 {
                self.must_yield = true;
                return Poll::Ready(self.serve_batch(on_ready).map(|()| served));
            }
        }
    }

    /// Serves the connections of `batch`, under one lock.
    fn serve_batch(
        &mut self,
        on_ready: &mut impl FnMut(&mut SetStream<'_>, &mut T),
    ) -> io::Result<()> {
        let Self {
            members,
            batch,
            again,
            removed,
            ..
        } = self;
        let Some(engine) = batch.front().map(|&key| members[key].stream.engine.clone()) else {
            return Ok(());
        };
        let served = engine.run_callbacks(|host, now| {
            // A connection whose call panics stays in the batch.
            while let Some(&key) = batch.front() {
                let member = &mut members[key];
                member.flags.is_write_blocked = false;
                let mut stream = SetStream {
                    host,
                    now,
                    id: member.stream.id,
                    key,
                    addrs: member.stream.addrs(),
                    member: &mut member.flags,
                };
                if stream.member.has_read_all {
                    stream.member.was_called_after_end = stream.has_ended();
                }
                on_ready(&mut stream, &mut member.state);
                if member.flags.is_removed {
                    removed.push(key);
                } else if member.is_ready_again(host, now) {
                    again.push(key);
                }
                batch.pop_front();
            }
        });
        self.queue.requeue(&mut self.again);
        // If the application's state panics when it is dropped, the others are removed next time.
        while let Some(key) = self.removed.pop() {
            drop(self.remove(key));
        }
        served?.or_else(|panic| resume_unwind(panic))
    }
}

impl<T> Member<T> {
    /// Returns whether the connection is to be called again; if not, the waker is registered for the
    /// event that it waits for.
    fn is_ready_again(&mut self, host: &mut Host, now: Instant) -> bool {
        let mut connection = host.tcp(self.stream.id);
        let ready = if self.flags.is_write_blocked {
            connection.poll_ready(now, Interest::Write, &self.waker)
        } else if !self.flags.has_read_all {
            connection.poll_ready(now, Interest::Read, &self.waker)
        } else {
            let ended = connection.poll_closed(&self.waker).unwrap_or(true);
            return ended && !self.flags.was_called_after_end;
        };
        // A connection that no longer exists reports its error when it is used.
        ready.unwrap_or(true)
    }
}

impl<T> Default for TcpSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> std::fmt::Debug for TcpSet<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpSet")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
