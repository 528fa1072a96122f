//! smoltcp beside fullsend: two interfaces joined in one process, driven by one thread.
//!
//! Prints one JSON object a line for each test, with the keys of `fullsend perf --json` and the
//! test's `name`. Socket buffers and ACK delay are chosen by trying: each test is run briefly
//! with every choice, and measured with the best.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod link;
mod serve;
mod vnet;

use std::time::Instant as Clock;

use link::{End, Nic, link};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

const READ_MAX: usize = 128 << 10;

/// What is measured.
#[derive(Clone, Copy)]
enum Test {
    /// Writes of `message` bytes.
    Stream { message: usize, poll: Poll },
    /// Requests and responses of so many bytes over so many connections.
    Rr { size: usize, flows: usize },
}

/// When the interfaces are polled in a stream.
#[derive(Clone, Copy, PartialEq)]
enum Poll {
    /// Both after each write.
    EachWrite,
    /// The sender after each write, the receiver after 256, as a NIC that moderates its interrupts.
    /// `fullsend perf --api core` does the same.
    Moderated,
    /// Both when the send buffer is full.
    Full,
}

/// Writes between two polls of the receiver in [`Poll::Moderated`].
const MODERATION: usize = 256;

/// What is chosen by trying.
#[derive(Clone, Copy, Debug)]
struct Tuning {
    buffer: usize,
    ack_delay: bool,
}

struct Side {
    iface: Interface,
    device: End,
    sockets: SocketSet<'static>,
    handles: Vec<SocketHandle>,
}

impl Side {
    fn new(mut device: End, n: u8, flows: usize, tuning: Tuning) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = n.into();
        let mut iface = Interface::new(config, &mut device, Instant::ZERO);
        iface.update_ip_addrs(|all| {
            all.push(IpCidr::new(IpAddress::v4(10, 0, 0, n), 24))
                .expect("room for one address");
        });
        let mut sockets = SocketSet::new(Vec::with_capacity(flows));
        let buffer = || SocketBuffer::new(vec![0; tuning.buffer]);
        let handles = (0..flows).map(|_| {
            let mut socket = Socket::new(buffer(), buffer());
            if !tuning.ack_delay {
                socket.set_ack_delay(None);
            }
            sockets.add(socket)
        });
        let handles = handles.collect();
        Self {
            iface,
            device,
            sockets,
            handles,
        }
    }

    fn poll(&mut self, now: Instant) {
        self.iface.poll(now, &mut self.device, &mut self.sockets);
    }
}

struct Run {
    client: Side,
    server: Side,
    epoch: Clock,
    data: Vec<u8>,
    scratch: Vec<u8>,
}

impl Run {
    fn new(nic: Nic, flows: usize, tuning: Tuning) -> Self {
        let (a, b) = link(nic);
        let mut run = Self {
            client: Side::new(a, 1, flows, tuning),
            server: Side::new(b, 2, flows, tuning),
            epoch: Clock::now(),
            data: (0..READ_MAX).map(|i| i as u8).collect(),
            scratch: vec![0; READ_MAX],
        };
        for i in 0..flows {
            let port = 1000 + i as u16;
            let (c, s) = (run.client.handles[i], run.server.handles[i]);
            let server = run.server.sockets.get_mut::<Socket>(s);
            server.listen(port).expect("a fresh socket listens");
            let client = run.client.sockets.get_mut::<Socket>(c);
            let to = (IpAddress::v4(10, 0, 0, 2), port);
            client
                .connect(run.client.iface.context(), to, 40_000 + i as u16)
                .expect("a fresh socket connects");
        }
        while !run.established() {
            run.poll();
        }
        run
    }

