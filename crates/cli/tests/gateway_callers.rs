//! The gateway as it is called in practice: by an ordinary user, by Podman and by RootlessKit. A
//! test whose program is missing, or cannot run a container here, prints `skipped: ` and the reason.

mod free_port;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use free_port::free_port;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
/// The ordinary user, which owns no files.
const USER_ID: u32 = 65_534;
/// 100 ms steps of a wait, before the test fails.
const STEPS: usize = 300;

/// Prepares a mount namespace: /dev/net/tun is open to all users, as distributions have it; the
/// ordinary user has subordinate IDs; and there is one hierarchy of control groups, as Podman's
/// runtime requires.
const PREPARE: &str = r#"
mount -t tmpfs none "$FOLDER/own"
mknod -m 666 "$FOLDER/own/tun" c 10 200
mount --bind "$FOLDER/own/tun" /dev/net/tun
mount -t tmpfs none /run/netns 2>/dev/null || true
umount /sys/fs/cgroup/unified 2>/dev/null || true
echo nobody:100000:65536 > "$FOLDER/own/ids"
touch /etc/subuid /etc/subgid
mount --bind "$FOLDER/own/ids" /etc/subuid
mount --bind "$FOLDER/own/ids" /etc/subgid
"#;

/// Runs the rest of a command line as the ordinary user.
const AS_USER: &str = r#"env HOME="$FOLDER/home" XDG_RUNTIME_DIR="$FOLDER/home" \
    setpriv --reuid 65534 --regid 65534 --clear-groups"#;

/// Podman with its own storage. Limits and control groups are not the subject of these tests, and
/// may be forbidden here.
const PODMAN: &str = r#"podman --root "$FOLDER/store" --runroot "$FOLDER/run" run --rm -i \
    --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1024:1024"#;

/// A folder with the gateway's links, and with the root file system of a container.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// Returns `None`, and prints the reason, if a program is missing or the user is not root.
    fn new(programs: &[&str]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root, to become an ordinary user with subordinate IDs");
            return None;
        }
        let missing = programs.iter().find(|program| find(program).is_none());
        if let Some(program) = missing {
            println!("skipped: {program} is not installed");
            return None;
        }
        let machine = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        let everyone = fs::Permissions::from_mode(0o755);
        fs::set_permissions(machine.path(""), everyone).unwrap();
        for name in ["own", "home"] {
            fs::create_dir(machine.path(name)).unwrap();
        }
        chown(machine.path("home"), Some(USER_ID), Some(USER_ID)).unwrap();
        // The user may not reach the build's folder.
        fs::copy(PROGRAM, machine.path("fullsend")).unwrap();
        let output = machine.run(r#""$FOLDER/fullsend" gateway install-links "$FOLDER/links""#);
        assert!(output.status.success(), "{output:?}");
        Some(machine)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command that runs a script in a prepared mount namespace, where the gateway's
    /// links are found first.
    fn script(&self, script: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-ec", &format!("{PREPARE}\n{script}")])
            .current_dir("/")
            .env("FOLDER", self.folder.path())
            .env("PATH", format!("{}:{path}", self.path("links").display()));
        command
    }

    fn run(&self, script: &str) -> Output {
        let output = self.script(script).stdin(Stdio::null()).output();
        output.expect("unshare starts")
    }

    /// Makes a root file system whose programs are busybox.
    fn make_root(&self) {
        for name in ["bin", "etc", "proc", "sys", "dev", "tmp", "run", "www"] {
            fs::create_dir_all(self.path("root").join(name)).unwrap();
        }
        let bin = self.path("root/bin");
        fs::copy(find("busybox").unwrap(), bin.join("busybox")).unwrap();
        for name in ["sh", "wget", "httpd", "cat", "ip"] {
            symlink("busybox", bin.join(name)).unwrap();
        }
        fs::write(self.path("root/www/index.html"), "from the container").unwrap();
    }

    /// Returns whether Podman runs a container on this network; prints the reason if not.
    fn has_podman_network(&self, network: &str) -> bool {
        let output = self.podman(&format!("--network {network}"), "cat /dev/null");
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            let reason = errors.lines().last().unwrap_or_default();
            println!("skipped: podman cannot run a container with --network {network}: {reason}");
        }
        output.status.success()
    }

    fn podman(&self, options: &str, command: &str) -> Output {
        self.run(&format!(
            r#"{PODMAN} {options} --rootfs "$FOLDER/root" {command}"#
        ))
    }
}

/// Finds a program in PATH.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(program));
    files.find(|file| file.is_file())
}

/// Answers one HTTP client after another; returns the port.
fn web_server(address: &str) -> u16 {
    let listener = TcpListener::bind((address, 0)).expect("a port");
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    port
}

