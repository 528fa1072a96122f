//! Tests of `TcpSet`, over the in-process link.

mod common;

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use common::{connected, pair, pair_with, pattern, paused, threads};
use fullsend::{NicMode, SetStream, SocketOption, Stack, TcpListener, TcpSet, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns `None` if the call would block.
fn ready<R>(result: io::Result<R>) -> Option<R> {
    match result {
        Ok(done) => Some(done),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

/// The data of a connection that an echo server has read and not yet written.
#[derive(Default)]
struct Echo {
    pending: Vec<u8>,
    most_pending: usize,
    at_end: bool,
}

impl Echo {
    fn serve(stream: &mut SetStream<'_>, state: &mut Self, buf: &mut [u8]) {
        if state.pending.is_empty() {
            match ready(stream.try_read(buf)) {
                Some(0) => state.at_end = true,
                Some(n) => state.pending.extend(&buf[..n]),
                None => return,
            }
        }
        state.most_pending = state.most_pending.max(state.pending.len());
        if let Some(n) = ready(stream.try_write(&state.pending)) {
            state.pending.drain(..n);
        }
        if state.at_end && state.pending.is_empty() {
            stream.remove();
        }
    }
}

/// Echoes on all connections of a listener.
async fn echo(listener: TcpListener) -> io::Result<()> {
    let mut set = TcpSet::new();
    let mut buf = vec![0; 10_000];
    loop {
        tokio::select! {
            biased;
            served = set.serve(|stream, state: &mut Echo| Echo::serve(stream, state, &mut buf)) => {
                assert!(served? > 0);
            }
            accepted = listener.accept() => {
                set.insert(accepted?.0, Echo::default())?;
            }
        }
    }
}

/// Sends `data` and reads it back.
async fn round_trip(stack: &Stack, to: &str, data: &[u8]) {
    let stream = TcpStream::connect(stack, to).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let write = async {
        writer.write_all(data).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let read = async {
        let mut got = Vec::new();
        reader.read_to_end(&mut got).await.unwrap();
        got
    };
    let ((), got) = tokio::join!(write, read);
    assert!(got == data, "{} of {} bytes", got.len(), data.len());
}

async fn round_trips(a: Stack, b: Stack, connections: usize, bytes: usize) {
    let listener = TcpListener::bind(&b, "10.0.0.2:7").unwrap();
    let echoing = tokio::spawn(echo(listener));
    let clients: Vec<_> = (0..connections)
        .map(|n| {
            let (a, data) = (a.clone(), pattern(bytes + n, n as u64));
            tokio::spawn(async move { round_trip(&a, "10.0.0.2:7", &data).await })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert!(!echoing.is_finished());
    echoing.abort();
}

#[test]
fn a_set_echoes_every_byte_of_many_connections() {
    for nic in [NicMode::Tso, NicMode::Mtu] {
        paused(async {
            let (a, b) = pair_with(nic, 1500);
            round_trips(a, b, 100, 50_000).await;
        });
    }
}

#[test]
fn a_set_echoes_beside_other_threads() {
    threads(async {
        let (a, b) = pair();
        round_trips(a, b, 50, 200_000).await;
    });
}

#[test]
fn a_connection_with_a_full_send_buffer_is_not_called_for_data() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        let total = pattern(4 << 20, 3);
        let mut set = TcpSet::new();
        let key = set.insert(server, Echo::default()).unwrap();
        let (mut reader, mut writer) = client.into_split();
        let data = total.clone();
        let writing = tokio::spawn(async move {
            writer.write_all(&data).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        // The client does not read, so the server has nothing to do at some time.
        let mut buf = vec![0; 10_000];
        let mut serve = async |set: &mut TcpSet<Echo>| {
            let serve = set.serve(|stream, state| Echo::serve(stream, state, &mut buf));
            tokio::time::timeout(std::time::Duration::from_secs(5), serve).await
        };
        while serve(&mut set).await.is_ok() {}
        assert!(!writing.is_finished());
        let state = set.get(key).unwrap();
        assert!(!state.pending.is_empty() && state.most_pending <= 10_000);
        let reading = tokio::spawn(async move {
            let mut got = Vec::new();
            reader.read_to_end(&mut got).await.unwrap();
            got
        });
        while !set.is_empty() {
            serve(&mut set).await.unwrap().unwrap();
        }
        assert!(reading.await.unwrap() == total);
    });
}

#[test]
fn schedule_calls_a_connection_that_is_not_ready() {
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        let mut set = TcpSet::new();
        let key = set.insert(server, b"".as_slice()).unwrap();
        let push = |stream: &mut SetStream<'_>, data: &mut &[u8]| {
            assert_eq!(stream.key(), 0);
            let written = ready(stream.try_write(data)).unwrap();
            *data = &data[written..];
        };
        assert_eq!(set.serve(push).await.unwrap(), 1);
        *set.get_mut(key).unwrap() = b"pushed";
        set.schedule(key);
        set.schedule(key);
        set.schedule(key + 1);
        assert_eq!(set.serve(push).await.unwrap(), 1);
        let mut got = [0; 6];
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"pushed");
    });
}

#[test]
fn data_that_is_left_unread_calls_again_and_the_end_does_not() {
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        let mut set = TcpSet::new();
        set.insert(server, Vec::new()).unwrap();
        client.write_all(b"abc").await.unwrap();
        client.shutdown().await.unwrap();
        let mut calls = 0;
        loop {
            let serve = set.serve(|stream, got: &mut Vec<u8>| {
                calls += 1;
                if let Some(Some(byte)) = ready(stream.try_read_chunk(1)) {
                    got.extend(byte);
                }
            });
            let limit = std::time::Duration::from_secs(5);
            if tokio::time::timeout(limit, serve).await.is_err() {
                break;
            }
        }
        assert_eq!(set.get(0).unwrap(), b"abc");
        // Three bytes and the end of the stream, and perhaps a call before the first one.
        assert!((4..=5).contains(&calls), "{calls}");
    });
}

