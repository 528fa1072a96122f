//! The gateway's programs against this machine's kernel: each in namespaces that the test makes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
/// 100 ms steps of a wait, before the test fails.
const STEPS: usize = 300;

/// A process that holds a network namespace; it ends with the test.
struct Guest(Child);

impl Guest {
    /// Returns `None`, and prints the reason, if namespaces cannot be made here.
    fn start() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root for a network namespace");
            return None;
        }
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(Self(child))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Runs a command in the guest's network, and returns its output.
    fn run(&self, command: &str) -> String {
        let output = Command::new("nsenter")
            .args(["--net", "--target", &self.pid(), "sh", "-c", command])
            .output()
            .expect("nsenter starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that is removed with the test, and links named like the programs in it.
struct Links(tempfile::TempDir);

impl Links {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let output = Command::new(PROGRAM)
            .args(["gateway", "install-links"])
            .arg(folder.path())
            .output()
            .expect("the program starts");
        assert!(output.status.success(), "{output:?}");
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, program: &str, arguments: &str) -> Output {
        Command::new(self.path(program))
            .args(arguments.split_whitespace())
            .output()
            .expect("the program starts")
    }
}

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    for _ in 0..STEPS {
        if is_true() {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("{what}: not within {} s", STEPS / 10);
}

/// Waits for the end of a process, which may be a child that no process waits for.
fn wait_for_end(pid: &str) {
    wait_until(&format!("the end of {pid}"), || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.is_empty() || status.contains("State:\tZ")
    });
}

fn api(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("the API socket");
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Serves one HTTP client after another on the host's loopback; returns the port.
fn web_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 1000];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    port
}

#[test]
fn links_are_made_and_other_programs_are_not_replaced() {
    let links = Links::new();
    assert!(links.path("slirp4netns").is_symlink() && links.path("pasta").is_symlink());
    let again = Command::new(PROGRAM)
        .args(["gateway", "install-links"])
        .arg(links.0.path())
        .output();
    assert!(
        again.unwrap().status.success(),
        "links to this program are replaced"
    );
    fs::remove_file(links.path("pasta")).unwrap();
    fs::write(links.path("pasta"), "another program").unwrap();
    let refused = Command::new(PROGRAM)
        .args(["gateway", "install-links"])
        .arg(links.0.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("is another program"), "{text}");
    assert_eq!(fs::read(links.path("pasta")).unwrap(), b"another program");
}

#[test]
fn wrong_options_are_reported_in_the_words_of_the_c_library() {
    let links = Links::new();
    for program in ["slirp4netns", "pasta"] {
        let output = links.run(program, "--no-such-option");
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let want = format!("{program}: unrecognized option '--no-such-option'\n");
        assert!(text.starts_with(&want), "{text}");
    }
    for arguments in [
        "pasta --version",
        "pasta --host-lo-to-ns-lo --version",
        "slirp4netns -v",
    ] {
        let (program, rest) = arguments.split_once(' ').unwrap();
        let output = links.run(program, rest);
        assert!(output.status.success(), "{arguments}");
        assert!(output.stdout.starts_with(program.as_bytes()), "{arguments}");
        let as_subcommand = Command::new(PROGRAM).args(arguments.split(' ')).output();
        assert_eq!(as_subcommand.unwrap().stdout, output.stdout, "{arguments}");
    }
}

