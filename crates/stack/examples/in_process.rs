//! Two hosts in one thread, as fast as possible: the cost of the stack without devices, locks and
//! tasks.
//!
//! `cargo run --release -p fullsend-stack --example in_process -- [stream|rr|small|idle] [tso|mtu]
//! [seconds] [flows] [message]`

use std::time::Duration;

use fullsend_offload::{Caps, Checksum, Link, Packet};
use fullsend_stack::{
    Cidr, Host, HostConfig, IfaceConfig, IfaceId, ListenConfig, Mac, StackError, TcpId,
};
use fullsend_tcp::{SocketOption, Sysctl, TcpError};
use fullsend_wire::{Instant, Seed};

const IFACE: IfaceId = IfaceId(0);

struct Clock(std::time::Instant);

#[expect(clippy::disallowed_methods, reason = "this is the driver")]
impl Clock {
    fn start() -> Self {
        Self(std::time::Instant::now())
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

/// Returns the processor time of this thread in seconds, without that of other threads.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
    ns.unwrap_or(0.0) * 1e-9
}

struct Pair {
    hosts: [Host; 2],
    clock: Clock,
    now: Instant,
    mtu_nic: bool,
    frames: Vec<Packet>,
    /// Maximum number of super-segments carried at a time: few enough to stay in the cache.
    burst: usize,
}

impl Pair {
    fn new(mtu_nic: bool) -> Self {
        let hosts = [1u8, 2].map(|n| {
            let mut host = Host::new(HostConfig {
                seed: Seed::from_u64(n.into()),
                sysctl: Sysctl::default(),
                pool_bytes: 64 << 20,
            });
            let caps = if mtu_nic {
                Caps::plain(Link::Ip, 1500)
            } else {
                Caps::offloading(Link::Ip, 1500)
            };
            host.add_interface(IfaceConfig::new(caps, Mac([2, 0, 0, 0, 0, n])));
            let addr = Cidr {
                addr: [10, 0, 0, n].into(),
                prefix: 24,
            };
            host.add_address(Instant::ZERO, IFACE, addr)
                .expect("a new address");
            host
        });
        Self {
            hosts,
            clock: Clock::start(),
            now: Instant::from_nanos(1),
            mtu_nic,
            frames: Vec::new(),
            burst: std::env::var("BURST").map_or(4, |b| b.parse().expect("a number")),
        }
    }

    fn tick(&mut self) {
        self.now = self.clock.now();
        for host in &mut self.hosts {
            if host.poll_deadline().is_some_and(|at| at <= self.now) {
                host.poll(self.now);
            }
        }
    }

    /// Carries all packets that one host has to send to the other host. Returns whether there were
    /// any.
    fn carry(&mut self, from: usize) -> bool {
        let mut any = false;
        loop {
            self.hosts[from].transmit(self.now, IFACE, &mut self.frames, self.burst);
            if self.frames.is_empty() {
                return any;
            }
            for frame in &mut self.frames {
                self.hosts[from].complete(self.now, frame.tx);
                if self.mtu_nic {
                    frame.offload.checksum = Checksum::Unverified;
                }
            }
            self.hosts[1 - from].receive(self.now, IFACE, &mut self.frames);
            any = true;
        }
    }

