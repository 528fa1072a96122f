//! Runs the program like its users do, for short times, and checks its reports. No test asserts a
//! speed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn fullsend(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fullsend"))
        .args(line.split_whitespace())
        .output()
        .expect("the program starts")
}

/// Runs a test with `--json` for a short time; returns its report, after checks that apply to all.
fn report(line: &str) -> Value {
    let out = fullsend(&format!("{line} --json --time 0.2"));
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{line}: {errors}");
    let report: Value = serde_json::from_slice(&out.stdout).expect(line);
    check(line, &report);
    report
}

/// Checks that every share is present, that the shares are parts of one, and that each send is in
/// both histograms.
fn check_send_limits(line: &str, report: &Value) {
    let Some(limits) = report["send_limits"].as_object() else {
        assert!(report["send_size_bytes"].is_null(), "{line}");
        return;
    };
    assert_eq!(limits.len(), 9, "{line}");
    let sum = |what: &str| -> f64 { limits.values().filter_map(|l| l[what].as_f64()).sum() };
    assert!(
        (sum("sends_share") - 1.0).abs() < 0.01,
        "{line}: {limits:?}"
    );
    assert!((sum("time_share") - 1.0).abs() < 0.01, "{line}: {limits:?}");
    for histogram in ["send_size_bytes", "head_room_bytes"] {
        let buckets = report[histogram].as_array().expect(line);
        let count: u64 = buckets.iter().filter_map(|b| b[1].as_u64()).sum();
        let sends: u64 = limits.values().filter_map(|l| l["sends"].as_u64()).sum();
        assert_eq!(count, sends, "{line}: {histogram}");
    }
}

fn check(line: &str, report: &Value) {
    let keys = [
        "test",
        "flows",
        "seconds",
        "bytes",
        "throughput_bps",
        "transactions_per_s",
        "latency_us",
        "cpu",
        "context_switches",
        "bytes_per_packet",
        "counters",
        "send_limits_of",
        "send_limits",
        "send_size_bytes",
        "head_room_bytes",
    ];
    let mut have: Vec<&str> = report
        .as_object()
        .expect(line)
        .keys()
        .map(String::as_str)
        .collect();
    let mut want = keys.to_vec();
    have.sort_unstable();
    want.sort_unstable();
    assert_eq!(have, want, "{line}");
    check_send_limits(line, report);
    let positive = |path: &str| {
        let value = report.pointer(path).and_then(Value::as_f64);
        assert!(value.is_some_and(|v| v > 0.0), "{line}: {path} in {report}");
    };
    for path in [
        "/flows",
        "/seconds",
        "/bytes",
        "/throughput_bps",
        "/bytes_per_packet",
    ] {
        positive(path);
    }
    for path in [
        "/cpu/user_s",
        "/cpu/sys_s",
        "/context_switches/voluntary",
        "/context_switches/involuntary",
    ] {
        assert!(
            report.pointer(path).is_some_and(Value::is_number),
            "{line}: {path}"
        );
    }
    for side in ["client", "server"] {
        positive(&format!("/counters/{side}/TcpOutSegs"));
    }
    if report["test"] == "rr" || report["test"] == "crr" {
        for path in [
            "/transactions_per_s",
            "/latency_us/p50",
            "/latency_us/p99",
            "/latency_us/p999",
        ] {
            positive(path);
        }
    } else {
        assert!(
            report["transactions_per_s"].is_null() && report["latency_us"].is_null(),
            "{line}"
        );
    }
}

fn counter(report: &Value, name: &str) -> i64 {
    let of = |side| report["counters"][side][name].as_i64().unwrap_or(0);
    of("client") + of("server")
}

/// Checks that only tail loss probes were retransmitted: on a busy machine their timer may expire
/// before the other end's thread runs.
fn assert_nothing_lost(report: &Value, what: &str) {
    let again = counter(report, "TcpRetransSegs");
    let probes = counter(report, "TcpExtTCPLossProbes");
    assert!(again <= probes, "{what}: {report}");
}

