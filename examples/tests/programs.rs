//! Runs each program as docs/examples.md describes, against the kernel in a network namespace. Needs
//! root.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Time limit of calls that must return: only a fault takes that long.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `test` in a thread with a network namespace of its own, which the threads and programs that
/// it starts share.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if !geteuid().is_root() {
        println!("skipped: needs root, for a network namespace and a TUN device");
        return;
    }
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        test();
    });
    thread.join().unwrap();
}

fn ip(line: &str) {
    let status = Command::new("ip").args(line.split(' ')).status();
    assert!(status.unwrap().success(), "ip {line}");
}

/// A program that ends with the test.
struct Program {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(path: &str, args: &[&str]) -> Self {
        // `timeout` ends a program that hangs.
        let mut command = Command::new("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg(path);
        command.args(args).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns the rest of the next line that begins with `start`.
    fn expect(&mut self, start: &str) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        let found = lines.find_map(|line| line.strip_prefix(start).map(str::to_owned));
        found.unwrap_or_else(|| panic!("it ended without a line that begins with {start:?}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // `timeout` passes SIGTERM on, but not SIGKILL.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").arg(pid).status();
        let _ = self.child.wait();
    }
}

fn connect(to: impl Into<SocketAddr>) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to.into(), LIMIT).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Starts a server of the kernel that echoes each connection, and returns its address.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || {
                let _ = std::io::copy(&mut &stream, &mut &stream);
                let _ = stream.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    at
}

/// Sends `len` bytes and a FIN, and checks that the same bytes and a FIN come back.
fn check_echo(stream: &TcpStream, len: usize) {
    let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
    let received = thread::scope(|scope| {
        scope.spawn(|| {
            (&mut &*stream).write_all(&data).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        (&mut &*stream).read_to_end(&mut received).unwrap();
        received
    });
    assert!(received == data, "{} of {len} bytes", received.len());
}

#[test]
fn the_axum_server_greets() {
    in_namespace(|| {
        let mut server = Program::start(env!("CARGO_BIN_EXE_axum_server"), &[]);
        server.expect("http://10.9.0.2/hello/NAME");
        let mut stream = connect(([10, 9, 0, 2], 80));
        stream
            .write_all(b"GET /hello/world HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nHello, world!\n"), "{answer}");
    });
}

#[test]
fn the_hyper_client_prints_the_answer() {
    in_namespace(|| {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, from) = listener.accept().unwrap();
            assert_eq!(from.ip(), Ipv4Addr::new(10, 9, 0, 2));
            let mut reader = BufReader::new(stream.try_clone().unwrap()).lines();
            assert_eq!(reader.next().unwrap().unwrap(), "GET /here HTTP/1.1");
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nfound\n")
                .unwrap();
        });
        let at = format!("10.9.0.1:{port}");
        let mut client = Program::start(env!("CARGO_BIN_EXE_hyper_client"), &[&at, "/here"]);
        client.expect("200 OK");
        client.expect("found");
        server.join().unwrap();
    });
}

#[test]
fn the_rustls_server_echoes() {
    in_namespace(|| {
        let file = std::env::temp_dir().join(format!("fullsend-echo-{}.der", std::process::id()));
        let path = file.to_str().unwrap();
        let mut server = Program::start(env!("CARGO_BIN_EXE_rustls_echo"), &[path]);
        server.expect("echo.example is at 10.9.0.2:443");
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from(std::fs::read(&file).unwrap()))
            .unwrap();
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("echo.example").unwrap();
        let client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(client, connect(([10, 9, 0, 2], 443)));
        for len in [1, 100_000] {
            let data = vec![b'x'; len];
            stream.write_all(&data).unwrap();
            let mut back = vec![0; len];
            stream.read_exact(&mut back).unwrap();
            assert!(back == data);
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        std::fs::remove_file(file).unwrap();
    });
}

/// Returns the two keys that `wireguard genkey` prints.
fn wireguard_keys() -> [String; 2] {
    let mut program = Program::start(env!("CARGO_BIN_EXE_wireguard"), &["genkey"]);
    [program.expect(""), program.expect("")]
}