#[test]
fn slirp4netns_serves_a_namespace_from_a_sandbox_until_its_exit_fd_hangs_up() {
    let Some(guest) = Guest::start() else { return };
    let links = Links::new();
    let (socket, ready) = (links.path("api"), links.path("ready"));
    // The shell gives the descriptors their numbers, as Podman does.
    let script = format!(
        "exec {slirp} --mtu=65520 --enable-sandbox --enable-seccomp --enable-ipv6 -c -r 3 -e 4 \
         --api-socket {socket} {pid} tap0 3>{ready} 4<&0",
        slirp = links.path("slirp4netns").display(),
        socket = socket.display(),
        pid = guest.pid(),
        ready = ready.display(),
    );
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("sh starts");
    wait_until("readiness", || {
        fs::read_to_string(&ready).is_ok_and(|text| text == "1")
    });

    let addresses = guest.run("ip -o address show tap0; ip -o link show tap0; ip route");
    for part in [
        "10.0.2.100/24",
        "mtu 65520",
        "default via 10.0.2.2 dev tap0",
    ] {
        assert!(addresses.contains(part), "{part}: {addresses}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    for line in ["CapEff:\t0000000000000400", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let root = PathBuf::from(format!("/proc/{}/root", child.id()));
    let visible = fs::read_dir(&root).unwrap();
    let mut visible: Vec<_> = visible.map(|entry| entry.unwrap().path()).collect();
    visible.sort();
    assert_eq!(visible, ["etc", "run"].map(|name| root.join(name)));

    let port = web_server();
    let fetched = guest.run(&format!("curl -s -m 20 http://10.0.2.2:{port}/"));
    assert_eq!(fetched, "hello");

    let list = api(&socket, r#"{"execute":"list_hostfwd"}"#);
    assert!(list.contains(r#""return":{"entries":[]}"#), "{list}");
    let refused = api(&socket, "{");
    assert_eq!(
        refused,
        r#"{"error":{"desc":"bad request: cannot parse JSON"}}"#
    );

    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn slirp4netns_ends_with_the_namespaces_process() {
    let Some(guest) = Guest::start() else { return };
    let links = Links::new();
    let mut child = Command::new(links.path("slirp4netns"))
        .args(["--disable-host-loopback", "--enable-seccomp", "-c"])
        .args([&guest.pid(), "tap0"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    wait_until("the TAP", || guest.run("ip -o link").contains("tap0"));
    drop(guest);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_taken_over_tap_keeps_the_callers_settings() {
    let Some(guest) = Guest::start() else { return };
    let links = Links::new();
    guest.run("ip tuntap add dev tap0 mode tap && ip link set tap0 mtu 4000 up");
    guest.run("ip address add 10.0.2.100/24 dev tap0");
    let mut child = Command::new(links.path("slirp4netns"))
        .args(["--enable-seccomp", "--mtu", "4000", &guest.pid(), "tap0"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    let port = web_server();
    wait_until("an answer", || {
        guest.run(&format!("curl -s -m 1 http://10.0.2.2:{port}/")) == "hello"
    });
    let link = guest.run("ip -o link show tap0");
    assert!(link.contains("mtu 4000"), "{link}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        guest.run("ip -o link").contains("tap0"),
        "it is the caller's"
    );
}

#[test]
fn a_command_runs_in_a_network_of_its_own_and_its_status_is_returned() {
    let port = web_server();
    let script = format!(
        "ip -o -4 address show tap0; cat /etc/resolv.conf; curl -s -m 20 http://10.0.2.2:{port}/; \
         exit 7"
    );
    let output = Command::new(PROGRAM)
        .args(["gateway", "run", "--", "sh", "-c", &script])
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !nix::unistd::geteuid().is_root() && output.status.code() == Some(1) {
        return println!("skipped: needs user namespaces and /dev/net/tun: {errors}");
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(7), "{text} {errors}");
    for part in ["10.0.2.100/24", "nameserver 10.0.2.3\n"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.ends_with("hello"), "{text}");
}

/// The options of the programs that run a command: as the second and as the first process of a PID namespace.
const COMMANDS: [&str; 3] = [
    "gateway run --",
    "pasta --runas 0 --config-net -4 -a 10.7.0.9/24 -g 10.7.0.1 -t none -u none -T none --",
    AS_NOBODY,
];
/// The one whose command has one user only.
const AS_NOBODY: &str =
    "pasta --quiet --config-net -4 -a 10.7.0.9/24 -g 10.7.0.1 -t none -u none -T none --";

/// Starts a program with a script that prints a line when it is ready. `None`, with the reason, if
/// namespaces cannot be made here.
///
/// `hangup` is whether SIGHUP is ignored, which a process inherits.
fn start_script(hangup: Hangup, arguments: &str, script: &str) -> Option<Script> {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root for a network namespace");
        return None;
    }
    let disposition = match hangup {
        Hangup::Ends => "--default-signal=HUP",
        Hangup::Ignored => "--ignore-signal=HUP",
    };
    let child = Command::new("env")
        .args([disposition, PROGRAM])
        .args(arguments.split(' '))
        .args(["sh", "-c", script])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("the program starts");
    let mut script = Script(child);
    let mut line = String::new();
    let stdout = script.0.stdout.as_mut().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Some(script)
}

/// Whether SIGHUP ends a program.
#[derive(Clone, Copy)]
enum Hangup {
    Ends,
    /// As by nohup(1).
    Ignored,
}

/// A program that runs a script, and ends with the test.
struct Script(Child);

impl Script {
    fn send_signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Waits for the end, and returns the exit status.
    fn status(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("the end of the program", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the process ID of the first child of a process: a gateway's is the parent of its command.
fn first_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let first = children.split_ascii_whitespace().next()?;
    Some(first.parse().expect("a process ID"))
}

/// Returns the process ID of the first child of the first child ... of a process.
fn last_descendant(mut pid: u32) -> String {
    while let Some(child) = first_child(pid) {
        pid = child;
    }
    pid.to_string()
}

#[test]
fn the_end_of_the_gateway_ends_the_command() {
    use nix::sys::signal::Signal::{SIGHUP, SIGKILL, SIGTERM};
    let scripts = [
        "echo ready; exec sleep 1000",
        // A user that the gateway, which has no privileges, may not signal.
        "exec setpriv --reuid 1000 sh -c 'echo ready; exec sleep 1000'",
    ];
    for (arguments, script) in COMMANDS.iter().flat_map(|a| scripts.map(|s| (*a, s))) {
        if (arguments, script) == (AS_NOBODY, scripts[1]) {
            continue;
        }
        for (signal, status) in [(SIGTERM, Some(143)), (SIGHUP, Some(129)), (SIGKILL, None)] {
            let Some(mut program) = start_script(Hangup::Ends, arguments, script) else {
                return;
            };
            let pid = last_descendant(program.0.id());
            program.send_signal(signal);
            assert_eq!(program.status(), status, "{arguments} {script} {signal}");
            wait_for_end(&pid);
        }
    }
}

#[test]
fn a_hangup_that_is_ignored_ends_nothing() {
    use nix::sys::signal::Signal::{SIGHUP, SIGTERM};
    for arguments in COMMANDS {
        let script = "echo ready; exec sleep 1000";
        let Some(mut program) = start_script(Hangup::Ignored, arguments, script) else {
            return;
        };
        // A shell that ends sends it to all processes of the job.
        let child = first_child(program.0.id()).expect("the command's parent");
        let child = nix::unistd::Pid::from_raw(child as i32);
        nix::sys::signal::kill(child, SIGHUP).unwrap();
        program.send_signal(SIGHUP);
        program.send_signal(SIGTERM);
        assert_eq!(program.status(), Some(143), "{arguments}");
    }
}

#[test]
fn signals_of_the_terminal_do_not_end_the_gateway() {
    use nix::sys::signal::Signal::{SIGINT, SIGQUIT, SIGTERM};
    for arguments in COMMANDS {
        let script = "echo ready; exec sleep 1000";
        let Some(mut program) = start_script(Hangup::Ends, arguments, script) else {
            return;
        };
        for signal in [SIGINT, SIGQUIT, SIGTERM] {
            program.send_signal(signal);
        }
        assert_eq!(program.status(), Some(143), "{arguments}");
    }
}

/// Returns a folder, and a command that prints a line and waits. It handles no signal when the line is
/// there, whereas a shell handles SIGINT until it executes another program.
fn waiting_command() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("line");
    fs::write(&file, "ready\n").unwrap();
    let command = format!("exec tail -f {}", file.display());
    (folder, command)
}

/// Types a key in a terminal in which a program runs a script, once the script has printed a line.
/// Returns the program's exit status.
fn status_after_key(arguments: &str, script: &str, key: u8) -> Option<i32> {
    let child = Command::new("script")
        .args(["--quiet", "--return", "--command"])
        .arg(format!(
            "exec env --default-signal=INT,QUIT {PROGRAM} {arguments} sh -c '{script}'"
        ))
        .arg("/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script starts");
    let mut terminal = Script(child);
    let mut line = String::new();
    let stdout = terminal.0.stdout.as_mut().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\r\n");
    let mut keyboard = terminal.0.stdin.take().expect("a pipe");
    keyboard.write_all(&[key]).unwrap();
    terminal.status()
}

#[test]
fn the_terminals_keys_end_a_command_that_does_not_handle_their_signals() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root for a network namespace");
    }
    let (_folder, unhandled) = waiting_command();
    let handled = "trap \"exit 7\" INT QUIT; echo ready; while :; do sleep 0.1; done";
    for arguments in COMMANDS {
        for (key, status) in [(0x03, 130), (0x1c, 131)] {
            let ended = status_after_key(arguments, &unhandled, key);
            assert_eq!(ended, Some(status), "{arguments}");
            let ended = status_after_key(arguments, handled, key);
            assert_eq!(ended, Some(7), "{arguments}");
        }
    }
}

#[test]
fn a_signal_of_a_process_to_the_group_does_not_end_the_first_process_of_a_pid_namespace() {
    use nix::sys::signal::Signal::{SIGINT, SIGKILL};
    let (_folder, script) = waiting_command();
    let Some(mut program) = start_script(Hangup::Ends, COMMANDS[1], &script) else {
        return;
    };
    let parent = first_child(program.0.id()).expect("the command's parent");
    let group = nix::unistd::Pid::from_raw(program.0.id() as i32);
    nix::sys::signal::killpg(group, SIGINT).unwrap();
    wait_until("the signal is processed", || {
        let status = fs::read_to_string(format!("/proc/{parent}/status")).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let mask = u64::from_str_radix(pending.unwrap().trim(), 16).unwrap();
        mask & (1 << (SIGINT as u32 - 1)) == 0
    });
    let command = nix::unistd::Pid::from_raw(first_child(parent).expect("the command") as i32);
    // Killed because of SIGINT, its status would be 130.
    nix::sys::signal::kill(command, SIGKILL).unwrap();
    assert_eq!(program.status(), Some(137));
}

#[test]
fn a_command_ends_where_the_caller_ignores_the_end_of_its_children() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root for a network namespace");
    }
    for arguments in COMMANDS {
        let status = Command::new("env")
            .args(["--ignore-signal=CHLD", PROGRAM])
            .args(arguments.split(' '))
            .args(["sh", "-c", "exit 4"])
            .status()
            .expect("the program starts");
        assert_eq!(status.code(), Some(4), "{arguments}");
    }
}

#[test]
fn the_last_data_of_a_command_is_delivered_after_its_end() {
    use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
    const LEN: usize = 30_000;
    for arguments in COMMANDS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Most of the data waits in the gateway's socket.
        setsockopt(&listener, RcvBuf, &4096).unwrap();
        let port = listener.local_addr().unwrap().port();
        // The addresses that stand for the host's loopback.
        let host = if arguments.starts_with("pasta") {
            "10.7.0.1"
        } else {
            "10.0.2.2"
        };
        let script =
            format!("echo ready; exec bash -c 'head -c {LEN} /dev/zero >/dev/tcp/{host}/{port}'");
        let Some(mut program) = start_script(Hangup::Ends, arguments, &script) else {
            return;
        };
        assert_eq!(program.status(), Some(0), "{arguments}");
        let (mut server, _) = listener.accept().unwrap();
        let mut received = Vec::new();
        server.read_to_end(&mut received).expect("no reset");
        assert_eq!(received.len(), LEN, "{arguments}");
    }
}

#[test]
fn the_packets_of_a_command_are_captured() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root for a network namespace");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("packets.pcapng");
    let port = web_server();
    let status = Command::new(PROGRAM)
        .args(["gateway", "run", "--pcap"])
        .arg(&file)
        .args(["--", "curl", "-s", "-o", "/dev/null"])
        .arg(format!("http://10.0.2.2:{port}/"))
        .status()
        .expect("the program starts");
    assert!(status.success());
    let capture = fs::read(&file).unwrap();
    assert_eq!(capture[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a section header");
    let has = |text: &[u8]| capture.windows(text.len()).any(|w| w == text);
    assert!(has(b"GET / HTTP") && has(b"hello"), "both directions");
}

#[test]
fn the_connections_of_a_command_are_shown_over_the_control_socket() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root for a network namespace");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("gateway.sock");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().unwrap().port();
    let mut command = Command::new(PROGRAM)
        .args(["gateway", "run", "--control"])
        .arg(&socket)
        .args(["--", "curl", "-s"])
        .arg(format!("http://10.0.2.2:{port}/"))
        .spawn()
        .expect("the program starts");
    listener.set_nonblocking(true).unwrap();
    let mut client = None;
    wait_until("the command connects", || {
        client = listener.accept().ok();
        client.is_some()
    });
    let output = Command::new(PROGRAM)
        .args(["stat", "ss", "--socket"])
        .arg(&socket)
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_connection =
        |line: &str| line.contains("10.0.2.100:") && line.contains(&port.to_string());
    assert!(text.lines().any(is_connection), "{output:?}");
    drop(client);
    command.wait().unwrap();
}

#[test]
fn a_missing_command_is_one_line_of_error() {
    let output = Command::new(PROGRAM)
        .args(["gateway", "run", "--", "/no/such/program"])
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains("/dev/net/tun") || errors.contains("namespace") {
        return println!("skipped: needs user namespaces and /dev/net/tun: {errors}");
    }
    assert_eq!(output.status.code(), Some(127));
    assert!(
        errors.starts_with("error: cannot run /no/such/program: "),
        "{errors}"
    );
}

#[test]
fn pasta_releases_its_caller_and_ends_with_the_namespace() {
    let Some(guest) = Guest::start() else { return };
    let links = Links::new();
    let pid_file = links.path("pid");
    // Podman's options; with them the output is read to its end.
    let arguments = format!(
        "--config-net --address 10.7.0.9/24 --gateway 10.7.0.1 -t none -u none -T none -U none \
         --dns-forward 169.254.1.1 --map-host-loopback 10.7.0.77 --quiet --netns /proc/{}/ns/net \
         --ns-ifname eth7 --mtu 9000 --map-guest-addr 169.254.1.2 --pid {}",
        guest.pid(),
        pid_file.display()
    );
    let output = links.run("pasta", &arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), &*errors), (Some(0), ""));
    let pid = fs::read_to_string(&pid_file).unwrap();
    let network = guest.run("ip -o address show eth7; ip -o link show eth7; ip route");
    for part in ["10.7.0.9/24", "mtu 9000", "default via 10.7.0.1 dev eth7"] {
        assert!(network.contains(part), "{part}: {network}");
    }
    let port = web_server();
    let fetched = guest.run(&format!("curl -s -m 20 http://10.7.0.77:{port}/"));
    assert_eq!(fetched, "hello");
    drop(guest);
    wait_for_end(pid.trim());
}

#[test]
fn pasta_runs_a_command_and_returns_its_status() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root for a network namespace");
    }
    let links = Links::new();
    let output = Command::new(links.path("pasta"))
        .args([
            "--config-net",
            "-a",
            "10.7.0.9/24",
            "-g",
            "10.7.0.1",
            "-4",
            "-I",
            "eth7",
            "--",
        ])
        .args(["sh", "-c", "ip -o -4 address show eth7; echo $$; exit 3"])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        text.contains("10.7.0.9/24") && text.ends_with("\n1\n"),
        "{text}"
    );
}

#[test]
fn pasta_leads_ports_of_the_guests_loopback_to_the_hosts() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root for a network namespace");
    }
    let links = Links::new();
    let port = web_server();
    // The port is one that was named, or one on which the host listens.
    for specification in [port.to_string(), "auto".to_owned()] {
        let fetch = format!(
            "for i in $(seq 100); do
                 curl -s http://127.0.0.1:{port}/ && exit
                 sleep 0.1
             done; exit 1"
        );
        let output = Command::new(links.path("pasta"))
            .args(["--config-net", "-4", "-a", "10.7.0.9/24", "-g", "10.7.0.1"])
            .args(["-t", "none", "-u", "none", "-T", &specification, "--"])
            .args(["sh", "-c", &fetch])
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hello");
    }
}
