//! `Builder::memory_bytes` bounds all memory of a stack: an allocator counts it while peers and the
//! application try to exceed it in every way, one after another on the same stack. The other stack
//! runs on a thread whose allocations are not counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use fullsend::{
    PacketPort, PacketReceiver, PacketSender, PendingConnection, Stack, TcpListener, TcpStream,
    TransparentListener, UdpSocket, UserDeviceConfig,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The limit: that of an iOS network extension.
const LIMIT: usize = 15 << 20;
/// Time limit of the test: only a fault takes that long.
const TIMEOUT: Duration = Duration::from_secs(120);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const MTU: u32 = 1500;

// --- the allocator ---

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(true) };
}

static ALLOCATED: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the layout with a header that records whether the allocation is counted.
fn with_header(layout: Layout) -> (Layout, usize) {
    let header = layout.align().max(16);
    let outer = Layout::from_size_align(layout.size() + header, header).unwrap();
    (outer, header)
}

// SAFETY: each block is one of the system's allocator, from `header` bytes after its start on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (outer, header) = with_header(layout);
        // SAFETY: `outer` is not empty.
        let start = unsafe { System.alloc(outer) };
        if start.is_null() {
            return start;
        }
        let counts = COUNTS.get();
        if counts {
            let now = ALLOCATED.fetch_add(layout.size() as isize, Ordering::Relaxed);
            PEAK.fetch_max(now + layout.size() as isize, Ordering::Relaxed);
        }
        // SAFETY: the block has `header` bytes before the result.
        unsafe {
            start.write(u8::from(counts));
            start.add(header)
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (outer, header) = with_header(layout);
        // SAFETY: `alloc` has returned `block` for this layout.
        unsafe {
            let start = block.sub(header);
            if start.read() == 1 {
                ALLOCATED.fetch_sub(layout.size() as isize, Ordering::Relaxed);
            }
            System.dealloc(start, outer);
        }
    }
}

/// Runs `call`, whose allocations are the application's or the peer's.
fn uncounted<R>(call: impl FnOnce() -> R) -> R {
    let before = COUNTS.replace(false);
    let result = call();
    COUNTS.set(before);
    result
}

// --- the link ---

/// Carries packets of the peer, and forged ones, to the stack. Of the flows to port 81 it loses the
/// first data, so that all other data is out of order.
async fn carry_in(mut from: PacketReceiver, mut forged: Receiver<Vec<u8>>, mut to: PacketSender) {
    let mut packet = uncounted(|| vec![0; MTU as usize]);
    let mut lost: BTreeMap<[u8; 4], u32> = BTreeMap::new();
    loop {
        let len = tokio::select! {
            len = from.recv(&mut packet) => len.unwrap(),
            forged = forged.recv() => {
                let Some(forged) = forged else { return };
                to.send(&forged).await.unwrap();
                uncounted(|| drop(forged));
                continue;
            }
        };
        let tcp = &packet[20..len];
        let has_data = packet[9] == 6 && tcp.len() > usize::from(tcp[12] >> 4) * 4;
        if has_data && tcp[2..4] == [0, 81] {
            let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
            let ports = tcp[..4].try_into().unwrap();
            if uncounted(|| *lost.entry(ports).or_insert(seq)) == seq {
                continue;
            }
        }
        to.send(&packet[..len]).await.unwrap();
    }
}

/// Carries packets of the stack to the peer.
async fn carry_out(mut from: PacketReceiver, mut to: PacketSender) {
    let mut packet = uncounted(|| vec![0; MTU as usize]);
    while let Ok(len) = from.recv(&mut packet).await {
        uncounted(|| to.inject(&packet[..len]));
    }
}

/// Starts the peer's stack on a thread of its own, and returns its runtime, stack and port.
fn start_peer() -> (Handle, Stack, PacketPort) {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        COUNTS.set(false);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (builder, port) = Stack::builder().user_device(UserDeviceConfig::ip(MTU));
            let stack = builder.address("10.0.0.2/24").build().unwrap();
            send.send((Handle::current(), stack, port)).unwrap();
            std::future::pending::<()>().await;
        });
    });
    receive.recv().unwrap()
}

// --- packets ---

fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns an IPv4 packet. `fragment` has the flags and the offset.
fn ipv4(
    src: Ipv4Addr,
    dst: Ipv4Addr,
    (protocol, id, fragment): (u8, u16, u16),
    data: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + data.len() as u16).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(src.octets());
    packet.extend(dst.octets());
    let sum = checksum(&[&packet]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(data);
    packet
}