#[test]
fn a_removed_connection_is_an_ordinary_stream_again() {
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        let mut set = TcpSet::new();
        let key = set.insert(server, 5).unwrap();
        let read = |stream: &mut SetStream<'_>, _: &mut i32| {
            assert!(ready(stream.try_read(&mut [0; 9])).is_none());
        };
        assert_eq!(set.serve(read).await.unwrap(), 1);
        let (mut server, state) = set.remove(key).unwrap();
        assert!(state == 5 && set.is_empty() && set.remove(key).is_none());
        client.write_all(b"ping").await.unwrap();
        let mut got = [0; 4];
        server.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"ping");
        // Its data did not call the closure for the connection that has the key now.
        let (_client, other) = connected(&a, &b).await;
        assert_eq!(set.insert(other, 6).unwrap(), key);
        assert_eq!(set.serve(read).await.unwrap(), 1);
        client.write_all(b"ping").await.unwrap();
        let limit = std::time::Duration::from_secs(5);
        tokio::time::timeout(limit, set.serve(read))
            .await
            .unwrap_err();
    });
}

#[test]
fn a_reset_is_an_error_of_one_connection_only() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        let (mut other_client, other) = connected(&a, &b).await;
        let mut set = TcpSet::new();
        let key = set.insert(server, None).unwrap();
        let other_key = set.insert(other, None).unwrap();
        client.set_option(SocketOption::TcpNodelay(true)).unwrap();
        client.abort();
        other_client.write_all(b"x").await.unwrap();
        while set.get(key).unwrap().is_none() || set.get(other_key).unwrap().is_none() {
            set.serve(|stream, outcome| match stream.try_read(&mut [0; 9]) {
                Ok(n) => *outcome = Some(Ok(n)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => *outcome = Some(Err(error.kind())),
            })
            .await
            .unwrap();
        }
        assert_eq!(set.get(key), Some(&Some(Err(ErrorKind::ConnectionReset))));
        assert_eq!(set.get(other_key), Some(&Some(Ok(1))));
    });
}

#[test]
fn a_set_serves_connections_of_one_stack_until_it_stops() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        let mut set = TcpSet::new();
        set.insert(server, ()).unwrap();
        let error = set.insert(client, ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(set.serve(|_, ()| ()).await.unwrap(), 1);
        let stopped = tokio::join!(b.shutdown(), set.serve(|_, ()| ())).1;
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        set.serve(|_, ()| ()).await.unwrap_err();
    });
}