    fn established(&self) -> bool {
        let all = |side: &Side| {
            let mut handles = side.handles.iter();
            handles.all(|&h| side.sockets.get::<Socket>(h).state() == State::Established)
        };
        all(&self.client) && all(&self.server)
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.epoch.elapsed().as_micros() as i64)
    }

    fn poll(&mut self) {
        let now = self.now();
        self.client.poll(now);
        self.server.poll(now);
    }

    /// Reads what the server has; bytes.
    fn drain(&mut self) -> usize {
        let handle = self.server.handles[0];
        let socket = self.server.sockets.get_mut::<Socket>(handle);
        let mut total = 0;
        while let Ok(n) = socket.recv_slice(&mut self.scratch)
            && n > 0
        {
            total += n;
        }
        total
    }

    /// One connection, one way; bytes received and seconds.
    fn stream(&mut self, message: usize, poll: Poll, seconds: f64) -> (u64, f64) {
        let handle = self.client.handles[0];
        let mut received = 0;
        let started = Clock::now();
        loop {
            let now = self.now();
            if started.elapsed().as_secs_f64() >= seconds {
                return (received, started.elapsed().as_secs_f64());
            }
            let writes = if poll == Poll::Moderated {
                MODERATION
            } else {
                64
            };
            // The clock is read once for all of them.
            for _ in 0..writes {
                let socket = self.client.sockets.get_mut::<Socket>(handle);
                let sent = socket.send_slice(&self.data[..message]).expect("open");
                match poll {
                    Poll::EachWrite => {
                        self.client.poll(now);
                        self.server.poll(now);
                        received += self.drain() as u64;
                    }
                    Poll::Moderated => self.client.poll(now),
                    Poll::Full => {}
                }
                if sent < message {
                    break;
                }
            }
            if poll == Poll::Full {
                let socket = self.client.sockets.get_mut::<Socket>(handle);
                if socket.can_send() && message < READ_MAX {
                    continue;
                }
            }
            self.client.poll(now);
            self.server.poll(now);
            received += self.drain() as u64;
            self.server.poll(now);
        }
    }

    /// Transactions and seconds.
    fn rr(&mut self, size: usize, seconds: f64) -> (u64, f64) {
        let flows = self.client.handles.len();
        // Bytes that each end has still to send and to read.
        let mut client = vec![(size, size); flows];
        let mut server = vec![(0, size); flows];
        let mut transactions = 0;
        let started = Clock::now();
        loop {
            let now = self.now();
            for (i, due) in client.iter_mut().enumerate() {
                let socket = self.client.sockets.get_mut(self.client.handles[i]);
                if step(socket, due, &self.data, &mut self.scratch) {
                    transactions += 1;
                    *due = (size, size);
                    step(socket, due, &self.data, &mut self.scratch);
                }
            }
            if started.elapsed().as_secs_f64() >= seconds {
                return (transactions, started.elapsed().as_secs_f64());
            }
            self.client.poll(now);
            self.server.poll(now);
            for (i, due) in server.iter_mut().enumerate() {
                let socket = self.server.sockets.get_mut(self.server.handles[i]);
                if step(socket, due, &self.data, &mut self.scratch) {
                    *due = (size, size);
                    step(socket, due, &self.data, &mut self.scratch);
                }
            }
            self.server.poll(now);
        }
    }
}

/// Sends and reads what is due; true once nothing is.
fn step(socket: &mut Socket, due: &mut (usize, usize), data: &[u8], scratch: &mut [u8]) -> bool {
    if due.0 > 0 && socket.can_send() {
        due.0 -= socket.send_slice(&data[..due.0]).expect("open");
    }
    while due.0 == 0 && due.1 > 0 && socket.can_recv() {
        due.1 -= socket.recv_slice(&mut scratch[..due.1]).expect("open");
    }
    *due == (0, 0)
}

/// Runs once; payload bytes, transactions, seconds.
fn measure(test: Test, nic: Nic, tuning: Tuning, seconds: f64) -> (u64, u64, f64) {
    match test {
        Test::Stream { message, poll } => {
            let mut run = Run::new(nic, 1, tuning);
            let (bytes, seconds) = run.stream(message, poll, seconds);
            (bytes, 0, seconds)
        }
        Test::Rr { size, flows } => {
            let mut run = Run::new(nic, flows, tuning);
            let (transactions, seconds) = run.rr(size, seconds);
            (transactions * 2 * size as u64, transactions, seconds)
        }
    }
}

fn best_tuning(test: Test, nic: Nic) -> Tuning {
    let buffers: &[usize] = match test {
        Test::Stream { .. } => &[64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20],
        Test::Rr { .. } => &[4 << 10, 8 << 10, 16 << 10, 64 << 10],
    };
    let mut best = (0, None);
    for &buffer in buffers {
        for ack_delay in [false, true] {
            let tuning = Tuning { buffer, ack_delay };
            let (bytes, _, seconds) = measure(test, nic, tuning, 0.08);
            let speed = (bytes as f64 / seconds) as u64;
            if speed >= best.0 {
                best = (speed, Some(tuning));
            }
        }
    }
    best.1.expect("at least one choice")
}