#[test]
fn streams_arrive_whole_in_process() {
    for api in ["tokio", "core"] {
        for nic in ["tso", "mtu"] {
            for ip in ["", "-6"] {
                let line = format!("perf stream --verify --api {api} --nic {nic} {ip}");
                let report = report(&line);
                assert_nothing_lost(&report, &line);
                assert_eq!(counter(&report, "TcpInErrs"), 0, "{line}: {report}");
            }
        }
    }
}

#[test]
fn stream_options() {
    for options in [
        "--zerocopy",
        "--zerocopy --api core",
        "--reverse",
        "--reverse --zerocopy -6",
        "-m 128",
        "-m 128 --api core",
        "-m 128 --api core --pump full",
        "-m 3M",
        "-N -K reno",
        "-K dctcp",
        "--flows 20",
        "--flows 20 --api core --nic mtu",
        "--mtu 9000 --nic mtu",
        "--set tcp_sack=0",
        "--threads 2",
    ] {
        report(&format!("perf stream --verify {options}"));
    }
}

/// The sender's stack reports its send limits, also if it is the server.
#[test]
fn the_sender_reports_its_send_limits() {
    for (options, whose) in [
        ("", "client"),
        ("--reverse", "server"),
        ("--reverse --flows 20", "server"),
        ("--reverse --threads 2", "server"),
    ] {
        let report = report(&format!("perf stream {options}"));
        assert_eq!(report["send_limits_of"], whose, "{options}");
        assert!(report["send_limits"].is_object(), "{options}");
    }
    let out = fullsend("perf stream --reverse --time 0.2");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("The server was limited by: "), "{text}");
    // The kernel does not provide them.
    let report = report("perf stream --reverse --kernel");
    assert!(report["send_limits"].is_null());
}

#[test]
fn a_transaction_is_two_packets_a_side() {
    for api in ["tokio", "set", "core"] {
        let report = report(&format!("perf rr -r 4K,4K --flows 200 --api {api}"));
        let size = report["bytes_per_packet"].as_f64().unwrap();
        assert!(size >= 2090.0, "{api}: {report}");
    }
}

#[test]
fn transactions_of_all_sizes() {
    for options in [
        "",
        "-r 1,4K",
        "-r 300K,1",
        "-r 4K,4K --nic mtu -6",
        "-r 4K,4K --api core",
        "-r 4K,4K --nic mtu --api core --flows 7",
        "-r 1,300K --nic mtu --api set -6 -K reno",
        "-r 300K,1 --api set --flows 7 -N",
        "-r 200,70000 -N --threads 2 --flows 3",
    ] {
        let report = report(&format!("perf rr {options}"));
        assert_nothing_lost(&report, options);
    }
}

#[test]
fn each_transaction_of_crr_has_a_connection() {
    for options in ["", "-r 4K,4K --flows 10", "-r 1,300K --nic mtu -6"] {
        let report = report(&format!("perf crr {options}"));
        assert_nothing_lost(&report, options);
        let seconds = report["seconds"].as_f64().unwrap();
        let transactions = report["transactions_per_s"].as_f64().unwrap() * seconds;
        let opened = report["counters"]["client"]["TcpActiveOpens"]
            .as_f64()
            .unwrap();
        // The first ones are opened before the measurement begins.
        let flows = report["flows"].as_f64().unwrap();
        assert!(opened + flows >= transactions - 1.0, "{options}: {report}");
    }
}

#[test]
fn the_kernel_over_loopback() {
    for options in [
        "stream --verify",
        "stream --reverse --threads 1",
        "rr -r 4K,4K --flows 5 -N",
        "crr --flows 2",
    ] {
        report(&format!("perf {options} --kernel"));
    }
}

#[test]
fn human_readable_output() {
    let stream = fullsend("perf stream --time 0.1 --api core");
    let text = String::from_utf8_lossy(&stream.stdout).into_owned();
    assert!(
        text.contains("Throughput") && text.contains("core API"),
        "{text}"
    );
    let rr = fullsend("perf rr -r 4K,1 --time 0.1 --kernel");
    let text = String::from_utf8_lossy(&rr.stdout).into_owned();
    assert!(
        text.contains("Latency us") && text.contains("4K,1-byte"),
        "{text}"
    );
}

