//! Tests of every call of a connection, over the in-process link.

mod common;

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use common::{carry, connected, counter, pair, pair_with, pattern, paused};
use fullsend::{Nanos, NicMode, SocketOption, State, TcpListener, TcpStream, UdpSocket};
use nix::libc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

#[test]
fn every_byte_arrives_in_order() {
    let data = pattern(3 << 20, 1);
    for nic in [NicMode::Tso, NicMode::Mtu] {
        for (mtu, to) in [
            (1500, "10.0.0.2:9"),
            (1500, "[fd00::2]:9"),
            (9000, "10.0.0.2:9"),
        ] {
            paused(async {
                let (a, b) = pair_with(nic, mtu);
                let listener = TcpListener::bind(&b, to).unwrap();
                let (client, server) = tokio::join!(TcpStream::connect(&a, to), listener.accept());
                let (mut client, (mut server, from)) = (client.unwrap(), server.unwrap());
                assert_eq!(from, client.local_addr().unwrap());
                assert_eq!(server.peer_addr().unwrap(), from);
                assert_eq!(client.peer_addr().unwrap(), to.parse().unwrap());
                assert!(carry(&mut client, &mut server, &data).await == data);
                assert!(carry(&mut server, &mut client, &data).await == data);
            });
        }
    }
}

#[test]
fn a_fin_closes_one_direction_only() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut got = String::new();
        server.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "question");
        let error = client.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        server.write_all(b"answer").await.unwrap();
        drop(server);
        got.clear();
        client.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "answer");
    });
}

#[test]
fn a_reset_is_seen_by_the_peer() {
    paused(async {
        let (a, b) = pair();
        let (client, mut server) = connected(&a, &b).await;
        client.abort();
        let error = server.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let error = server.write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_reset_wakes_a_waiting_reader_and_writer() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        let (mut read, mut write) = server.into_split();
        let reader = tokio::spawn(async move { read.read(&mut [0; 8]).await });
        let writer = tokio::spawn(async move { write.write_all(&vec![0; 64 << 20]).await });
        tokio::task::yield_now().await;
        client.abort();
        let kinds = [
            reader.await.unwrap().unwrap_err().kind(),
            writer.await.unwrap().unwrap_err().kind(),
        ];
        assert!(kinds.contains(&ErrorKind::ConnectionReset), "{kinds:?}");
    });
}

#[test]
fn dropping_with_unread_data_resets_and_without_does_not() {
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        client.write_all(b"unread").await.unwrap();
        client.flushed().await.unwrap();
        drop(server);
        let error = client.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);

        let (mut client, server) = connected(&a, &b).await;
        drop(server);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    });
}

#[test]
fn linger_zero_resets() {
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        server.set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
        let error = client.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn data_written_before_a_drop_arrives() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        let data = pattern(16_000, 3);
        client.write_all(&data).await.unwrap();
        drop(client);
        drop(a);
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        assert!(got == data);
    });
}

#[test]
fn connecting_to_a_closed_port_is_refused() {
    paused(async {
        let (a, _b) = pair();
        for to in ["10.0.0.2:1", "[fd00::2]:1"] {
            let error = TcpStream::connect(&a, to).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn connecting_to_an_unused_address_times_out() {
    paused(async {
        let (a, _b) = pair();
        let error = TcpStream::connect(&a, "10.0.0.77:1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn a_dropped_connect_leaves_no_state() {
    paused(async {
        let (a, _b) = pair();
        let local = "10.0.0.1:4321";
        {
            let mut connect = pin!(TcpStream::connect_from(&a, local, "10.0.0.77:1"));
            let pending = poll_fn(|cx| Poll::Ready(connect.as_mut().poll(cx).is_pending())).await;
            assert!(pending);
            let error = TcpStream::connect_from(&a, local, "10.0.0.77:1")
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
        }
        let again = TcpStream::connect_from(&a, local, "10.0.0.77:1").await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn connect_from_keeps_the_address() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "10.0.0.2:9").unwrap();
        let _client = TcpStream::connect_from(&a, "0.0.0.0:7777", "10.0.0.2:9")
            .await
            .unwrap();
        let (_server, from) = listener.accept().await.unwrap();
        assert_eq!(from, "10.0.0.1:7777".parse().unwrap());
        let error = TcpStream::connect_from(&a, "10.3.3.3:1", "10.0.0.2:9")
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
        assert_eq!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL));
    });
}

#[test]
fn peek_consumes_nothing_and_try_calls_do_not_wait() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        let mut buf = [0; 16];
        assert_eq!(
            server.try_read(&mut buf).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        assert_eq!(client.try_write(b"hello").unwrap(), 5);
        server.readable().await.unwrap();
        assert_eq!(server.peek(&mut buf).await.unwrap(), 5);
        assert_eq!(server.peek(&mut buf[..2]).await.unwrap(), 2);
        assert_eq!(server.try_read(&mut buf).unwrap(), 5);
        assert_eq!(&buf[..5], b"hello");
        assert_eq!(
            server.try_read(&mut buf).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );

        let ready = client
            .ready(Interest::READABLE | Interest::WRITABLE)
            .await
            .unwrap();
        assert!(ready.is_writable() && !ready.is_readable());
        let piece = vec![1; 100_000];
        let mut sent = 0;
        while let Ok(n) = client.try_write(&piece) {
            sent += n;
            assert!(sent < 1 << 30, "no bound on what is queued");
        }
        let mut left = vec![0; sent];
        server.read_exact(&mut left).await.unwrap();
        client.writable().await.unwrap();
        assert!(client.try_write(b"x").is_ok());
        client.shutdown().await.unwrap();
        server.read_exact(&mut buf[..1]).await.unwrap();
        server.readable().await.unwrap();
        assert_eq!(server.try_read(&mut buf).unwrap(), 0);
    });
}

#[test]
fn vectored_writes_are_one_stream() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        let bufs = [
            IoSlice::new(b""),
            IoSlice::new(b"one "),
            IoSlice::new(b""),
            IoSlice::new(b"two "),
            IoSlice::new(b"three"),
            IoSlice::new(b""),
        ];
        assert_eq!(client.write_vectored(&bufs).await.unwrap(), 13);
        assert_eq!(client.write_vectored(&[]).await.unwrap(), 0);
        let mut got = [0; 13];
        server.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"one two three");
        assert_eq!(client.try_write_vectored(&bufs).unwrap(), 13);
        server.read_exact(&mut got).await.unwrap();
    });
}

