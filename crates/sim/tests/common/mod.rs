//! Two hosts that send each other known data.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses only some items"
)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use fullsend_sim::{HostId, LinkId, Netem, NicConfig, NicMode, Sim, TracePoint, format_packet};
use fullsend_stack::{Cidr, IfaceId, ListenConfig, StackError, TcpId};
use fullsend_tcp::TcpError;
use fullsend_wire::{Instant, Nanos, Rng, Seed};

pub const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
pub const V6: [&str; 2] = ["fd00::1", "fd00::2"];
pub const IFACE: IfaceId = IfaceId(0);

/// The parameters of a simulation.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub v6: bool,
    pub nic: NicConfig,
    /// Properties of the path from the client, and to it if `reverse` is `None`.
    pub netem: Netem,
    pub reverse: Option<Netem>,
    /// Changes of the path from the client, by time after the start; in order.
    pub changes: Vec<(Nanos, Netem)>,
    /// Probe the path's MTU (`tcp_mtu_probing`).
    pub probing: bool,
    /// SYN retries of both hosts.
    pub syn_retries: Option<u8>,
    /// Bytes from the client, and from the server.
    pub bytes: [u64; 2],
    pub congestion: &'static str,
    /// Time between polls of the sockets by the applications; zero: after every event.
    pub pause: Nanos,
    /// Bytes of receive buffer, as `tcp_rmem` of both hosts.
    pub rcvbuf: Option<u32>,
    /// Sysctls that are 0 on the client.
    pub disabled_sysctls: Vec<&'static str>,
}

/// The result of a simulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub trace_hash: u64,
    /// Time until both ends had received all data.
    pub took: Nanos,
    /// Retransmitted segments of the client and the server.
    pub retransmitted: [u64; 2],
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            seed: 1,
            v6: false,
            nic: NicConfig::default(),
            netem: netem("delay 5ms rate 1gbit"),
            reverse: None,
            changes: Vec::new(),
            probing: false,
            syn_retries: None,
            bytes: [1 << 20, 1 << 20],
            congestion: "cubic",
            pause: Nanos::ZERO,
            rcvbuf: None,
            disabled_sysctls: Vec::new(),
        }
    }
}

pub fn netem(spec: &str) -> Netem {
    spec.parse().unwrap()
}

pub const MODES: [(NicMode, bool); 4] = [
    (NicMode::Tso, false),
    (NicMode::Tso, true),
    (NicMode::Mtu, false),
    (NicMode::Mtu, true),
];

/// Period of a stream in bytes: a prime, so that a shift by the length of any buffer or segment is
/// detected.
const PERIOD: usize = 65_521;

/// Returns two periods of a stream, so that any piece up to a period long is contiguous.
pub fn pattern(stream: u64) -> Vec<u8> {
    let mut rng = Rng::new(Seed::from_u64(stream));
    let once: Vec<u8> = (0..PERIOD).map(|_| rng.next_u32() as u8).collect();
    once.repeat(2)
}

pub fn piece(pattern: &[u8], offset: u64, len: usize) -> &[u8] {
    &pattern[(offset % PERIOD as u64) as usize..][..len]
}

/// One end of the connection, with its application.
pub struct Endpoint {
    host: HostId,
    pub id: Option<TcpId>,
    /// The data that the end sends, and the data that it expects.
    patterns: [Vec<u8>; 2],
    to_send: u64,
    sent: u64,
    to_receive: u64,
    received: u64,
    eof: bool,
    shut: bool,
}

impl Endpoint {
    fn new(scenario: &Scenario, hosts: [HostId; 2], i: usize) -> Self {
        Self {
            host: hosts[i],
            id: None,
            patterns: [pattern(i as u64), pattern(1 - i as u64)],
            to_send: scenario.bytes[i],
            sent: 0,
            to_receive: scenario.bytes[1 - i],
            received: 0,
            eof: false,
            shut: false,
        }
    }

    fn begin(&mut self, sim: &mut Sim, id: TcpId, scenario: &Scenario) {
        self.id = Some(id);
        let now = sim.now();
        let host = sim.host(self.host);
        host.tcp(id)
            .set_congestion(now, scenario.congestion)
            .unwrap();
    }

    fn state(&self) -> String {
        format!(
            "{} of {} sent, {} of {} got",
            self.sent, self.to_send, self.received, self.to_receive
        )
    }