fn syn(n: u32, dst: Ipv4Addr, port: u16) -> Vec<u8> {
    let src = Ipv4Addr::from(0x0a00_0100 + n % 60_000);
    let mut tcp = Vec::new();
    tcp.extend((1024 + (n / 60_000) as u16).to_be_bytes());
    tcp.extend(port.to_be_bytes());
    tcp.extend(n.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0x60, 2, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5, 0xb4]);
    let pseudo = [
        &src.octets()[..],
        &dst.octets(),
        &[0, 6, 0, tcp.len() as u8],
    ]
    .concat();
    let sum = checksum(&[&pseudo, &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    ipv4(src, dst, (6, 0, 0), &tcp)
}

fn datagram(n: u32, port: u16, len: usize) -> Vec<u8> {
    let mut udp = Vec::new();
    udp.extend([4, 0]);
    udp.extend(port.to_be_bytes());
    udp.extend((8 + len as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.resize(8 + len, n as u8);
    ipv4(Ipv4Addr::from(0x0a00_0100 + n), OURS, (17, 0, 0), &udp)
}

// --- the test ---

struct Test {
    stack: Stack,
    peer: Stack,
    peer_runtime: Handle,
    /// Passes forged packets to a stack that has no other way in for them.
    forge: Sender<Vec<u8>>,
    base: isize,
}

impl Test {
    /// Fails if the stack has ever used more than its limit.
    fn check(&self, step: &str) {
        let peak = PEAK.load(Ordering::Relaxed) - self.base;
        let now = ALLOCATED.load(Ordering::Relaxed) - self.base;
        println!("{step}: {} KiB, at most {} KiB", now >> 10, peak >> 10);
        assert!(peak <= LIMIT as isize, "{step}: {peak} bytes");
    }

    fn counter(&self, name: &str) -> u64 {
        let all = uncounted(|| self.stack.counters());
        let found = all.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// Passes forged packets to the stack, which processes them in between.
    async fn flood(&self, packets: impl Iterator<Item = Vec<u8>>) {
        let mut packets = packets;
        while let Some(packet) = uncounted(|| packets.next()) {
            self.forge.send(packet).await.unwrap();
        }
        self.run_other_tasks().await;
    }

    /// Lets other tasks of this thread run.
    async fn run_other_tasks(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// Opens `count` connections of the peer to `port`, each of which writes `len` bytes that may
    /// never be read. They stay open.
    fn peer_writes(&self, count: usize, port: u16, len: usize) {
        uncounted(|| {
            let peer = self.peer.clone();
            self.peer_runtime.spawn(async move {
                for _ in 0..count {
                    let peer = peer.clone();
                    tokio::spawn(async move {
                        let mut stream = TcpStream::connect(&peer, (OURS, port)).await?;
                        let _ = stream.write_all(&vec![7; len]).await;
                        std::future::pending::<()>().await;
                        Ok::<(), Error>(())
                    });
                }
            });
        });
    }

    /// Accepts connections until the stack has no more sockets, or there are `most`.
    async fn accept(&self, listener: &TcpListener, most: usize) -> Vec<TcpStream> {
        let mut streams = Vec::new();
        let limited = self.counter("TcpExtFullsendSocketsLimited");
        while streams.len() < most {
            tokio::select! {
                // Connections that wait are accepted, however late this task runs.
                biased;
                accepted = listener.accept() => {
                    let stream = accepted.unwrap().0;
                    uncounted(|| streams.push(stream));
                }
                () = tokio::time::sleep(Duration::from_millis(20)) => {
                    if self.counter("TcpExtFullsendSocketsLimited") > limited {
                        break;
                    }
                }
            }
        }
        streams
    }
}

#[test]
fn all_memory_of_a_stack_is_bounded() {
    let (peer_runtime, peer, peer_port) = uncounted(start_peer);
    let runtime = uncounted(|| Builder::new_current_thread().enable_all().build().unwrap());
    runtime.block_on(async {
        let base = ALLOCATED.load(Ordering::Relaxed);
        PEAK.store(base, Ordering::Relaxed);
        let (builder, port) = Stack::builder().user_device(UserDeviceConfig::ip(MTU));
        let stack = builder
            .address("10.0.0.1/8")
            .memory_bytes(LIMIT as u64)
            // Low, so that a flood exceeds it on a slow machine, too.
            .sysctl("tcp_syn_limit", "1000")
            .build()
            .unwrap();
        let (forge, forged) = uncounted(|| channel(16));
        uncounted(|| {
            tokio::spawn(carry_out(port.receiver, peer_port.sender));
            tokio::spawn(carry_in(peer_port.receiver, forged, port.sender));
        });
        let test = Test {
            stack,
            peer,
            peer_runtime,
            forge,
            base,
        };
        let run = exceed_in_every_way(&test);
        tokio::time::timeout(TIMEOUT, run)
            .await
            .expect("the test hangs");
    });
}

async fn exceed_in_every_way(test: &Test) {
    let stack = &test.stack;
    let bind = |port: u16| TcpListener::bind(stack, (OURS, port)).unwrap();
    // Another connection goes on throughout.
    let listener = bind(7);
    let mut echo = connect_echo(test, &listener).await;
    exchange(&mut echo).await;
    test.check("one connection");

    // Datagrams that no application reads, to sockets with large buffers and to any destination.
    let bound: Vec<_> = (0..16)
        .map(|port| UdpSocket::bind(stack, (OURS, 5000 + port)).unwrap())
        .collect();
    let any = UdpSocket::bind_any(stack, 64 << 20).unwrap();
    test.flood((0..20_000).map(|n| datagram(n, 5000 + (n % 32) as u16, [1, 1400][n as usize % 2])))
        .await;
    assert!(test.counter("UdpMemErrors") > 0);
    test.check("datagrams");

    // Fragments whose packets never become whole.
    test.flood((0..10_000).map(|n| {
        let src = Ipv4Addr::from(0x0a00_0100 + n / 16);
        ipv4(src, OURS, (17, n as u16, 0x2000), &[n as u8; 1400])
    }))
    .await;
    assert!(test.counter("IpReasmFails") > 0);
    test.check("fragments");

    // SYNs, to a listener and to one that decides about each.
    let pending = TransparentListener::any(stack, 512).unwrap();
    test.flood((0..20_000).map(|n| syn(n, OURS, 7))).await;
    test.flood((0..20_000).map(|n| syn(n, Ipv4Addr::new(10, 200, 0, 1), 443)))
        .await;
    let mut held: Vec<PendingConnection> = Vec::new();
    while let Ok(connection) =
        tokio::time::timeout(Duration::from_millis(50), pending.accept()).await
    {
        uncounted(|| held.push(connection.unwrap()));
    }
    assert_eq!(held.len(), 513);
    assert!(test.counter("TcpExtTCPReqQFullDrop") > 0);
    assert!(test.counter("TcpExtFullsendSynsLimited") > 0);
    test.check("SYNs");

    // Connections whose data arrives out of order, and is never complete.
    let out_of_order = bind(81);
    test.peer_writes(100, 81, 200_000);
    let unordered = test.accept(&out_of_order, 100).await;
    test.check("data out of order");

    // Connections whose peer does not read, and more connections than the stack has sockets, whose
    // data the application does not read.
    let unread = bind(80);
    test.peer_writes(2500, 80, 20_000);
    let streams = test.accept(&unread, 2500).await;
    let sockets = streams.len() + unordered.len();
    assert!((1800..=2194).contains(&sockets), "{sockets} connections");
    let piece = uncounted(|| vec![1; 64 << 10]);
    for stream in streams.iter().chain(&unordered) {
        while matches!(stream.try_write(&piece), Ok(1..)) {}
    }
    test.check("connections");
    let mut refused = None;
    while refused.is_none() {
        refused = TcpStream::connect(stack, "10.0.0.2:9").await.err();
    }
    let kind = refused.map(|error| error.kind());
    assert!(matches!(kind, Some(ErrorKind::OutOfMemory)), "{kind:?}");
    test.run_other_tasks().await;
    test.check("unread and unsent data");

    // Datagrams that the device does not accept in time.
    let data = uncounted(|| vec![5; 60_000]);
    for _ in 0..2000 {
        any.send_from(&data, ([10, 0, 0, 1], 9).into(), ([10, 0, 0, 2], 9).into())
            .await
            .unwrap();
    }
    assert!(test.counter("IpOutDiscards") > 0);
    test.check("datagrams to a full device");

    // Everything at once, and the first connection still works.
    test.flood((0..5000).flat_map(|n| {
        [
            datagram(n, 5000, 1400),
            syn(n + 100_000, OURS, 7),
            ipv4(OURS, OURS, (17, n as u16, 0x2000), &[1; 1400]),
        ]
    }))
    .await;
    exchange(&mut echo).await;
    test.check("everything");
    drop((bound, any, held, unordered, streams));
}

/// Returns the stack's end of a connection whose peer echoes one byte at a time.
async fn connect_echo(test: &Test, listener: &TcpListener) -> TcpStream {
    uncounted(|| {
        let peer = test.peer.clone();
        test.peer_runtime.spawn(async move {
            let mut stream = TcpStream::connect(&peer, (OURS, 7)).await?;
            while let Ok(byte) = stream.read_u8().await {
                stream.write_u8(byte).await?;
            }
            Ok::<(), Error>(())
        });
    });
    listener.accept().await.unwrap().0
}

async fn exchange(stream: &mut TcpStream) {
    for byte in 0..20 {
        stream.write_u8(byte).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), byte);
    }
}
