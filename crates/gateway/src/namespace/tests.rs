//! Tests against this machine's kernel. Those that need privileges print `skipped: ` without them.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use fullsend_device::{Device, Tun};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{
    FirstProcess, HostNetwork, HostRoute, InterfaceSetup, NamespaceEnd, Namespaces, NewNamespaces,
    Spawned, hung_up, open_tap,
};

/// A process in its own network namespace, and optionally its own user namespace.
struct Guest(Child);

impl Guest {
    /// Returns `None`, and prints the reason, if namespaces cannot be made here.
    fn start(unshare: &str) -> Option<Self> {
        let script = "echo ready; exec sleep 1000";
        let child = Command::new("unshare")
            .args(unshare.split(' '))
            .args(["--net", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.expect("unshare starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).unwrap();
        if line != "ready\n" {
            let _ = child.wait();
            println!("skipped: needs root for `unshare {unshare} --net`");
            return None;
        }
        Some(Self(child))
    }

    fn namespaces(&self) -> Namespaces {
        Namespaces::of_process(self.0.id()).unwrap()
    }

    /// Runs a command in the guest's namespaces, and returns its output.
    fn run(&self, command: &str) -> String {
        let pid = self.0.id().to_string();
        let output = Command::new("nsenter")
            .args([
                "--user",
                "--preserve-credentials",
                "--net",
                "--target",
                &pid,
            ])
            .args(command.split(' '))
            .output()
            .expect("nsenter starts");
        let output = if output.status.success() {
            output
        } else {
            // The user namespace is the caller's own.
            let plain = Command::new("nsenter")
                .args(["--net", "--target", &pid])
                .args(command.split(' '))
                .output();
            plain.expect("nsenter starts")
        };
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn setup() -> InterfaceSetup {
    InterfaceSetup {
        mtu: Some(9000),
        mac: Some([2, 0, 0, 0, 0, 7]),
        addresses: vec![(ip("10.0.2.100"), 24), (ip("fd00::100"), 64)],
        gateways: vec![ip("10.0.2.2"), ip("fd00::2")],
        routes: vec![HostRoute {
            destination: (ip("192.0.2.0"), 24),
            gateway: None,
            on_link: false,
            source: None,
        }],
        loopback: true,
        accept_ra: Some(true),
        leave_down: false,
    }
}

/// Checks what `setup` has requested, from inside the namespace.
fn assert_configured(guest: &Guest, name: &str) {
    let link = guest.run(&format!("ip -o link show {name}"));
    for part in ["mtu 9000", "02:00:00:00:00:07", "UP", "qlen 4096"] {
        assert!(link.contains(part), "{part}: {link}");
    }
    let addresses = guest.run("ip -o address");
    for part in [
        "10.0.2.100/24 brd 10.0.2.255",
        "fd00::100/64",
        "127.0.0.1/8",
    ] {
        assert!(addresses.contains(part), "{part}: {addresses}");
    }
    let checked = addresses.lines().find(|line| line.contains("fd00::100"));
    assert!(!checked.unwrap().contains("tentative"), "{addresses}");
    let routes = guest.run("ip route");
    assert!(
        routes.contains(&format!("default via 10.0.2.2 dev {name}")),
        "{routes}"
    );
    assert!(
        routes.contains(&format!("192.0.2.0/24 dev {name}")),
        "{routes}"
    );
    let routes = guest.run("ip -6 route");
    assert!(
        routes.contains(&format!("default via fd00::2 dev {name}")),
        "{routes}"
    );
}

/// Waits until a condition holds, at most about 30 s.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let mut rest = 3000;
    while !condition() {
        rest -= 1;
        assert!(rest > 0, "waiting for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_tap_is_created_and_configured_in_another_network_namespace() {
    for unshare in ["--mount", "--user --map-root-user"] {
        let Some(guest) = Guest::start(unshare) else {
            return;
        };
        let tap = open_tap(&guest.namespaces(), "tap0", Some(&setup())).unwrap();
        assert_eq!(
            (&*tap.name, tap.mtu, tap.mac),
            ("tap0", 9000, [2, 0, 0, 0, 0, 7])
        );
        assert_configured(&guest, "tap0");
        let mut device = Tun::tap("tap0").mtu(tap.mtu).adopt(tap.file).unwrap();
        assert_eq!(device.offload().to_string(), "vnet_hdr,csum,tso4,tso6,uso");
        device.receive(&mut Vec::new(), 100).unwrap();
        assert!(!guest.run("ip -o link").is_empty());
        assert!(
            !Path::new("/sys/class/net/tap0").exists(),
            "in the host's namespace"
        );
        drop(device);
        // A child that another test forks holds a copy of the file until it executes its program.
        wait_until("the end of the TAP with its file", || {
            !guest.run("ip -o link").contains("tap0")
        });
    }
}

#[test]
fn routes_that_the_kernel_refuses_are_left_out() {
    let Some(guest) = Guest::start("--mount") else {
        return;
    };
    let route = |destination: &str, source: Option<&str>, on_link| HostRoute {
        destination: (ip(destination), 24),
        gateway: Some(ip("203.0.113.1")),
        on_link,
        source: source.map(ip),
    };
    let setup = InterfaceSetup {
        routes: vec![
            route("198.51.100.0", None, false),
            route("192.0.2.0", Some("203.0.113.9"), true),
            route("192.0.2.0", None, true),
        ],
        ..setup()
    };
    let tap = open_tap(&guest.namespaces(), "tap0", Some(&setup)).unwrap();
    let [unreachable, foreign] = &tap.refused[..] else {
        panic!("{:?}", tap.refused);
    };
    let start = "cannot add the route 198.51.100.0/24 via 203.0.113.1 to tap0: ";
    assert!(unreachable.starts_with(start), "{unreachable}");
    assert!(
        foreign.starts_with("cannot add the route 192.0.2.0/24 via"),
        "{foreign}"
    );
    let routes = guest.run("ip route");
    for line in [
        "192.0.2.0/24 via 203.0.113.1 dev tap0",
        "default via 10.0.2.2",
    ] {
        assert!(routes.contains(line), "{line}: {routes}");
    }
}

#[test]
fn a_persistent_tap_of_the_caller_is_used_as_it_is() {
    let Some(guest) = Guest::start("--mount") else {
        return;
    };
    guest.run("ip tuntap add dev tap7 mode tap");
    guest.run("ip link set dev tap7 mtu 1400 up");
    guest.run("ip address add 10.9.9.9/24 dev tap7");
    let before = guest.run("ip -o address show tap7");
    assert!(before.contains("10.9.9.9/24"), "{before}");
    let tap = open_tap(&guest.namespaces(), "tap7", None).unwrap();
    assert_eq!((&*tap.name, tap.mtu), ("tap7", 1400));
    let device = Tun::tap("tap7").mtu(tap.mtu).adopt(tap.file).unwrap();
    assert!(device.offload().tso4, "{}", device.offload());
    assert_eq!(
        guest.run("ip -4 -o address show tap7"),
        guest.run("ip -4 -o address show tap7")
    );
    drop(device);
    assert!(guest.run("ip -o link").contains("tap7"), "it is persistent");
}

#[test]
fn a_namespace_is_named_by_a_path_and_its_user_namespace_is_found() {
    let Some(guest) = Guest::start("--user --map-root-user") else {
        return;
    };
    let path = format!("/proc/{}/ns/net", guest.0.id());
    let namespaces = Namespaces::at_path(Path::new(&path), None).unwrap();
    open_tap(&namespaces, "tap0", None).unwrap();
}

#[test]
fn errors_name_the_step_and_the_value() {
    let error = Namespaces::of_process(u32::MAX / 2).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let error = Namespaces::at_path(Path::new("/dev/null"), None)
        .err()
        .unwrap();
    assert!(error.to_string().contains("/run/netns/NAME"), "{error}");
    let Some(guest) = Guest::start("--mount") else {
        return;
    };
    let error = open_tap(&guest.namespaces(), "a name", None).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"a name\" is not an interface name"),
        "{error}"
    );
    let wrong = InterfaceSetup {
        mtu: Some(u32::MAX),
        ..InterfaceSetup::default()
    };
    let error = open_tap(&guest.namespaces(), "tap0", Some(&wrong)).unwrap_err();
    assert!(error.to_string().contains("MTU 4294967295"), "{error}");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(future)
}

#[test]
fn the_end_of_a_process_ends_its_namespace() {
    for by_path in [false, true] {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let end = if by_path {
            NamespaceEnd::of_path(Path::new(&format!("/proc/{}/ns/net", child.id())))
        } else {
            NamespaceEnd::of_process(child.id())
        };
        let kill = async {
            tokio::task::yield_now().await;
            child.kill().unwrap();
        };
        let (ended, ()) = block_on(async { tokio::join!(end.unwrap().wait(), kill) });
        ended.unwrap();
        child.wait().unwrap();
    }
    assert!(NamespaceEnd::of_process(u32::MAX / 2).is_err());
}

#[test]
fn the_removal_of_a_name_ends_the_namespace() {
    let folder = std::env::temp_dir().join(format!("fullsend-netns-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let (name, other) = (folder.join("guest"), folder.join("other"));
    fs::write(&name, "").unwrap();
    fs::write(&other, "").unwrap();
    let end = NamespaceEnd::of_path(&name).unwrap();
    let remove = async {
        fs::remove_file(&other).unwrap();
        tokio::task::yield_now().await;
        fs::remove_file(&name).unwrap();
    };
    let (ended, ()) = block_on(async { tokio::join!(end.wait(), remove) });
    ended.unwrap();
    assert!(NamespaceEnd::of_path(&name).is_err());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_closed_pipe_has_hung_up() {
    let (reader, mut writer) = io::pipe().unwrap();
    let close = async {
        io::Write::write_all(&mut writer, b"ignored").unwrap();
        tokio::task::yield_now().await;
        drop(writer);
    };
    let file: OwnedFd = reader.into();
    let shared = file.try_clone().unwrap();
    let (ended, ()) = block_on(async { tokio::join!(hung_up(file), close) });
    ended.unwrap();
    // The status of the open file is the caller's, too.
    let flags = OFlag::from_bits_retain(fcntl(&shared, FcntlArg::F_GETFL).unwrap());
    assert!(!flags.contains(OFlag::O_NONBLOCK));
}

#[test]
fn the_end_of_a_thread_ends_its_namespace() {
    let (send, receive) = std::sync::mpsc::channel();
    let (finish, wait) = std::sync::mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        send.send(nix::unistd::gettid()).unwrap();
        let _ = wait.recv();
    });
    let path = format!("/proc/{}/ns/net", receive.recv().unwrap());
    let end = NamespaceEnd::of_path(Path::new(&path)).unwrap();
    let stop = async {
        tokio::task::yield_now().await;
        drop(finish);
    };
    let (ended, ()) = block_on(async { tokio::join!(end.wait(), stop) });
    ended.unwrap();
    thread.join().unwrap();
    assert!(NamespaceEnd::of_path(Path::new(&path)).is_err());
    assert!(NamespaceEnd::of_path(Path::new("/proc/self/ns/net")).is_ok());
}

const FIRST: [FirstProcess; 2] = [FirstProcess::Reaper, FirstProcess::Command];

#[test]
fn a_command_runs_in_new_namespaces() {
    let folder = std::env::temp_dir().join(format!("fullsend-run-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let result = folder.join("result");
    let script = format!(
        "(id -u; ip -o -4 address show tap0; cat /etc/resolv.conf) > {}; exit 7",
        result.display()
    );
    for first in FIRST {
        let spawned = NewNamespaces {
            user: true,
            run_as: None,
            first,
            tap: "tap0".into(),
            setup: setup(),
            resolv_conf: Some("nameserver 10.0.2.3\n".into()),
            read_only: None,
            protected: Vec::new(),
            hidden: Vec::new(),
            command: ["sh", "-c", &script].map(Into::into).into(),
        }
        .make();
        let spawned = match spawned {
            Ok(spawned) => spawned,
            Err(error) => return println!("skipped: needs user namespaces: {error}"),
        };
        assert_eq!(spawned.tap.mtu, 9000);
        assert!(!result.exists(), "it waits for the start");
        spawned.start().unwrap();
        assert_eq!(block_on(spawned.wait()).unwrap(), 7);
        let text = fs::read_to_string(&result).unwrap();
        assert!(text.starts_with("0\n"), "root inside: {text}");
        assert!(text.contains("10.0.2.100/24"), "{text}");
        assert!(text.ends_with("nameserver 10.0.2.3\n"), "{text}");
        fs::remove_file(&result).unwrap();
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_command_that_does_not_exist_is_reported() {
    let new = NewNamespaces {
        user: true,
        run_as: None,
        first: FirstProcess::Command,
        tap: "tap0".into(),
        setup: InterfaceSetup::default(),
        resolv_conf: None,
        read_only: None,
        protected: Vec::new(),
        hidden: Vec::new(),
        command: vec!["/no/such/program".into()],
    };
    match new.make() {
        Ok(spawned) => {
            let error = spawned.start().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            assert!(error.to_string().contains("/no/such/program"), "{error}");
            assert_eq!(block_on(spawned.wait()).unwrap(), 127);
        }
        Err(error) => println!("skipped: needs user namespaces: {error}"),
    }
}

/// Starts a script that prints a line to `output` when it is ready. `None`, with the reason, if
/// namespaces cannot be made here.
fn start_script(first: FirstProcess, script: &str, output: &Path) -> Option<Spawned> {
    let script = format!("exec > {}; {script}", output.display());
    let spawned = NewNamespaces {
        user: true,
        run_as: None,
        first,
        tap: "tap0".into(),
        setup: InterfaceSetup::default(),
        resolv_conf: None,
        read_only: None,
        protected: Vec::new(),
        hidden: Vec::new(),
        command: ["sh", "-c", &script].map(Into::into).into(),
    }
    .make();
    let spawned = match spawned {
        Ok(spawned) => spawned,
        Err(error) => {
            println!("skipped: needs user namespaces: {error}");
            return None;
        }
    };
    spawned.start().unwrap();
    let is_ready = || fs::read_to_string(output).is_ok_and(|text| text == "ready\n");
    wait_until("the script", is_ready);
    Some(spawned)
}

#[test]
fn a_command_may_handle_sigterm_until_it_is_killed() {
    let output = std::env::temp_dir().join(format!("fullsend-sigterm-{}", std::process::id()));
    let handled = "trap 'echo done; exit' TERM; echo ready; while :; do sleep 0.1; done";
    let ignored = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let hour = Duration::from_secs(3600);
    for first in FIRST {
        for (script, grace, expected) in [
            (handled, hour, "ready\ndone\n"),
            (ignored, Duration::ZERO, "ready\n"),
        ] {
            let Some(spawned) = start_script(first, script, &output) else {
                return;
            };
            block_on(spawned.terminate(grace)).unwrap();
            assert_eq!(fs::read_to_string(&output).unwrap(), expected, "{first:?}");
            fs::remove_file(&output).unwrap();
        }
    }
}

#[test]
fn a_command_ends_with_the_value_of_its_caller() {
    let output = std::env::temp_dir().join(format!("fullsend-dropped-{}", std::process::id()));
    for first in FIRST {
        let Some(spawned) = start_script(first, "echo ready; exec sleep 1000", &output) else {
            return;
        };
        let parent = spawned.pid();
        drop(spawned);
        wait_until("the end of the command", || {
            let status = fs::read_to_string(format!("/proc/{parent}/status")).unwrap();
            status.contains("State:\tZ")
        });
        fs::remove_file(&output).unwrap();
    }
}

#[test]
fn the_hosts_network_is_read() {
    let Some(guest) = Guest::start("--mount") else {
        return;
    };
    for command in [
        "ip tuntap add dev eth7 mode tap",
        "ip link set eth7 mtu 1400 up",
        "ip address add 192.0.2.7/24 dev eth7",
        "ip route add default via 192.0.2.1 dev eth7",
        "ip -6 address add 2001:db8::7/64 dev eth7 nodad",
        "ip address add 198.51.100.7/32 dev eth7 scope link",
        "ip route add 198.51.100.0/24 dev eth7 src 198.51.100.7",
        "ip route add 203.0.113.0/24 via 198.51.101.1 dev eth7 onlink src 192.0.2.7",
    ] {
        guest.run(command);
    }
    let namespaces = guest.namespaces();
    let read = thread::spawn(move || {
        namespaces.enter().unwrap();
        let v4 = HostNetwork::read(None, false).unwrap();
        let v6 = HostNetwork::read(Some("eth7"), true).unwrap();
        let missing = HostNetwork::read(Some("nosuch"), false);
        (v4, v6, missing)
    });
    let (v4, v6, missing) = read.join().unwrap();
    let v4 = v4.expect("a default route");
    assert_eq!((&*v4.interface, v4.mtu), ("eth7", 1400));
    assert_eq!(v4.addresses, [(ip("192.0.2.7"), 24)]);
    let route = |destination: &str| {
        let destination = (ip(destination), 24);
        let found = v4.routes.iter().find(|r| r.destination == destination);
        found.map(|r| (r.on_link, r.source))
    };
    // An address of a limited scope is not copied.
    assert_eq!(route("198.51.100.0"), Some((false, None)));
    assert_eq!(route("203.0.113.0"), Some((true, Some(ip("192.0.2.7")))));
    assert_eq!(v4.gateway(), Some(ip("192.0.2.1")));
    assert_eq!(v6.expect("an address").addresses, [(ip("2001:db8::7"), 64)]);
    assert!(missing.unwrap_err().to_string().contains("nosuch"));
}
