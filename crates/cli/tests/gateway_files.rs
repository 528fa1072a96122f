//! The files and sockets of the gateway's programs: only their user can open them, whatever the umask, and
//! no link leads them elsewhere. Needs root, for the networks.

mod pasta_net;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pasta_net::{Namespace, Net, wait_until, with_net};

/// A program that runs until the end of the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program in the foreground with a umask that forbids nothing; `DIR` in the arguments is the net's
/// folder.
fn start(net: &Net, program: &str, arguments: &str) -> Running {
    let folder = net.path("").display().to_string();
    let child = Command::new("sh")
        .args(["-c", "umask 0; exec \"$0\" \"$@\""])
        .arg(net.path(program))
        .args(arguments.replace("DIR/", &folder).split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Running(child.expect("sh starts"))
}

/// Waits for the files, and checks that only their user can open them.
fn assert_private(net: &Net, program: &str, names: &[&str]) {
    for name in names {
        let path = net.path(name);
        let mode = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.mode() & 0o777);
        wait_until(&format!("{name} of {program}"), || mode(&path).is_ok());
        assert_eq!(mode(&path).unwrap(), 0o600, "{name} of {program}");
    }
}

#[test]
fn files_and_sockets_are_their_users_alone_whatever_the_umask() {
    with_net(|net| {
        let guest = Namespace::guest(false);
        let pid = guest.pid();
        let pasta = format!("-f -q -P DIR/a.pid -p DIR/a.pcap -c DIR/a.conf --config-net {pid}");
        let _pasta = start(net, "pasta", &pasta);
        assert_private(net, "pasta", &["a.pid", "a.pcap", "a.conf"]);

        let _passt = start(
            net,
            "passt",
            "-f -q -P DIR/b.pid -p DIR/b.pcap -s DIR/b.sock",
        );
        assert_private(net, "passt", &["b.pid", "b.pcap", "b.sock"]);

        let other = Namespace::guest(false);
        let slirp = format!("-c -a DIR/c.sock {} tap0", other.pid());
        let _slirp = start(net, "slirp4netns", &slirp);
        assert_private(net, "slirp4netns", &["c.sock"]);

        let gvproxy = "-listen unix://DIR/d.api -services unix://DIR/d.services \
                       -listen-qemu unix://DIR/d.qemu -listen-bess unixpacket://DIR/d.bess \
                       -listen-vfkit unixgram://DIR/d.vfkit -listen-vhost-user unix://DIR/d.vhost \
                       -pid-file DIR/d.pid -log-file DIR/d.log -pcap DIR/d.pcap";
        let _gvproxy = start(net, "gvproxy", gvproxy);
        let names = "d.api d.services d.qemu d.bess d.vfkit d.vhost d.pid d.log d.pcap";
        assert_private(net, "gvproxy", &names.split(' ').collect::<Vec<_>>());

        // A socket that a request makes while gvproxy runs.
        let exposed = net.path("d.exposed");
        let body = format!(
            r#"{{"local":"{}","remote":"192.168.127.2:80","protocol":"unix"}}"#,
            exposed.display()
        );
        let post = || {
            let status = Command::new("curl")
                .args(["-fsS", "--max-time", "5", "-d", &body, "--unix-socket"])
                .arg(net.path("d.services"))
                .arg("http://gvproxy/services/forwarder/expose")
                .stderr(Stdio::null())
                .status();
            status.expect("curl starts").success()
        };
        wait_until("the answer of gvproxy", post);
        assert_private(net, "gvproxy", &["d.exposed"]);
    });
}

#[test]
fn a_capture_and_a_pid_file_do_not_follow_a_link() {
    with_net(|net| {
        let victim = net.path("victim");
        for option in ["--pcap", "--pid"] {
            fs::write(&victim, "precious").unwrap();
            symlink(&victim, net.path("link")).unwrap();
            let guest = Namespace::guest(false);
            let line = format!("-q {option} {} {}", net.path("link").display(), guest.pid());
            let output = net.pasta(&line);
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{option}: {errors}");
            assert!(
                errors.contains("it is a symbolic link"),
                "{option}: {errors}"
            );
            assert_eq!(fs::read(&victim).unwrap(), b"precious", "{option}");
            fs::remove_file(net.path("link")).unwrap();
        }
    });
}
