//! gvproxy: its API on Unix sockets and through the guest's network, forwards, names, notifications.
//! The guest is a stack of this process behind gvproxy's socket.

mod free_port;
mod vhost_monitor;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use free_port::free_port;
use fullsend::{Stack, UdpSocket};
use fullsend_device::{Device, FrameLink, FrameSocket, Framing};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vhost_monitor::Monitor;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
const LIMIT: Duration = Duration::from_secs(30);
const GUEST_MAC: [u8; 6] = [0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xee];
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 127, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(192, 168, 127, 2);
const HOST: Ipv4Addr = Ipv4Addr::new(192, 168, 127, 254);

/// A running gvproxy with its sockets.
struct Gvproxy {
    process: Child,
    folder: tempfile::TempDir,
    notifications: mpsc::Receiver<Value>,
}

impl Gvproxy {
    /// Starts the program; `DIR` in the arguments is its folder.
    fn start(arguments: &str) -> Self {
        Self::start_with(arguments, &[])
    }

    /// Starts the program with variables of the environment.
    fn start_with(arguments: &str, environment: &[(&str, &str)]) -> Self {
        Self::start_from(
            Command::new(PROGRAM).envs(environment.iter().copied()),
            arguments,
        )
    }

    /// Starts the program with a command that has no arguments of gvproxy yet.
    fn start_from(command: &mut Command, arguments: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("notes")).unwrap();
        let (sender, notifications) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut line = String::new();
                BufReader::new(stream.unwrap())
                    .read_line(&mut line)
                    .unwrap();
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        let arguments = format!("-notification unix://DIR/notes -pid-file DIR/pid {arguments}");
        let arguments = arguments.replace("DIR", &folder.path().display().to_string());
        let process = command
            .arg("gvproxy")
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let gvproxy = Self {
            process,
            folder,
            notifications,
        };
        let ready = gvproxy.notification();
        assert_eq!(ready, json!({"notification_type": "ready"}));
        gvproxy
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn notification(&self) -> Value {
        self.notifications
            .recv_timeout(LIMIT)
            .expect("a notification")
    }

    /// Sends a request with curl over a Unix socket. Returns the status and the body.
    fn curl(&self, socket: &str, path: &str, body: Option<&Value>) -> (String, String) {
        let mut command = Command::new("curl");
        command
            .args([
                "-sS",
                "-w",
                "\n%{http_code}",
                "--max-time",
                "30",
                "--unix-socket",
            ])
            .arg(self.path(socket))
            .arg(format!("http://gvproxy{path}"));
        if let Some(body) = body {
            command.args(["-d", &body.to_string()]);
        }
        let output = command.output().expect("curl starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{output:?}");
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.to_owned(), body.trim_end().to_owned())
    }

    fn get(&self, path: &str) -> Value {
        let (status, body) = self.curl("services", path, None);
        assert_eq!(status, "200", "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body}"))
    }

    fn post(&self, path: &str, body: &Value) -> (String, String) {
        self.curl("services", path, Some(body))
    }

    /// Connects a guest with QEMU's framing.
    fn guest(&self) -> Stack {
        guest(self.link())
    }

    fn link(&self) -> FrameLink {
        let socket = UnixStream::connect(self.path("qemu")).unwrap();
        FrameLink::connected(socket.into(), Framing::Qemu, 1500).unwrap()
    }
}

impl Drop for Gvproxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the guest's stack.
fn guest(link: FrameLink) -> Stack {
    guest_at(Box::new(link), GUEST, GUEST_MAC)
}

fn guest_at(device: Box<dyn Device>, address: Ipv4Addr, mac: [u8; 6]) -> Stack {
    Stack::builder()
        .device(device)
        .mac(mac)
        .address(&format!("{address}/24"))
        .route("0.0.0.0/0", Some(GATEWAY.into()))
        .build()
        .unwrap()
}

fn has_curl() -> bool {
    let found = Command::new("curl").arg("--version").output().is_ok();
    if !found {
        println!("skipped: curl is not installed");
    }
    found
}

/// Serves one connection of a port of the guest after another, with what they send.
fn serve_echo(stack: &Stack, port: u16) {
    serve_echo_at(stack, (GUEST, port).into());
}

