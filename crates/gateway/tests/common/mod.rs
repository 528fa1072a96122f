//! A gateway between two network namespaces: the host's, with addresses on an interface that leads
//! nowhere, and the guest's, whose kernel uses a TAP.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fullsend_device::Tun;
use fullsend_gateway::namespace::{GuestSockets, Namespaces};
use fullsend_gateway::{Config, Gateway, Handle};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

/// Addresses of the host, which the guest reaches through the gateway.
pub(crate) const HOST: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// The guest's addresses.
pub(crate) const GUEST: [&str; 2] = ["10.0.2.100", "fd00::64"];
/// The gateway's addresses, which stand for the host's loopback.
pub(crate) const GATEWAY: [&str; 2] = ["10.0.2.2", "fd00::2"];
/// The addresses of the DNS relay.
pub(crate) const DNS: [&str; 2] = ["10.0.2.3", "fd00::3"];
/// The host's loopback addresses.
pub(crate) const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];

/// How long a test waits for something that must happen.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Returns `address` with a port.
pub(crate) fn with_port(address: &str, port: u16) -> std::net::SocketAddr {
    std::net::SocketAddr::new(address.parse().unwrap(), port)
}

/// Runs `ip` in the namespace of the current thread.
pub(crate) fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

type Job = Box<dyn FnOnce() + Send>;

/// The guest: a thread in its own network namespace.
pub(crate) struct Guest {
    jobs: mpsc::Sender<Job>,
}

impl Guest {
    /// Starts the thread, with a loopback interface only.
    pub(crate) fn start() -> Self {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ip("link set lo up");
            for job in queue {
                job();
            }
        });
        Self { jobs }
    }

    /// Runs `job` in the guest's namespace and returns its result. Threads that it starts are in
    /// the guest, too.
    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (result, received) = mpsc::channel();
        let job = Box::new(move || {
            let _ = result.send(job());
        });
        self.jobs.send(job).unwrap();
        received.recv().expect("the job in the guest panicked")
    }

    /// Starts `job` in a thread in the guest's namespace.
    pub(crate) fn spawn<R: Send + 'static>(
        &self,
        job: impl FnOnce() -> R + Send + 'static,
    ) -> thread::JoinHandle<R> {
        self.run(move || thread::spawn(job))
    }
}

/// A guest and its gateway.
pub(crate) struct Rig {
    pub(crate) guest: Guest,
    pub(crate) gateway: Handle,
}

/// Runs `test` in a host namespace with a gateway and a guest. Needs root.
pub(crate) fn with_gateway(config: Config, test: impl FnOnce(&Rig) + Send + 'static) {
    with_guest(config, true, test);
}

/// Runs `test` as [`with_gateway`] does. The guest has addresses and routes if `configured`.
pub(crate) fn with_guest(
    config: Config,
    configured: bool,
    test: impl FnOnce(&Rig) + Send + 'static,
) {
    with_parts(config, configured, |rig, run| {
        run();
        test(rig);
    });
}

/// Runs `test` as [`with_gateway`] does. The gateway runs when `test` calls its second argument.
pub(crate) fn with_waiting_gateway(
    config: Config,
    test: impl FnOnce(&Rig, &dyn Fn()) + Send + 'static,
) {
    with_parts(config, true, test);
}

/// Two guests, each with a gateway of its own, on one thread.
pub(crate) struct TwoRigs(pub(crate) [Rig; 2]);

/// Runs `test` in a host namespace with two guests whose gateways have the same settings. Needs root.
pub(crate) fn with_two_guests(config: Config, test: impl FnOnce(&TwoRigs) + Send + 'static) {
    in_host(move || {
        let guests = [(); 2].map(|()| start_guest(config.mtu, true));
        let (handles, started) = mpsc::channel();
        let [first, second] = guests.map(|(guest, device, sockets)| (guest, (device, sockets)));
        let parts = [first.1, second.1];
        let running = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let gateways = parts.map(|(device, sockets)| {
                    let builder = Gateway::builder().config(config.clone());
                    let builder = builder.device(Box::new(device)).guest_sockets(sockets);
                    builder.build().unwrap()
                });
                handles
                    .send(gateways.each_ref().map(Gateway::handle))
                    .unwrap();
                let [first, second] = gateways;
                let (first, second) = tokio::join!(first.run(), second.run());
                first.and(second).unwrap();
            });
        });
        let [a, b] = started.recv().expect("the gateways start");
        let rigs = TwoRigs([
            Rig {
                guest: first.0,
                gateway: a,
            },
            Rig {
                guest: second.0,
                gateway: b,
            },
        ]);
        test(&rigs);
        rigs.0.iter().for_each(|rig| rig.gateway.stop());
        running.join().expect("the gateways end");
    });
}

