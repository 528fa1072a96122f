//! The user as which pasta and passt of root run, and what their sandbox shows of the host. Needs root.

mod pasta_net;

use std::fs::{self, Permissions};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;

use pasta_net::{
    HOST, LIMIT, LOOPBACK, MACHINE, Namespace, Net, Over, Pasta, ask, serve, wait_until, with_net,
    with_port,
};

/// The user and group `nobody`.
const NOBODY: u32 = 65_534;
/// `CAP_NET_BIND_SERVICE`.
const LOW_PORTS: u64 = 1 << 10;
const STARTED: &str = "Started as root, will change to nobody.";

/// Returns the words behind a name in the status of a process.
fn status(pid: &str, name: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let words = line.unwrap_or_default().split_ascii_whitespace();
    words.map(str::to_owned).collect()
}

/// Checks the real, effective, saved and file system's user and group of a process, that it has no other
/// groups, and that it may bind low ports at most.
fn assert_user(pid: &str, uid: u32, gid: u32) {
    assert_eq!(status(pid, "Uid:"), vec![uid.to_string(); 4], "{pid}");
    assert_eq!(status(pid, "Gid:"), vec![gid.to_string(); 4], "{pid}");
    assert_eq!(status(pid, "Groups:"), [""; 0], "{pid}");
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapBnd:", "CapAmb:"] {
        let capabilities = u64::from_str_radix(&status(pid, set)[0], 16).unwrap();
        assert_eq!(capabilities & !LOW_PORTS, 0, "{set} of {pid}");
    }
}

/// Checks that a process sees no file of the host, and has the directories that slirp4netns has.
fn assert_hidden(pid: &str) {
    let root = format!("/proc/{pid}/root");
    let list = |path: &str| {
        let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list(&root), ["etc", "run"], "{pid}");
    for folder in ["etc", "run"] {
        assert_eq!(
            list(&format!("{root}/{folder}")),
            [""; 0],
            "{folder} of {pid}"
        );
    }
}

/// Returns the processes that a process has started.
fn children(pid: i32) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap();
    let names = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_child = |name: &String| status(name, "PPid:") == [pid.to_string()];
    names.filter(is_child).collect()
}

/// Starts a program in the background, and returns it with what it writes to standard error.
fn start(net: &Net, program: &str, arguments: &str) -> (Pasta, String) {
    let file = net.path("pid");
    let output = net.program(program, &format!("--pid {} {arguments}", file.display()));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments}: {errors}");
    (Pasta::of_file(&file), errors)
}

/// Answers queries at `at` with `mark` as the last byte.
fn serve_marked(at: SocketAddr, mark: u8) {
    let udp = UdpSocket::bind(at).unwrap();
    thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((len, from)) = udp.recv_from(&mut buf) {
            buf[2] |= 0x80;
            buf[len] = mark;
            let _ = udp.send_to(&buf[..=len], from);
        }
    });
}

/// Returns the mark of the resolver that answers the guest.
fn mark(guest: &Namespace) -> Option<u8> {
    const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01x\0\0\x01\0\x01";
    guest.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.send_to(QUERY, ("169.254.1.1", 53)).unwrap();
        let mut answer = [0; 512];
        let len = socket.recv(&mut answer).ok()?;
        answer[..len].last().copied()
    })
}

#[test]
fn pasta_of_root_becomes_nobody_and_still_serves() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], 83));
        let guest = Namespace::guest(false);
        let (pasta, errors) = start(
            net,
            "pasta",
            &format!(
                "--config-net -t 80 -u 81 -T 82:83 -U none --dns-forward 169.254.1.1 \
                 --map-host-loopback 169.254.1.9 {}",
                guest.pid()
            ),
        );
        assert_eq!(errors, format!("pasta: {STARTED}\n"));
        let pid = pasta.0.to_string();
        assert_user(&pid, NOBODY, NOBODY);
        assert_hidden(&pid);
        let others = children(pasta.0);
        assert!(
            !others.is_empty(),
            "the one with sockets in the guest's namespace"
        );
        for other in &others {
            assert_user(other, NOBODY, NOBODY);
        }

        // Low ports on both sides.
        guest.run(|| [80, 81].map(|port| serve(with_port("::", port))));
        let from_machine =
            |over, port| net.machine.run(move || ask(over, with_port(HOST[0], port)));
        let answer = |port: u16| format!("{port} {}", MACHINE[0]);
        assert_eq!(from_machine(Over::Tcp, 80).unwrap(), answer(80));
        assert_eq!(from_machine(Over::Udp, 81).unwrap(), answer(81));
        let spliced = guest.run(|| ask(Over::Tcp, with_port(LOOPBACK[0], 82)));
        assert_eq!(spliced.unwrap(), "83 127.0.0.1");
        let mapped = guest.run(|| ask(Over::Tcp, with_port("169.254.1.9", 83)));
        assert_eq!(mapped.unwrap(), "83 127.0.0.1");
        // The guest's processes end the gateway, which is not their user.
        drop(guest);
        pasta.wait_for_end();
    });
}

