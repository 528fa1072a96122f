//! The memory of a gateway whose guest tries to use up the host's: connections with large windows to a fast
//! server, which it never reads. The gateway is in a control group with little memory.

mod ended;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ended::Ended;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
/// The limit of the gateway's control group, bytes.
const GROUP_BYTES: u64 = 256 << 20;
/// The budget that follows from it, KiB.
const BUDGET_KIB: u64 = (GROUP_BYTES >> 10) / 4;
/// The program itself in memory, at most, KiB.
const PROGRAM_KIB: u64 = 24 << 10;
const CONNECTIONS: usize = 200;
/// Receive buffer of each of the guest's connections, bytes.
const RCVBUF: usize = 512 << 10;
/// Addresses of the host's loopback as guests see it.
const HOST: &str = "10.0.2.2";
const STEP: Duration = Duration::from_millis(50);
/// Steps of a wait before the test fails.
const STEPS: usize = 2400;
/// Steps without further data after which the gateway holds what it may.
const IDLE_STEPS: usize = 20;

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    for _ in 0..STEPS {
        if is_true() {
            return;
        }
        thread::sleep(STEP);
    }
    panic!("{what} does not happen");
}

/// A control group with a limit of its memory. It is removed with the value.
struct Group(PathBuf);

impl Group {
    /// Returns `None`, and prints the reason, if there is none here.
    fn new(name: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root for a control group and a network namespace");
            return None;
        }
        let name = format!("fullsend-{name}-{}", std::process::id());
        let hierarchies = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        for (hierarchy, limit) in hierarchies {
            let path = Path::new(hierarchy).join(&name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self(path);
            if fs::write(group.0.join(limit), GROUP_BYTES.to_string()).is_ok() {
                return Some(group);
            }
        }
        println!("skipped: no control group with the controller memory can be made here");
        None
    }