    /// Writes and reads as much as possible; returns whether all data was sent and received.
    pub fn poll(&mut self, sim: &mut Sim) -> bool {
        let Some(id) = self.id else { return false };
        let now = sim.now();
        let host = sim.host(self.host);
        let mut buf = [0; 16 << 10];
        while self.sent < self.to_send {
            let n = (self.to_send - self.sent).min(buf.len() as u64) as usize;
            let data = piece(&self.patterns[0], self.sent, n);
            match host.tcp(id).write(now, data, false) {
                Ok(n) => self.sent += n as u64,
                Err(StackError::Tcp(TcpError::WouldBlock)) => break,
                Err(error) => panic!("write at {} of {}: {error}", self.sent, self.to_send),
            }
        }
        if self.sent == self.to_send && !self.shut {
            host.tcp(id).shutdown_write(now).unwrap();
            self.shut = true;
        }
        while !self.eof {
            match host.tcp(id).read(now, &mut buf) {
                Ok(0) => {
                    assert_eq!(self.received, self.to_receive, "the stream ended early");
                    self.eof = true;
                }
                Ok(n) => self.check(&buf[..n]),
                Err(StackError::Tcp(TcpError::WouldBlock)) => break,
                Err(error) => panic!("read at {} of {}: {error}", self.received, self.to_receive),
            }
        }
        self.shut && self.eof
    }

    fn check(&mut self, bytes: &[u8]) {
        let expected = piece(&self.patterns[1], self.received, bytes.len());
        if let Some(at) = bytes.iter().zip(expected).position(|(a, b)| a != b) {
            panic!(
                "byte {} of {} is wrong",
                self.received + at as u64,
                self.to_receive
            );
        }
        self.received += bytes.len() as u64;
    }
}

/// Runs a scenario; if it fails, prints it with its seed, and its last packets. With
/// `FULLSEND_TRACE` set, prints every packet.
pub fn run(scenario: &Scenario) -> Outcome {
    let all = std::env::var_os("FULLSEND_TRACE").is_some();
    let watch = |sim: &mut Sim| show_packets(sim, scenario);
    let result = catch_unwind(AssertUnwindSafe(|| {
        run_once(scenario, |sim| {
            if all {
                watch(sim);
            }
        })
    }));
    result.unwrap_or_else(|panic| {
        let lines = Rc::new(RefCell::new(VecDeque::new()));
        let again = catch_unwind(AssertUnwindSafe(|| {
            run_once(scenario, |sim| keep_lines(sim, scenario, lines.clone()))
        }));
        eprintln!("failed with {scenario:?}; its last packets:");
        lines.borrow().iter().for_each(|line| eprintln!("{line}"));
        if again.is_ok() {
            eprintln!("and it did NOT fail again: the run is not repeatable");
        }
        resume_unwind(panic)
    })
}

type Lines = Rc<RefCell<VecDeque<String>>>;

fn show_packets(sim: &mut Sim, scenario: &Scenario) {
    let link = scenario.nic.link;
    sim.set_observer(move |event| {
        if event.point != TracePoint::Queued {
            println!("{}", format_packet(event, link));
        }
    });
}

/// Returns two hosts with addresses, connected by a cable.
pub fn pair(scenario: &Scenario) -> (Sim, [HostId; 2]) {
    let mut sim = Sim::new(Seed::from_u64(scenario.seed));
    let hosts = [sim.add_host(), sim.add_host()];
    let reverse = scenario.reverse.unwrap_or(scenario.netem);
    sim.connect(hosts, scenario.nic, [scenario.netem, reverse]);
    for (i, host) in hosts.into_iter().enumerate() {
        for (addr, prefix) in [(V4[i], 24), (V6[i], 64)] {
            let addr = addr.parse().unwrap();
            let cidr = Cidr { addr, prefix };
            sim.host(host)
                .add_address(Instant::ZERO, IFACE, cidr)
                .unwrap();
        }
    }
    (sim, hosts)
}

fn keep_lines(sim: &mut Sim, scenario: &Scenario, lines: Lines) {
    const KEPT: usize = 80;
    let link = scenario.nic.link;
    sim.set_observer(move |event| {
        if event.point == TracePoint::Queued {
            return;
        }
        let mut lines = lines.borrow_mut();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(format_packet(event, link));
    });
}