#[test]
fn a_vectored_write_is_one_packet() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        client.set_nodelay(true).unwrap();
        let before = counter(&a, "TcpOutSegs");
        let bufs = [IoSlice::new(&[1; 400]), IoSlice::new(&[2; 400])];
        assert_eq!(client.write_vectored(&bufs).await.unwrap(), 800);
        assert_eq!(counter(&a, "TcpOutSegs"), before + 1);
        server.read_exact(&mut [0; 800]).await.unwrap();
    });
}

#[test]
fn owned_bytes_are_sent_and_chunks_received_without_a_copy() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        let data = Bytes::from(pattern(1 << 20, 5));
        let write = async {
            client.write_bytes(data.clone()).await.unwrap();
            client.write_bytes(Bytes::new()).await.unwrap();
            drop(client);
        };
        let read = async {
            let (mut at, mut by_reference) = (0, 0);
            while let Some(chunk) = server.read_chunk(100_000).await.unwrap() {
                assert!(!chunk.is_empty() && chunk.len() <= 100_000);
                assert!(chunk == data[at..at + chunk.len()]);
                // The lent memory itself, except for small pieces, which are gathered.
                if chunk.len() > 16 << 10 {
                    assert_eq!(chunk.as_ptr(), data[at..].as_ptr());
                    by_reference += chunk.len();
                }
                at += chunk.len();
            }
            assert_eq!(at, data.len());
            assert!(by_reference > data.len() / 2, "{by_reference}");
        };
        tokio::join!(write, read);
    });
}

#[test]
fn reads_into_fresh_memory_and_into_used_memory_agree() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        let data = pattern(50_000, 9);
        client.write_all(&data).await.unwrap();
        drop(client);
        let mut got = vec![0; 10_000];
        server.read_exact(&mut got).await.unwrap();
        let mut fresh = bytes::BytesMut::with_capacity(7_000);
        while server.read_buf(&mut fresh).await.unwrap() > 0 {
            got.extend_from_slice(&fresh);
            fresh.clear();
        }
        assert!(got == data);
    });
}

#[test]
fn halves() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        let (mut read, mut write) = client.split();
        write.write_all(b"ping").await.unwrap();
        let mut buf = [0; 4];
        server.read_exact(&mut buf).await.unwrap();
        server.write_all(b"pong").await.unwrap();
        read.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"pong");

        let (read, write) = client.into_split();
        let client = read.reunite(write).unwrap();
        let (mut read, write) = client.into_split();
        let (other_read, other_write) = server.into_split();
        let wrong = read.reunite(other_write).unwrap_err();
        assert!(wrong.to_string().contains("different"));
        let other_write;
        (read, other_write) = (wrong.0, wrong.1);
        let mut server = other_read.reunite(other_write).unwrap();
        // Dropping the write half sends a FIN; reading continues.
        drop(write);
        assert_eq!(server.read(&mut buf).await.unwrap(), 0);
        server.write_all(b"late").await.unwrap();
        read.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"late");
    });
}