#[test]
fn idle_connections_report_their_memory() {
    for api in ["core", "tokio"] {
        let out = fullsend(&format!("perf idle --connections 200 --json --api {api}"));
        let report: Value = serde_json::from_slice(&out.stdout).expect(api);
        assert_eq!(report["connections"], 200);
        assert!(report["bytes_per_end"].is_number(), "{report}");
    }
}

/// A server process, stopped by SIGINT like with Ctrl-C.
struct Server {
    child: Child,
    address: String,
    out: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fullsend"))
            .args("perf serve --kernel --bind 127.0.0.1:0".split(' '))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a first line");
        let address = line
            .split(' ')
            .nth(2)
            .expect("listening on ADDR")
            .to_owned();
        Self {
            child,
            address,
            out,
        }
    }

    fn stop(mut self) -> Vec<String> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).expect("it runs");
        let lines = self
            .out
            .by_ref()
            .lines()
            .map(|l| l.expect("text"))
            .collect();
        assert!(self.child.wait().expect("it ends").success());
        lines
    }
}

#[test]
fn a_server_reports_its_connections() {
    let server = Server::start();
    let to = format!("--kernel --connect {}", server.address);
    let stream = report(&format!("perf stream --flows 2 --verify {to}"));
    let back = report(&format!("perf stream --reverse --verify {to}"));
    report(&format!("perf rr -r 1K,2K {to}"));
    let lines = server.stop();
    let count = |what: &str| lines.iter().filter(|l| l.contains(what)).count();
    assert_eq!(count(": received") + count("  received"), 2, "{lines:#?}");
    assert_eq!(count("  sent"), 1, "{lines:#?}");
    assert_eq!(count("transactions in"), 1, "{lines:#?}");
    let last = lines.last().expect("a summary");
    assert!(last.starts_with("4 connections (0 failed)"), "{last}");
    assert!(stream["bytes"].as_u64() > Some(0) && back["bytes"].as_u64() > Some(0));
}

#[test]
fn errors_name_the_value_and_a_hint() {
    for (line, value, hint) in [
        ("perf stream --nic foo", "foo", "tso, mtu"),
        ("perf rr -r 4X", "4X", "K, M, G"),
        (
            "perf stream --set tcp_unknown=1 --time 0.1",
            "tcp_unknown",
            "net.ipv4.tcp_",
        ),
        (
            "perf stream --set tcp_unknown=1 --time 0.1 --api core",
            "tcp_unknown",
            "net.ipv4.tcp_",
        ),
        (
            "perf stream --set tcp_rmem=x --time 0.1 --api core",
            "tcp_rmem",
            "x",
        ),
        ("perf stream -K nonesuch --time 0.1", "nonesuch", "cubic"),
        (
            "perf stream -K nonesuch --time 0.1 --api core",
            "nonesuch",
            "cubic",
        ),
        (
            "perf stream -K nonesuch --time 0.1 --kernel",
            "nonesuch",
            "cubic",
        ),
        (
            "perf stream --kernel --connect 127.0.0.1:1",
            "127.0.0.1:1",
            "perf serve",
        ),
        (
            "perf serve --kernel --bind 192.0.2.1",
            "192.0.2.1",
            "--bind",
        ),
        ("perf serve", "--kernel", "--tun"),
        (
            "perf serve --tun far/too/odd --address 10.0.0.1/24",
            "far/too/odd",
            "tun0",
        ),
        (
            "perf serve --packet lo --address 10.0.0.1/24",
            "\"lo\"",
            "veth",
        ),
        (
            "perf serve --xdp lo --address 10.0.0.1/24",
            "\"lo\"",
            "veth",
        ),
        (
            "perf serve --packet ve0 --tun t0 --address 10.0.0.1/24",
            "--packet",
            "--tun",
        ),
        (
            "perf serve --tun t0 --address 10.0.0.1/24 --offload tso5",
            "tso5",
            "tso4",
        ),
    ] {
        let out = fullsend(line);
        assert!(!out.status.success(), "{line}");
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            text.contains(value) && text.contains(hint),
            "{line}: {text}"
        );
        assert!(!text.contains("panicked"), "{line}: {text}");
    }
}

