//! `fullsend stat` against a running stack: the program as its users run it, and a pair of stacks
//! in this process to inspect.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fullsend::{Pair, Stack, TcpListener, TcpStream};
use fullsend_blocking::abi::{AF_INET, SOCK_STREAM};
use fullsend_blocking::{Clock, Config, SockAddr, Stack as CStack, UserDrivenOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Two stacks with a connection, driven by threads of their own, and a control socket.
struct Fixture {
    runtime: tokio::runtime::Runtime,
    stack: Stack,
    _peer: Stack,
    client: TcpStream,
    server: TcpStream,
    dir: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stack.sock");
        let (stack, peer, client, server) = runtime.block_on(async {
            let (a, b) = Stack::pair(&Pair::default()).unwrap();
            a.control_socket(&path).unwrap();
            let listener = TcpListener::bind(&b, "10.0.0.2:80").unwrap();
            let client = TcpStream::connect(&a, "10.0.0.2:80");
            let (client, server) = tokio::join!(client, listener.accept());
            (a, b, client.unwrap(), server.unwrap().0)
        });
        Self {
            runtime,
            stack,
            _peer: peer,
            client,
            server,
            dir,
        }
    }

    /// Sends and reads `len` bytes, and waits for their acknowledgement.
    fn transfer(&mut self, len: usize) {
        let (client, server) = (&mut self.client, &mut self.server);
        self.runtime.block_on(async {
            let data = vec![7; len];
            let mut got = vec![0; len];
            let write = async {
                client.write_all(&data).await.unwrap();
                client.flushed().await.unwrap();
            };
            let ((), read) = tokio::join!(write, server.read_exact(&mut got));
            read.unwrap();
        });
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullsend"));
        command
            .args(["stat", "--socket"])
            .arg(self.dir.path().join("stack.sock"))
            .args(line.split_whitespace())
            .env("FULLSEND_STAT_HISTORY", self.dir.path().join("history"));
        command
    }

    fn stat(&self, line: &str) -> String {
        let out = self.command(line).output().unwrap();
        assert!(out.status.success(), "{line}: {}", errors(&out));
        String::from_utf8(out.stdout).unwrap()
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.stat(&format!("{line} --json"))).unwrap()
    }

    fn refused(&self, line: &str) -> String {
        let out = self.command(line).output().unwrap();
        assert!(!out.status.success(), "{line}");
        errors(&out)
    }
}