#[test]
fn the_hosts_resolvers_are_followed_though_the_sandbox_hides_their_file() {
    with_net(|net| {
        serve_marked("127.0.0.53:53".parse().unwrap(), 1);
        serve_marked("127.0.0.54:53".parse().unwrap(), 2);
        serve_marked("127.0.0.55:53".parse().unwrap(), 3);
        let guest = Namespace::guest(false);
        let line = "--config-net -q -t none -u none -T none -U none --dns-forward 169.254.1.1";
        let (pasta, _) = start(net, "pasta", &format!("{line} {}", guest.pid()));
        assert_hidden(&pasta.0.to_string());
        assert_eq!(mark(&guest), Some(1));
        fs::write("/etc/resolv.conf", "nameserver 127.0.0.54\n").unwrap();
        wait_until("the second resolver", || mark(&guest) == Some(2));
        // Another file at the path, as a program makes that replaces it.
        fs::write(net.path("other"), "nameserver 127.0.0.55\n").unwrap();
        let other = net.path("other").display().to_string();
        pasta_net::sh(&format!("mount --bind {other} /etc/resolv.conf"));
        wait_until("the third resolver", || mark(&guest) == Some(3));
    });
}

#[test]
fn runas_names_the_user() {
    with_net(|net| {
        for (value, uid, gid) in [
            ("12345", 12_345, 12_345),
            ("12345:54321", 12_345, 54_321),
            ("nobody:54321", NOBODY, 54_321),
            ("0", 0, 0),
        ] {
            let guest = Namespace::guest(false);
            let line = format!("--config-net --runas {value} -t 80 {}", guest.pid());
            let (pasta, errors) = start(net, "pasta", &line);
            assert_eq!(errors, "", "{value}");
            assert_user(&pasta.0.to_string(), uid, gid);
            pasta.terminate();
            pasta.wait_for_end();
        }
        let guest = Namespace::guest(false);
        for value in ["no-such-user", "0:no-such-group"] {
            let output = net.pasta(&format!("--runas {value} {}", guest.pid()));
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{errors}");
            assert!(
                errors.contains(&format!("--runas: `{value}` is not a user")),
                "{errors}"
            );
        }
    });
}

#[test]
fn passt_of_root_becomes_nobody_and_leaves_no_socket() {
    with_net(|net| {
        let path = net.path("socket");
        let line = format!("-t 80 -s {}", path.display());
        let (passt, errors) = start(net, "passt", &line);
        assert!(
            errors.starts_with(&format!("passt: {STARTED}\n")),
            "{errors}"
        );
        assert_user(&passt.0.to_string(), NOBODY, NOBODY);
        assert_hidden(&passt.0.to_string());
        passt.terminate();
        passt.wait_for_end();
        wait_until("the end of the socket's file", || !path.exists());
    });
}

#[test]
fn a_command_of_roots_pasta_is_root_of_its_own_user_namespace_only() {
    with_net(|net| {
        let folder = net.path("written");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let file = folder.join("file");
        let command = "cat /proc/self/uid_map /proc/self/gid_map";
        let output = net.pasta(&format!("--config-net -q -- {command}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<_> = text.split_ascii_whitespace().collect();
        // The user around it is root of the level of the gateway's mounts, and nobody outside of that.
        assert_eq!(words, ["0", "0", "1", "0", "0", "1"], "{output:?}");
        let output = net.pasta(&format!("--config-net -q -- touch {}", file.display()));
        assert!(output.status.success(), "{output:?}");
        let written = fs::metadata(&file).unwrap();
        assert_eq!((written.uid(), written.gid()), (NOBODY, NOBODY));
        let secret = net.path("secret");
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let output = net.pasta(&format!("--config-net -q -- cat {}", secret.display()));
        assert!(!output.status.success(), "{output:?}");
    });
}

#[test]
fn slirp4netns_in_its_sandbox_sees_no_file() {
    with_net(|net| {
        let guest = Namespace::guest(false);
        let mut slirp = std::process::Command::new(net.path("slirp4netns"))
            .args(["-c", "--enable-sandbox", "--enable-seccomp"])
            .args([&guest.pid().to_string(), "tap0"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let root = format!("/proc/{}/root", slirp.id());
        wait_until("the sandbox", || !Path::new(&root).join("proc").exists());
        assert_hidden(&slirp.id().to_string());
        slirp.kill().unwrap();
        slirp.wait().unwrap();
    });
}
