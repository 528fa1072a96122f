//! `fullsend wan` between two network namespaces of the kernel.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;

/// A process, usually in a namespace of its own, terminated on drop.
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

/// Creates a namespace, held by a sleeping shell.
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

const FULLSEND: &str = env!("CARGO_BIN_EXE_fullsend");

/// Creates two namespaces, 10.1.0.1 and 10.1.0.2, with a path between them; `None` without root.
fn path(netem: &str, back: &str) -> Option<[Running; 3]> {
    if !geteuid().is_root() {
        println!("skipped: needs root, for network namespaces and TUN devices");
        return None;
    }
    let (left, right) = (namespace(), namespace());
    let mut wan = Running::start(
        inside(&left, FULLSEND)
            .args(["wan", "wanl", "wanr", "--netem", netem])
            .args(["--back", back]),
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
    Some([left, right, wan])
}

/// Writes a sysctl of a namespace's kernel.
fn sysctl(of: &Running, name: &str, value: &str) {
    let script = format!("echo {value} > /proc/sys/net/ipv4/{name}");
    let done = inside(of, "sh").args(["-c", &script]).status();
    assert!(done.expect("nsenter(1) starts").success(), "{script}");
}

/// Runs a test with the kernel's sockets in a namespace, and returns its report.
fn report(of: &Running, test: &str) -> Value {
    let out = inside(of, FULLSEND)
        .args(test.split_whitespace())
        .args(["--kernel", "--json"])
        .output()
        .expect("it runs");
    assert!(out.status.success(), "{test}: {out:?}");
    serde_json::from_slice(&out.stdout).expect("a report")
}

#[test]
fn a_path_between_two_namespaces_delays_what_it_carries() {
    let Some([left, right, _wan]) = path("delay 20ms rate 50mbit loss 1%", "delay 30ms") else {
        return;
    };
    let mut server = Running::start(
        inside(&right, FULLSEND).args(["perf", "serve", "--kernel", "--bind", "10.1.0.2"]),
    );
    assert!(server.first_line().contains("listening"));
    let report = report(&left, "perf rr --connect 10.1.0.2 --time 0.5");
    let least = report["latency_us"]["p50"].as_f64().expect("a latency");
    assert!(least >= 50_000.0, "{least} us for 20 and 30 ms");
}

/// DCTCP over a path with a low marking threshold, to a kernel that repeats ECE until it receives
/// CWR (RFC 3168): it slows down for marks, does not stall, and loses nothing.
#[test]
fn dctcp_works_with_an_rfc_3168_kernel_receiver() {
    let netem = "delay 1ms rate 50mbit limit 1000 ce_threshold 2ms";
    let Some([left, right, _wan]) = path(netem, "delay 1ms") else {
        return;
    };
    // The Fullsend stack is behind the left kernel.
    sysctl(&left, "ip_forward", "1");
    run(&right, "ip route add 10.9.0.0/24 via 10.1.0.1");
    sysctl(&right, "tcp_ecn", "1");
    let mut server = Running::start(inside(&left, FULLSEND).args([
        "perf",
        "serve",
        "--tun",
        "fs0",
        "--address",
        "10.9.0.2/24",
        "--gateway",
        "10.9.0.1",
        "--set",
        "tcp_congestion_control=dctcp",
    ]));
    assert!(server.first_line().contains("listening"));
    let report = report(&right, "perf stream --reverse --connect 10.9.0.2 --time 1");
    let counter = |side: &str, name: &str| report["counters"][side][name].as_i64().unwrap_or(0);
    // A busy machine may cause tail loss probes.
    assert!(counter("server", "TcpRetransSegs") <= 10, "{report}");
    assert!(counter("server", "TcpExtTCPDeliveredCE") > 0, "{report}");
    assert!(counter("client", "IpExtInCEPkts") > 0, "{report}");
    // A stall at each mark would leave a few segments per second.
    let share = report["throughput_bps"].as_f64().expect("a rate") / 50e6;
    assert!(share > 0.3, "{share}");
}