/// Fetches a page of a server that may not be ready yet.
fn fetch(address: &str) -> String {
    for _ in 0..STEPS {
        let answer = TcpStream::connect(address).and_then(|mut stream| {
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        match answer {
            Ok(answer) if !answer.is_empty() => return answer,
            _ => thread::sleep(Duration::from_millis(100)),
        }
    }
    panic!("no answer from {address} within {} s", STEPS / 10);
}

/// Ends a command that waits for the end of its input.
fn end(mut child: Child) {
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn assert_output(output: &Output, expected: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, expected, "{output:?}");
}

#[test]
fn an_ordinary_user_runs_a_command_in_a_network_of_its_own() {
    let Some(machine) = Machine::new(&["curl", "setpriv"]) else {
        return;
    };
    let (v4, v6) = (web_server("127.0.0.1"), web_server("::1"));
    let output = machine.run(&format!(
        r#"{AS_USER} "$FOLDER/fullsend" gateway run -- sh -c \
            'id -u; curl -sS http://10.0.2.2:{v4}/; curl -sS "http://[fd00::2]:{v6}/"'"#
    ));
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("namespace") {
        return println!("skipped: users may not make namespaces here: {errors}");
    }
    assert_output(&output, "0\nhellohello");
}

#[test]
fn a_container_of_podman_fetches_from_the_host() {
    let Some(machine) = Machine::new(&["podman", "busybox"]) else {
        return;
    };
    machine.make_root();
    if !machine.has_podman_network("none") {
        return;
    }
    let (v4, v6) = (web_server("127.0.0.1"), web_server("::1"));
    let options = "--network slirp4netns:allow_host_loopback=true,enable_ipv6=true";
    let v4_url = format!("wget -q -O - http://10.0.2.2:{v4}/");
    assert_output(&machine.podman(options, &v4_url), "hello");
    let v6_url = format!("wget -q -O - 'http://[fd00::2]:{v6}/'");
    assert_output(&machine.podman(options, &v6_url), "hello");

    // Podman's default is --disable-host-loopback.
    let refused = machine.podman("--network slirp4netns", &v4_url);
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(errors.contains("Network is unreachable"), "{errors}");
}

#[test]
fn ports_of_a_container_of_podman_are_published() {
    let Some(machine) = Machine::new(&["podman", "busybox"]) else {
        return;
    };
    machine.make_root();
    if !machine.has_podman_network("none") {
        return;
    }
    let (first, second) = (free_port(), free_port());
    let script = format!(
        r#"{PODMAN} --network slirp4netns -p 127.0.0.1:{first}:80 -p {second}:80 \
            --rootfs "$FOLDER/root" sh -c 'httpd -p 80 -h /www; cat'"#
    );
    let child = machine.script(&script).stdin(Stdio::piped()).spawn();
    let child = child.expect("unshare starts");
    for port in [first, second] {
        let page = fetch(&format!("127.0.0.1:{port}"));
        assert!(page.ends_with("from the container"), "{page}");
    }
    end(child);
}

#[test]
fn a_container_of_podman_uses_pasta() {
    let Some(machine) = Machine::new(&["podman", "busybox"]) else {
        return;
    };
    machine.make_root();
    // Podman has it since 4.4.
    if !machine.has_podman_network("none") || !machine.has_podman_network("pasta") {
        return;
    }
    let server = web_server("127.0.0.1");
    let url = format!("wget -q -O - http://169.254.1.9:{server}/");
    let options = "--network pasta:--map-host-loopback,169.254.1.9";
    assert_output(&machine.podman(options, &url), "hello");
}

/// RootlessKit's options for the gateway, with its sandbox.
const ROOTLESSKIT: &str = "rootlesskit --net=slirp4netns --mtu=65520 --copy-up=/etc \
    --slirp4netns-sandbox=true --slirp4netns-seccomp=true";

#[test]
fn a_command_of_rootlesskit_fetches_from_the_host() {
    let Some(machine) = Machine::new(&["rootlesskit", "newuidmap", "curl", "setpriv"]) else {
        return;
    };
    let server = web_server("127.0.0.1");
    let output = machine.run(&format!(
        "{AS_USER} {ROOTLESSKIT} --disable-host-loopback=false \
         sh -c 'cat /sys/class/net/tap0/mtu; curl -sS http://10.0.2.2:{server}/'"
    ));
    if is_refused(&output) {
        return;
    }
    assert_output(&output, "65520\nhello");
    let output = machine.run(&format!(
        "{AS_USER} {ROOTLESSKIT} --disable-host-loopback \
         sh -c 'curl -s http://10.0.2.2:{server}/ || echo $?'"
    ));
    // curl's status of a connection that is not made.
    assert_output(&output, "7\n");
}

#[test]
fn ports_of_a_command_of_rootlesskit_are_published() {
    let programs = ["rootlesskit", "newuidmap", "busybox", "setpriv"];
    let Some(machine) = Machine::new(&programs) else {
        return;
    };
    machine.make_root();
    let output = machine.run(&format!(
        "{AS_USER} {ROOTLESSKIT} --disable-host-loopback true"
    ));
    if is_refused(&output) {
        return;
    }
    let port = free_port();
    let script = format!(
        r#"{AS_USER} {ROOTLESSKIT} --disable-host-loopback --port-driver=slirp4netns \
            -p 127.0.0.1:{port}:80/tcp sh -c 'busybox httpd -f -p 80 -h "$FOLDER/root/www" & cat; kill $!'"#
    );
    let child = machine.script(&script).stdin(Stdio::piped()).spawn();
    let child = child.expect("unshare starts");
    let page = fetch(&format!("127.0.0.1:{port}"));
    assert!(page.ends_with("from the container"), "{page}");
    end(child);
}

/// Returns whether RootlessKit may not make namespaces here, and prints it.
fn is_refused(output: &Output) -> bool {
    let errors = String::from_utf8_lossy(&output.stderr);
    let refused = ["newuidmap", "newgidmap", "fork/exec /proc/self/exe"]
        .iter()
        .any(|text| errors.contains(text));
    if refused {
        println!("skipped: rootlesskit cannot make namespaces here: {errors}");
    }
    refused
}

#[test]
fn the_links_are_found_first() {
    let Some(machine) = Machine::new(&[]) else {
        return;
    };
    let output = machine.run("command -v slirp4netns; command -v pasta");
    let link = |name: &str| Path::new("links").join(name);
    let expected = ["slirp4netns", "pasta"].map(|name| machine.path("").join(link(name)));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let found: Vec<_> = lines.lines().map(PathBuf::from).collect();
    assert_eq!(found, expected);
}