#[test]
fn flushed_waits_for_the_acknowledgement() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        client.flushed().await.unwrap();
        // More than the receive buffer holds.
        let data = pattern(1 << 20, 4);
        let got = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            (got, server)
        });
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
        client.flushed().await.unwrap();
        assert_eq!(client.state().unwrap(), State::FinWait2);
        assert!(got.await.unwrap().0 == data);
    });
}

#[test]
fn flushed_reports_a_reset() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        let flood = vec![0; 300_000];
        while client.try_write(&flood).is_ok() {}
        let flush = async { client.flushed().await };
        let (flushed, ()) = tokio::join!(flush, async { server.abort() });
        assert_eq!(flushed.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn stack_shutdown_delivers_what_was_written() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        let data = pattern(100_000, 8);
        client.write_all(&data).await.unwrap();
        drop(client);
        let read = tokio::spawn(async move {
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            got
        });
        a.shutdown().await.unwrap();
        assert!(read.await.unwrap() == data);
        let error = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        assert!(error.to_string().contains("shut down"), "{error}");
    });
}

#[test]
fn stack_shutdown_ends_all_waiting_calls() {
    paused(async {
        let (a, b) = pair();
        let (client, mut server) = connected(&a, &b).await;
        let reader = tokio::spawn(async move {
            let mut client = client;
            client.read(&mut [0; 8]).await
        });
        let listener = TcpListener::bind(&a, "10.0.0.1:5").unwrap();
        let acceptor = tokio::spawn(async move { listener.accept().await.map(|_| ()) });
        tokio::task::yield_now().await;
        a.shutdown().await.unwrap();
        assert!(reader.await.unwrap().is_err());
        assert!(acceptor.await.unwrap().is_err());
        // The peer receives a RST.
        assert_eq!(
            server.read(&mut [0; 8]).await.unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    });
}

#[test]
fn every_option_is_accepted() {
    paused(async {
        let (a, b) = pair();
        let (client, _server) = connected(&a, &b).await;
        let s = Duration::from_secs(1);
        client.set_nodelay(true).unwrap();
        client.set_cork(true).unwrap();
        client.set_cork(false).unwrap();
        client.set_quickack(true).unwrap();
        client.set_maxseg(1000).unwrap();
        client.set_user_timeout(30 * s).unwrap();
        client.set_syncnt(3).unwrap();
        client.set_keepalive(true).unwrap();
        client.set_keepidle(60 * s).unwrap();
        client.set_keepintvl(5 * s).unwrap();
        client.set_keepcnt(3).unwrap();
        client.set_notsent_lowat(100_000).unwrap();
        client.set_linger(Some(s)).unwrap();
        assert_eq!(client.linger().unwrap(), Some(s));
        client.set_linger(None).unwrap();
        assert_eq!(client.linger().unwrap(), None);
        client.set_sndbuf(300_000).unwrap();
        client.set_rcvbuf(300_000).unwrap();
        client.set_rcvlowat(1).unwrap();
        client.set_max_pacing_rate(1_000_000_000).unwrap();
        client.set_congestion("reno").unwrap();
        assert_eq!(client.congestion().unwrap(), "reno");
        client.set_congestion("cubic").unwrap();
        let options = client.options().unwrap();
        assert!(options.tcp_quickack && client.keepalive().unwrap());
        assert_eq!(options.tcp_maxseg, 988);
        assert_eq!(options.tcp_user_timeout, Nanos::from_secs(30));
        assert_eq!((options.tcp_syncnt, options.tcp_keepcnt), (3, 3));
        assert_eq!(options.tcp_keepidle, Nanos::from_secs(60));
        assert_eq!(client.notsent_lowat().unwrap(), 100_000);
        // Twice the value that was set, as on Linux.
        assert_eq!(client.sndbuf().unwrap(), 600_000);
        assert_eq!(client.rcvbuf().unwrap(), 600_000);
        assert_eq!(options.so_max_pacing_rate, 1_000_000_000);

        let error = client.set_congestion("warp").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("warp"), "{error}");
        let error = client.set_option(SocketOption::TcpKeepcnt(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("TcpKeepcnt(0)"), "{error}");
        assert!(client.take_error().unwrap().is_none());
    });
}

#[test]
fn keepalive_finds_a_live_peer_alive() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        client.set_keepalive(true).unwrap();
        client.set_keepidle(Duration::from_secs(10)).unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
        client.write_all(b"still here").await.unwrap();
        server.read_exact(&mut [0; 10]).await.unwrap();
    });
}

#[test]
fn info_and_counters_match_the_traffic() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        let data = pattern(200_000, 2);
        carry(&mut client, &mut server, &data).await;
        let info = client.tcp_info().unwrap();
        assert!(info.tcpi_snd_cwnd >= 10, "{info:?}");
        assert!(counter(&a, "TcpOutSegs") > 100);
        assert_eq!(counter(&a, "TcpActiveOpens"), 1);
        assert_eq!(counter(&b, "TcpPassiveOpens"), 1);
        assert_eq!(counter(&a, "TcpRetransSegs"), 0);
    });
}

