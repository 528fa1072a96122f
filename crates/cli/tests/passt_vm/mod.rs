//! A guest that uses everything that passt gives it, and the servers that it uses.

mod dhcpv6;
mod frame_relay;
mod message_relay;

use std::env;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use fullsend_testvm::{GuestImage, Vm, VmBuilder};

use crate::pasta_net::{LOOPBACK, RESOLVER, with_port};

pub(crate) use dhcpv6::request_address;
pub(crate) use frame_relay::FrameRelay;
pub(crate) use message_relay::MessageRelay;

const ECHO_PORT: u16 = 7000;
const KEPT_PORT: u16 = 7001;
/// Bytes that the guest sends and receives over each address family.
const DATA: usize = 3 << 20;
/// The address of every name.
const NAMED: [u8; 4] = [198, 51, 100, 77];

/// The name of the test that is the guest's DHCPv6 client; busybox of Debian has none.
const DHCPV6_CLIENT: &str = "the_dhcpv6_client_of_a_guest";

/// Configures the interface from the answer of the DHCP server.
const UDHCPC: &str = r#"#!/bin/sh
[ "$1" = bound ] || exit 0
ip link set eth0 mtu "${mtu:-1500}"
ip addr add "$ip/$mask" dev eth0
ip route add default via "$router" dev eth0
echo "nameserver $dns" > /etc/resolv.conf
echo "@@ lease $ip/$mask $router $mtu"
"#;

const SCRIPT: &str = r#"
ip link set eth0 up
udhcpc -i eth0 -n -q -f -O mtu -s /udhcpc.sh 2>/dev/null || echo "@@ no lease"
until ip -6 route | grep -q ^default && ip -6 addr show dev eth0 | grep -q 'scope global'; do
    sleep 0.1
done
ip -6 addr show dev eth0 scope global | sed -n 's/.*inet6 \([^ ]*\).*/@@ address \1/p'
CLIENT DHCPV6 --exact --ignored --nocapture | sed -n 's/.*@@/@@/p'
nslookup -type=a name.test. 2>&1 | sed -n 's/^Address: /@@ name /p'
ping -c 1 -W 9 192.0.2.254 >/dev/null && echo "@@ ping 4"
ping6 -c 1 -W 9 2001:db8::fe >/dev/null && echo "@@ ping 6"
head -c DATA /dev/urandom > /sent
for to in 192.0.2.254 2001:db8::fe; do
    nc $to 7000 < /sent > /received
    cmp /sent /received && echo "@@ echo $to $(sha256sum < /received)"
done
httpd -p 80 -h /
echo "@@ serving"
nc 192.0.2.254 7001 | while read -r line; do echo "@@ kept $line"; done
"#;

/// Sends each client of a port what it has sent, once it has sent everything.
fn serve_echo(address: &str) {
    let listener = TcpListener::bind(with_port(address, ECHO_PORT)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut data = Vec::new();
            stream.read_to_end(&mut data).unwrap();
            assert_eq!(data.len(), DATA);
            stream.write_all(&data).unwrap();
        }
    });
}

/// Answers a client with one line, and with another one after a signal.
fn serve_kept(signal: Receiver<()>) {
    let listener = TcpListener::bind(with_port(LOOPBACK[0], KEPT_PORT)).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"one\n").unwrap();
        signal.recv().unwrap();
        stream.write_all(b"two\n").unwrap();
        let _ = stream.read(&mut [0]);
    });
}

/// Answers each query with [`NAMED`].
fn serve_names() {
    let socket = UdpSocket::bind(with_port(RESOLVER, 53)).unwrap();
    thread::spawn(move || {
        let mut query = [0; 512];
        loop {
            let (len, from) = socket.recv_from(&mut query).unwrap();
            let mut answer = query[..len].to_vec();
            answer[2] |= 0x80;
            answer[7] = 1;
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(NAMED);
            socket.send_to(&answer, from).unwrap();
        }
    });
}

/// Starts the servers. The second line of the kept connection is sent after a signal.
pub(crate) fn start_servers() -> Sender<()> {
    LOOPBACK.into_iter().for_each(serve_echo);
    let (signal, signals) = channel();
    serve_kept(signals);
    serve_names();
    signal
}

/// Boots a guest whose card has these arguments.
pub(crate) fn boot(image: &GuestImage, qemu_args: &[String]) -> Vm {
    let client = env::current_exe().expect("the test's program");
    let client = client.to_str().expect("a path of characters");
    let script = SCRIPT
        .replace("DATA", &DATA.to_string())
        .replace("CLIENT", client)
        .replace("DHCPV6", DHCPV6_CLIENT);
    VmBuilder::new(image)
        .qemu_args(qemu_args)
        .file("udhcpc.sh", UDHCPC)
        .program(client)
        .expect("the test's program can be read")
        .script(&script)
        .boot()
        .expect("QEMU starts")
}

/// Asserts what a guest has from its start until its last connection is open, which
/// `replace_connection` must not end.
pub(crate) fn assert_guest_is_served(
    vm: &mut Vm,
    mtu: u32,
    signal: &Sender<()>,
    replace_connection: impl FnOnce(),
) {
    let mut next = |marker: &str| {
        vm.wait_for(marker)
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let lease = format!("@@ lease 192.0.2.7/24 192.0.2.254 {mtu}");
    assert_eq!(next("@@"), lease);
    assert!(next("@@").starts_with("@@ address 2001:db8::"));
    assert_eq!(next("@@"), "@@ dhcpv6 2001:db8::7");
    assert_eq!(next("@@"), "@@ name 198.51.100.77");
    assert_eq!(next("@@"), "@@ ping 4");
    assert_eq!(next("@@"), "@@ ping 6");
    let over_v4 = next("@@ echo 192.0.2.254 ");
    let over_v6 = next("@@ echo 2001:db8::fe ");
    assert_eq!(hash(&over_v4), hash(&over_v6));
    next("@@ serving");
    let page = fetch("/udhcpc.sh");
    assert!(page.ends_with(UDHCPC), "{page}");

    assert_eq!(next("@@ kept"), "@@ kept one");
    replace_connection();
    signal.send(()).unwrap();
    assert_eq!(next("@@ kept"), "@@ kept two");
}

/// Returns the hash in `@@ echo ADDRESS HASH  -`.
fn hash(line: &str) -> &str {
    line.split_ascii_whitespace().nth(3).unwrap_or_default()
}

/// Fetches a file of the guest's web server through the forwarded port.
fn fetch(path: &str) -> String {
    let mut stream = TcpStream::connect(with_port(LOOPBACK[0], 8080)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}
