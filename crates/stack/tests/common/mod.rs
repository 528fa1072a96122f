//! Two hosts on one link, in virtual time. There is no loss unless a test adds it.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses only some items"
)]

pub mod forge;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use fullsend_offload::{Caps, Checksum, Link, Packet, Slice};
use fullsend_stack::{
    Cidr, Host, HostConfig, IfaceConfig, IfaceId, ListenConfig, ListenerId, Mac, StackError, TcpId,
};
use fullsend_tcp::{State, Sysctl, TcpError};
use fullsend_wire::{Instant, Nanos, Seed};

pub const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
pub const V6: [&str; 2] = ["fd00::1", "fd00::2"];

/// The offloads of the hosts' devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nic {
    /// Super-segments are carried whole.
    Tso,
    /// Packets of at most the MTU are carried as bytes, with checksums that are verified.
    Mtu,
}

/// Packets in flight in one direction, with their arrival times.
type Wire = VecDeque<(Instant, Packet)>;

/// Inspects each packet that a host (the first argument) sends. Returning `false` drops it.
type Filter = Box<dyn FnMut(usize, &mut Packet) -> bool>;

pub struct Net {
    pub hosts: [Host; 2],
    pub now: Instant,
    pub delay: Nanos,
    pub filter: Option<Filter>,
    nic: Nic,
    wires: [Wire; 2],
    /// Number of packets carried, by sender.
    pub crossed: [usize; 2],
}

/// Maximum number of steps at one instant, and in one wait of a test.
const MAX_STEPS_AT_ONCE: u32 = 100_000;
const MAX_STEPS: u64 = 20_000_000;

pub const IFACE: IfaceId = IfaceId(0);

pub fn config(link: Link, nic: Nic, host: u8) -> IfaceConfig {
    let caps = match nic {
        Nic::Tso => Caps::offloading(link, 1500),
        Nic::Mtu => Caps::plain(link, 1500),
    };
    IfaceConfig::new(caps, Mac([2, 0, 0, 0, 0, host]))
}

pub fn host(seed: u64) -> Host {
    Host::new(HostConfig {
        seed: Seed::from_u64(seed),
        sysctl: Sysctl::default(),
        pool_bytes: 16 << 20,
    })
}

