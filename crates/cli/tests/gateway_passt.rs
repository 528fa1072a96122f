//! passt as QEMU, libvirt and muvm start it. Needs root, for a network whose addresses the guest gets.

mod pasta_net;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use pasta_net::{LIMIT, LOOPBACK, MACHINE, Net, Pasta, ROUTER, wait_until, with_net, with_port};

const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
/// The Ethernet address of a passt to which none is given.
const OWN_MAC: [u8; 6] = [0x9a, 0x55, 0x9a, 0x55, 0x9a, 0x55];

/// Sends an ARP request for `address` in QEMU's framing, and returns the Ethernet address of the answer.
fn arp(stream: &mut UnixStream, address: &str) -> io::Result<[u8; 6]> {
    let address: std::net::Ipv4Addr = address.parse().unwrap();
    let header = [&[0xff; 6][..], &GUEST_MAC, &[8, 6]].concat();
    let request = [
        &[0, 1, 8, 0, 6, 4, 0, 1][..],
        &GUEST_MAC,
        &[192, 0, 2, 7],
        &[0; 6],
    ]
    .concat();
    let frame = [&header[..], &request, &address.octets()].concat();
    stream.write_all(&(frame.len() as u32).to_be_bytes())?;
    stream.write_all(&frame)?;
    stream.set_read_timeout(Some(LIMIT))?;
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut answer)?;
        // Others are e.g. router advertisements.
        if answer[12..14] == [8, 6] && answer[20..22] == [0, 2] {
            assert_eq!(answer[28..32], address.octets());
            return Ok(answer[6..12].try_into().unwrap());
        }
    }
}