#[test]
fn a_dropped_read_loses_no_data() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        let data = pattern(300_000, 6);
        let sent = data.clone();
        let writer = tokio::spawn(async move {
            for (i, piece) in sent.chunks(777).enumerate() {
                client.write_all(piece).await.unwrap();
                if i % 3 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut got = Vec::new();
        loop {
            let mut buf = [0; 1000];
            tokio::select! {
                biased;
                // Polled once in each round, then dropped.
                n = server.read(&mut buf) => {
                    let n = n.unwrap();
                    if n == 0 {
                        break;
                    }
                    got.extend_from_slice(&buf[..n]);
                }
                () = tokio::task::yield_now() => {}
            }
        }
        writer.await.unwrap();
        assert!(got == data);
    });
}

/// The window of default buffers is smaller than this low-water mark.
#[test]
fn a_reader_with_a_high_low_water_mark_gets_all_data() {
    const LOWAT: usize = 150_000;
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        server.set_rcvlowat(LOWAT as u32).unwrap();
        // An accepted stream is ready until its first read.
        let would_block = server.try_read(&mut [0]).unwrap_err();
        assert_eq!(would_block.kind(), ErrorKind::WouldBlock);
        let data = pattern(3_000_000, 5);
        let write = async {
            client.write_all(&data).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let read = async {
            let (mut got, mut buf) = (Vec::new(), vec![0; 1 << 20]);
            loop {
                server.readable().await.unwrap();
                let n = server.try_read(&mut buf).unwrap();
                let left = data.len() - got.len();
                assert!(n >= LOWAT.min(left), "woken for {n} of {left} bytes");
                if n == 0 {
                    return got;
                }
                got.extend_from_slice(&buf[..n]);
                // Until a call would block, the stream stays ready with less.
                let would_block = || -> std::io::Result<()> { Err(ErrorKind::WouldBlock.into()) };
                assert!(server.try_io(Interest::READABLE, would_block).is_err());
            }
        };
        let ((), got) = tokio::join!(write, read);
        assert!(got == data);
    });
}

#[test]
fn notsent_lowat_bounds_what_a_slow_reader_leaves_unsent() {
    const LOWAT: u32 = 128 << 10;
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        a.set_sysctl("tcp_notsent_lowat", &LOWAT.to_string())
            .unwrap();
        let total = 8 << 20;
        let (mut sent, mut got) = (0, 0);
        let mut buf = vec![0; 64 << 10];
        while got < total {
            // The writer fills the available room, and continues when it is woken.
            while sent < total {
                match client.try_write(&[7; 4096]) {
                    Ok(n) => sent += n,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
            let unsent = client.tcp_info().unwrap().tcpi_notsent_bytes;
            assert!(unsent <= LOWAT + 65_160, "{unsent} bytes unsent");
            got += server.read(&mut buf).await.unwrap();
        }
        client.shutdown().await.unwrap();
        assert!(
            a.sockstat()
                .to_string()
                .starts_with("TCP: inuse 1 orphan 0")
        );
    });
}

/// Most small writes are not operations that tokio counts, but a writer that is never held up still
/// yields.
#[test]
fn a_writer_of_small_messages_yields_seldom_but_regularly() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        let data = pattern(64 << 10, 1);
        let writes = data.len() / 16;
        let writing = {
            let data = data.clone();
            tokio::spawn(async move {
                for piece in data.chunks(16) {
                    client.write_all(piece).await.unwrap();
                }
                client
            })
        };
        let mut yields = 0;
        while !writing.is_finished() {
            tokio::task::yield_now().await;
            yields += 1;
        }
        assert!((writes / 2048..writes / 512).contains(&yields), "{yields}");
        let mut got = vec![0; data.len()];
        server.read_exact(&mut got).await.unwrap();
        assert!(got == data);
    });
}

/// Compiles only if the futures of sockets that tasks share are `Send`.
#[allow(dead_code, reason = "compiling it is the test")]
fn futures_can_be_spawned(tcp: Arc<TcpStream>, udp: Arc<UdpSocket>) {
    let shared = tcp.clone();
    tokio::spawn(async move {
        let read = || shared.try_read(&mut [0; 4]);
        shared.async_io(Interest::READABLE, read).await
    });
    tokio::spawn(async move { tcp.ready(Interest::READABLE | Interest::WRITABLE).await });
    tokio::spawn(async move {
        let receive = || udp.try_recv(&mut [0; 4]);
        udp.async_io(Interest::READABLE, receive).await
    });
}
