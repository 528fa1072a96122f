//! Random socket calls at any time, on a bad link: no panic, no wrong byte, no leak.

mod common;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use common::{MODES, Scenario, netem, pair, pattern, piece};
use fullsend_sim::{HostId, NicConfig, Sim};
use fullsend_stack::{ListenConfig, ListenerId, SocketCursor, SocketInfo, TcpId};
use fullsend_tcp::{Linger, SocketOption, tcp_mem};
use fullsend_wire::{Instant, Nanos, Rng, Seed};

/// One end of a connection.
#[derive(Clone, Copy, Default)]
struct End {
    id: Option<TcpId>,
    wrote: u64,
    read: u64,
}

struct Conn {
    /// The client's address, which identifies it when it is accepted.
    client: SocketAddr,
    ends: [End; 2],
}

struct RandomCalls {
    rng: Rng,
    hosts: [HostId; 2],
    to: SocketAddr,
    listener: ListenerId,
    conns: Vec<Conn>,
    /// The data that clients and servers send.
    patterns: [Vec<u8>; 2],
}

impl RandomCalls {
    fn tick(&mut self, sim: &mut Sim) {
        let now = sim.now();
        while let Ok(Some(incoming)) = sim.host(self.hosts[1]).listener(self.listener).accept() {
            // A client's port may be reused: the newest connection has it.
            let found = self
                .conns
                .iter_mut()
                .rev()
                .find(|c| c.client == incoming.remote);
            found.expect("an accepted connection has a client").ends[1].id = Some(incoming.id);
        }
        for _ in 0..self.rng.below(6) {
            if self.conns.len() < 30 && self.rng.chance(0.2) {
                self.connect(sim);
            } else if !self.conns.is_empty() {
                let conn = self.rng.below(self.conns.len() as u64) as usize;
                let end = self.rng.below(2) as usize;
                self.act(sim, now, conn, end);
            }
        }
    }

    fn connect(&mut self, sim: &mut Sim) {
        let now = sim.now();
        let host = sim.host(self.hosts[0]);
        let id = host.tcp_connect(now, None, self.to).unwrap();
        let (client, _) = host.tcp(id).addrs().unwrap();
        let mut ends = [End::default(); 2];
        ends[0].id = Some(id);
        self.conns.push(Conn { client, ends });
    }

    /// Makes a random call on one end; calls that are not allowed now return errors.
    fn act(&mut self, sim: &mut Sim, now: Instant, conn: usize, end: usize) {
        let host = sim.host(self.hosts[end]);
        let state = &mut self.conns[conn].ends[end];
        let Some(id) = state.id else { return };
        match self.rng.below(32) {
            0..12 => {
                let len = 1 << self.rng.below(15);
                let data = piece(&self.patterns[end], state.wrote, len);
                let more = self.rng.chance(0.1);
                if let Ok(n) = host.tcp(id).write(now, data, more) {
                    state.wrote += n as u64;
                }
            }
            12..24 => {
                let mut buf = vec![0; 1 << self.rng.below(16)];
                if let Ok(n) = host.tcp(id).read(now, &mut buf) {
                    let expected = piece(&self.patterns[1 - end], state.read, n);
                    assert!(buf[..n] == *expected, "wrong bytes at {}", state.read);
                    state.read += n as u64;
                }
            }
            24 | 25 => drop(host.tcp(id).shutdown_write(now)),
            26 => drop(host.tcp(id).shutdown_read(now)),
            27 => {
                host.tcp(id).close(now);
                state.id = None;
            }
            28 => {
                host.tcp(id).abort(now);
                state.id = None;
            }
            _ => {
                let option = option(&mut self.rng);
                drop(host.tcp(id).set_option(now, option));
            }
        }
        let [client, server] = self.conns[conn].ends;
        assert!(client.read <= server.wrote && server.read <= client.wrote);
    }
}

fn option(rng: &mut Rng) -> SocketOption {
    let on = rng.chance(0.5);
    match rng.below(10) {
        0 => SocketOption::TcpNodelay(on),
        1 => SocketOption::TcpCork(on),
        2 => SocketOption::TcpQuickack(on),
        3 => SocketOption::TcpMaxseg(100 + rng.below(1000) as u16),
        4 => SocketOption::TcpNotsentLowat(1 << rng.below(20)),
        5 => SocketOption::SoKeepalive(on),
        6 => SocketOption::SoLinger(Linger::For(Nanos::from_millis(rng.below(3) * 500))),
        7 => SocketOption::SoSndbuf(1 << rng.below(20)),
        8 => SocketOption::SoRcvbuf(1 << rng.below(20)),
        _ => SocketOption::TcpUserTimeout(Nanos::from_secs(5 + rng.below(100))),
    }
}

