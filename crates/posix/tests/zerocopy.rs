//! Tests of `MSG_ZEROCOPY`: after the completion no packet refers to the memory, wherever packets
//! were queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bytes::Bytes;
use fullsend_offload::{Caps, Link, Packet, Slice};
use fullsend_posix::abi::*;
use fullsend_posix::{Errno, Handle, Posix, SockAddr};
use fullsend_stack::{Host, HostConfig, IfaceConfig, IfaceId, Mac};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Nanos, Seed};

/// Memory that sets a flag when it is dropped.
struct Memory(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

/// Returns `len` bytes to lend, and a flag that is set when they are no longer used.
fn memory(len: usize) -> (Slice, Arc<AtomicBool>) {
    let free = Arc::new(AtomicBool::new(false));
    let data = (0..len).map(|i| (i % 251) as u8).collect();
    let bytes = Bytes::from_owner(Memory(data, free.clone()));
    (bytes.into(), free)
}

struct Side {
    posix: Posix,
    iface: IfaceId,
    socket: Handle,
}

impl Side {
    /// Returns 10.0.0.`n` on a link.
    fn new(n: u8) -> Self {
        let mut host = Host::new(HostConfig {
            seed: Seed([n.into(); 4]),
            sysctl: Sysctl::default(),
            pool_bytes: 0,
        });
        let caps = Caps::offloading(Link::Ip, 1500);
        let iface = host.add_interface(IfaceConfig::new(caps, Mac::local(n.into())));
        let address = format!("10.0.0.{n}/24").parse().unwrap();
        host.add_address(Instant::ZERO, iface, address).unwrap();
        let mut posix = Posix::new(host);
        let socket = posix.socket(AF_INET, SOCK_STREAM, 0).unwrap();
        Self {
            posix,
            iface,
            socket,
        }
    }

    fn set(&mut self, now: Instant, level: i32, name: i32, value: i32) {
        let value = value.to_ne_bytes();
        self.posix
            .setsockopt(now, self.socket, level, name, &value)
            .unwrap();
    }

    fn transmit(&mut self, now: Instant) -> Vec<Packet> {
        let mut out = Vec::new();
        let host = self.posix.host_mut();
        host.transmit(now, self.iface, &mut out, 64);
        for packet in &out {
            host.complete(now, packet.tx);
        }
        out
    }

    fn receive(&mut self, now: Instant, mut packets: Vec<Packet>) {
        self.posix.host_mut().receive(now, self.iface, &mut packets);
    }

    fn lend(&mut self, now: Instant, data: Slice) -> Result<usize, Errno> {
        self.posix.send_lent(now, self.socket, data, MSG_ZEROCOPY)
    }

    /// Returns the next completion, skipping timestamps: code, first call, last call.
    fn completion(&mut self, now: Instant) -> Option<(u8, u32, u32)> {
        loop {
            let mut control = [0; 256];
            let socket = self.socket;
            let got = self
                .posix
                .recvmsg(now, socket, &mut [], MSG_ERRQUEUE, &mut control);
            let mut rest = &control[..got.ok()?.control_len];
            while !rest.is_empty() {
                let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
                let len = word(0) as usize;
                if (word(8), word(12)) == (IPPROTO_IP as u32, IP_RECVERR as u32)
                    && rest[20] == SO_EE_ORIGIN_ZEROCOPY
                {
                    return Some((rest[22], word(24), word(28)));
                }
                rest = &rest[len.next_multiple_of(8)..];
            }
        }
    }

    fn ready(&mut self) -> Vec<Handle> {
        let mut out = Vec::new();
        self.posix.take_ready(&mut out);
        out
    }
}

/// A connection over a link that the test carries; its client lends memory.
struct Net {
    client: Side,
    server: Side,
    now: Instant,
}

impl Net {
    fn new() -> Self {
        let now = Instant::ZERO + Nanos::from_secs(1);
        let (client, mut server) = (Side::new(1), Side::new(2));
        let addr = SockAddr::V4("10.0.0.2:80".parse().unwrap());
        let listener = server.socket;
        server.posix.bind(now, listener, addr).unwrap();
        server.posix.listen(now, listener, 4).unwrap();
        let mut net = Self {
            client,
            server,
            now,
        };
        let socket = net.client.socket;
        let begun = net.client.posix.connect(now, socket, addr);
        assert_eq!(begun, Err(Errno::EINPROGRESS));
        net.carry();
        net.client.posix.connect(now, socket, addr).unwrap();
        net.server.socket = net.server.posix.accept4(listener, 0).unwrap().0;
        net.client.set(now, SOL_SOCKET, SO_ZEROCOPY, 1);
        net.client.ready();
        net
    }

    /// Carries packets until none are left.
    fn carry(&mut self) {
        loop {
            let there = self.client.transmit(self.now);
            let back = self.server.transmit(self.now);
            if there.is_empty() && back.is_empty() {
                return;
            }
            self.server.receive(self.now, there);
            self.client.receive(self.now, back);
        }
    }

    /// Advances the time by `span` and carries the resulting packets.
    fn advance(&mut self, span: Nanos) {
        self.now += span;
        for side in [&mut self.client, &mut self.server] {
            side.posix.host_mut().poll(self.now);
        }
        self.carry();
    }

    /// Reads all data that the server has received.
    fn read(&mut self) -> Vec<u8> {
        let (mut all, mut data) = (Vec::new(), vec![0; 100_000]);
        let Side { posix, socket, .. } = &mut self.server;
        while let Ok(got) = posix.recvmsg(self.now, *socket, &mut [&mut data], 0, &mut []) {
            all.extend_from_slice(&data[..got.len]);
        }
        all
    }
}

fn is_free(free: &AtomicBool) -> bool {
    free.load(Ordering::Relaxed)
}

#[test]
fn an_ack_alone_completes_nothing() {
    let mut net = Net::new();
    let (data, free) = memory(10_000);
    assert_eq!(net.client.lend(net.now, data), Ok(10_000));
    let packets = net.client.transmit(net.now);
    // A queue on the path still has the original packet when its retransmission arrives.
    let waiting = packets.clone();
    net.server.receive(net.now, packets);
    net.advance(Nanos::from_millis(100));
    // The peer on this machine has acknowledged the data, and has not read it.
    assert_eq!(net.client.completion(net.now), None);
    assert_eq!(net.read().len(), 10_000);
    assert_eq!(net.client.completion(net.now), None);
    assert!(!is_free(&free));
    net.client.ready();
    thread::spawn(move || drop(waiting)).join().unwrap();
    assert!(is_free(&free));
    let socket = net.client.socket;
    assert_eq!(net.client.ready(), [socket]);
    let events = net.client.posix.poll_events(socket);
    assert_eq!(events.map(|events| events & EPOLLERR), Ok(EPOLLERR));
    assert_eq!(net.client.completion(net.now), Some((0, 0, 0)));
    assert_eq!(net.client.completion(net.now), None);
}

#[test]
fn the_end_of_a_connection_alone_completes_nothing() {
    let mut net = Net::new();
    let (data, free) = memory(10_000);
    assert_eq!(net.client.lend(net.now, data), Ok(10_000));
    let waiting = net.client.transmit(net.now);
    let (client, now) = (net.client.socket, net.now);
    net.client
        .posix
        .connect(now, client, SockAddr::Unspec)
        .unwrap();
    assert_eq!(net.client.completion(now), None);
    assert!(!is_free(&free));
    drop(waiting);
    assert!(is_free(&free));
    assert_eq!(net.client.completion(now), Some((0, 0, 0)));
}

#[test]
fn completions_join_in_the_order_in_which_memory_returns() {
    let mut net = Net::new();
    let mut waiting = Vec::new();
    for _ in 0..4 {
        assert_eq!(net.client.lend(net.now, memory(2896).0), Ok(2896));
        waiting.push(net.client.transmit(net.now));
    }
    for packets in waiting.clone() {
        net.server.receive(net.now, packets);
    }
    net.advance(Nanos::from_millis(100));
    net.read();
    for first in [2, 0, 0, 0] {
        drop(waiting.remove(first));
    }
    let all: Vec<_> = std::iter::from_fn(|| net.client.completion(net.now)).collect();
    assert_eq!(all, [(0, 2, 2), (0, 0, 1), (0, 3, 3)]);
}

#[test]
fn loopback_data_is_copied() {
    let mut side = Side::new(1);
    let now = Instant::ZERO + Nanos::from_secs(1);
    let addr = SockAddr::V4("127.0.0.1:80".parse().unwrap());
    let listener = side.posix.socket(AF_INET, SOCK_STREAM, 0).unwrap();
    side.posix.bind(now, listener, addr).unwrap();
    side.posix.listen(now, listener, 4).unwrap();
    let client = side.socket;
    let begun = side.posix.connect(now, client, addr);
    assert_eq!(begun, Err(Errno::EINPROGRESS));
    side.posix.host_mut().poll(now);
    let (server, _) = side.posix.accept4(listener, 0).unwrap();
    side.set(now, SOL_SOCKET, SO_ZEROCOPY, 1);
    let (data, free) = memory(60_000);
    let expected = data.to_vec();
    let lent = side.lend(now, data).unwrap();
    assert_eq!(side.completion(now), None);
    side.posix.host_mut().poll(now);
    let later = now + Nanos::from_millis(100);
    side.posix.host_mut().poll(later);
    // The data was not read, and the lender does not have to wait for that.
    assert!(is_free(&free));
    let copied = SO_EE_CODE_ZEROCOPY_COPIED;
    assert_eq!(side.completion(later), Some((copied, 0, 0)));
    let (mut all, mut out) = (Vec::new(), vec![0; 100_000]);
    while let Ok(got) = side
        .posix
        .recvmsg(later, server, &mut [&mut out], 0, &mut [])
    {
        all.extend_from_slice(&out[..got.len]);
    }
    assert_eq!(all, expected[..lent]);
}

#[test]
fn a_completion_is_not_lost_among_timestamps() {
    let mut net = Net::new();
    let flags = SOF_TIMESTAMPING_TX_SCHED
        | SOF_TIMESTAMPING_TX_SOFTWARE
        | SOF_TIMESTAMPING_TX_ACK
        | SOF_TIMESTAMPING_SOFTWARE
        | SOF_TIMESTAMPING_OPT_ID;
    net.client
        .set(net.now, SOL_SOCKET, SO_TIMESTAMPING_OLD, flags as i32);
    let (now, client) = (net.now, net.client.socket);
    for _ in 0..1100 {
        let sent = net.client.posix.sendmsg(now, client, &[b"x"], 0, None, &[]);
        assert_eq!(sent, Ok(1));
    }
    let (data, free) = memory(3000);
    assert_eq!(net.client.lend(now, data), Ok(3000));
    net.carry();
    net.advance(Nanos::from_millis(100));
    assert_eq!(net.read().len(), 4100);
    assert!(is_free(&free));
    assert_eq!(net.client.completion(net.now), Some((0, 0, 0)));
}

#[test]
fn a_send_that_accepts_nothing_has_no_completion() {
    let mut net = Net::new();
    let mut lent = 0;
    let refused = loop {
        let (data, free) = memory(20_000);
        match net.client.lend(net.now, data) {
            Ok(_) => lent += 1,
            Err(error) => break (error, is_free(&free)),
        }
    };
    assert_eq!(refused, (Errno::EAGAIN, true));
    for _ in 0..200 {
        net.advance(Nanos::from_millis(10));
        net.read();
    }
    let client = net.client.socket;
    net.client.ready();
    assert_eq!(net.client.completion(net.now), Some((0, 0, lent - 1)));
    assert_eq!(net.client.lend(net.now, memory(10).0), Ok(10));
    net.carry();
    net.read();
    net.advance(Nanos::from_millis(100));
    assert_eq!(net.client.ready(), [client]);
    assert_eq!(net.client.completion(net.now), Some((0, lent, lent)));
}

#[test]
fn pending_zerocopy_completions_are_bounded() {
    let mut net = Net::new();
    let mut calls = 0;
    let refused = loop {
        // Every second call copies, so that their completions are not coalesced.
        let sent = if calls % 2 == 0 {
            net.client.lend(net.now, memory(10).0)
        } else {
            let (now, client) = (net.now, net.client.socket);
            let data = &[&b"0123456789"[..]];
            net.client
                .posix
                .sendmsg(now, client, data, MSG_ZEROCOPY, None, &[])
        };
        match sent {
            Ok(_) => calls += 1,
            Err(error) => break error,
        }
        assert!(calls < 10_000);
        net.advance(Nanos::from_millis(50));
        net.read();
    };
    assert_eq!(refused, Errno::ENOBUFS);
    assert!(net.client.completion(net.now).is_some());
    assert_eq!(net.client.lend(net.now, memory(10).0), Ok(10));
}