fn run_once(scenario: &Scenario, prepare: impl Fn(&mut Sim)) -> Outcome {
    let (mut sim, hosts) = pair(scenario);
    prepare(&mut sim);
    let addr = if scenario.v6 { V6[1] } else { V4[1] };
    let to = SocketAddr::new(addr.parse().unwrap(), 80);
    let config = ListenConfig {
        backlog: 8,
        defer_syn_ack: false,
        any_destination: false,
    };
    if let Some(bytes) = scenario.rcvbuf {
        let rmem = format!("{bytes} {bytes} {bytes}");
        for host in hosts {
            let sysctl = sim.host(host).sysctl_mut();
            sysctl
                .set("tcp_congestion_control", scenario.congestion)
                .unwrap();
            sysctl.set("net.ipv4.tcp_rmem", &rmem).unwrap();
        }
    }
    for host in hosts {
        let sysctl = sim.host(host).sysctl_mut();
        sysctl
            .set("tcp_congestion_control", scenario.congestion)
            .unwrap();
        if let Some(retries) = scenario.syn_retries {
            for name in ["tcp_syn_retries", "tcp_synack_retries"] {
                sysctl.set(name, &retries.to_string()).unwrap();
            }
        }
        if scenario.probing {
            sysctl.set("tcp_mtu_probing", "1").unwrap();
        }
    }
    for name in &scenario.disabled_sysctls {
        sim.host(hosts[0]).sysctl_mut().set(name, "0").unwrap();
    }
    // Waits for duplicate address detection on Ethernet.
    sim.run_to(Instant::ZERO + Nanos::from_secs(3));
    let start = sim.now();
    let listener = sim.host(hosts[1]).tcp_listen(to, config).unwrap();
    let mut ends = [0, 1].map(|i| Endpoint::new(scenario, hosts, i));
    let client = sim.host(hosts[0]).tcp_connect(start, None, to).unwrap();
    ends[0].begin(&mut sim, client, scenario);
    let mut poll_apps = |sim: &mut Sim| {
        if ends[1].id.is_none()
            && let Some(incoming) = sim.host(hosts[1]).listener(listener).accept().unwrap()
        {
            ends[1].begin(sim, incoming.id, scenario);
        }
        let finished = [0, 1].map(|i| ends[i].poll(sim));
        finished[0] && finished[1]
    };
    let end = (start + Nanos::from_secs(3600), None);
    let changes = scenario.changes.iter();
    let changes = changes.map(|(after, netem)| (start + *after, Some(*netem)));
    let done = changes.chain([end]).any(|(until, netem)| {
        let done = work(&mut sim, scenario.pause, until, &mut poll_apps);
        if let Some(netem) = netem {
            sim.set_netem(LinkId(0), hosts[0], netem);
        }
        done
    });
    let state = ends.each_ref().map(Endpoint::state);
    assert!(
        done,
        "stuck at {:?}: client {}; server {}",
        sim.now(),
        state[0],
        state[1]
    );
    let took = sim.now().since(start);
    finish(&mut sim, hosts, &ends);
    Outcome {
        trace_hash: sim.trace_hash(),
        took,
        retransmitted: hosts.map(|host| counter(&mut sim, host, "TcpRetransSegs")),
    }
}

/// Runs the applications until `poll_apps` returns that they are done, or until `until`.
fn work(
    sim: &mut Sim,
    pause: Nanos,
    until: Instant,
    mut poll_apps: impl FnMut(&mut Sim) -> bool,
) -> bool {
    if pause == Nanos::ZERO {
        return sim.run_until(until, poll_apps);
    }
    while !poll_apps(sim) {
        if sim.now() >= until {
            return false;
        }
        let next = (sim.now() + pause).min(until);
        sim.run_to(next);
    }
    true
}

/// Closes both ends, and checks that neither host has state of the connection left.
fn finish(sim: &mut Sim, hosts: [HostId; 2], ends: &[Endpoint; 2]) {
    let now = sim.now();
    for end in ends {
        if let Some(id) = end.id {
            sim.host(end.host).tcp(id).close(now);
        }
    }
    let gone = sim.run_until(now + Nanos::from_secs(1200), |sim| {
        hosts.iter().all(|host| {
            let host = sim.host(*host);
            host.tcp_socket_count() == 0 && host.tcp_time_wait_count() == 0
        })
    });
    let left = hosts.map(|host| {
        let host = sim.host(host);
        (host.tcp_socket_count(), host.tcp_time_wait_count())
    });
    assert!(gone, "connections and TIME-WAITs left: {left:?}");
    for host in hosts {
        let stat = sim.host(host).sockstat();
        assert_eq!((stat.orphan, stat.mem), (0, 0), "memory is given back");
    }
}

pub fn counter(sim: &mut Sim, host: HostId, name: &str) -> u64 {
    let all = sim.host(host).counters();
    let found = all.iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}
