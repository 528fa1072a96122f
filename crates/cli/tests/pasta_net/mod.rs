//! Three network namespaces for tests of pasta: a host, another machine of its network, and a guest
//! without any network. Needs root.
//!
//! ```text
//! machine lan0 192.0.2.50 ---- up0 192.0.2.7 host          guest
//! ```
#![allow(dead_code, reason = "each test file uses some of it")]

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
/// The host's addresses on `up0`.
pub(crate) const HOST: [&str; 2] = ["192.0.2.7", "2001:db8::7"];
/// The addresses of the other machine.
pub(crate) const MACHINE: [&str; 2] = ["192.0.2.50", "2001:db8::50"];
/// The routers of the host's default routes, which do not exist.
pub(crate) const ROUTER: [&str; 2] = ["192.0.2.254", "2001:db8::fe"];
pub(crate) const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];
/// The host's resolver.
pub(crate) const RESOLVER: &str = "127.0.0.53";

/// How long a test waits for something that must happen.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Interval of repeated attempts.
const STEP: Duration = Duration::from_millis(100);

/// A process that holds a network namespace. It ends with the value.
pub(crate) struct Namespace(Child);

impl Namespace {
    /// Starts a guest, and if `user` in a user namespace.
    pub(crate) fn guest(user: bool) -> Self {
        if user {
            Self::start(&["--user", "--map-root-user", "--net"])
        } else {
            Self::start(&["--net"])
        }
    }

