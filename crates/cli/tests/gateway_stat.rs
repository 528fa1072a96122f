//! What a running gateway reports about itself: `fullsend stat gateway`, and its metrics.

mod ended;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use ended::Ended;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
/// 100 ms steps of a wait, before the test fails.
const STEPS: usize = 300;

/// Runs `fullsend`.
fn fullsend(args: &[&str]) -> Output {
    let output = Command::new(PROGRAM).args(args).output();
    output.expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns whether gateways can run here, and prints the reason if not.
fn has_namespaces() -> bool {
    let output = fullsend(&["gateway", "run", "--", "true"]);
    let errors = text(&output.stderr);
    if errors.contains("/dev/net/tun") || errors.contains("namespace") {
        println!("skipped: needs user namespaces and /dev/net/tun: {errors}");
        return false;
    }
    assert!(output.status.success(), "{errors}");
    true
}

/// A gateway with a control socket and metrics, whose guest runs a script.
struct Gateway {
    child: Child,
    dir: tempfile::TempDir,
}

impl Gateway {
    fn start(options: &[&str], script: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let child = Command::new(PROGRAM)
            .args(["gateway", "run", "--control", &path("control")])
            .args(["--metrics", &format!("unix:{}", path("metrics"))])
            .args(options)
            .args(["--", "bash", "-c", script])
            .stdin(Stdio::null())
            .spawn()
            .expect("the program starts");
        let gateway = Self { child, dir };
        // The file exists a moment before the socket listens.
        wait_until("a control socket", || {
            UnixStream::connect(gateway.path("control")).is_ok()
        });
        gateway
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn stat(&self, args: &[&str]) -> String {
        let socket = self.path("control").display().to_string();
        let output = fullsend(&[&["stat", "--socket", &socket], args].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stat(&[&["--json"], args].concat())).expect("JSON")
    }

    /// Returns the flow to a port of the host's loopback.
    fn flow(&self, port: u16) -> Option<Value> {
        let remote = format!("10.0.2.2:{port}");
        let flows = self.json(&["gateway"]);
        let found = flows.as_array()?.iter().find(|f| f["remote"] == *remote);
        found.cloned()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let _ = self.child.wait();
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

/// Accepts one client on the host's loopback, and passes it to `serve`, which keeps it open. Returns
/// the port, and the client's address once it has connected.
fn serve(serve: impl FnOnce(TcpStream) + Send + 'static) -> (u16, Receiver<SocketAddr>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().unwrap().port();
    let (sender, peer) = mpsc::channel();
    thread::spawn(move || {
        let (stream, from) = listener.accept().unwrap();
        sender.send(from).unwrap();
        serve(stream);
    });
    (port, peer)
}

/// Keeps a client open for as long as the test runs.
fn keep(stream: TcpStream) {
    thread::sleep(Duration::from_secs(1000));
    drop(stream);
}

#[test]
fn each_flow_shows_what_holds_it_back() {
    if !has_namespaces() {
        return;
    }
    // The guest does not read what this server sends.
    let (down, down_peer) = serve(|mut stream| while stream.write_all(&[7; 8192]).is_ok() {});
    // This server does not read what the guest sends.
    let (up, _up_peer) = serve(keep);
    let (idle, _idle_peer) = serve(keep);
    let script = format!(
        "exec 3<>/dev/tcp/10.0.2.2/{down} 4<>/dev/tcp/10.0.2.2/{up} 5<>/dev/tcp/10.0.2.2/{idle}
        printf hello >&5
        exec cat /dev/zero >&4"
    );
    let gateway = Gateway::start(&[], &script);
    let held_by = |port: u16, word: &str| {
        let flow = gateway.flow(port);
        flow.is_some_and(|flow| flow["held_by"] == *word)
    };
    wait_until("a full window", || held_by(down, "guest-window"));
    wait_until("a full socket", || held_by(up, "host-full"));
    wait_until("an idle flow", || {
        gateway.flow(idle).is_some_and(|f| f["tx"]["bytes"] == 5)
    });
    assert!(held_by(idle, "guest-idle"));

    let flow = gateway.flow(down).unwrap();
    let local = down_peer.recv().unwrap().to_string();
    assert_eq!(flow["host_socket"]["local"], *local);
    assert_eq!(flow["host_socket"]["state"], "ESTAB");
    assert_eq!(flow["state"], "ESTAB");
    let is_positive = |value: &Value| value.as_u64().is_some_and(|n| n > 0);
    assert!(is_positive(&flow["rx"]["bytes"]), "{flow}");
    assert!(is_positive(&flow["guest_socket"]["send_q"]), "{flow}");
    assert!(is_positive(&flow["host_socket"]["recv_q"]), "{flow}");
    assert_eq!(flow["tx"]["held_by"], "guest-idle");
    let flow = gateway.flow(up).unwrap();
    assert!(is_positive(&flow["host_socket"]["send_q"]), "{flow}");
    assert_eq!(flow["rx"]["held_by"], "host-idle");

    let table = gateway.stat(&["gateway", "state", "established"]);
    let row = format!("10.0.2.2:{down} guest-window");
    let mut lines = table.lines().skip_while(|line| !line.ends_with(&row));
    assert!(lines.next().is_some(), "{table}");
    let details = lines.next().unwrap();
    let host = format!("\t host:{local}->127.0.0.1:{down} ESTAB fd:");
    assert!(details.starts_with(&host), "{table}");
    assert_eq!(table.lines().count(), 7, "{table}");
    let none = gateway.stat(&["gateway", "--udp"]);
    assert_eq!(none.lines().count(), 1, "{none}");
}

#[test]
fn the_summary_the_forwards_and_the_metrics_agree() {
    if !has_namespaces() {
        return;
    }
    let (port, _peer) = serve(keep);
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let forward = format!("127.0.0.1:{}:80", free());
    let script = format!("exec 3<>/dev/tcp/10.0.2.2/{port}; printf 12345678 >&3; sleep 1000");
    let gateway = Gateway::start(&["-t", &forward], &script);
    wait_until("a flow", || {
        gateway.flow(port).is_some_and(|f| f["tx"]["bytes"] == 8)
    });

    let summary = gateway.stat(&["gateway", "--summary"]);
    for line in [
        "Guest:    10.0.2.100/24 gateway 10.0.2.2/24 dns 10.0.2.3\n",
        "Link:     mtu 65520 mac 52:55:0a:00:02:02\n",
        "Flows:    tcp 1 (max ",
        "Forwards: 1\n",
        "Memory:   resident ",
        "GatewayTcpEstablished           1\n",
        "GatewayTcpTxBytes               8\n",
    ] {
        assert!(summary.contains(line), "{line}: {summary}");
    }
    let nstat = gateway.json(&["nstat", "--absolute", "--noupdate"]);
    assert_eq!(nstat["fullsend"]["GatewayTcpTxBytes"], 8);
    let forwards = gateway.json(&["gateway", "--listening"]);
    let host = forward.strip_suffix(":80").unwrap();
    assert_eq!(forwards[0]["host"], *host, "{forwards}");
    assert_eq!(forwards[0]["guest"], "10.0.2.100:80");

    let metrics = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-s", "-i", "--unix-socket"]);
        command.arg(gateway.path("metrics")).args(arguments);
        text(&command.output().expect("curl starts").stdout)
    };
    let answer = metrics(&["http://localhost/metrics"]);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    for line in [
        "# TYPE fullsend_gateway_flows gauge\n",
        "fullsend_gateway_flows{protocol=\"tcp\"} 1\n",
        "fullsend_gateway_forwards 1\n",
        "fullsend_gateway_tcp_connects_total{result=\"established\"} 1\n",
        "fullsend_gateway_tcp_payload_bytes_total{direction=\"tx\"} 8\n",
        "fullsend_gateway_drops_total{cause=\"tcp_dropped\"} 0\n",
        "fullsend_stack_events_total{name=\"TcpExtTCPTimeouts\"} 0\n",
        "process_resident_memory_bytes ",
    ] {
        assert!(body.contains(line), "{line}: {body}");
    }
    assert!(body.ends_with("# EOF\n"), "{body}");
    assert!(metrics(&["http://localhost/"]).starts_with("HTTP/1.1 404 "));
    assert!(metrics(&["-d", "x", "http://localhost/metrics"]).starts_with("HTTP/1.1 405 "));
    let (control, metrics) = (gateway.path("control"), gateway.path("metrics"));
    let _ = kill(Pid::from_raw(gateway.child.id() as i32), Signal::SIGTERM);
    wait_until("the removal of the sockets", || {
        !control.exists() && !metrics.exists()
    });
}

#[test]
fn metrics_are_served_on_a_port_and_slow_clients_do_not_stop_them() {
    if !has_namespaces() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let refused = fullsend(&["gateway", "run", "--metrics", &address, "--", "true"]);
    let errors = text(&refused.stderr);
    let start = format!("error: --metrics: cannot serve metrics at {address}: ");
    assert!(errors.starts_with(&start), "{errors}");
    assert!(errors.contains("choose a free port"), "{errors}");
    assert_eq!(errors.lines().count(), 1);
    drop(listener);
    let wrong = fullsend(&["gateway", "run", "--metrics", "9100", "--", "true"]);
    let errors = text(&wrong.stderr);
    assert!(errors.contains("--metrics") && errors.contains("`9100` is not an address"));

    let dir = tempfile::tempdir().unwrap();
    let mut gateway = Command::new(PROGRAM)
        .args(["gateway", "run", "--metrics", &address])
        .args(["--", "sleep", "1000"])
        .current_dir(dir.path())
        .spawn()
        .unwrap();
    wait_until("metrics", || TcpStream::connect(&address).is_ok());
    let mut slow: Vec<_> = (0..10)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    for stream in &mut slow {
        stream.write_all(b"GET /met").unwrap();
    }
    let answer = Command::new("curl")
        .args(["-s", "-m", "60", &format!("http://{address}/metrics")])
        .output()
        .expect("curl starts");
    assert!(text(&answer.stdout).ends_with("# EOF\n"));
    // Slow clients are disconnected without an answer.
    let mut rest = Vec::new();
    let _ = slow[0].read_to_end(&mut rest);
    assert!(rest.is_empty());
    let _ = kill(Pid::from_raw(gateway.id() as i32), Signal::SIGTERM);
    let _ = gateway.wait();
}

#[test]
fn callers_of_slirp4netns_request_the_sockets_in_its_environment() {
    if !has_namespaces() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let guest = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c"])
        .arg("echo ready; exec sleep 1000")
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare starts");
    let mut guest = Ended(guest);
    let mut ready = [0; 6];
    let mut stdout = guest.0.stdout.take().expect("a pipe");
    stdout.read_exact(&mut ready).expect("namespaces");
    let start = |control: &str| {
        Command::new(PROGRAM)
            .args([
                "slirp4netns",
                "--configure",
                "--enable-sandbox",
                "--enable-seccomp",
            ])
            .args([&guest.0.id().to_string(), "tap0"])
            .env("FULLSEND_CONTROL", control)
            .env("FULLSEND_METRICS", format!("unix:{}", path("metrics")))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    };
    // Another gateway may have the address: that is no reason for a container not to start.
    let mut other = Ended(start("/no/such/folder/control"));
    let mut warning = [0; 4096];
    let stderr = other.0.stderr.as_mut().expect("a pipe");
    let len = stderr.read(&mut warning).expect("a warning");
    let warning = text(&warning[..len]);
    assert!(
        warning.contains("FULLSEND_CONTROL: cannot create the socket /no/such/folder/control: "),
        "{warning}"
    );
    assert!(other.0.try_wait().unwrap().is_none());
    drop(other);
    let mut gateway = Ended(start(&path("control")));
    wait_until("a control socket", || {
        UnixStream::connect(dir.path().join("control")).is_ok()
    });
    let summary = fullsend(&["stat", "--socket", &path("control"), "gateway", "--summary"]);
    let summary = text(&summary.stdout);
    assert!(
        summary.contains(" gateway 10.0.2.2/24 dns 10.0.2.3\n"),
        "{summary}"
    );
    let mut metrics = Command::new("curl");
    metrics.args([
        "-s",
        "--unix-socket",
        &path("metrics"),
        "http://localhost/metrics",
    ]);
    let metrics = text(&metrics.output().expect("curl starts").stdout);
    assert!(
        metrics.contains("fullsend_gateway_forwards 0\n"),
        "{metrics}"
    );
    drop(guest);
    let status = gateway.0.wait().unwrap();
    assert!(status.success(), "{status:?}");
    wait_until("the removal of the sockets", || {
        !dir.path().join("control").exists() && !dir.path().join("metrics").exists()
    });
}
