//! `--policy FILE`, as a user sees it. Needs root, for a host with servers of its own.

mod pasta_net;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Output, Stdio};
use std::thread;

use pasta_net::{LOOPBACK, MACHINE, Namespace, Net, RESOLVER, with_net, with_port};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fullsend");
/// A second address of the other machine.
const OTHER: &str = "192.0.2.51";
const PORT: u16 = 8080;

const POLICY: &str = r#"
[[rules]]
action = "allow"
domains = ["allowed.test", "*.allowed.test"]
protocols = "tcp"
ports = 8080

[[rules]]
action = "allow"
domains = "host.internal"

[names]
"host.internal" = "10.0.2.2"

[limits]
bytes_per_second = 1_000_000
tcp_connections = 1
"#;

/// Answers queries for addresses: those of `rebind.allowed.test` with the loopback's.
fn serve_names() {
    let socket = UdpSocket::bind(with_port(RESOLVER, 53)).unwrap();
    thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut buf) {
            let mut answer = buf[..len].to_vec();
            answer[2] |= 0x80;
            // Without the records of other sections, such as OPT.
            let end = 12 + buf[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            answer.truncate(end);
            answer[6..12].fill(0);
            if buf[end - 4..end - 2] == [0, 1] {
                answer[7] = 1;
                let is_rebind = buf[12..].starts_with(b"\x06rebind");
                let address = if is_rebind { LOOPBACK[0] } else { MACHINE[0] };
                let address: Ipv4Addr = address.parse().unwrap();
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(address.octets());
            }
            socket.send_to(&answer, from).unwrap();
        }
    });
}

/// Answers requests of HTTP at `at` with its port and the client's address.
fn serve_http(at: SocketAddr) {
    let listener = TcpListener::bind(at).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let from = stream.peer_addr().unwrap().ip();
            // A request that is not read would reset the connection.
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                request.push(byte[0]);
            }
            let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{} {from}", at.port());
        }
    });
}

/// Starts the servers of all tests, and writes the policy.
fn prepare(net: &Net, policy: &str) {
    fs::write(net.path("policy.toml"), policy).unwrap();
    serve_names();
    net.machine.sh(&format!("ip addr add {OTHER}/24 dev lan0"));
    net.machine.run(|| {
        serve_http(with_port(MACHINE[0], PORT));
        serve_http(with_port(OTHER, PORT));
    });
    serve_http(with_port(LOOPBACK[0], 8081));
}

/// Runs a script of bash in a gateway's network.
fn run(net: &Net, script: &str) -> Output {
    let path = |name: &str| net.path(name).display().to_string();
    let output = Command::new(PROGRAM)
        .args(["gateway", "run", "--policy", &path("policy.toml")])
        .args(["--control", &path("control")])
        .args(["--metrics", &format!("unix:{}", path("metrics"))])
        .args(["--", "bash", "-c", script])
        .env("DIR", net.path("."))
        .env("PROGRAM", PROGRAM)
        .stdin(Stdio::null())
        .output();
    output.expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the value of a counter or a metric in a list of them.
fn value(list: &str, name: &str) -> u64 {
    let found = list
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("{name} in {list}"))
}

#[test]
fn a_command_reaches_what_its_policy_allows() {
    with_net(|net| {
        prepare(net, POLICY);
        let output = run(
            net,
            r#"get() { curl -s --max-time 25 "http://$1/"; echo " $?"; }
            get 192.0.2.50:8080
            get www.allowed.test:8080
            get 192.0.2.50:8080
            get www.allowed.test:8082
            get other.test:8080
            get rebind.allowed.test:8080
            get 192.0.2.51:8080
            get 10.0.2.2:8081
            get host.internal:8081
            "$PROGRAM" stat --socket "$DIR/control" gateway --summary
            curl -s --unix-socket "$DIR/metrics" http://localhost/metrics"#,
        );
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let results: Vec<_> = stdout.lines().take(9).collect();
        // The exit statuses of curl: 6 for a name that has no address, 7 for a refused connection.
        let expected = [
            " 7",
            "8080 192.0.2.7 0",
            "8080 192.0.2.7 0",
            " 7",
            " 6",
            " 6",
            " 7",
            " 7",
            "8081 127.0.0.1 0",
        ];
        assert_eq!(results, expected, "{stderr}");
        for line in [
            "to 192.0.2.50:8080: no rule allows it",
            "to 192.0.2.50:8082 (www.allowed.test): no rule allows it",
            "refused the name other.test (A): no rule allows it",
            "refused the answer for rebind.allowed.test with the local address 127.0.0.1: no rule",
            "to 192.0.2.51:8080: no rule allows it",
            "to 10.0.2.2:8081: no rule allows it",
        ] {
            assert_eq!(stderr.matches(line).count().min(1), 1, "{line}\n{stderr}");
        }
        assert_eq!(value(&stdout, "GatewayPolicyDeniedTcp"), 4);
        assert!(value(&stdout, "GatewayPolicyDeniedNames") > 0);
        assert!(value(&stdout, "GatewayPolicyDeniedAnswers") > 0);
        let metric = r#"fullsend_gateway_policy_denials_total{kind="tcp"}"#;
        assert_eq!(value(&stdout, metric), 4);
        assert!(stdout.contains("tcp 0 (max 1)"), "{stdout}");
        assert!(stdout.contains("1000000"), "{stdout}");
    });
}