    fn connect(&mut self, flows: usize) -> Vec<(TcpId, TcpId)> {
        let addr = "10.0.0.2:80".parse().expect("an address");
        let config = ListenConfig {
            backlog: 1024,
            defer_syn_ack: false,
            any_destination: false,
        };
        let listener = self.hosts[1].tcp_listen(addr, config).expect("a listener");
        let mut pairs = Vec::new();
        for _ in 0..flows {
            let now = self.clock.now();
            let client = self.hosts[0]
                .tcp_connect(now, None, addr)
                .expect("a connection");
            let server = loop {
                self.tick();
                self.carry(0);
                self.carry(1);
                if let Some(incoming) = self.hosts[1]
                    .listener(listener)
                    .accept()
                    .expect("a listener")
                {
                    break incoming.id;
                }
            };
            pairs.push((client, server));
        }
        pairs
    }
}

fn would_block<T: Default>(result: Result<T, StackError>) -> T {
    match result {
        Ok(value) => value,
        Err(StackError::Tcp(TcpError::WouldBlock)) => T::default(),
        Err(error) => panic!("{error}"),
    }
}

fn stream(pair: &mut Pair, flows: usize, message: usize, span: Duration) {
    let ids = pair.connect(flows);
    let data = vec![7; message];
    let mut buf = vec![0; 256 * 1024];
    let (mut bytes, mut writes) = (0u64, 0u64);
    let begin = pair.clock.now();
    let mut rounds = 0u64;
    let cpu = cpu_seconds();
    while Duration::from(pair.clock.now().since(begin)) < span {
        pair.tick();
        rounds += 1;
        for &(client, _) in &ids {
            // One burst of writes, then one poll of the driver, as with a writer in its own task.
            for _ in 0..(256 * 1024 / message).max(1) {
                let n = would_block(pair.hosts[0].tcp(client).write(pair.now, &data, false));
                if n == 0 {
                    break;
                }
                writes += 1;
            }
        }
        pair.carry(0);
        for &(_, server) in &ids {
            loop {
                let n = would_block(pair.hosts[1].tcp(server).read(pair.now, &mut buf));
                bytes += n as u64;
                if n < buf.len() {
                    break;
                }
            }
        }
        pair.carry(1);
    }
    let s = cpu_seconds() - cpu;
    println!(
        "stream: {:.1} Gbit, {:.2} M writes per CPU second, {rounds} rounds",
        bytes as f64 * 8e-9 / s,
        writes as f64 * 1e-6 / s
    );
}

fn rr(pair: &mut Pair, flows: usize, message: usize, span: Duration) {
    let ids = pair.connect(flows);
    let data = vec![7; message];
    let mut buf = vec![0; message];
    for &(client, server) in &ids {
        let on = SocketOption::TcpNodelay(true);
        pair.hosts[0]
            .tcp(client)
            .set_option(pair.now, on)
            .expect("an option");
        pair.hosts[1]
            .tcp(server)
            .set_option(pair.now, on)
            .expect("an option");
        would_block(pair.hosts[0].tcp(client).write(pair.now, &data, false));
    }
    let mut got = vec![[0; 2]; flows];
    let mut done = 0u64;
    let begin = pair.clock.now();
    let cpu = cpu_seconds();
    while Duration::from(pair.clock.now().since(begin)) < span {
        // A few flows at a time, so that the data written by one end is in the cache when the other
        // end reads it.
        for group in (0..flows).step_by(16) {
            let group = group..flows.min(group + 16);
            pair.tick();
            for side in [0, 1] {
                pair.carry(side);
                for i in group.clone() {
                    let (host, id) = [(1, ids[i].1), (0, ids[i].0)][side];
                    let host = &mut pair.hosts[host];
                    let n = would_block(host.tcp(id).read(pair.now, &mut buf));
                    got[i][side] += n;
                    if got[i][side] == message {
                        got[i][side] = 0;
                        done += u64::from(side == 1);
                        assert_eq!(host.tcp(id).write(pair.now, &data, false), Ok(message));
                    }
                }
            }
        }
    }
    let s = cpu_seconds() - cpu;
    println!(
        "rr: {:.0} k transactions per CPU second, {done} done",
        done as f64 * 1e-3 / s
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, default: &str| args.get(i).map_or(default.to_owned(), Clone::clone);
    let mut pair = Pair::new(arg(1, "tso") == "mtu");
    let span = Duration::from_secs_f64(arg(2, "2").parse().expect("seconds"));
    let flows = arg(3, "1").parse().expect("flows");
    match arg(0, "stream").as_str() {
        "stream" => stream(
            &mut pair,
            flows,
            arg(4, "131072").parse().expect("bytes"),
            span,
        ),
        "rr" => rr(
            &mut pair,
            flows,
            arg(4, "4096").parse().expect("bytes"),
            span,
        ),
        "small" => stream(&mut pair, flows, 128, span),
        other => panic!("`{other}` is not a test; write stream, rr or small"),
    }
    for (name, value) in pair.hosts[0].counters() {
        if value > 0 && std::env::var_os("COUNTERS").is_some() {
            println!("{name} {value}");
        }
    }
}