#[test]
fn a_connection_is_called_once_when_it_ends_after_the_end_of_its_stream() {
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        let mut set = TcpSet::new();
        set.insert(server, Vec::new()).unwrap();
        client.shutdown().await.unwrap();
        let mut serve = async || {
            let serve = set.serve(|stream, seen: &mut Vec<_>| {
                let read = stream.try_read(&mut [0; 9]);
                seen.push((read.map_err(|error| error.kind()), stream.has_ended()));
            });
            tokio::time::timeout(std::time::Duration::from_secs(5), serve).await
        };
        while serve().await.is_ok() {}
        client.abort();
        while serve().await.is_ok() {}
        let seen = set.get(0).unwrap();
        let (last, before) = seen.split_last().unwrap();
        assert_eq!(*last, (Ok(0), true), "{seen:?}");
        assert!(before.contains(&(Ok(0), false)), "{seen:?}");
        assert!(before.iter().all(|&(_, has_ended)| !has_ended), "{seen:?}");

        // The stack stops while all connections wait for nothing but their end.
        let (mut client, server) = connected(&a, &b).await;
        client.shutdown().await.unwrap();
        let mut set = TcpSet::new();
        set.insert(server, ()).unwrap();
        let waiting = tokio::spawn(async move {
            loop {
                let served = set.serve(|stream, ()| drop(stream.try_read(&mut [0; 9])));
                if let Err(error) = served.await {
                    return error;
                }
            }
        });
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        b.shutdown().await.unwrap();
        assert_eq!(waiting.await.unwrap().kind(), ErrorKind::ConnectionAborted);
    });
}

#[test]
fn after_a_panic_no_connection_is_lost() {
    paused(async {
        let (a, b) = pair();
        let mut set = TcpSet::new();
        let mut clients = Vec::new();
        for n in 0..4 {
            let (mut client, server) = connected(&a, &b).await;
            client.write_all(b"x").await.unwrap();
            clients.push(client);
            set.insert(server, n).unwrap();
        }
        let (_client, other) = connected(&a, &b).await;
        let mut other = Some(other);
        let panicked = poll_fn(|cx| {
            let served = pin!(set.serve(|stream, n| match n {
                0 => assert_eq!(stream.try_write(b"written").unwrap(), 7),
                1 => stream.remove(),
                _ => {
                    // A stream that is dropped here is closed after the calls.
                    let _dropped = other.take();
                    panic!("{n}");
                }
            }));
            let poll = AssertUnwindSafe(|| drop(served.poll(cx)));
            Poll::Ready(catch_unwind(poll).is_err())
        });
        assert!(panicked.await);
        let mut got = [0; 7];
        clients[0].read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"written");
        assert_eq!((set.len(), set.get(1)), (3, None));
        let mut called = Vec::new();
        while called.len() < 3 {
            let served = set.serve(|stream, n| {
                if ready(stream.try_read(&mut [0; 9])).is_some() {
                    called.push(*n);
                }
            });
            served.await.unwrap();
        }
        called.sort_unstable();
        assert_eq!(called, [0, 2, 3]);
    });
}

#[test]
#[should_panic = "a socket or stack was used in a callback of TcpSet::serve"]
fn another_socket_of_the_stack_in_a_callback_panics() {
    paused(async {
        let (a, b) = pair();
        let (_clients, (server, other)) = {
            let (c1, s1) = connected(&a, &b).await;
            let (c2, s2) = connected(&a, &b).await;
            ((c1, c2), (s1, s2))
        };
        let mut set = TcpSet::new();
        set.insert(server, ()).unwrap();
        let _ = set.serve(|_, ()| drop(other.try_write(b"x"))).await;
    });
}

#[test]
fn other_tasks_run_between_batches() {
    paused(async {
        let (a, b) = pair();
        let mut set = TcpSet::new();
        let mut clients = Vec::new();
        for _ in 0..70 {
            let (client, server) = connected(&a, &b).await;
            clients.push(client);
            set.insert(server, ()).unwrap();
        }
        let turns = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = turns.clone();
        let counting = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let mut seen = Vec::new();
        let mut sizes = Vec::new();
        for _ in 0..3 {
            sizes.push(set.serve(|_, ()| ()).await.unwrap());
            seen.push(turns.load(std::sync::atomic::Ordering::Relaxed));
        }
        assert_eq!(sizes, [32, 32, 6]);
        assert!(seen[0] < seen[1] && seen[1] < seen[2], "{seen:?}");
        counting.abort();
    });
}
