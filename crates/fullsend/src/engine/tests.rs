//! Tests of peers that stop answering (the link is cut) and of devices with slow calls.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use fullsend_device::{Caps, Device};
use fullsend_offload::Packet;
use fullsend_stack::TcpId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::device::ShardDevice;
use crate::{Pair, Stack, TcpListener, TcpStream};

/// A device that drops all packets and receives none.
struct Disconnected(Caps);

impl Device for Disconnected {
    fn caps(&self) -> Caps {
        self.0
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        batch.clear();
        Ok(())
    }

    fn receive(&mut self, _: &mut Vec<Packet>, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn disconnect(stack: &Stack) {
    let mut shard = stack.engine.shard.lock();
    let device = shard.pump.device_mut();
    *device = ShardDevice::Plain(Box::new(Disconnected(device.caps())));
}

/// A device whose calls take time for each packet, as a TUN's system calls do.
struct SlowDevice {
    inner: Box<dyn Device>,
    write: Duration,
    read: Duration,
}

/// Advances virtual time within a call.
fn advance_time(time: Duration) {
    let mut advance = pin!(tokio::time::advance(time));
    // The first poll advances the clock; the rest of the future only yields.
    let _ = advance
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
}

impl Device for SlowDevice {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        while let Some(packet) = batch.pop_front() {
            advance_time(self.write);
            let mut one = VecDeque::from([packet]);
            self.inner.transmit(&mut one)?;
            if let Some(left) = one.pop_front() {
                batch.push_front(left);
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let received = self.inner.receive(batch, max)?;
        advance_time(self.read * received as u32);
        Ok(received)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn notify_completion(&mut self) -> bool {
        self.inner.notify_completion()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Makes each packet that the stack sends take `write`, and each that it receives take `read`.
fn slow_down_device(stack: &Stack, write: Duration, read: Duration) {
    let mut shard = stack.engine.shard.lock();
    let device = shard.pump.device_mut();
    let nothing = Box::new(Disconnected(device.caps()));
    let inner = Box::new(std::mem::replace(device, ShardDevice::Plain(nothing)));
    *device = ShardDevice::Plain(Box::new(SlowDevice { inner, write, read }));
}

/// Returns `flows` connections from `a` to `b`, whose server echoes each request of `len` bytes.
async fn connect_to_echo_server(a: &Stack, b: &Stack, flows: usize, len: usize) -> Vec<TcpStream> {
    let listener = TcpListener::bind(b, "10.0.0.2:9").unwrap();
    let mut clients = Vec::new();
    for _ in 0..flows {
        let client = TcpStream::connect(a, "10.0.0.2:9").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut request = vec![0; len];
            while server.read_exact(&mut request).await.is_ok() {
                server.write_all(&request).await.unwrap();
            }
        });
        clients.push(client);
    }
    clients
}

/// Writes `len` bytes on each connection under one lock of the stack.
fn send_requests(stack: &Stack, ids: impl Iterator<Item = TcpId>, len: usize) {
    let request = vec![7; len];
    let write = stack.engine.op(|host, now| {
        for id in ids {
            assert_eq!(host.tcp(id).write(now, &request, false).unwrap(), len);
        }
        Ok(())
    });
    write.unwrap();
}

/// Sends a request on each connection and reads the answers.
async fn send_requests_and_read_answers(stack: &Stack, clients: &mut [TcpStream], len: usize) {
    send_requests(stack, clients.iter().map(|client| client.id), len);
    let mut answer = vec![0; len];
    for client in clients {
        client.read_exact(&mut answer).await.unwrap();
    }
}

fn counter(stack: &Stack, name: &str) -> u64 {
    let all = stack.counters();
    all.iter().find(|(n, _)| *n == name).unwrap().1
}

/// Writing to a TUN runs the kernel's TCP. If all packets of a long batch had the timestamp of the
/// first, the timers of the last would expire early.
#[tokio::test(start_paused = true)]
async fn packets_of_a_long_batch_are_timestamped_at_departure() {
    let (a, b) = Stack::pair(&Pair::default()).unwrap();
    let mut clients = connect_to_echo_server(&a, &b, 64, 1).await;
    send_requests_and_read_answers(&a, &mut clients, 1).await;
    slow_down_device(&a, Duration::from_millis(1), Duration::ZERO);
    send_requests_and_read_answers(&a, &mut clients, 1).await;
    let srtt_us = clients.iter().map(|c| c.tcp_info().unwrap().tcpi_rtt);
    let srtt_us: Vec<_> = srtt_us.collect();
    // The peer answers once all have been sent: 64 ms after the time of the first packet and 8 ms
    // after that of the last, which is in a batch of 8. srtt takes 1/8 of a sample.
    assert!((7500..=8500).contains(&srtt_us[0]), "{srtt_us:?}");
    assert!((750..=1250).contains(&srtt_us[63]), "{srtt_us:?}");
}

/// Frames that arrive while a batch is read have the time after the read.
#[tokio::test(start_paused = true)]
async fn received_packets_are_timestamped_after_the_read() {
    let (a, b) = Stack::pair(&Pair::default()).unwrap();
    let listener = TcpListener::bind(&b, "10.0.0.2:9").unwrap();
    let mut connections = Vec::new();
    for _ in 0..32 {
        let client = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap();
        connections.push((client, listener.accept().await.unwrap()));
    }
    slow_down_device(&a, Duration::ZERO, Duration::from_millis(1));
    send_requests(&a, connections.iter().map(|(client, _)| client.id), 1);
    for (client, _) in &mut connections {
        client.flushed().await.unwrap();
        // srtt is 1/8 of a sample of 32 ms, after the 0 ms of the handshake.
        let srtt_us = client.tcp_info().unwrap().tcpi_rtt;
        assert!((3900..=4100).contains(&srtt_us), "{srtt_us}");
    }
}

/// Requests fill the device. If all were received before the first is answered, the delayed-ACK
/// timers would expire, and with them the peer's tail loss probes.
#[tokio::test(start_paused = true)]
async fn requests_are_answered_before_the_next_batch_is_received() {
    const FLOWS: usize = 200;
    let (a, b) = Stack::pair(&Pair::default()).unwrap();
    let mut clients = connect_to_echo_server(&a, &b, FLOWS, 4096).await;
    send_requests_and_read_answers(&a, &mut clients, 4096).await;
    let before = counter(&b, "TcpExtDelayedACKs");
    slow_down_device(&b, Duration::ZERO, Duration::from_micros(8));
    send_requests_and_read_answers(&a, &mut clients, 4096).await;
    assert_eq!(counter(&b, "TcpExtDelayedACKs"), before);
    for stack in [&a, &b] {
        assert_eq!(counter(stack, "TcpRetransSegs"), 0);
    }
}

/// Returns the first stack and the two ends of a connection.
async fn connected() -> (Stack, TcpStream, TcpStream) {
    let (a, b) = Stack::pair(&Pair::default()).unwrap();
    let listener = TcpListener::bind(&b, "10.0.0.2:9").unwrap();
    let client = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (a, client, server)
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_vanishes_ends_in_a_timeout() {
    let (a, mut client, _server) = connected().await;
    client.write_all(b"is anybody there?").await.unwrap();
    disconnect(&a);
    client.write_all(b"hello?").await.unwrap();
    let begin = tokio::time::Instant::now();
    let error = client.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // With tcp_retries2 = 15, about a quarter of an hour.
    let minutes = begin.elapsed().as_secs() / 60;
    assert!((10..30).contains(&minutes), "{minutes}");
    let error = client.write_all(b"x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn the_user_timeout_is_enforced() {
    let (a, mut client, _server) = connected().await;
    client.set_user_timeout(Duration::from_secs(20)).unwrap();
    disconnect(&a);
    client.write_all(b"hello?").await.unwrap();
    let begin = tokio::time::Instant::now();
    let error = client.flushed().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let seconds = begin.elapsed().as_secs();
    assert!((15..60).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn keepalive_finds_a_dead_peer() {
    let (a, mut client, _server) = connected().await;
    client.set_keepalive(true).unwrap();
    client.set_keepidle(Duration::from_secs(30)).unwrap();
    client.set_keepintvl(Duration::from_secs(5)).unwrap();
    client.set_keepcnt(3).unwrap();
    disconnect(&a);
    let begin = tokio::time::Instant::now();
    let error = client.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let seconds = begin.elapsed().as_secs();
    assert!((40..60).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_stack_ends_after_its_last_connection() {
    let (a, client, mut server) = connected().await;
    let engine = Arc::downgrade(&a.engine);
    let mut client = client;
    client.write_all(b"last words").await.unwrap();
    drop((a, client));
    let mut got = String::new();
    server.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "last words");
    drop(server);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(engine.upgrade().is_none(), "the driver still runs");
}

fn pair_of_three_shards() -> (Stack, Stack) {
    let config = Pair {
        shards: 3,
        ..Pair::default()
    };
    Stack::pair(&config).unwrap()
}

#[tokio::test(start_paused = true)]
async fn connections_are_distributed_over_the_shards_in_turn() {
    let (a, b) = pair_of_three_shards();
    let listener = TcpListener::bind(&b, "10.0.0.2:9").unwrap();
    let mut held = Vec::new();
    for _ in 0..6 {
        let client = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap();
        held.push((client, listener.accept().await.unwrap()));
    }
    let sockets = |stack: &Stack| -> Vec<usize> {
        let engines = stack.engines();
        let count = |host: &fullsend_stack::Host| host.tcp_socket_count();
        engines
            .iter()
            .map(|engine| engine.with_host(count))
            .collect()
    };
    // The ends of a connection are on shards of the same index.
    assert_eq!((sockets(&a), sockets(&b)), (vec![2; 3], vec![2; 3]));
    for stack in [&a, &b] {
        assert_eq!(counter(stack, "SoftnetReceivedRps"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn each_host_has_a_share_of_the_limits() {
    let (a, _b) = pair_of_three_shards();
    a.set_sysctl("tcp_max_orphans", "100").unwrap();
    a.set_sysctl("tcp_sack", "0").unwrap();
    for engine in a.engines() {
        let sysctl = engine.with_host(|host| host.sysctl().clone());
        assert_eq!((sysctl.tcp_max_orphans, sysctl.tcp_sack), (34, false));
    }
}

/// The drivers of all shards end together: with the last connection of any of them, or with the
/// first runtime.
#[tokio::test(start_paused = true)]
async fn a_dropped_stack_of_several_shards_ends_after_its_last_connection() {
    let (a, b) = pair_of_three_shards();
    let listener = TcpListener::bind(&b, "10.0.0.2:9").unwrap();
    let client = TcpStream::connect(&a.shard(1).unwrap(), "10.0.0.2:9").await;
    let (mut client, (mut server, _)) = (client.unwrap(), listener.accept().await.unwrap());
    let engines: Vec<_> = a.engines().iter().map(Arc::downgrade).collect();
    drop(a);
    client.write_all(b"last words").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(engines.iter().all(|engine| engine.upgrade().is_some()));
    drop(client);
    let mut got = String::new();
    server.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "last words");
    drop(server);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(engines.iter().all(|engine| engine.upgrade().is_none()));
}