const TESTS: [(&str, Nic, Test); 14] = [
    (
        "stream-tso",
        Nic::Tso,
        Test::Stream {
            message: READ_MAX,
            poll: Poll::Full,
        },
    ),
    (
        "stream-jumbo",
        Nic::Jumbo,
        Test::Stream {
            message: READ_MAX,
            poll: Poll::Full,
        },
    ),
    (
        "stream-jumbo-checksums",
        Nic::JumboChecksums,
        Test::Stream {
            message: READ_MAX,
            poll: Poll::Full,
        },
    ),
    (
        "stream-mtu",
        Nic::MtuChecksums,
        Test::Stream {
            message: READ_MAX,
            poll: Poll::Full,
        },
    ),
    (
        "rr-1",
        Nic::Mtu,
        Test::Rr {
            size: 4096,
            flows: 1,
        },
    ),
    (
        "rr-1-tso",
        Nic::Tso,
        Test::Rr {
            size: 4096,
            flows: 1,
        },
    ),
    (
        "rr-200",
        Nic::Mtu,
        Test::Rr {
            size: 4096,
            flows: 200,
        },
    ),
    (
        "rr-200-tso",
        Nic::Tso,
        Test::Rr {
            size: 4096,
            flows: 200,
        },
    ),
    (
        "write-128",
        Nic::Jumbo,
        Test::Stream {
            message: 128,
            poll: Poll::EachWrite,
        },
    ),
    (
        "write-128-tso",
        Nic::Tso,
        Test::Stream {
            message: 128,
            poll: Poll::EachWrite,
        },
    ),
    (
        "write-128-moderated",
        Nic::Jumbo,
        Test::Stream {
            message: 128,
            poll: Poll::Moderated,
        },
    ),
    (
        "write-128-moderated-tso",
        Nic::Tso,
        Test::Stream {
            message: 128,
            poll: Poll::Moderated,
        },
    ),
    (
        "write-128-full",
        Nic::Jumbo,
        Test::Stream {
            message: 128,
            poll: Poll::Full,
        },
    ),
    (
        "write-128-full-tso",
        Nic::Tso,
        Test::Stream {
            message: 128,
            poll: Poll::Full,
        },
    ),
];

fn print(name: &str, test: Test, (bytes, transactions, seconds): (u64, u64, f64), tuning: Tuning) {
    let (kind, flows, rate) = match test {
        Test::Stream { .. } => ("stream", 1, "null".to_owned()),
        Test::Rr { flows, .. } => ("rr", flows, format!("{:.1}", transactions as f64 / seconds)),
    };
    println!(
        "{{\"name\":\"{name}\",\"test\":\"{kind}\",\"flows\":{flows},\"seconds\":{seconds:.6},\
         \"bytes\":{bytes},\"throughput_bps\":{:.0},\"transactions_per_s\":{rate},\
         \"latency_us\":null,\"cpu\":null,\"context_switches\":null,\"bytes_per_packet\":null,\
         \"counters\":null,\"buffer\":{},\"ack_delay\":{}}}",
        bytes as f64 * 8.0 / seconds,
        tuning.buffer,
        tuning.ack_delay,
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if let Some(command @ ("serve" | "serve-vnet")) = first.as_deref() {
        let rest: Vec<String> = args.collect();
        if let Err(error) = serve::run(&rest, command == "serve-vnet") {
            eprintln!("{error}");
            std::process::exit(1);
        }
        return;
    }
    let seconds: f64 = match first.map(|s| s.parse()) {
        None => 2.0,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => {
            eprintln!("usage: bench-smoltcp [SECONDS [NAME...]], as in `bench-smoltcp 2 rr-1`");
            eprintln!("       {}", serve::USAGE);
            std::process::exit(2);
        }
    };
    let wanted: Vec<String> = args.collect();
    for (name, nic, test) in TESTS {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            let tuning = best_tuning(test, nic);
            print(name, test, measure(test, nic, tuning, seconds), tuning);
        }
    }
    let unknown = |w: &&String| !TESTS.iter().any(|(name, _, _)| name == w);
    if let Some(name) = wanted.iter().find(unknown) {
        let names: Vec<&str> = TESTS.iter().map(|t| t.0).collect();
        eprintln!("no test is called `{name}`; there are {}", names.join(", "));
        std::process::exit(2);
    }
}