/// Runs client and server on both sides of a TUN, in a temporary namespace; returns the client's
/// report, `None` without root.
fn over_tun(server: &str, client: &str) -> Option<Value> {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: a TUN needs root");
        return None;
    }
    let script = format!(
        r#"
        set -eu
        ip link set lo up
        mkfifo "$DIR/fifo"
        "$BIN" perf serve {server} > "$DIR/fifo" & pid=$!
        exec 3< "$DIR/fifo"
        read -r listening <&3
        timeout 60 "$BIN" perf {client} --json --time 0.2
        kill -INT $pid
        wait $pid
        "#
    );
    let dir = tempfile::tempdir().expect("a directory");
    let out = Command::new("unshare")
        .args(["--net", "bash", "-c", &script])
        .env("BIN", env!("CARGO_BIN_EXE_fullsend"))
        .env("DIR", dir.path())
        .output()
        .expect("unshare(1) starts");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{server} | {client}: {errors}");
    let report: Value = serde_json::from_slice(&out.stdout).expect(client);
    check(client, &report);
    Some(report)
}

#[test]
fn kernel_clients_of_our_server_over_tun() {
    for plain in ["", "--plain", "--offload csum"] {
        let server = format!("--tun fsp0 --address 10.77.0.2/24 {plain}");
        for test in [
            "stream --verify",
            "stream --verify --reverse",
            "rr -r 4K,4K --flows 3",
        ] {
            over_tun(&server, &format!("{test} --kernel --connect 10.77.0.2"));
        }
    }
    let server = "--tun fsp0 --address fd77::2/64";
    over_tun(server, "stream --verify --kernel --connect fd77::2");
}

#[test]
fn our_server_listens_at_each_of_its_addresses() {
    let server = "--tun fsp0 --address 10.77.0.2/24 --address fd77::2/64";
    for address in ["10.77.0.2", "fd77::2"] {
        over_tun(server, &format!("rr --kernel --connect {address}"));
        over_tun(server, &format!("crr --kernel --connect {address}"));
    }
}

#[test]
fn our_clients_of_a_kernel_server_over_tun() {
    for plain in ["", "--plain"] {
        let setup = format!("--tun fsp0 --address 10.77.0.2/24 {plain} --connect 10.77.0.1");
        for test in [
            "stream --verify",
            "stream --verify --reverse",
            "rr -r 4K,4K --flows 3",
            "crr --flows 3",
        ] {
            over_tun("--kernel", &format!("{test} {setup}"));
        }
    }
}

#[test]
fn a_kernel_server_listens_on_both_families_by_default() {
    for (network, prefix) in [("10.77.0.", 24), ("fd77::", 64)] {
        let setup = format!("--tun fsp0 --address {network}2/{prefix} --connect {network}1");
        over_tun("--kernel", &format!("stream --verify {setup}"));
    }
}

#[test]
fn a_transaction_is_two_packets_a_side_over_tun_too() {
    const FLOWS: f64 = 50.0;
    let ours = "--tun fsp0 --address 10.77.0.2/24";
    let rr = "rr -r 4K,4K --flows 50";
    for (server, client, we_are) in [
        (
            "--kernel",
            format!("{rr} {ours} --connect 10.77.0.1"),
            "client",
        ),
        (ours, format!("{rr} --kernel --connect 10.77.0.2"), "server"),
    ] {
        let Some(report) = over_tun(server, &client) else {
            return;
        };
        let number = |value: &Value| value.as_f64().expect("a number");
        let transactions = number(&report["transactions_per_s"]) * number(&report["seconds"]);
        for side in ["client", "server"] {
            // The packets of a connection's start and end do not count.
            let packets = number(&report["counters"][side]["IpOutRequests"]) - 8.0 * FLOWS;
            let each = packets / transactions;
            println!("{side} (we are the {we_are}): {each:.3} packets in a transaction");
            // The kernel also sends probes if a busy machine delays the answers.
            assert!(side != we_are || each <= 2.05, "{client}: {each}");
        }
    }
}