/// Runs `test` in a thread in the host's namespace.
fn in_host(test: impl FnOnce() + Send + 'static) {
    if !geteuid().is_root() {
        println!("skipped: needs root, for network namespaces and a TAP device");
        return;
    }
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        // Packets to the other hosts of its networks wait in its queue: no host answers.
        let _uplink = Tun::tun("up0").open().unwrap();
        ip(&format!("addr add {}/24 dev up0", HOST[0]));
        ip(&format!("addr add {}/64 dev up0 nodad", HOST[1]));
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn with_parts(
    config: Config,
    configured: bool,
    test: impl FnOnce(&Rig, &dyn Fn()) + Send + 'static,
) {
    in_host(move || {
        let (guest, device, sockets) = start_guest(config.mtu, configured);
        let (handle, started) = mpsc::channel();
        let (ended, end) = mpsc::channel();
        let (run, may_run) = tokio::sync::mpsc::unbounded_channel();
        thread::spawn(move || {
            run_gateway(config, (device, sockets), &handle, may_run);
            ended.send(()).unwrap();
        });
        let gateway: Handle = started.recv().expect("the gateway starts");
        let rig = Rig { guest, gateway };
        test(&rig, &|| run.send(()).unwrap());
        rig.gateway.stop();
        drop(rig);
        end.recv_timeout(LIMIT).expect("the gateway ends");
    });
}

fn run_gateway(
    config: Config,
    (device, sockets): (Tun, GuestSockets),
    started: &mpsc::Sender<Handle>,
    mut may_run: tokio::sync::mpsc::UnboundedReceiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let builder = Gateway::builder().config(config).device(Box::new(device));
        let gateway = builder.guest_sockets(sockets).build().unwrap();
        started.send(gateway.handle()).unwrap();
        may_run.recv().await.unwrap();
        gateway.run().await.unwrap();
    });
}

/// Starts the guest's thread, and opens its TAP and sockets in its namespace.
fn start_guest(mtu: u32, configured: bool) -> (Guest, Tun, GuestSockets) {
    let guest = Guest::start();
    let (tap, sockets) = guest.run(move || {
        let tap = Tun::tap("tap0").mtu(mtu).open().unwrap();
        if configured {
            configure("tap0");
        }
        let namespace = Namespaces::at_path("/proc/thread-self/ns/net".as_ref(), None).unwrap();
        (tap, GuestSockets::of(&namespace).unwrap())
    });
    (guest, tap, sockets)
}

/// Gives an interface the guest's addresses and routes.
pub(crate) fn configure(interface: &str) {
    ip(&format!("addr add {}/24 dev {interface}", GUEST[0]));
    ip(&format!("addr add {}/64 dev {interface} nodad", GUEST[1]));
    ip(&format!("route add default via {}", GATEWAY[0]));
    ip(&format!(
        "-6 route add default via {} dev {interface}",
        GATEWAY[1]
    ));
}

/// Returns bytes without repetition, so that any misplaced data shows.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Sends `data` and a FIN, and returns what the other side sends until its FIN.
pub(crate) fn exchange(stream: &TcpStream, data: Vec<u8>) -> Vec<u8> {
    let mut writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        writer.write_all(&data).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    (&mut &*stream).read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    received
}

/// Reads a DNS message from a TCP connection; `None` at its end.
pub(crate) fn read_framed(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut len = [0; 2];
    stream.read_exact(&mut len).ok()?;
    let mut message = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut message).ok()?;
    Some(message)
}

/// Writes a DNS message to a TCP connection.
pub(crate) fn write_framed(stream: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    let mut framed = (message.len() as u16).to_be_bytes().to_vec();
    framed.extend(message);
    stream.write_all(&framed)
}

/// Polls `condition` until it is true.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        thread::sleep(LIMIT / 2000);
    }
    panic!("{what}");
}