    /// Starts a program in the group.
    fn start(&self, arguments: &[&str]) -> Ended {
        let script = format!(
            "echo $$ >{}/cgroup.procs && exec \"$0\" \"$@\"",
            self.0.display()
        );
        let child = Command::new("sh")
            .args(["-c", &script, PROGRAM])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Ended(child.expect("sh starts"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes leave it some time after their end.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(STEP);
        }
    }
}

/// A server on the host's loopback that sends to all of its clients as fast as it can.
struct Source {
    port: u16,
    sent: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
}

impl Source {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sent, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (total, has_ended) = (sent.clone(), ended.clone());
        thread::spawn(move || {
            let (mut clients, data) = (Vec::new(), vec![7; 64 << 10]);
            while !has_ended.load(Ordering::Relaxed) {
                while let Ok((client, _)) = listener.accept() {
                    client.set_nonblocking(true).unwrap();
                    setsockopt(&client, sockopt::SndBuf, &(64 << 10)).unwrap();
                    clients.push(client);
                }
                clients.retain(|client| fill(client, &data, &total));
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self { port, sent, ended }
    }

    /// Waits until clients accept no more.
    fn wait_until_full(&self, gateway: &mut Ended) {
        let (mut last, mut idle) = (0, 0);
        wait_until("an end of the data", || {
            assert_eq!(gateway.0.try_wait().unwrap(), None, "the gateway has ended");
            let sent = self.sent.load(Ordering::Relaxed);
            idle = if sent == last { idle + 1 } else { 0 };
            last = sent;
            idle >= IDLE_STEPS
        });
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Writes until the socket accepts no more. Returns whether the connection still exists.
fn fill(mut client: &TcpStream, data: &[u8], total: &AtomicUsize) -> bool {
    loop {
        match client.write(data) {
            Ok(n) => {
                total.fetch_add(n, Ordering::Relaxed);
            }
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Runs `job` in a thread in the network of a process.
fn in_network_of<R: Send + 'static>(pid: u32, job: impl FnOnce() -> R + Send + 'static) -> R {
    let file = File::open(format!("/proc/{pid}/ns/net")).unwrap();
    let thread = thread::spawn(move || {
        setns(file, CloneFlags::CLONE_NEWNET).unwrap();
        job()
    });
    thread.join().expect("the job in the namespace panicked")
}

/// Opens the connections from the network of a process. They are never read.
fn connect_all(pid: u32, port: u16) -> Vec<TcpStream> {
    let to: SocketAddr = format!("{HOST}:{port}").parse().unwrap();
    in_network_of(pid, move || {
        let connect = |_| {
            let stream = TcpStream::connect(to)?;
            setsockopt(&stream, sockopt::RcvBufForce, &RCVBUF)?;
            Ok::<_, std::io::Error>(stream)
        };
        (0..CONNECTIONS).map_while(|n| connect(n).ok()).collect()
    })
}

/// Makes a new connection from the network of a process, and exchanges a few bytes.
fn check_service(pid: u32) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = [0; 5];
        client.read_exact(&mut request).unwrap();
        client.write_all(&request).unwrap();
    });
    let answer = in_network_of(pid, move || {
        let mut stream = TcpStream::connect(format!("{HOST}:{port}")).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.write_all(b"hello").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        answer
    });
    assert_eq!(&answer, b"hello");
    server.join().unwrap();
}

/// Returns a number of KiB from /proc/PID/status.
fn status_kib(pid: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let number = line.unwrap().trim().trim_end_matches("kB").trim();
    number.parse().unwrap()
}

/// Attacks a gateway from the network of a process, and checks its memory and its service.
fn attack(gateway: &mut Ended, guest: u32) {
    let network = in_network_of(guest, || {
        fs::read_to_string("/proc/thread-self/net/route").unwrap()
    });
    assert!(network.contains("tap0"), "{network}");
    let source = Source::start();
    let connections = connect_all(guest, source.port);
    source.wait_until_full(gateway);
    let peak = status_kib(gateway.0.id(), "VmHWM:");
    let sent = source.sent.load(Ordering::Relaxed) >> 20;
    println!(
        "{} connections, {sent} MiB sent, at most {peak} KiB",
        connections.len()
    );
    assert_eq!(connections.len(), CONNECTIONS);
    check_service(guest);
    assert!(peak < BUDGET_KIB + PROGRAM_KIB, "{peak} KiB");
}

/// Returns the process of a name among the descendants of a process.
fn descendant(of: u32, name: &str) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
    let children: Vec<u32> = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect();
    let is_named = |pid: &u32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|comm| comm.trim() == name)
    };
    let found = children.iter().copied().find(is_named);
    found.or_else(|| children.into_iter().find_map(|pid| descendant(pid, name)))
}

fn has_tap(pid: u32) -> bool {
    in_network_of(pid, || {
        let routes = fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
        routes.contains("tap0")
    })
}

/// A process in a network namespace of its own.
fn start_guest() -> Ended {
    let child = Command::new("unshare")
        .args(["--net", "sleep", "1000"])
        .spawn();
    let guest = Ended(child.expect("unshare starts"));
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let path = format!("/proc/{}/ns/net", guest.0.id());
    wait_until("a namespace", || {
        fs::read_link(&path).is_ok_and(|net| net != own)
    });
    guest
}

#[test]
fn a_sandboxed_slirp4netns_survives_a_guest_that_reads_nothing() {
    let Some(group) = Group::new("slirp4netns") else {
        return;
    };
    let guest = start_guest();
    let pid = guest.0.id();
    let options = "slirp4netns --configure --mtu=65520 --enable-sandbox --enable-seccomp";
    let mut arguments: Vec<_> = options.split(' ').collect();
    let pid_text = pid.to_string();
    arguments.extend([pid_text.as_str(), "tap0"]);
    let mut gateway = group.start(&arguments);
    wait_until("an interface", || has_tap(pid));
    attack(&mut gateway, pid);
}

#[test]
fn gateway_run_survives_a_command_that_reads_nothing() {
    let Some(group) = Group::new("run") else {
        return;
    };
    let mut gateway = group.start(&["gateway", "run", "--", "sleep", "1000"]);
    let mut pid = None;
    wait_until("a command", || {
        // Within its namespace the command has another number.
        pid = descendant(gateway.0.id(), "sleep");
        pid.is_some()
    });
    let pid = pid.unwrap();
    wait_until("an interface", || has_tap(pid));
    attack(&mut gateway, pid);
}
