//! `fullsend wan` between two network namespaces of the kernel.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// What runs in a namespace of its own, until it is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).spawn().expect("it starts"))
    }

    fn first_line(&mut self) -> String {
        let mut line = String::new();
        let out = self.0.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        line
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// A namespace, held by a shell that waits.
fn namespace() -> Running {
    let mut shell = Running::start(Command::new("unshare").args([
        "-n",
        "sh",
        "-c",
        "ip link set lo up; echo up; exec sleep 60",
    ]));
    assert_eq!(shell.first_line(), "up\n");
    shell
}

fn inside(of: &Running, line: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-t", &of.pid(), "-n"]);
    command.args(line.split_whitespace());
    command
}

fn run(of: &Running, line: &str) {
    let done = inside(of, line).status().expect("nsenter(1) starts");
    assert!(done.success(), "{line}");
}

#[test]
fn a_path_between_two_namespaces_delays_what_it_carries() {
    if !geteuid().is_root() {
        println!("skipped: needs root, for network namespaces and TUN devices");
        return;
    }
    let (left, right) = (namespace(), namespace());
    let fullsend = env!("CARGO_BIN_EXE_fullsend");
    let mut wan = Running::start(
        inside(&left, fullsend)
            .args(["wan", "wanl", "wanr", "--netem"])
            .args(["delay 20ms rate 50mbit loss 1%", "--back", "delay 30ms"]),
    );
    assert!(wan.first_line().starts_with("wanl -- wanr"));
    run(&left, &format!("ip link set wanr netns {}", right.pid()));
    for (ns, device, ours, theirs) in [
        (&left, "wanl", "10.1.0.1", "10.1.0.2"),
        (&right, "wanr", "10.1.0.2", "10.1.0.1"),
    ] {
        run(
            ns,
            &format!("ip address add {ours} peer {theirs} dev {device}"),
        );
        run(ns, &format!("ip link set {device} up"));
    }
    let mut server = Running::start(
        inside(&right, fullsend).args(["perf", "serve", "--kernel", "--bind", "10.1.0.2"]),
    );
    assert!(server.first_line().contains("listening"));
    let out = inside(&left, fullsend)
        .args(["perf", "rr", "--kernel", "--connect", "10.1.0.2"])
        .args(["--time", "0.5", "--json"])
        .output()
        .expect("it runs");
    assert!(out.status.success(), "{out:?}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("a report");
    let least = report["latency_us"]["p50"].as_f64().expect("a latency");
    assert!(least >= 50_000.0, "{least} us for 20 and 30 ms");
}
