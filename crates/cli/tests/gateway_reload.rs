//! SIGHUP, at which a gateway reads its policy again. Needs root, for a host with servers of its own.

mod ended;
mod pasta_net;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use ended::Ended;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pasta_net::{LOOPBACK, MACHINE, Namespace, Net, Pasta, serve, wait_until, with_net, with_port};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
const PORT: u16 = 8080;
const ALLOW: &str = "default = \"allow\"\n";
const DENY: &str = "default = \"deny\"\n";
const WRONG: &str = "default = \"ask\"\n";

/// Writes a file as an editor does: the old one stays open.
fn replace(path: &Path, content: &str) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::rename(&new, path).unwrap();
}

/// Returns the value of a counter.
fn counter(net: &Net, name: &str) -> u64 {
    let text = summary(net);
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or(0)
}

/// Returns the counters as text, which is empty before the gateway serves its control socket.
fn summary(net: &Net) -> String {
    let output = Command::new(PROGRAM)
        .args(["stat", "--socket"])
        .arg(net.path("control"))
        .args(["gateway", "--summary"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_command_keeps_running_and_new_connections_follow_the_new_policy() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], PORT));
        let policy = net.path("policy.toml");
        fs::write(&policy, ALLOW).unwrap();
        // Each line of the file is a request.
        let script = r#"until [ -e "$DIR/end" ]; do
                if [ -e "$DIR/ask" ]; then
                    rm "$DIR/ask"
                    if (exec 3<>/dev/tcp/10.0.2.2/8080) 2>/dev/null; then echo yes; else echo no; fi
                fi
                sleep 0.02
            done"#;
        let answers = net.path("answers");
        let child = Command::new(PROGRAM)
            .args(["gateway", "run", "--policy"])
            .arg(&policy)
            .arg("--control")
            .arg(net.path("control"))
            .args(["--", "bash", "-c", script])
            .env("DIR", net.path("."))
            .stdin(Stdio::null())
            .stdout(File::create(&answers).unwrap())
            .stderr(File::create(net.path("log")).unwrap())
            .spawn();
        let mut child = Ended(child.expect("the program starts"));
        let hang_up = || kill(Pid::from_raw(child.0.id().cast_signed()), Signal::SIGHUP).unwrap();
        let log = || fs::read_to_string(net.path("log")).unwrap();
        let mut asked = 0;
        let mut ask = || {
            fs::write(net.path("ask"), "").unwrap();
            asked += 1;
            wait_until("an answer", || {
                fs::read_to_string(&answers).unwrap().lines().count() == asked
            });
            let text = fs::read_to_string(&answers).unwrap();
            text.lines().last().unwrap().to_owned()
        };
        assert_eq!(ask(), "yes", "{}", log());
        fs::write(&policy, DENY).unwrap();
        assert_eq!(ask(), "yes");
        hang_up();
        wait_until("the new policy", || {
            counter(net, "GatewayPolicyChanges") == 1
        });
        assert_eq!(ask(), "no");
        assert_eq!(counter(net, "GatewayPolicyDeniedTcp"), 1);
        fs::write(&policy, WRONG).unwrap();
        hang_up();
        let line = "policy.toml:1: default = \"ask\" is none of the values";
        wait_until("the error", || log().contains(line));
        assert!(log().contains("the policy stays as it was"), "{}", log());
        assert_eq!(ask(), "no");
        let moved = net.path("moved");
        fs::rename(&policy, &moved).unwrap();
        hang_up();
        wait_until("the error", || log().contains("No such file"));
        // The same file, which the command cannot have written.
        fs::rename(&moved, &policy).unwrap();
        fs::write(&policy, ALLOW).unwrap();
        hang_up();
        wait_until("the new policy", || {
            counter(net, "GatewayPolicyChanges") == 2
        });
        assert_eq!(ask(), "yes");
        assert_eq!(counter(net, "GatewayTcpEstablished"), 3);
        fs::write(net.path("end"), "").unwrap();
        assert!(child.0.wait().unwrap().success());
    });
}

#[test]
fn pasta_in_the_background_reads_it_too() {
    with_net(|net| {
        net.machine.run(|| serve(with_port(MACHINE[0], PORT)));
        let policy = net.path("policy.toml");
        fs::write(&policy, DENY).unwrap();
        let guest = Namespace::guest(false);
        let started = Command::new(net.path("pasta"))
            .args("--config-net --quiet -t none -u none -T none -U none --policy".split(' '))
            .arg("policy.toml")
            .arg("--pid")
            .arg(net.path("pid"))
            .arg(guest.pid().to_string())
            .current_dir(net.path("."))
            .env("FULLSEND_CONTROL", net.path("control"))
            .stdin(Stdio::null())
            .status();
        assert!(started.unwrap().success());
        let pasta = Pasta::of_file(&net.path("pid"));
        let connect = || guest.run(|| TcpStream::connect(with_port(MACHINE[0], PORT)).map(drop));
        let error = connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        replace(&policy, ALLOW);
        kill(Pid::from_raw(pasta.0), Signal::SIGHUP).unwrap();
        wait_until("the new policy", || {
            counter(net, "GatewayPolicyChanges") == 1
        });
        connect().unwrap();
        pasta.terminate();
        pasta.wait_for_end();
    });
}

#[test]
fn the_programs_of_virtual_machines_and_slirp4netns_read_it_too() {
    with_net(|net| {
        let guest = Namespace::guest(false);
        let slirp = format!("--enable-sandbox --enable-seccomp -c {} tap0", guest.pid());
        for (program, arguments) in [
            ("passt", "--foreground --quiet --socket passt.socket"),
            ("gvproxy", "-ssh-port -1 -listen-qemu unix://qemu.socket"),
            ("slirp4netns", &*slirp),
        ] {
            let policy = net.path("policy.toml");
            fs::write(&policy, DENY).unwrap();
            let log = net.path(&format!("{program}.log"));
            let child = Command::new(net.path(program))
                .args(arguments.split(' '))
                .current_dir(net.path("."))
                .env("FULLSEND_POLICY", &policy)
                .env("FULLSEND_CONTROL", net.path("control"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(&log).unwrap())
                .spawn();
            let child = Ended(child.expect("the program starts"));
            wait_until(program, || !summary(net).is_empty());
            let hang_up = || kill(Pid::from_raw(child.0.id().cast_signed()), Signal::SIGHUP);
            let log = || fs::read_to_string(&log).unwrap();
            replace(&policy, WRONG);
            hang_up().unwrap();
            wait_until("the error", || log().contains("the policy stays as it was"));
            assert_eq!(counter(net, "GatewayPolicyChanges"), 0, "{program}");
            replace(&policy, ALLOW);
            // Several at once are as good as one.
            for _ in 0..3 {
                hang_up().unwrap();
            }
            wait_until("the new policy", || {
                counter(net, "GatewayPolicyChanges") > 0
            });
            drop(child);
        }
    });
}