    /// Starts the process with these options of unshare(1).
    fn start(options: &[&str]) -> Self {
        let mut child = Command::new("unshare")
            .args(options)
            .args(["sh", "-c", "echo ready; exec sleep 1000"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns the path of one of the namespaces.
    pub(crate) fn path(&self, kind: &str) -> String {
        format!("/proc/{}/ns/{kind}", self.pid())
    }

    /// Runs a command in the network and returns its output.
    pub(crate) fn sh(&self, command: &str) -> String {
        let net = format!("--net={}", self.path("net"));
        let output = Command::new("nsenter")
            .args([&net, "sh", "-c", command])
            .output()
            .expect("nsenter starts");
        assert!(output.stderr.is_empty(), "{command}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `job` in a thread in the network, and returns its result.
    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let file = File::open(self.path("net")).unwrap();
        let thread = thread::spawn(move || {
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            job()
        });
        thread.join().expect("the job in the namespace panicked")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The namespaces. The test itself runs in the host's.
pub(crate) struct Net {
    pub(crate) machine: Namespace,
    folder: tempfile::TempDir,
}

/// Runs `test` in the host's namespace, or prints that it is skipped.
pub(crate) fn with_net(test: impl FnOnce(&Net) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root for network namespaces");
        return;
    }
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        let folder = tempfile::tempdir().expect("a folder");
        let resolvers = folder.path().join("resolv.conf");
        fs::write(&resolvers, format!("nameserver {RESOLVER}\n")).unwrap();
        let machine = Namespace::start(&["--net"]);
        sh(&format!(
            "mount --make-rprivate /
             mount --bind {resolvers} /etc/resolv.conf
             ip link set lo up
             ip link add up0 type veth peer name lan0 netns {machine}
             ip addr add {}/24 dev up0
             ip addr add {}/64 dev up0 nodad
             ip link set up0 up",
            HOST[0],
            HOST[1],
            resolvers = resolvers.display(),
            machine = machine.pid(),
        ));
        machine.sh(&format!(
            "ip link set lo up; ip link set lan0 up; ip addr add {}/24 dev lan0; \
             ip addr add {}/64 dev lan0 nodad",
            MACHINE[0], MACHINE[1]
        ));
        sh(&format!(
            "ip route add default via {}; ip route add 198.51.100.0/24 via {}
             ip -6 route add default via {} dev up0",
            ROUTER[0], MACHINE[0], ROUTER[1]
        ));
        let net = Net { machine, folder };
        let links = Command::new(PROGRAM)
            .args(["gateway", "install-links"])
            .arg(net.folder.path())
            .output();
        assert!(links.expect("the program starts").status.success());
        test(&net);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a script in the host's namespace; a failing command fails the test.
pub(crate) fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status();
    assert!(status.expect("sh starts").success(), "{script}");
}

impl Net {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Gives a guest's network a name, as Podman does, and returns its path.
    pub(crate) fn name_network(&self, guest: &Namespace) -> PathBuf {
        let path = self.path("netns");
        fs::write(&path, "").unwrap();
        sh(&format!(
            "mount --bind {} {}",
            guest.path("net"),
            path.display()
        ));
        path
    }

    /// Runs pasta, and reads its output to the end.
    pub(crate) fn pasta(&self, arguments: &str) -> Output {
        self.program("pasta", arguments)
    }

    pub(crate) fn program(&self, name: &str, arguments: &str) -> Output {
        Command::new(self.path(name))
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .output()
            .expect("the program starts")
    }

    /// Runs pasta as [`Self::pasta`] does, and returns the process that continues. Its output must be
    /// empty except for its report of the user.
    pub(crate) fn start_pasta(&self, arguments: &str) -> Pasta {
        self.start("pasta", arguments)
    }

    /// Does the same as [`Self::start_pasta`] with another program.
    pub(crate) fn start(&self, program: &str, arguments: &str) -> Pasta {
        let file = self.path("pid");
        let output = self.program(program, &format!("--pid {} {arguments}", file.display()));
        let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let user = format!("{program}: Started as root, will change to nobody.\n");
        let errors = texts[1].strip_prefix(&*user).unwrap_or(&texts[1]);
        assert_eq!(
            (output.status.code(), &*texts[0], errors),
            (Some(0), "", ""),
            "{program} {arguments}"
        );
        Pasta::of_file(&file)
    }
}

/// A pasta in the background, by its process ID.
pub(crate) struct Pasta(pub(crate) i32);

impl Pasta {
    /// Returns the process of a PID file.
    pub(crate) fn of_file(file: &Path) -> Self {
        let pid = fs::read_to_string(file).expect("a PID file");
        Self(pid.trim().parse().expect("a process ID"))
    }

    pub(crate) fn is_running(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        !status.is_empty() && !status.contains("State:\tZ")
    }

    pub(crate) fn wait_for_end(&self) {
        wait_until("the end of pasta", || !self.is_running());
    }

    pub(crate) fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(self.0);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM);
    }
}

impl Drop for Pasta {
    fn drop(&mut self) {
        self.terminate();
    }
}

pub(crate) fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    for _ in 0..LIMIT.as_millis() / STEP.as_millis() {
        if is_true() {
            return;
        }
        thread::sleep(STEP);
    }
    panic!("{what}: not within {LIMIT:?}");
}

pub(crate) fn with_port(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Answers each client at `at`, over TCP and UDP, with the port of `at` and the client's address.
pub(crate) fn serve(at: SocketAddr) {
    let tcp = TcpListener::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    let udp = UdpSocket::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    let answer = move |from: SocketAddr| format!("{} {}", at.port(), from.ip().to_canonical());
    thread::spawn(move || {
        for stream in tcp.incoming() {
            let mut stream = stream.unwrap();
            let from = stream.peer_addr().unwrap();
            let _ = stream.write_all(answer(from).as_bytes());
        }
    });
    thread::spawn(move || {
        let mut buf = [0; 512];
        loop {
            if let Ok((_, from)) = udp.recv_from(&mut buf) {
                let _ = udp.send_to(answer(from).as_bytes(), from);
            }
        }
    });
}

/// A transport protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Over {
    Tcp,
    Udp,
}

/// Returns the answer of a server of [`serve`].
pub(crate) fn ask(over: Over, to: SocketAddr) -> io::Result<String> {
    let mut answer = String::new();
    match over {
        Over::Tcp => {
            let mut stream = TcpStream::connect_timeout(&to, LIMIT)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.read_to_string(&mut answer)?;
        }
        Over::Udp => {
            let any: IpAddr = match to {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(LIMIT))?;
            socket.send(b"?")?;
            let mut buf = [0; 512];
            let len = socket.recv(&mut buf)?;
            answer.push_str(&String::from_utf8_lossy(&buf[..len]));
        }
    }
    Ok(answer)
}