fn errors(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn nstat_shows_growth_since_the_last_call() {
    let mut fixture = Fixture::new();
    let counter = |stack: &Stack, name: &str| {
        let all = stack.counters();
        all.iter().find(|c| c.0 == name).unwrap().1
    };
    let first = fixture.json("nstat");
    assert_eq!(first["fullsend"]["TcpActiveOpens"], 1);
    assert!(fixture.stat("nstat").trim_end().ends_with("#fullsend"));
    let before = counter(&fixture.stack, "TcpOutSegs");
    fixture.transfer(100_000);
    let grown = counter(&fixture.stack, "TcpOutSegs") - before;
    let text = fixture.stat("nstat --noupdate");
    assert!(text.starts_with("#fullsend\n"), "{text}");
    let line = text.lines().find(|l| l.starts_with("TcpOutSegs")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!((words.len(), words[1]), (3, &*grown.to_string()), "{text}");
    assert!(words[2].parse::<f64>().unwrap() > 0.0);
    assert!(!text.contains("TcpActiveOpens"), "{text}");
    // The first call does not update the history, the second does.
    assert_eq!(fixture.json("nstat")["fullsend"]["TcpOutSegs"], grown);
    assert_eq!(fixture.json("nstat")["fullsend"]["TcpOutSegs"], Value::Null);
    let absolute = fixture.json("nstat -az");
    assert_eq!(absolute["fullsend"]["TcpOutSegs"], before + grown);
    assert_eq!(absolute["fullsend"]["TcpInErrs"], 0);
}

#[test]
fn ss_shows_the_flow_and_why() {
    let mut fixture = Fixture::new();
    fixture.transfer(100_000);
    // The server stops reading: the data stays in its receive buffer.
    fixture
        .runtime
        .block_on(async {
            fixture.client.write_all(&[1; 500]).await?;
            fixture.client.flushed().await
        })
        .unwrap();
    let text = fixture.stat("ss -tinmo --why");
    let mut lines = text.lines();
    assert!(
        lines
            .next()
            .unwrap()
            .starts_with("State      Recv-Q  Send-Q"),
        "{text}"
    );
    let first: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    let local = fixture.client.local_addr().unwrap().to_string();
    assert_eq!(
        first[..5],
        ["ESTAB", "0", "0", &local, "10.0.0.2:80"],
        "{text}"
    );
    let info = lines.next().unwrap();
    for part in [
        "skmem:(r0,rb",
        "ts sack cubic wscale:",
        "rto:",
        "rtt:",
        "mss:1448",
        "cwnd:",
        "bytes_sent:100500",
        "bytes_acked:100500",
        "send ",
        "pacing_rate ",
        "minrtt:",
    ] {
        assert!(info.contains(part), "{part}: {text}");
    }
    for part in [
        "limited by",
        "application",
        "bytes per send",
        "head-room",
        "@",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = fixture.json("ss");
    assert_eq!(json[0]["tcp_info"]["tcpi_bytes_acked"], 100_500);
    assert_eq!(fixture.json("ss -l"), Value::Array(Vec::new()));
    assert_eq!(
        fixture
            .stat("sockstat")
            .split_whitespace()
            .take(3)
            .collect::<Vec<_>>(),
        ["TCP:", "inuse", "1"]
    );
    let addresses = fixture.stat("addr");
    let lines: Vec<Vec<_>> = addresses
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    let shown = ["10.0.0.1/24", "fd00::1/64"].map(|addr| ["link0", "preferred", addr]);
    assert_eq!(lines, shown);
}

#[test]
fn ss_filters_by_state_and_counts() {
    let fixture = Fixture::new();
    let states = |line: &str| -> Vec<String> {
        let text = fixture.stat(line);
        let words = text.lines().skip(1).filter(|line| !line.starts_with('\t'));
        words
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(states("ss state established"), ["ESTAB"]);
    assert_eq!(states("ss state listening"), [""; 0]);
    assert_eq!(states("ss -t exclude established"), [""; 0]);
    assert!(
        fixture
            .refused("ss state open")
            .contains("`open` is not a state")
    );
    let summary = fixture.stat("ss -s");
    let first: Vec<&str> = summary.lines().take(2).collect();
    let counted = "TCP:   1 (estab 1, closed 0, orphaned 0, timewait 0)";
    assert_eq!(first, ["Total: 1", counted], "{summary}");
    let json = fixture.json("ss -s");
    assert_eq!(
        (&json["tcp"]["ipv4"], &json["udp"]["total"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn tunables_and_options_take_effect() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.stat("sysctl tcp_sack"), "tcp_sack = 1\n");
    assert_eq!(fixture.stat("sysctl tcp_sack=0"), "tcp_sack = 0\n");
    assert_eq!(fixture.stack.sysctl("tcp_sack").unwrap(), "0");
    assert!(
        fixture
            .stat("sysctl -a")
            .contains("net.ipv4.tcp_wmem = 4096\t")
    );
    let error = fixture.refused("sysctl tcp_sack=2");
    assert!(
        error.contains("tcp_sack") && error.contains("0 (off)"),
        "{error}"
    );

    // Setting TCP_CORK holds a small write until it is cleared.
    let id = fixture.json("ss")[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(fixture.json("ss")[0]["nodelay"], false);
    fixture.stat(&format!("set sk:{id} TCP_CORK=1"));
    fixture
        .runtime
        .block_on(fixture.client.write_all(&[1; 100]))
        .unwrap();
    assert_eq!(fixture.client.tcp_info().unwrap().tcpi_bytes_sent, 0);
    fixture.stat(&format!("set {id} TCP_NODELAY=1"));
    fixture.stat(&format!("set {id} TCP_CORK=0"));
    fixture.runtime.block_on(fixture.client.flushed()).unwrap();
    assert_eq!(fixture.json("ss")[0]["nodelay"], true);
    let flow = format!("{}-10.0.0.2:80", fixture.client.local_addr().unwrap());
    fixture.stat(&format!("set {flow} TCP_CONGESTION=reno"));
    assert_eq!(fixture.json("ss")[0]["congestion"], "reno");
    let error = fixture.refused(&format!("set {flow} TCP_NODELAY=perhaps"));
    assert!(
        error.contains("perhaps") && error.contains("1 (on)"),
        "{error}"
    );
    let error = fixture.refused("set sk:1 TCP_NODELAY");
    assert!(error.contains("OPTION=VALUE"), "{error}");
    fixture.transfer(10);
}

#[test]
fn links_and_queues() {
    let mut fixture = Fixture::new();
    fixture.transfer(1_000_000);
    let link = fixture.json("link");
    let sent = link[0]["tx_bytes"].as_u64().unwrap();
    assert!(sent > 1_000_000, "{link}");
    assert!(link[0]["tx_wire_packets"].as_u64() > link[0]["tx_packets"].as_u64());
    let text = fixture.stat("link -i 1 -c 1");
    let lines: Vec<Vec<_>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["LINK", "IPKTS", "RBYTES", "OPKTS", "OBYTES"]);
    assert_eq!(lines[1], ["link0", "0", "0", "0", "0"]);
    assert!(
        fixture
            .stat("qdisc")
            .starts_with("qdisc noqueue dev link0\n")
    );
}

/// Returns tshark's view of a capture: the number of packets, and the malformed ones.
fn tshark(file: &Path) -> Option<(usize, String)> {
    let run = |filter: &str| {
        let mut command = Command::new("tshark");
        command
            .arg("-r")
            .arg(file)
            .args(["-Y", filter])
            .output()
            .ok()
    };
    let all = run("frame")?;
    assert!(all.status.success(), "{}", errors(&all));
    let bad = run("_ws.malformed")?;
    let lines = String::from_utf8_lossy(&all.stdout).lines().count();
    Some((lines, String::from_utf8_lossy(&bad.stdout).into_owned()))
}

/// Waits until a file is not empty.
fn until_written(file: &Path) {
    while std::fs::metadata(file).map_or(0, |meta| meta.len()) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_capture_opens_in_tshark() {
    let mut fixture = Fixture::new();
    let file: PathBuf = fixture.dir.path().join("some.pcapng");
    let mut capture = fixture
        .command(&format!("capture {}", file.display()))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until_written(&file);
    let before = fixture.json("link");
    for _ in 0..20 {
        fixture.transfer(10_000);
    }
    let after = fixture.json("link");
    kill(Pid::from_raw(capture.id() as i32), Signal::SIGINT).unwrap();
    let mut stderr_text = String::new();
    capture
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr_text)
        .unwrap();
    assert!(capture.wait().unwrap().success(), "{stderr_text}");
    let passed: u64 = ["rx_packets", "tx_packets"]
        .map(|name| after[0][name].as_u64().unwrap() - before[0][name].as_u64().unwrap())
        .iter()
        .sum();
    let words: Vec<_> = stderr_text.split_whitespace().collect();
    let recorded: u64 = words[0].parse().unwrap();
    assert_eq!(
        words[1..],
        ["packets", "recorded,", "0", "dropped"],
        "{stderr_text}"
    );
    // A last ACK may have passed before or after the second reading.
    assert!(recorded >= passed && passed >= 20, "{recorded} {passed}");
    match tshark(&file) {
        None => println!("skipped: needs tshark"),
        Some(seen) => assert_eq!(seen, (recorded as usize, String::new())),
    }
}

#[test]
fn a_capture_of_a_few_packets_through_a_pipe() {
    let mut fixture = Fixture::new();
    let mut capture = fixture
        .command("capture - -c 3 -s 80")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = capture.stdout.take().unwrap();
    let mut bytes = vec![0; 4];
    pipe.read_exact(&mut bytes).unwrap();
    for _ in 0..3 {
        fixture.transfer(1000);
    }
    pipe.read_to_end(&mut bytes).unwrap();
    let out = capture.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", errors(&out));
    assert_eq!(errors(&out), "3 packets recorded, 0 dropped\n");
    let file = fixture.dir.path().join("pipe.pcapng");
    std::fs::write(&file, &bytes).unwrap();
    if let Some((packets, _)) = tshark(&file) {
        assert_eq!(packets, 3);
    }
}

#[test]
fn a_capture_has_a_filter() {
    let mut fixture = Fixture::new();
    let mut captured = |filter: &str| {
        let file = fixture.dir.path().join("some.pcapng");
        let mut capture = fixture
            .command(&format!("capture {} {filter}", file.display()))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until_written(&file);
        fixture.transfer(10_000);
        kill(Pid::from_raw(capture.id() as i32), Signal::SIGINT).unwrap();
        let mut stderr_text = String::new();
        capture
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr_text)
            .unwrap();
        assert!(capture.wait().unwrap().success(), "{stderr_text}");
        std::fs::remove_file(&file).unwrap();
        stderr_text
            .split(' ')
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert_eq!(captured("udp or not port 80"), 0);
    let (all, there) = (
        captured("-B 1 tcp and net 10.0.0.0/24"),
        captured("dst port 80"),
    );
    assert!(there > 0 && all > there, "{all} {there}");
    let error = fixture.refused("capture - port http");
    assert!(error.contains("`http` is not a value of `port`"), "{error}");
}

#[test]
fn the_only_running_stack_is_the_default() {
    let fixture = Fixture::new();
    let runtime_dir = fixture.dir.path().join("run");
    let stat = || {
        Command::new(env!("CARGO_BIN_EXE_fullsend"))
            .args(["stat", "sockstat"])
            .env("XDG_RUNTIME_DIR", &runtime_dir)
            .output()
            .unwrap()
    };
    let none = errors(&stat());
    assert!(
        none.contains("--control") && none.contains("--socket"),
        "{none}"
    );
    std::fs::create_dir_all(runtime_dir.join("fullsend")).unwrap();
    let open = |name: &str| {
        let path = runtime_dir.join("fullsend").join(name);
        let _guard = fixture.runtime.enter();
        fixture.stack.control_socket(&path).unwrap();
    };
    open("17.sock");
    open("17.server.sock");
    assert!(stat().status.success());
    open("18.sock");
    let many = errors(&stat());
    assert!(
        many.contains("17.sock") && many.contains("18.sock"),
        "{many}"
    );
    let gone = fixture.dir.path().join("gone.sock");
    let out = Command::new(env!("CARGO_BIN_EXE_fullsend"))
        .args(["stat", "ss", "--socket"])
        .arg(&gone)
        .output()
        .unwrap();
    assert!(errors(&out).contains("gone.sock"), "{}", errors(&out));
}

#[test]
fn stat_inspects_a_tun_server_under_load() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: a TUN needs root");
        return;
    }
    let script = r#"
        set -eu
        ip link set lo up
        mkfifo "$DIR/fifo"
        "$BIN" perf serve --tun fss0 --address 10.77.0.2/24 --qdisc fq --control "$DIR/socket" \
            > "$DIR/fifo" & server=$!
        exec 3< "$DIR/fifo"
        read -r listening <&3
        timeout 60 "$BIN" perf rr -r 4K,4K --kernel --connect 10.77.0.2 --time 1 > /dev/null &
        client=$!
        stat="$BIN stat --socket $DIR/socket"
        until $stat ss -tinmo > "$DIR/ss" && grep -q 'bytes_acked:[0-9]\{5,\}' "$DIR/ss"; do
            kill -0 $client
        done
        cat "$DIR/ss"
        wait $client
        $stat nstat -a
        $stat qdisc
        kill -INT $server
        wait $server
    "#;
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new("unshare")
        .args(["--net", "bash", "-c", script])
        .env("BIN", env!("CARGO_BIN_EXE_fullsend"))
        .env("DIR", dir.path())
        .env("FULLSEND_STAT_HISTORY", dir.path().join("history"))
        .output()
        .expect("unshare(1) starts");
    assert!(out.status.success(), "{}", errors(&out));
    let text = String::from_utf8(out.stdout).unwrap();
    let flow = text.lines().find(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.len() > 4
            && words[0] == "ESTAB"
            && words[3] == "10.77.0.2:5211"
            && words[4].starts_with("10.77.0.1:")
    });
    assert!(flow.is_some(), "{text}");
    for part in [
        "cubic",
        "mss:1448",
        "bytes_received:",
        "TcpPassiveOpens",
        "qdisc fq limit 10000p",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_stack_of_the_c_library_opens_its_socket_with_a_setting() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    // The settings that a C program passes to fs_stack_create.
    let settings = format!("address=10.7.0.1/24;control={}", path.display());
    let config = Config::parse(&settings).unwrap();
    let stack = CStack::user_driven(&config, Clock::real(), UserDrivenOptions::default()).unwrap();
    let listener = stack.socket(AF_INET, SOCK_STREAM, 0).unwrap();
    let at = SockAddr::V4("10.7.0.1:80".parse().unwrap());
    stack.bind(listener, at).unwrap();
    stack.listen(listener, 8).unwrap();
    let stat = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullsend"));
        command.args(["stat", "--socket"]).arg(&path).args(words);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let (shown, _) = stat(&["ss", "-a"]);
    assert!(
        shown.contains("LISTEN") && shown.contains("10.7.0.1:80"),
        "{shown}"
    );
    let (shown, _) = stat(&["nstat", "-az"]);
    assert!(shown.contains("TcpActiveOpens"), "{shown}");
    stat(&["sysctl", "tcp_sack=0"]);
    assert_eq!(stack.get("tcp_sack").unwrap(), "0");
    let (_, refused) = stat(&["capture", "c.pcapng"]);
    assert!(refused.contains("C library"), "{refused}");
    drop(stack);
    assert!(!path.exists());
    let bad = Config::parse("control=here").unwrap_err();
    assert!(bad.to_string().contains("slash"), "{bad}");
}

#[test]
fn a_stack_without_a_gateway_refuses_requests_for_one() {
    let fixture = Fixture::new();
    for line in ["gateway", "gateway -l", "gateway --summary"] {
        let error = fixture.refused(line);
        assert!(error.contains("not a gateway's"), "{line}: {error}");
    }
}

#[test]
fn top_refuses_to_write_to_a_pipe() {
    let out = Command::new(env!("CARGO_BIN_EXE_fullsend"))
        .arg("top")
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let error = errors(&out);
    assert!(error.contains("`top` needs a terminal"), "{error}");
    assert!(error.contains("fullsend stat gateway"), "{error}");
}