#[test]
fn two_wireguard_peers_carry_a_connection() {
    in_namespace(|| {
        let path = env!("CARGO_BIN_EXE_wireguard");
        let echo = echo_server();
        let [[private_a, public_a], [private_b, public_b]] = [wireguard_keys(), wireguard_keys()];
        let expose = format!("7={echo}");
        let mut b = Program::start(
            path,
            &[
                "run",
                "--private-key",
                &private_b,
                "--peer-key",
                &public_a,
                "--bind",
                "127.0.0.1:0",
                "--address",
                "10.9.0.1/24",
                "--expose",
                &expose,
            ],
        );
        let endpoint = b.expect("datagrams at ");
        b.expect("port 7 in the tunnel leads to ");
        let mut a = Program::start(
            path,
            &[
                "run",
                "--private-key",
                &private_a,
                "--peer-key",
                &public_b,
                "--bind",
                "127.0.0.1:0",
                "--endpoint",
                &endpoint,
                "--address",
                "10.9.0.2/24",
                "--forward",
                "127.0.0.1:7007=10.9.0.1:7",
            ],
        );
        a.expect("127.0.0.1:7007 leads to 10.9.0.1:7 in the tunnel");
        for len in [1, 4 << 20] {
            check_echo(&connect(([127, 0, 0, 1], 7007)), len);
        }
    });
}

/// A SOCKS5 proxy that connects to `echo` whatever the destination, except port 9, which it
/// refuses. Its relay of datagrams answers each with the data from the destination that it names.
fn socks5_proxy(echo: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || {
                let _ = serve_socks5(stream, echo);
            });
        }
    });
    at
}

fn serve_socks5(mut stream: TcpStream, echo: SocketAddr) -> std::io::Result<()> {
    let mut methods = [0; 3];
    stream.read_exact(&mut methods)?;
    assert_eq!(methods, [5, 1, 0]);
    stream.write_all(&[5, 0])?;
    let mut request = [0; 10];
    stream.read_exact(&mut request)?;
    let reply = |code: u8, port: u16| {
        let [high, low] = port.to_be_bytes();
        [5, code, 0, 1, 127, 0, 0, 1, high, low]
    };
    match request {
        [5, 1, 0, 1, .., 0, 9] => stream.write_all(&reply(5, 0)),
        [5, 1, 0, 1, 203, 0, 113, ..] => {
            let upstream = TcpStream::connect(echo)?;
            stream.write_all(&reply(0, 0))?;
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _ = std::io::copy(&mut &stream, &mut &upstream);
                    let _ = upstream.shutdown(std::net::Shutdown::Write);
                });
                std::io::copy(&mut &upstream, &mut &stream)?;
                stream.shutdown(std::net::Shutdown::Write)
            })
        }
        [5, 3, 0, 1, 0, 0, 0, 0, 0, 0] => {
            let relay = UdpSocket::bind("127.0.0.1:0")?;
            stream.write_all(&reply(0, relay.local_addr()?.port()))?;
            let mut datagram = [0; 2000];
            loop {
                // The header's address is then that of the sender.
                let (len, from) = relay.recv_from(&mut datagram)?;
                relay.send_to(&datagram[..len], from)?;
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn tun2socks_relays_connections_and_datagrams() {
    in_namespace(|| {
        let proxy = socks5_proxy(echo_server()).to_string();
        let mut program = Program::start(
            env!("CARGO_BIN_EXE_tun2socks"),
            &["--tun", "fs0", "--proxy", &proxy],
        );
        program.expect("fs0 leads to ");
        ip("route add 203.0.113.0/24 dev fs0");
        check_echo(&connect(([203, 0, 113, 5], 80)), 1 << 20);
        // The proxy refuses this one.
        let refused = TcpStream::connect_timeout(&([203, 0, 113, 5], 9).into(), LIMIT);
        let kind = refused.unwrap_err().kind();
        assert_eq!(kind, std::io::ErrorKind::HostUnreachable);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        for (n, len) in [(1, 1), (2, 1000)] {
            let to = SocketAddr::from(([203, 0, 113, n], 53));
            socket.send_to(&vec![n; len], to).unwrap();
            let mut buf = [0; 2000];
            let (received, from) = socket.recv_from(&mut buf).unwrap();
            assert_eq!((&buf[..received], from), (&vec![n; len][..], to));
        }
    });
}