impl Net {
    pub fn new(link: Link, nic: Nic) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let hosts = [0, 1].map(|i| {
            let mut host = host(i as u64 + 1);
            let iface = host.add_interface(config(link, nic, i as u8 + 1));
            for (addr, prefix) in [(V4[i], 24), (V6[i], 64)] {
                let addr = addr.parse().unwrap();
                host.add_address(now, iface, Cidr { addr, prefix }).unwrap();
            }
            host
        });
        let mut net = Self {
            hosts,
            now,
            delay: Nanos::from_micros(10),
            filter: None,
            nic,
            wires: [Wire::new(), Wire::new()],
            crossed: [0; 2],
        };
        // Duplicate address detection takes a second on Ethernet.
        net.run_for(Nanos::from_secs(3));
        net
    }

    /// Returns a packet as the receiving host's device yields it.
    fn as_frame(&self, packet: &Packet) -> Packet {
        match self.nic {
            Nic::Tso => {
                let mut frame = Packet {
                    header: packet.header.clone(),
                    payload: packet.payload.clone(),
                    ..Packet::default()
                };
                frame.offload = packet.offload;
                frame
            }
            Nic::Mtu => {
                assert!(packet.offload.gso_segs <= 1);
                assert_ne!(packet.offload.checksum, Checksum::Partial);
                assert!(packet.len() <= 1514);
                Packet::from_frame(Slice::copied_from(&packet.to_bytes()))
            }
        }
    }

    /// Lets both hosts send, and delivers the packets that have arrived. Returns `false` if there
    /// were none.
    pub fn step(&mut self) -> bool {
        let mut moved = false;
        for me in 0..2 {
            let mut out = Vec::new();
            self.hosts[me].transmit(self.now, IFACE, &mut out, 64);
            for mut packet in out {
                moved = true;
                let frame = self.as_frame(&packet);
                self.hosts[me].complete(self.now, packet.tx);
                if self.filter.as_mut().is_none_or(|f| f(me, &mut packet)) {
                    self.crossed[me] += 1;
                    self.wires[me].push_back((self.now + self.delay, frame));
                }
            }
        }
        for me in 0..2 {
            let mut frames = Vec::new();
            while let Some((at, _)) = self.wires[1 - me].front()
                && *at <= self.now
            {
                frames.extend(self.wires[1 - me].pop_front().map(|(_, frame)| frame));
            }
            moved |= !frames.is_empty();
            self.hosts[me].receive(self.now, IFACE, &mut frames);
            assert!(frames.is_empty());
        }
        moved
    }

    /// Returns when the next packet arrives or the next timer fires.
    fn next_event(&self) -> Option<Instant> {
        let wires = self
            .wires
            .iter()
            .filter_map(|w| w.front().map(|(at, _)| *at));
        let timers = self.hosts.iter().filter_map(Host::poll_deadline);
        wires.chain(timers).min()
    }

    pub fn poll(&mut self) {
        for host in &mut self.hosts {
            host.poll(self.now);
        }
    }

    /// Runs until `done` returns `true`, but at most for `limit` of virtual time. Returns whether
    /// it is done.
    pub fn run_until(&mut self, limit: Nanos, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        let (mut since, mut steps, mut all) = (self.now, 0, 0u64);
        loop {
            if done(self) {
                return true;
            }
            // Hosts that answer each other or set timers without end fail their test.
            (since, steps) = (self.now, if self.now > since { 0 } else { steps + 1 });
            all += 1;
            assert!(steps < MAX_STEPS_AT_ONCE, "time stands still at {since:?}");
            assert!(all < MAX_STEPS, "no end at {since:?}");
            if self.step() {
                continue;
            }
            match self.next_event() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => {
                    self.now = end;
                    self.poll();
                    return done(self);
                }
            }
            self.poll();
        }
    }

    pub fn run_for(&mut self, span: Nanos) {
        self.run_until(span, |_| false);
    }

    pub fn listen(&mut self, who: usize, at: &str) -> ListenerId {
        self.listen_with(who, at, 16)
    }

    pub fn listen_with(&mut self, who: usize, at: &str, backlog: usize) -> ListenerId {
        let config = ListenConfig {
            backlog,
            defer_syn_ack: false,
            any_destination: false,
        };
        self.hosts[who]
            .tcp_listen(at.parse().unwrap(), config)
            .unwrap()
    }

    /// Connects host 0 to host 1. Returns both ends, which are established, and the listener.
    pub fn connect(&mut self, to: &str) -> (TcpId, TcpId, ListenerId) {
        let listener = self.listen(1, to);
        let (client, server) = self.connect_to(listener, to);
        (client, server, listener)
    }

    pub fn connect_to(&mut self, listener: ListenerId, to: &str) -> (TcpId, TcpId) {
        let client = self.hosts[0]
            .tcp_connect(self.now, None, to.parse().unwrap())
            .unwrap();
        let mut server = None;
        let done = self.run_until(Nanos::from_secs(10), |net| {
            server = server.or_else(|| net.hosts[1].listener(listener).accept().unwrap());
            server.is_some() && net.hosts[0].tcp(client).state() == Ok(State::Established)
        });
        assert!(done, "no connection");
        let server = server.unwrap();
        let (local, remote) = self.hosts[0].tcp(client).addrs().unwrap();
        assert_eq!((server.remote, server.local), (local, remote));
        (client, server.id)
    }

    /// Writes `data` on one end and reads it on the other.
    pub fn transfer(&mut self, from: (usize, TcpId), to: (usize, TcpId), data: &[u8]) {
        let mut sent = 0;
        let mut got = Vec::new();
        let mut buf = vec![0; 100_000];
        let done = self.run_until(Nanos::from_secs(100), |net| {
            while sent < data.len() {
                let end = data.len().min(sent + 128 * 1024);
                match net.hosts[from.0]
                    .tcp(from.1)
                    .write(net.now, &data[sent..end], false)
                {
                    Ok(n) => sent += n,
                    Err(StackError::Tcp(TcpError::WouldBlock)) => break,
                    Err(error) => panic!("write: {error}"),
                }
            }
            loop {
                match net.hosts[to.0].tcp(to.1).read(net.now, &mut buf) {
                    Ok(0) | Err(StackError::Tcp(TcpError::WouldBlock)) => break,
                    Ok(n) => got.extend_from_slice(&buf[..n]),
                    Err(error) => panic!("read: {error}"),
                }
            }
            got.len() >= data.len()
        });
        assert!(done, "{} of {} bytes came", got.len(), data.len());
        assert!(got == data, "what came differs from what was sent");
    }

    pub fn counter(&self, who: usize, name: &str) -> u64 {
        counter(&self.hosts[who], name)
    }
}

/// Returns a counter of a host.
pub fn counter(host: &Host, name: &str) -> u64 {
    let all = host.counters();
    let found = all.iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}

pub fn bytes(n: usize) -> Vec<u8> {
    let mut x = 1u32;
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        })
        .collect()
}

/// A waker that counts how often it is woken.
#[derive(Default)]
pub struct Count(AtomicUsize);

impl Count {
    pub fn waker() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        (count.clone(), Waker::from(count))
    }

    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Wakes the tasks whose wakers the host yields.
pub fn wake_all(host: &mut Host) {
    let mut wakers = Vec::new();
    host.take_wakers(&mut wakers);
    wakers.into_iter().for_each(Waker::wake);
}
