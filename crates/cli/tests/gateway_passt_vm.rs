//! A Linux guest in QEMU with passt as its network. Needs root and QEMU.

mod pasta_net;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use fullsend_testvm::{GuestImage, VmBuilder};
use pasta_net::{LOOPBACK, RESOLVER, with_net, with_port};

const ECHO_PORT: u16 = 7000;
const KEPT_PORT: u16 = 7001;
/// Bytes that the guest sends and receives over each address family.
const DATA: usize = 3 << 20;
/// The address of every name.
const NAMED: [u8; 4] = [198, 51, 100, 77];

/// Configures the interface as the DHCP server says.
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

/// Relays frames between QEMU, whose connection stays, and passt, whose connection can be replaced:
/// Debian's QEMU cannot connect again itself.
struct Relay {
    to_passt: Arc<Mutex<UnixStream>>,
}

impl Relay {
    fn start(listener: UnixListener, passt: PathBuf) -> Self {
        let connect = move || UnixStream::connect(&passt).expect("passt listens");
        let to_passt = Arc::new(Mutex::new(connect()));
        let shared = to_passt.clone();
        thread::spawn(move || {
            let (mut qemu, _) = listener.accept().unwrap();
            let (mut to_qemu, from_guest) = (qemu.try_clone().unwrap(), shared.clone());
            thread::spawn(move || {
                while let Ok(frame) = read_frame(&mut qemu) {
                    let mut passt = from_guest.lock().unwrap();
                    // A frame of a connection that ends is lost.
                    let _ = passt.write_all(&frame);
                }
            });
            loop {
                let mut passt = shared.lock().unwrap().try_clone().unwrap();
                while let Ok(frame) = read_frame(&mut passt) {
                    if to_qemu.write_all(&frame).is_err() {
                        return;
                    }
                }
                *shared.lock().unwrap() = connect();
            }
        });
        Self { to_passt }
    }

    fn replace_connection(&self) {
        let passt = self.to_passt.lock().unwrap();
        passt.shutdown(Shutdown::Both).unwrap();
    }
}

/// Reads a frame with its length.
fn read_frame(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; 4 + u32::from_be_bytes(length) as usize];
    frame[..4].copy_from_slice(&length);
    stream.read_exact(&mut frame[4..])?;
    Ok(frame)
}

#[test]
fn a_guest_has_addresses_names_data_pings_and_keeps_connections() {
    let image = match GuestImage::find() {
        Ok(image) => image,
        Err(missing) => return println!("skipped: {missing}"),
    };
    with_net(move |net| {
        let (passt_path, qemu_path) = (net.path("passt.socket"), net.path("qemu.socket"));
        let arguments = format!("-q -t 127.0.0.1/8080:80 -s {}", passt_path.display());
        let _passt = net.start("passt", &arguments);
        let relay = Relay::start(UnixListener::bind(&qemu_path).unwrap(), passt_path);
        LOOPBACK.into_iter().for_each(serve_echo);
        let (signal, signals) = channel();
        serve_kept(signals);
        serve_names();

        let netdev = format!(
            "stream,id=net0,server=off,addr.type=unix,addr.path={}",
            qemu_path.display()
        );
        let mut vm = VmBuilder::new(&image)
            .qemu_args(["-netdev", &netdev, "-device", "virtio-net-pci,netdev=net0"])
            .file("udhcpc.sh", UDHCPC)
            .script(&SCRIPT.replace("DATA", &DATA.to_string()))
            .boot()
            .unwrap();
        let mut next = |marker: &str| {
            vm.wait_for(marker)
                .unwrap_or_else(|error| panic!("{error}"))
        };
        assert_eq!(next("@@"), "@@ lease 192.0.2.7/24 192.0.2.254 65520");
        assert!(next("@@").starts_with("@@ address 2001:db8::"));
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
        relay.replace_connection();
        signal.send(()).unwrap();
        assert_eq!(next("@@ kept"), "@@ kept two");
    });
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
