//! Runs the example programs as users do: how they end, and how they handle the loss of their
//! device.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use common::in_namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Time limit of calls that must return: only a fault takes that long.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the path of an example that cargo has built beside this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let path = profile.join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not there: run the tests as `cargo test -p fullsend`",
        path.display()
    );
    path
}

struct Program {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Program {
    fn start(name: &str, line: &str) -> Self {
        // `timeout` passes signals on, and ends a program that hangs.
        let mut command = Command::new("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg(example(name));
        command.args(line.split(' ')).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for a line that begins with `start`.
    fn expect(&mut self, start: &str) {
        let found = self
            .lines
            .by_ref()
            .any(|line| line.unwrap().starts_with(start));
        assert!(found, "it ended without a line that begins with {start:?}");
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(to: &str) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Starts a server on the host that answers each byte with its successor.
fn successor_server() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut byte = [0];
                while matches!(stream.read(&mut byte), Ok(1)) {
                    let _ = stream.write_all(&[byte[0] + 1]);
                }
            });
        }
    });
    at
}

/// How the window follows losses is a test of the crate `sim`, in virtual time.
#[test]
fn the_example_of_a_congestion_control_runs() {
    let mut program = Program::start("congestion", "");
    program.expect("congestion control: aimd");
    program.expect("window ");
    assert!(program.wait().success());
}

#[test]
fn the_relay_shuts_down_gracefully_and_survives_device_loss() {
    in_namespace(|| {
        let to = successor_server();
        let line = format!("--tun fsr0 --address 10.66.0.2/24 --listen 80 --to {to}");
        let mut relay = Program::start("relay", &line);
        relay.expect("listening at 10.66.0.2/24");
        let talk = |stream: &mut TcpStream| {
            let mut byte = [0];
            stream.write_all(b"1").unwrap();
            stream.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [b'2']);
        };
        talk(&mut connect("10.66.0.2:80"));

        let gone = Command::new("ip").args(["link", "delete", "fsr0"]).status();
        assert!(gone.unwrap().success());
        relay.expect("listening at 10.66.0.2/24");
        let mut stream = connect("10.66.0.2:80");
        talk(&mut stream);

        relay.signal(Signal::SIGTERM);
        relay.expect("1 connections have");
        // This connection may finish, with its FIN passed on in both directions.
        talk(&mut stream);
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        assert!(relay.wait().success());
    });
}

#[test]
fn the_http_server_closes_its_connections_gracefully() {
    in_namespace(|| {
        let mut http = Program::start("http", "--tun fsh0 --address 10.67.0.2/24 --dir .");
        http.expect("serving . at 10.67.0.2/24");
        let mut idle = connect("10.67.0.2:80");
        idle.write_all(b"GET /Cargo.toml HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut answer = [0; 15];
        idle.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        http.signal(Signal::SIGINT);
        // Without a FIN, the read would last until its timeout.
        let mut rest = Vec::new();
        idle.read_to_end(&mut rest).unwrap();
        assert!(rest.ends_with(b"\n"));
        assert!(http.wait().success());
    });
}