#[test]
fn connections_beyond_the_cap_wait_and_are_logged() {
    with_net(|net| {
        prepare(net, POLICY);
        // The SYN of the second connection is repeated until the first has ended.
        let output = run(
            net,
            r#"connect() {
                exec 3<>/dev/tcp/host.internal/8081
                printf 'GET / HTTP/1.0\r\n\r\n' >&3
                read -r -u 3 status
                echo "${status%?}"
            }
            (connect; touch "$DIR/open"; until [ -e "$DIR/close" ]; do sleep 0.05; done) &
            until [ -e "$DIR/open" ]; do sleep 0.05; done
            connect &
            until "$PROGRAM" stat --socket "$DIR/control" gateway --summary \
                | grep -q 'GatewayTcpDropped  *[1-9]'; do sleep 0.05; done
            touch "$DIR/close"
            wait"#,
        );
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(stdout, "HTTP/1.0 200 OK\n".repeat(2), "{stderr}");
        let line = "a TCP connection of the guest waits: all 1 of this gateway, those of forwards \
                    included, are in use; raise the limit tcp_connections, or close some";
        assert!(stderr.contains(line), "{stderr}");
    });
}

#[test]
fn programs_that_callers_start_have_their_policy_from_the_environment() {
    with_net(|net| {
        let policy = format!(
            "[[rules]]\naction = \"allow\"\nnetworks = \"{}\"\nports = {PORT}\n",
            MACHINE[0]
        );
        prepare(net, &policy);
        let guest = Namespace::guest(false);
        let pasta = |arguments: &str, policy: &str| {
            Command::new(net.path("pasta"))
                .args("--config-net --quiet -t none -u none -T none -U none".split(' '))
                .args(arguments.split_whitespace())
                .args(["--pid", &net.path("pid").display().to_string()])
                .arg(guest.pid().to_string())
                .env("FULLSEND_POLICY", net.path(policy))
                .stdin(Stdio::null())
                .output()
                .expect("the program starts")
        };
        let missing = pasta("", "missing.toml");
        assert_eq!(missing.status.code(), Some(1));
        let error = text(&missing.stderr);
        assert!(error.contains("missing.toml: No such file"), "{error}");
        fs::write(net.path("domains.toml"), POLICY).unwrap();
        let error = text(&pasta("", "domains.toml").stderr);
        assert!(error.contains("add --dns-forward ADDRESS"), "{error}");
        fs::write(
            net.path("names.toml"),
            "[names]\n\"db.internal\" = \"10.0.2.2\"\n",
        )
        .unwrap();
        let error = text(&pasta("", "names.toml").stderr);
        assert!(error.contains("has domains or names, and"), "{error}");
        fs::write(net.path("wrong.toml"), "default = 1").unwrap();
        let error = text(&pasta("", "wrong.toml").stderr);
        assert!(
            error.contains("wrong.toml:1: default = 1 is none of"),
            "{error}"
        );
        let empty = Command::new(net.path("pasta"))
            .args(["--config-net", "--pid"])
            .arg(net.path("pid"))
            .arg(guest.pid().to_string())
            .env("FULLSEND_POLICY", "")
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        assert_eq!(empty.status.code(), Some(1));
        let error = text(&empty.stderr);
        let expected = "FULLSEND_POLICY is empty; set it to a file, or unset it";
        assert!(error.contains(expected), "{error}");
        // The option takes precedence.
        let option = format!("--policy {}", net.path("policy.toml").display());
        let output = pasta(&option, "wrong.toml");
        assert!(output.status.success(), "{output:?}");
        let _pasta = pasta_net::Pasta::of_file(&net.path("pid"));
        let connect = |to: &'static str| guest.run(move || TcpStream::connect(with_port(to, PORT)));
        assert!(connect(MACHINE[0]).is_ok());
        let error = connect(OTHER).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}
