//! Two Linux guests in QEMU on one gvproxy: one over a stream, one over vhost-user. Needs QEMU.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use fullsend_testvm::{GuestImage, Vm, VmBuilder};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
/// Bytes that each guest serves.
const DATA: usize = 2 << 20;

const UDHCPC: &str = r#"#!/bin/sh
[ "$1" = bound ] || exit 0
ip addr add "$ip/$mask" dev eth0
ip route add default via "$router" dev eth0
echo "@@ lease $ip"
"#;

const SCRIPT: &str = r#"
ip link set eth0 up
udhcpc -i eth0 -n -q -f -s /udhcpc.sh 2>/dev/null || echo "@@ no lease"
head -c DATA /dev/urandom > /data
httpd -p 80 -h /
echo "@@ serving $(sha256sum < /data)"
read -r peer
ping -c 1 -W 9 $peer >/dev/null && echo "@@ ping"
wget -q -O /received http://$peer/data
echo "@@ received $(sha256sum < /received)"
wget -q -O - http://192.168.127.254:PORT/ | sed 's/^/@@ host /'
read -r end
"#;

struct Gvproxy(Child);

impl Drop for Gvproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers each request of HTTP on the host's loopback. Returns the port.
fn serve_on_host() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            stream
                .write_all(b"HTTP/1.0 200 OK\r\n\r\nanswers\n")
                .unwrap();
        }
    });
    port
}

fn boot(image: &GuestImage, port: u16, number: u8, netdev: &[String]) -> Vm {
    let script = SCRIPT
        .replace("DATA", &DATA.to_string())
        .replace("PORT", &port.to_string());
    let device = format!("virtio-net-pci,netdev=net0,vectors=0,mac=52:54:00:00:00:{number:02x}");
    VmBuilder::new(image)
        .qemu_args(netdev)
        .qemu_args(["-device", &device])
        .file("udhcpc.sh", UDHCPC)
        .script(&script)
        .boot()
        .expect("QEMU starts")
}

fn next(vm: &mut Vm, marker: &str) -> String {
    let line = vm
        .wait_for(marker)
        .unwrap_or_else(|error| panic!("{error}"));
    let rest = line.trim().strip_prefix(marker).unwrap_or_default();
    rest.trim().to_owned()
}

/// Returns the body of a page of the API.
fn get(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: gvproxy\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
    body.trim().to_owned()
}

fn start_gvproxy(folder: &Path) -> (Gvproxy, [PathBuf; 3]) {
    let paths = ["qemu", "vhost", "services"].map(|name| folder.join(name));
    let [qemu, vhost, services] = paths
        .each_ref()
        .map(|path| format!("unix://{}", path.display()));
    let process = Command::new(PROGRAM)
        .args(["gvproxy", "-ssh-port", "-1", "-listen-qemu", &qemu])
        .args(["-listen-vhost-user", &vhost, "-services", &services])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let gvproxy = Gvproxy(process);
    while !paths.iter().all(|path| UnixStream::connect(path).is_ok()) {
        thread::sleep(Duration::from_millis(20));
    }
    (gvproxy, paths)
}

#[test]
fn two_guests_exchange_data_and_reach_the_host() {
    let image = match GuestImage::find() {
        Ok(image) => image,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let (gvproxy, [qemu, vhost, services]) = start_gvproxy(folder.path());
    let port = serve_on_host();
    let stream = [
        "-netdev".to_owned(),
        format!(
            "stream,id=net0,server=off,addr.type=unix,addr.path={}",
            qemu.display()
        ),
    ];
    let vhost_user = [
        "-chardev".to_owned(),
        format!("socket,id=c0,path={}", vhost.display()),
        "-netdev".to_owned(),
        "vhost-user,id=net0,chardev=c0".to_owned(),
    ];
    let mut guests = [
        boot(&image, port, 1, &stream),
        boot(&image, port, 2, &vhost_user),
    ];
    let addresses = guests.each_mut().map(|vm| next(vm, "@@ lease"));
    let served = guests.each_mut().map(|vm| next(vm, "@@ serving"));
    let mut sorted = addresses.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["192.168.127.2", "192.168.127.3"]);
    let leases = get(&services, "/services/dhcp/leases");
    for (number, address) in addresses.iter().enumerate() {
        let lease = format!("\"{address}\":\"52:54:00:00:00:{:02x}\"", number + 1);
        assert!(leases.contains(&lease), "{leases}");
    }
    for (vm, peer) in guests.iter_mut().zip([&addresses[1], &addresses[0]]) {
        vm.send_line(peer).unwrap();
    }
    let [first, second] = &mut guests;
    for (vm, sent) in [(first, &served[1]), (second, &served[0])] {
        next(vm, "@@ ping");
        assert_eq!(&next(vm, "@@ received"), sent);
        assert_eq!(next(vm, "@@ host"), "answers");
    }
    // The other guest goes on when one ends.
    let [first, second] = guests;
    drop(second);
    let stats = || get(&services, "/stats");
    assert!(
        stats().contains("\"GatewaySwitchRefused\":0"),
        "{}",
        stats()
    );
    drop(first);
    drop(gvproxy);
}