fn serve_echo_at(stack: &Stack, at: SocketAddr) -> tokio::task::JoinHandle<()> {
    let listener = fullsend::TcpListener::bind(stack, at).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut data = Vec::new();
            stream.read_to_end(&mut data).await.unwrap();
            stream.write_all(&data).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    })
}

/// Sends `text` and returns the answer, in a thread of its own.
async fn exchange(mut stream: impl Read + Write + Shutdown + Send + 'static, text: &str) -> String {
    let text = text.to_owned();
    let exchanged = tokio::task::spawn_blocking(move || {
        stream.write_all(text.as_bytes()).unwrap();
        stream.shut_down();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    exchanged.await.unwrap()
}

trait Shutdown {
    fn shut_down(&self);
}

impl Shutdown for TcpStream {
    fn shut_down(&self) {
        self.shutdown(std::net::Shutdown::Write).unwrap();
    }
}

impl Shutdown for UnixStream {
    fn shut_down(&self) {
        self.shutdown(std::net::Shutdown::Write).unwrap();
    }
}

/// Sends a request to the gateway's API through the guest's network, and returns the whole answer.
async fn request(stack: &Stack, method: &str, path: &str, body: &str) -> String {
    let mut stream = fullsend::TcpStream::connect(stack, (GATEWAY, 80))
        .await
        .unwrap();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Resolves a name at the gateway. Returns the response code and the first IPv4 address.
async fn resolve(stack: &Stack, name: &str) -> (u8, Option<Ipv4Addr>) {
    let socket = UdpSocket::bind(stack, (GUEST, 0)).unwrap();
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    socket.send_to(&query, (GATEWAY, 53)).await.unwrap();
    let mut answer = [0; 512];
    let (len, _) = socket.recv_from(&mut answer).await.unwrap();
    let data = &answer[query.len()..len];
    let address = data.last_chunk::<4>().map(|octets| Ipv4Addr::from(*octets));
    (answer[3] & 15, address)
}

const ALL: &str =
    "-listen unix://DIR/api -services unix://DIR/services -listen-qemu unix://DIR/qemu";

#[tokio::test]
async fn the_api_forwards_ports_and_sockets_to_the_guest() {
    if !has_curl() {
        return;
    }
    let gvproxy = Gvproxy::start(&format!("{ALL} -ssh-port -1"));
    let stack = gvproxy.guest();
    serve_echo(&stack, 6443);
    let port = free_port();
    let entry = json!({"local": format!("127.0.0.1:{port}"), "remote": "192.168.127.2:6443",
        "protocol": "tcp"});
    assert_eq!(gvproxy.get("/services/forwarder/all"), json!([]));
    assert_eq!(
        gvproxy.post("/services/forwarder/expose", &entry),
        ("200".into(), String::new())
    );
    let again = gvproxy.post("/services/forwarder/expose", &entry);
    assert_eq!(again, ("500".into(), "proxy already running".into()));
    assert_eq!(gvproxy.get("/services/forwarder/all"), json!([entry]));
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(exchange(client, "over TCP").await, "over TCP");

    let path = gvproxy.path("exposed");
    let unix = json!({"local": path, "remote": "tcp://192.168.127.2:6443", "protocol": "unix"});
    assert_eq!(gvproxy.post("/services/forwarder/expose", &unix).0, "200");
    let client = UnixStream::connect(&path).unwrap();
    assert_eq!(exchange(client, "over a socket").await, "over a socket");
    for entry in [&unix, &entry] {
        assert_eq!(gvproxy.post("/services/forwarder/unexpose", entry).0, "200");
    }
    let gone = gvproxy.post("/services/forwarder/unexpose", &entry);
    assert_eq!(gone, ("500".into(), "proxy not found".into()));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(!path.exists());

    // The words that precede the data of a tunnel are not HTTP.
    let mut tunnel = UnixStream::connect(gvproxy.path("api")).unwrap();
    let head = "POST /tunnel?ip=192.168.127.2&port=6443 HTTP/1.1\r\nHost: x\r\n\r\n";
    tunnel.write_all(head.as_bytes()).unwrap();
    assert_eq!(
        exchange(tunnel, "through a tunnel").await,
        "OKthrough a tunnel"
    );

    for (path, status) in [
        ("/services/x", "404"),
        ("/services/forwarder/expose", "405"),
    ] {
        assert_eq!(gvproxy.curl("services", path, None).0, status, "{path}");
    }
    let (status, text) = gvproxy.post("/services/forwarder/expose", &json!({"local": 1}));
    assert!(status == "400" && text.contains("invalid type"), "{text}");
    let stats = gvproxy.get("/stats");
    assert!(stats["BytesReceived"].as_u64() > Some(20), "{stats}");
}

#[test]
fn the_gateway_has_a_root_and_system_calls_of_its_own_and_leaves_no_file() {
    if !has_curl() {
        return;
    }
    let of_root = |folder: &str| fs::metadata(folder).map(|at| (at.dev(), at.ino()));
    for (vfkit, signal) in [
        ("", 15),
        ("", 9),
        ("-listen-vfkit unixgram://DIR/vfkit", 15),
    ] {
        let mut gvproxy = Gvproxy::start(&format!("{ALL} {vfkit} -ssh-port -1"));
        let path = gvproxy.path("exposed");
        let unix = json!({"local": path, "remote": "tcp://192.168.127.2:80", "protocol": "unix"});
        assert_eq!(gvproxy.post("/services/forwarder/expose", &unix).0, "200");
        let again = json!({"local": gvproxy.path("notes"), "remote": "192.168.127.2:80",
            "protocol": "unix"});
        let (status, text) = gvproxy.post("/services/forwarder/expose", &again);
        assert!(status == "500" && text.contains("must not exist"), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

        let process = format!("/proc/{}", gvproxy.process.id());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
        // It has CAP_NET_BIND_SERVICE at most.
        let capabilities = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:\t"));
        let capabilities = u64::from_str_radix(capabilities.unwrap(), 16).unwrap();
        assert_eq!(capabilities & !(1 << 10), 0, "{status}");
        let has_own_root = of_root(&format!("{process}/root")).unwrap() != of_root("/").unwrap();
        // The kernel finds the sockets of vfkit's guests by their paths.
        if vfkit.is_empty() && !can_make_mount_namespaces() {
            println!("skipped: the root, as this user may not make mount namespaces");
        } else {
            assert_eq!(has_own_root, vfkit.is_empty());
        }

        let sent = Command::new("kill")
            .args([format!("-{signal}"), gvproxy.process.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        gvproxy.process.wait().unwrap();
        let left = || {
            let entries = fs::read_dir(gvproxy.folder.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name != "notes").collect::<Vec<_>>()
        };
        // A process that is killed does not wait for the one that removes them.
        while signal == 9 && !left().is_empty() {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(left(), <[String; 0]>::default());
    }
}

/// Returns whether this user may mount files where others do not see them.
fn can_make_mount_namespaces() -> bool {
    let made = Command::new("unshare")
        .args(["-Umr", "mount", "-t", "tmpfs", "x", "/tmp"])
        .output();
    made.is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn the_guest_uses_the_api_names_and_the_hosts_loopback() {
    if !has_curl() {
        return;
    }
    let gvproxy = Gvproxy::start(&format!("{ALL} -ssh-port -1"));
    let stack = gvproxy.guest();
    serve_echo(&stack, 80);
    let port = free_port();
    let entry = format!(r#"{{"local":"127.0.0.1:{port}","remote":"192.168.127.2:80"}}"#);
    let answer = request(&stack, "POST", "/services/forwarder/expose", &entry).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(
        exchange(client, "exposed by the guest").await,
        "exposed by the guest"
    );
    let unix = r#"{"local":"/tmp/x","remote":"192.168.127.2:80","protocol":"unix"}"#;
    let answer = request(&stack, "POST", "/services/forwarder/expose", unix).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");

    assert_eq!(
        resolve(&stack, "host.containers.internal").await,
        (0, Some(HOST))
    );
    assert_eq!(
        resolve(&stack, "gateway.docker.internal").await,
        (0, Some(GATEWAY))
    );
    assert_eq!(resolve(&stack, "x.docker.internal").await.0, 3);
    let zone = json!({"Name": "apps.test.", "Records": [{"Name": "a", "IP": "192.168.127.9"}],
        "DefaultIP": "192.168.127.2"});
    assert_eq!(gvproxy.post("/services/dns/add", &zone).0, "200");
    assert_eq!(
        resolve(&stack, "a.apps.test").await.1,
        Some([192, 168, 127, 9].into())
    );
    assert_eq!(resolve(&stack, "b.apps.test").await.1, Some(GUEST));
    let zones = gvproxy.get("/services/dns/all");
    assert_eq!(
        (&zones[0]["Name"], &zones[1]["Name"]),
        (&json!("apps.test."), &json!("containers.internal."))
    );

    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = SocketAddr::from((HOST, server.local_addr().unwrap().port()));
    thread::spawn(move || server.accept().unwrap().0.write_all(b"the host").unwrap());
    let mut stream = fullsend::TcpStream::connect(&stack, to).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "the host");
}

#[tokio::test]
async fn a_guest_is_not_the_host_for_the_api_nor_another_guest_by_tcp() {
    let [api, services, qemu, any, metrics, other] = [(); 6].map(|()| free_port());
    let unspecified = format!("-listen-vpnkit tcp://0.0.0.0:{any}");
    let mut gvproxy = Gvproxy::start_with(
        &format!(
            "-listen tcp://127.0.0.1:{api} -services tcp://127.0.0.1:{services} \
             -listen-qemu tcp://127.0.0.1:{qemu} {unspecified} -ssh-port -1"
        ),
        &[("FULLSEND_METRICS", &format!("127.0.0.1:{metrics}"))],
    );
    let socket = TcpStream::connect(("127.0.0.1", qemu)).unwrap();
    let stack = guest(FrameLink::connected(socket.into(), Framing::Qemu, 1500).unwrap());
    // The host's loopback is open to it, and the gateway's address has the API for guests.
    let listener = TcpListener::bind(("127.0.0.1", other)).unwrap();
    let connect = async |address, port| {
        let connected = fullsend::TcpStream::connect(&stack, (address, port));
        let connected = tokio::time::timeout(LIMIT, connected).await;
        connected
            .expect("an answer")
            .map(drop)
            .map_err(|e| e.kind())
    };
    assert_eq!(connect(HOST, other).await, Ok(()));
    drop(listener);
    assert_eq!(connect(GATEWAY, 80).await, Ok(()));
    let refused = Err(ErrorKind::ConnectionRefused);
    for port in [api, services, qemu, any, metrics] {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert_eq!(connect(HOST, port).await, refused, "{port}");
    }
    // The metadata of a cloud's machine.
    let metadata = Ipv4Addr::new(169, 254, 169, 254);
    assert_eq!(connect(metadata, 80).await, refused);
    assert!(gvproxy.process.try_wait().unwrap().is_none());
}

#[tokio::test]
async fn a_guest_changes_its_own_entries_alone() {
    let gvproxy = Gvproxy::start(&format!("{ALL} -ssh-port -1"));
    let first = gvproxy.guest();
    let at = Ipv4Addr::new(192, 168, 127, 9);
    let second = guest_at(Box::new(gvproxy.link()), at, [2, 0, 0, 0, 0, 9]);
    let port = free_port();
    let entry = format!(r#"{{"local":"127.0.0.1:{port}","remote":"192.168.127.2:80"}}"#);
    let (expose, unexpose) = ("/services/forwarder/expose", "/services/forwarder/unexpose");
    let answer = request(&first, "POST", expose, &entry).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = request(&second, "POST", unexpose, &entry).await;
    assert!(answer.contains("was not exposed by this guest"), "{answer}");
    // A forward to another guest, or one that opens the gateway's services to the host's network.
    for remote in [
        "192.168.127.2:81",
        "192.168.127.1:80",
        "192.168.127.1:53",
        "192.168.127.77:1",
    ] {
        let other = format!(
            r#"{{"local":"127.0.0.1:{}","remote":"{remote}"}}"#,
            free_port()
        );
        let answer = request(&second, "POST", expose, &other).await;
        assert!(answer.contains("is no address of this guest"), "{answer}");
    }
    // The names are those of both.
    let zone = r#"{"Name":"test.","DefaultIP":"192.168.127.9"}"#;
    let answer = request(&second, "POST", "/services/dns/add", zone).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    // Connections that one guest leaves open are not those of the other.
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(fullsend::TcpStream::connect(&second, (GATEWAY, 80)).await);
    }
    let answer = request(&first, "POST", unexpose, &entry).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut byte = [0];
    let mut last = open.pop().unwrap().unwrap();
    assert!(!matches!(last.read(&mut byte).await, Ok(1..)));
}

#[tokio::test]
async fn guests_leave_half_of_the_forwards_to_the_host() {
    // With few descriptors there are few forwards: a part of those that other limits leave.
    let gvproxy = Gvproxy::start_from(
        Command::new("prlimit").args(["--nofile=600:600", "--", PROGRAM]),
        &format!("{ALL} -ssh-port -1"),
    );
    let guests = [2, 3, 4].map(|n| {
        let at = Ipv4Addr::new(192, 168, 127, n);
        (
            at,
            guest_at(Box::new(gvproxy.link()), at, [2, 0, 0, 0, 0, n]),
        )
    });
    let mut counts = Vec::new();
    for (at, guest) in &guests {
        let mut count = 0_u16;
        loop {
            let port = free_port();
            let entry = format!(
                r#"{{"local":"127.0.0.1:{port}","remote":"{at}:{}"}}"#,
                1 + count
            );
            let answer = request(guest, "POST", "/services/forwarder/expose", &entry).await;
            if answer.contains("already; remove some") {
                break counts.push(count);
            }
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            count += 1;
        }
    }
    assert!(
        counts[0] > 1 && counts[0].abs_diff(counts[1]) <= 1,
        "{counts:?}"
    );
    assert!(counts[2] < counts[1] / 2, "{counts:?}");
    for _ in 0..counts[0] {
        let entry =
            json!({"local": format!("127.0.0.1:{}", free_port()), "remote": "192.168.127.2:1"});
        let (status, text) = gvproxy.post("/services/forwarder/expose", &entry);
        assert_eq!(status, "200", "{text}");
    }
}

#[test]
fn the_caller_is_notified_and_the_next_guest_takes_over() {
    let ssh = free_port();
    let gvproxy = Gvproxy::start(&format!("{ALL} -ssh-port {ssh}"));
    let pid = fs::read_to_string(gvproxy.path("pid")).unwrap();
    assert_eq!(pid, gvproxy.process.id().to_string());
    for _ in 0..2 {
        // The guest ends with its runtime.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let stack = gvproxy.guest();
            serve_echo(&stack, 22);
            let client = TcpStream::connect(("127.0.0.1", ssh)).unwrap();
            assert_eq!(exchange(client, "SSH").await, "SSH");
        });
        let mac = "5a:94:ef:e4:0c:ee";
        let connected = json!({"notification_type": "connection_established", "mac_address": mac});
        assert_eq!(gvproxy.notification(), connected);
        drop(runtime);
        let closed = json!({"notification_type": "connection_closed", "mac_address": mac});
        assert_eq!(gvproxy.notification(), closed);
    }
}

#[tokio::test]
async fn a_guest_connects_over_the_api() {
    if !has_curl() {
        return;
    }
    let gvproxy = Gvproxy::start("-listen unix://DIR/api -ssh-port -1 -subnet 192.168.127.0/24");
    let mut socket = UnixStream::connect(gvproxy.path("api")).unwrap();
    socket
        .write_all(b"POST /connect HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let stack = guest(FrameLink::connected(socket.into(), Framing::Plain, 1500).unwrap());
    let leases = request(&stack, "GET", "/services/dhcp/leases", "").await;
    assert!(leases.ends_with("{}\n"), "{leases}");
    let (status, body) = gvproxy.curl("api", "/services/dhcp/leases", None);
    assert_eq!((&*status, &*body), ("200", "{}"));
}

#[test]
fn wrong_command_lines_end_with_2() {
    for (line, text) in [
        ("-listen vsock://:1024", "vsock are not supported"),
        ("-listen unix:///x -forward-sock /y", "they need SSH"),
        ("-nonsense", "flag provided but not defined: -nonsense"),
    ] {
        let mut command = Command::new(PROGRAM);
        let output = command
            .arg("gvproxy")
            .args(line.split(' '))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains(text), "{line}: {errors}");
        assert_eq!(output.status.code(), Some(2));
    }
}

#[tokio::test]
async fn with_a_policy_the_guest_has_neither_the_api_nor_the_host() {
    let policy = tempfile::tempdir().unwrap();
    let file = policy.path().join("policy.toml");
    let names = "[names]\n\"db.internal\" = \"192.0.2.7\"\n";
    fs::write(&file, names).unwrap();
    let gvproxy = Gvproxy::start(&format!("{ALL} -policy {}", file.display()));
    let stack = gvproxy.guest();
    let on_loopback = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = on_loopback.local_addr().unwrap().port();
    for to in [(HOST, port), (GATEWAY, 80)] {
        let error = fullsend::TcpStream::connect(&stack, to).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to:?}");
    }
    let address = Some(Ipv4Addr::new(192, 0, 2, 7));
    assert_eq!(resolve(&stack, "db.internal").await, (0, address));
    let refused = 5;
    let (code, _) = resolve(&stack, "host.containers.internal").await;
    assert_eq!(code, refused);
}

/// A guest whose program uses datagrams, as vfkit does.
fn vfkit_guest(gvproxy: &Gvproxy, name: &str, address: Ipv4Addr, mac: [u8; 6]) -> Stack {
    let own = gvproxy.path(name);
    let _ = fs::remove_file(&own);
    let socket = UnixDatagram::bind(own).unwrap();
    socket.connect(gvproxy.path("vfkit")).unwrap();
    socket.send(b"VFKT").unwrap();
    let device = FrameSocket::new(socket.into(), 1500).unwrap();
    guest_at(Box::new(device), address, mac)
}

#[tokio::test]
async fn guests_on_all_sockets_reach_each_other() {
    if !has_curl() {
        return;
    }
    let gvproxy = Gvproxy::start(&format!(
        "{ALL} -listen-vfkit unixgram://DIR/vfkit -ssh-port -1"
    ));
    let address = |n: u8| Ipv4Addr::new(192, 168, 127, n);
    let mac = |n: u8| [2, 0, 0, 0, 0, n];
    let guests = [
        guest_at(Box::new(gvproxy.link()), address(2), mac(2)),
        guest_at(Box::new(gvproxy.link()), address(3), mac(3)),
        vfkit_guest(&gvproxy, "first", address(4), mac(4)),
        vfkit_guest(&gvproxy, "second", address(5), mac(5)),
    ];
    let serve = |(n, stack): (u8, &Stack)| serve_echo_at(stack, (address(n), 80).into());
    let servers: Vec<_> = (2..).zip(&guests).map(serve).collect();
    for (from, guest) in guests.iter().enumerate() {
        for to in (0..4).filter(|to| *to != from) {
            let to = (address(2 + to as u8), 80);
            let stream = fullsend::TcpStream::connect(guest, to).await;
            let mut stream = stream.unwrap();
            let sent = vec![7; 200_000];
            stream.write_all(&sent).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap();
            assert!(received == sent, "{from} {to:?} {}", received.len());
        }
        // The gateway's API, and a forward to each guest.
        let port = free_port();
        let entry = format!(
            r#"{{"local":"127.0.0.1:{port}","remote":"{}:80"}}"#,
            address(2 + from as u8)
        );
        let answer = request(guest, "POST", "/services/forwarder/expose", &entry).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(exchange(client, "forwarded").await, "forwarded");
    }
    let mut macs: Vec<_> = (0..4)
        .map(|_| gvproxy.notification())
        .inspect(|n| assert_eq!(n["notification_type"], "connection_established"))
        .map(|n| n["mac_address"].as_str().unwrap().to_owned())
        .collect();
    macs.sort_unstable();
    assert_eq!(macs[0], "02:00:00:00:00:02");
    assert_eq!(macs[3], "02:00:00:00:00:05");
    let stats = gvproxy.get("/stats");
    assert_eq!(stats["GatewaySwitchRefused"], 0, "{stats}");
    // A vfkit that has been killed and restarted, with another path.
    let [one, _two, three, _four] = guests;
    servers[2].abort();
    drop(three);
    // Its socket is closed once the tasks of its stack have ended.
    while UnixDatagram::unbound()
        .unwrap()
        .connect(gvproxy.path("first"))
        .is_err_and(|error| error.kind() != ErrorKind::ConnectionRefused)
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let restarted = vfkit_guest(&gvproxy, "third", address(4), mac(4));
    let mut stream = fullsend::TcpStream::connect(&restarted, (address(2), 80))
        .await
        .unwrap();
    stream.write_all(b"again").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "again");
    drop(one);
}

/// Sends a frame for no host, and waits until gvproxy has received it.
fn send_frame(monitor: &mut Monitor) {
    let used = monitor.used();
    monitor.send_frame(&[[0xff; 60], [2; 60]].concat()[54..]);
    while monitor.used() == used {
        thread::sleep(Duration::from_millis(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_whose_memory_is_gone_ends_alone() {
    if !has_curl() {
        return;
    }
    let gvproxy = Gvproxy::start(&format!(
        "{ALL} -listen-vhost-user unix://DIR/vhost -ssh-port -1"
    ));
    let stack = gvproxy.guest();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let mut copy = stream.try_clone().unwrap();
        std::io::copy(&mut copy, &mut stream).unwrap();
        stream.shut_down();
    });
    let (memory, socket) = (gvproxy.path("memory"), gvproxy.path("vhost"));
    // Monitors come and go while the other guest's transfer does not end.
    let (ended, is_over) = mpsc::channel::<()>();
    let monitors = thread::spawn(move || {
        let mut rounds = 0;
        while rounds == 0 || is_over.try_recv().is_err() {
            let mut monitor = Monitor::connect(&socket, &memory);
            monitor.start();
            send_frame(&mut monitor);
            monitor.shorten();
            monitor.post(60);
            monitor.wait_for_end(LIMIT);
            rounds += 1;
        }
        rounds
    });
    let data: Vec<u8> = (0..16u32 << 20).map(|n| (n * 7 + n / 251) as u8).collect();
    let stream = fullsend::TcpStream::connect(&stack, (HOST, port)).await;
    let (mut read, mut write) = stream.unwrap().into_split();
    let sent = data.clone();
    let writing = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    read.read_to_end(&mut received).await.unwrap();
    writing.await.unwrap();
    assert!(received == data, "{} bytes", received.len());
    ended.send(()).unwrap();
    let rounds: u64 = monitors.join().unwrap();
    let stats = gvproxy.get("/stats");
    assert_eq!(stats["DeviceMemoryFaults"], rounds, "{stats}");
    assert_eq!(stats["DeviceProtocolErrors"], rounds, "{stats}");
}

#[test]
fn what_the_links_of_guests_drop_is_counted() {
    if !has_curl() {
        return;
    }
    let gvproxy = Gvproxy::start(&format!(
        "{ALL} -listen-vhost-user unix://DIR/vhost -ssh-port -1"
    ));
    let count = |name: &str| gvproxy.get("/stats")[name].as_u64().unwrap();
    assert_eq!(count("DeviceRxMalformed"), 0);
    let mut monitor = Monitor::connect(&gvproxy.path("vhost"), &gvproxy.path("memory"));
    monitor.start();
    // Shorter than an Ethernet header.
    monitor.post(1);
    while count("DeviceRxMalformed") != 1 {
        thread::sleep(Duration::from_millis(10));
    }
    drop(monitor);
    // A length that no frame has.
    let mut stream = UnixStream::connect(gvproxy.path("qemu")).unwrap();
    stream.write_all(&[0xff; 64]).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    // Those of guests that have ended stay.
    assert_eq!(count("DeviceRxMalformed"), 1);
    assert_eq!(count("DeviceProtocolErrors"), 1);
    assert_eq!(count("DeviceConnections"), 2);
}

#[test]
fn a_monitor_that_needs_more_queues_is_named_their_number() {
    let gvproxy =
        Gvproxy::start("-listen-vhost-user unix://DIR/vhost -log-file DIR/log -ssh-port -1");
    let mut monitor = Monitor::connect(&gvproxy.path("vhost"), &gvproxy.path("memory"));
    assert_eq!(monitor.queues(), 1);
    drop(monitor);
    let text = "queues=2 or more, use 1";
    while !fs::read_to_string(gvproxy.path("log"))
        .unwrap()
        .contains(text)
    {
        thread::sleep(Duration::from_millis(10));
    }
}