/// Returns the bytes read on both sides, and the number of sides that came under memory pressure.
fn run(seed: u64) -> (u64, u64) {
    let mut rng = Rng::new(Seed::from_u64(seed ^ 0xc4a7));
    let (mode, v6) = MODES[rng.below(4) as usize];
    let spec = [
        "delay 1ms",
        "delay 10ms loss 5%",
        "delay 5ms 4ms loss 2% duplicate 2% corrupt 1%",
    ];
    let scenario = Scenario {
        seed,
        v6,
        nic: NicConfig {
            mode,
            ..NicConfig::default()
        },
        netem: netem(spec[rng.below(3) as usize]),
        ..Scenario::default()
    };
    let (mut sim, hosts) = pair(&scenario);
    let addr = if v6 { common::V6[1] } else { common::V4[1] };
    let to = SocketAddr::new(addr.parse().unwrap(), 80);
    let config = ListenConfig {
        backlog: 8,
        defer_syn_ack: false,
        any_destination: false,
    };
    let listener = sim.host(hosts[1]).tcp_listen(to, config).unwrap();
    let patterns = [pattern(0), pattern(1)];
    let mut calls = RandomCalls {
        rng,
        hosts,
        to,
        listener,
        conns: Vec::new(),
        patterns,
    };
    // Some scenarios have plenty of memory, others hardly any, and some none to share.
    let pages = [1 << 20, 200, 40, 2][calls.rng.below(4) as usize];
    for host in hosts {
        sim.host(host).sysctl_mut().tcp_mem = tcp_mem(pages * 4096);
    }
    for _ in 0..400 {
        calls.tick(&mut sim);
        for host in hosts {
            check_memory(&mut sim, host);
        }
        let next = sim.now() + Nanos::from_micros(1 << calls.rng.below(16));
        sim.run_to(next);
    }
    let now = sim.now();
    let read = calls
        .conns
        .iter()
        .flat_map(|c| c.ends)
        .map(|end| end.read)
        .sum();
    for conn in calls.conns {
        for (host, end) in hosts.into_iter().zip(conn.ends) {
            if let Some(id) = end.id {
                sim.host(host).tcp(id).close(now);
            }
        }
    }
    sim.host(hosts[1]).listener(listener).close(now);
    sim.run_to(now + Nanos::from_secs(3600));
    let mut pressed = 0;
    for host in hosts {
        let host = sim.host(host);
        let left = (
            host.tcp_socket_count(),
            host.tcp_time_wait_count(),
            host.tcp_unflushed_count(),
        );
        assert_eq!(left, (0, 0, 0), "left over an hour after the last close");
        assert_eq!(host.sockstat().mem, 0);
        pressed += u64::from(
            host.counters()
                .iter()
                .any(|(name, n)| *name == "TcpExtTCPMemoryPressures" && *n > 0),
        );
    }
    (read, pressed)
}

/// Checks that the host is charged for the memory that its connections hold, in units of 512 bytes.
fn check_memory(sim: &mut Sim, host: HostId) {
    let now = sim.now();
    let host = sim.host(host);
    let mut sockets = Vec::new();
    assert_eq!(
        host.sockets(now, SocketCursor::default(), 1 << 20, &mut sockets),
        None
    );
    let held = |socket: &SocketInfo| {
        let memory = socket.tcp.as_ref()?.memory;
        Some(memory.truesize.div_ceil(512))
    };
    let sum: u64 = sockets.iter().filter_map(held).sum();
    assert_eq!(host.sockstat().mem, sum.div_ceil(8));
}

#[test]
fn three_hundred_random_runs_leave_no_state() {
    let (mut read, mut pressed) = (0, 0);
    for seed in 0..300 {
        let result = catch_unwind(AssertUnwindSafe(|| run(seed)));
        let result = result.unwrap_or_else(|panic| {
            eprintln!("failed with seed {seed}");
            resume_unwind(panic)
        });
        read += result.0;
        pressed += result.1;
    }
    println!("{read} bytes read, {pressed} hosts under pressure");
    assert!(pressed > 200, "{pressed} hosts came under pressure");
    // The connections made progress.
    assert!(read > 5_000_000, "{read} bytes read");
}
