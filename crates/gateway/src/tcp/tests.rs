//! Connections of a guest in virtual time. The guest is a stack of this process, or sends frames of its
//! own; the servers have sockets of the kernel.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fullsend::{Stack, TcpStream};
use fullsend_device::{FrameLink, Framing};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream as HostSocket};
use tokio::time::{Instant, sleep, timeout};

use crate::{Config, Counters, Gateway, Handle};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
/// Stands for the host's loopback.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const MINUTE: Duration = Duration::from_secs(60);

/// A gateway, and the guest's end of its link.
struct Rig {
    gateway: Handle,
    link: UnixStream,
}

impl Rig {
    fn start() -> Self {
        let (link, device) = UnixStream::pair().unwrap();
        let config = Config {
            mtu: 1500,
            ipv6: None,
            ..Config::default()
        };
        let device = FrameLink::connected(device.into(), Framing::Qemu, config.mtu).unwrap();
        let gateway = Gateway::new(config, Box::new(device)).unwrap();
        let handle = gateway.handle();
        tokio::spawn(gateway.run());
        Self {
            gateway: handle,
            link,
        }
    }

    fn guest(&self) -> Stack {
        guest(&self.link)
    }

    fn counters(&self) -> Counters {
        self.gateway.counters()
    }

    /// Waits until `is_done`, at most for `limit` of virtual time. Returns how long that took.
    async fn wait(&self, limit: Duration, is_done: impl Fn(&Counters) -> bool) -> Duration {
        let start = Instant::now();
        while !is_done(&self.counters()) {
            assert!(start.elapsed() < limit, "{:?}", self.counters());
            sleep(Duration::from_millis(500)).await;
        }
        start.elapsed()
    }
}

/// Returns the stack of a guest behind `link`.
fn guest(link: &UnixStream) -> Stack {
    let link = link.try_clone().unwrap();
    let device = FrameLink::connected(link.into(), Framing::Qemu, 1500).unwrap();
    Stack::builder()
        .device(Box::new(device))
        .mac(GUEST_MAC)
        .address(&format!("{GUEST}/24"))
        .route("0.0.0.0/0", Some(GATEWAY.into()))
        .build()
        .unwrap()
}

/// Returns both ends of a connection of the guest.
async fn connected(guest: &Stack) -> (TcpStream, HostSocket) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stream = TcpStream::connect(guest, (GATEWAY, port)).await.unwrap();
    (stream, listener.accept().await.unwrap().0)
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_the_guest_has_closed_ends_though_the_server_never_closes() {
    let rig = Rig::start();
    let guest = rig.guest();
    let (mut stream, mut server) = connected(&guest).await;
    stream.write_all(b"bye").await.unwrap();
    drop(stream);
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"bye");
    // The guest forgets the connection after a minute, and is probed then.
    let time = rig
        .wait(5 * MINUTE, |counters| counters.tcp_open == 0)
        .await;
    assert!(time >= MINUTE, "{time:?}");
    // The server learns of it.
    let written = server.write_all(b"x").await;
    assert!(written.is_err() || server.write_all(b"x").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_which_the_guest_has_closed_one_direction_survives() {
    let rig = Rig::start();
    let guest = rig.guest();
    let (mut stream, mut server) = connected(&guest).await;
    stream.shutdown().await.unwrap();
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    sleep(60 * MINUTE).await;
    server.write_all(b"late").await.unwrap();
    drop(server);
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"late");
    rig.wait(MINUTE, |counters| counters.tcp_open == 0).await;
    assert_eq!(rig.counters().tcp_reset, 0);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_has_vanished_is_found_by_keepalive() {
    let rig = Rig::start();
    let (guest_end, bridge_end) = UnixStream::pair().unwrap();
    let guest = guest(&guest_end);
    let to_async = |link: &UnixStream| {
        link.set_nonblocking(true).unwrap();
        tokio::net::UnixStream::from_std(link.try_clone().unwrap()).unwrap()
    };
    let mut ends = (to_async(&bridge_end), to_async(&rig.link));
    let bridge = tokio::spawn(async move {
        let _ = copy_bidirectional(&mut ends.0, &mut ends.1).await;
    });
    let (mut stream, mut server) = connected(&guest).await;
    server.write_all(b"x").await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
    // Its acknowledgement.
    sleep(MINUTE).await;
    // The link stays, and carries nothing any more.
    bridge.abort();
    sleep(119 * MINUTE).await;
    assert_eq!(rig.counters().tcp_open, 1);
    // Nine probes, 75 s apart.
    rig.wait(20 * MINUTE, |counters| counters.tcp_open == 0)
        .await;
    assert!(server.read(&mut [0]).await.is_err());
}

/// Returns the ones' complement sum of the words of `parts` (RFC 1071).
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.concat();
    let sum: u32 = words
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

/// Returns a frame of the guest to the gateway's address with a TCP segment without data.
fn segment(to_port: u16, seq: u32, flags: u8) -> Vec<u8> {
    let (from, to) = (GUEST.octets(), GATEWAY.octets());
    let mut ip = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0];
    ip.extend(from);
    ip.extend(to);
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = 4000_u16.to_be_bytes().to_vec();
    tcp.extend(to_port.to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let sum = checksum(&[&from, &to, &[0, 6, 0, 20], &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mac = Config::default().mac;
    [&mac[..], &GUEST_MAC, &[8, 0], &ip, &tcp].concat()
}

/// Sends a frame with QEMU's framing.
fn send(link: &UnixStream, frame: &[u8]) {
    let len = (frame.len() as u32).to_be_bytes();
    (&*link).write_all(&[&len, frame].concat()).unwrap();
}

/// Returns a listener on the host's loopback that answers no SYN, as its queue is full, with what keeps it
/// full.
fn silent_listener() -> (SocketAddr, Vec<Socket>) {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    listener.listen(0).unwrap();
    let at = listener.local_addr().unwrap().as_socket().unwrap();
    let mut sockets = vec![listener];
    for _ in 0..4 {
        let client = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap();
        // The first is established; the others wait.
        let _ = client.connect(&at.into());
        sockets.push(client);
    }
    (at, sockets)
}

#[tokio::test(start_paused = true)]
async fn a_reset_of_the_guest_ends_a_syn_that_is_held() {
    const SYN: u8 = 2;
    const RST: u8 = 4;
    let rig = Rig::start();
    let (at, _sockets) = silent_listener();
    send(&rig.link, &segment(at.port(), 1000, SYN));
    rig.wait(MINUTE, |counters| counters.tcp_open == 1).await;
    send(&rig.link, &segment(at.port(), 1001, RST));
    // The SYN itself is held for 130 s.
    rig.wait(MINUTE, |counters| counters.tcp_open == 0).await;
    let counters = rig.counters();
    assert_eq!((counters.tcp_reset, counters.tcp_timed_out), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_host_is_not_read_before_the_guest_has_room() {
    let rig = Rig::start();
    let guest = rig.guest();
    let (stream, server) = connected(&guest).await;
    // The guest does not read: the server writes until all buffers are full.
    let block = vec![7; 1 << 20];
    let mut sent = 0;
    loop {
        match timeout(MINUTE, server.writable()).await {
            Ok(ready) => ready.unwrap(),
            Err(_) => break,
        }
        match server.try_write(&block) {
            Ok(n) => sent += n,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert!(sent > 1 << 16, "{sent}");
    // All of it is in a socket, and none with the relay.
    assert_eq!(rig.gateway.shared.relay_memory.held(), 0);
    drop(stream);
}
