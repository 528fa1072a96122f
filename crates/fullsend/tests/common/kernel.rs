//! The kernel as the peer of a stack: interfaces in a test's network namespace, and sockets.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use fullsend::{AddressState, Stack, TcpListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::pattern;

/// The addresses of a stack at `ve1` ([`veth`]).
pub(crate) const OURS: [&str; 2] = ["10.9.0.2", "fd09::2"];

/// Runs `test` on one thread in real time.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(test);
}

/// Runs `ip` with arguments that have no spaces.
pub(crate) fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// Makes a veth pair: the kernel has addresses at `ve0`, and none at `ve1`.
pub(crate) fn veth() {
    ip("link add ve0 type veth peer name ve1");
    ip("address add 10.9.0.1/24 dev ve0");
    ip("address add fd09::1/64 dev ve0 nodad");
    for end in ["ve0", "ve1"] {
        ip(&format!("link set {end} up"));
    }
}

/// Waits until the stack may use its addresses.
pub(crate) async fn wait_for_addresses(stack: &Stack) {
    let is_preferred = |stack: &Stack| {
        let all = stack.addresses();
        all.iter().all(|own| own.state == AddressState::Preferred)
    };
    while !is_preferred(stack) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends `data` and a FIN on a kernel socket, and returns all that it receives.
pub(crate) fn exchange(mut stream: TcpStream, data: &[u8]) -> Vec<u8> {
    let mut read = stream.try_clone().unwrap();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        read.read_to_end(&mut got).unwrap();
        got
    });
    stream.write_all(data).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    reader.join().unwrap()
}

/// Sends `bytes` each way between a kernel socket and the stack, at the same time, and verifies them.
pub(crate) async fn exchange_with_stack(stack: &Stack, ours: &'static str, bytes: usize) {
    let listener = TcpListener::bind(stack, (ours.parse::<IpAddr>().unwrap(), 80)).unwrap();
    let (there, back) = (pattern(bytes, 1), pattern(bytes, 2));
    let (sent, expected) = (there.clone(), back.clone());
    let kernel = thread::spawn(move || {
        let stream = TcpStream::connect((ours, 80)).unwrap();
        assert!(exchange(stream, &sent) == expected, "{ours}: us to kernel");
    });
    let (mut stream, _) = listener.accept().await.unwrap();
    let (mut read, mut write) = stream.split();
    let send = async {
        write.write_all(&back).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let (received, ()) = tokio::join!(read.read_to_end(&mut got), send);
    received.unwrap();
    assert!(got == there, "{ours}: kernel to us");
    stream.flushed().await.unwrap();
    kernel.join().unwrap();
}