/// Requests the features of a vhost-user device, and returns whether it offers virtio 1.
fn is_vhost_user(stream: &mut UnixStream) -> bool {
    const GET_FEATURES: u32 = 1;
    const VERSION: u32 = 1;
    let request = [GET_FEATURES, VERSION, 0].map(u32::to_ne_bytes);
    stream.write_all(request.as_flattened()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    let features = u64::from_ne_bytes(reply[12..].try_into().unwrap());
    features >> 32 & 1 == 1
}

/// Runs a command line of passt to the end of its parent with `socket` as descriptor 3. Returns the
/// process that continues.
fn start_with_socket(net: &Net, socket: UnixStream, arguments: &str) -> Pasta {
    let script = format!("exec \"$0\" {arguments} 3<&0 </dev/null");
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(net.path("passt"))
        .current_dir(net.path("."))
        .stdin(std::os::fd::OwnedFd::from(socket))
        .output()
        .expect("sh starts");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    Pasta::of_file(&net.path("pid"))
}

fn connect(path: &Path) -> UnixStream {
    UnixStream::connect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn qemus_command_line_returns_0_and_ends_with_its_socket() {
    with_net(|net| {
        let (theirs, mut ours) = UnixStream::pair().unwrap();
        let arguments = "--quiet --mtu 1500 --address 192.0.2.9 --pid pid --fd 3";
        let passt = start_with_socket(net, theirs, arguments);
        assert!(passt.is_running());
        assert_eq!(arp(&mut ours, ROUTER[0]).unwrap(), OWN_MAC);
        // Neighbors of the host are reached through passt, too.
        assert_eq!(arp(&mut ours, MACHINE[0]).unwrap(), OWN_MAC);
        drop(ours);
        passt.wait_for_end();
    });
}

#[test]
fn libvirts_command_line_ends_with_its_first_connection() {
    with_net(|net| {
        let path = net.path("socket");
        let arguments = format!(
            "--one-off --socket {} --mac-addr 52:54:00:12:34:56 --interface up0 --quiet",
            path.display()
        );
        let passt = net.start("passt", &arguments);
        let mut guest = connect(&path);
        assert_eq!(arp(&mut guest, ROUTER[0]).unwrap(), GUEST_MAC);
        drop(guest);
        passt.wait_for_end();
        wait_until("the end of the socket's file", || !path.exists());
    });
}

#[test]
fn muvms_command_line_stays_in_the_foreground_until_its_socket_is_closed() {
    with_net(|net| {
        let (theirs, mut ours) = UnixStream::pair().unwrap();
        let script = "exec \"$0\" -q -f -t 127.0.0.1/8080:80 --fd 3 3<&0 </dev/null";
        let mut passt = Command::new("sh")
            .args(["-c", script])
            .arg(net.path("passt"))
            .stdin(std::os::fd::OwnedFd::from(theirs))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(arp(&mut ours, ROUTER[0]).unwrap(), OWN_MAC);
        // The port is the guest's.
        let taken = std::net::TcpListener::bind(with_port(LOOPBACK[0], 8080));
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(passt.try_wait().unwrap().is_none());
        drop(ours);
        let status = passt.wait().unwrap();
        let mut errors = String::new();
        passt
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut errors)
            .unwrap();
        assert_eq!((status.code(), &*errors), (Some(0), ""));
    });
}

#[test]
fn vhost_user_is_served_on_the_same_sockets() {
    with_net(|net| {
        // As QEMU's `-netdev passt,vhost-user=on` does.
        let (theirs, mut ours) = UnixStream::pair().unwrap();
        let arguments = "--quiet --vhost-user --pid pid --fd 3";
        let passt = start_with_socket(net, theirs, arguments);
        assert!(is_vhost_user(&mut ours));
        drop(ours);
        passt.wait_for_end();

        // As libvirt does for interfaces of the type `vhostuser`.
        let path = net.path("socket");
        let arguments = format!("--one-off --socket {} --vhost-user -q", path.display());
        let passt = net.start("passt", &arguments);
        let mut monitor = connect(&path);
        assert!(is_vhost_user(&mut monitor));
        drop(monitor);
        passt.wait_for_end();
        wait_until("the end of the socket's file", || !path.exists());

        // The next monitor is served after one that violates the protocol.
        let passt = net.start("passt", &format!("-q --vhost-user -s {}", path.display()));
        for _ in 0..2 {
            let mut monitor = connect(&path);
            assert!(is_vhost_user(&mut monitor));
            monitor.write_all(&[0xff; 12]).unwrap();
            assert_eq!(monitor.read(&mut [0]).unwrap_or(0), 0);
        }
        assert!(passt.is_running());
    });
}

#[test]
fn without_one_off_the_next_connection_is_served_and_a_wrong_length_ends_one() {
    with_net(|net| {
        let path = net.path("socket");
        let passt = net.start("passt", &format!("-q -s {}", path.display()));
        for _ in 0..2 {
            let mut guest = connect(&path);
            assert_eq!(arp(&mut guest, ROUTER[0]).unwrap(), OWN_MAC);
            guest.write_all(&[0xff; 4]).unwrap();
            let mut rest = Vec::new();
            guest.read_to_end(&mut rest).unwrap();
        }
        assert!(passt.is_running());
        let second = net.program("passt", &format!("-q -f -s {}", path.display()));
        assert!(!second.status.success(), "the path is in use");
        passt.terminate();
        passt.wait_for_end();
        wait_until("the end of the socket's file", || !path.exists());
    });
}

#[test]
fn errors_name_the_option() {
    with_net(|net| {
        for (arguments, text) in [
            ("--fd 3", "--fd 3"),
            ("--fd x", "`x` is not the number of an open socket"),
            (
                "-f --fd 5 --socket /tmp/x",
                "--fd and --socket exclude each other",
            ),
            ("-t auto", "--tcp-ports auto is for pasta"),
            ("--config-net", "unrecognized option '--config-net'"),
            ("sh", "sh is not an option"),
        ] {
            let output = net.program("passt", arguments);
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(errors.contains(text), "{arguments}: {errors}");
            assert_eq!(output.status.code(), Some(1), "{arguments}");
        }
        let version = net.program("passt", "--version");
        assert!(String::from_utf8_lossy(&version.stdout).starts_with("passt 2"));
        let capabilities = net.program("passt", "--print-capabilities");
        assert_eq!(&capabilities.stdout[..], b"{\n  \"type\": \"net\"\n}\n");
    });
}
