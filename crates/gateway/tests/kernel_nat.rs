//! What a guest sees of its connections and datagrams is the same through the gateway and through the
//! kernel's NAT over veth. Needs root.
//!
//! ```text
//! guest ---- TAP, gateway ---- host ---- veth ---- machine
//! guest ---- veth, NAT ------- host
//! ```

mod common;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{GATEWAY, Guest, LIMIT, configure, ip, wait_until, with_gateway, with_port};
use fullsend_gateway::Config;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::gettid;
use socket2::SockRef;

/// The machine's addresses, and those of the host on the same link.
const MACHINE: [&str; 2] = ["198.18.0.2", "2001:db8:5::2"];
const HOST: [&str; 2] = ["198.18.0.1", "2001:db8:5::1"];
/// Interval at which datagrams are repeated: routers limit the rate of their errors.
const REPEAT: Duration = Duration::from_millis(500);
/// The wait after which a connection has no answer.
const UNANSWERED: Duration = Duration::from_secs(2);

/// A guest and the machine that it reaches.
struct Pair<'a> {
    guest: &'a Guest,
    machine: &'a Guest,
}

/// Connects the machine and the second guest to the host, which forwards between them.
fn start_others() -> (Guest, Guest) {
    for (path, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        // Each of the test's errors is sent.
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv4/icmp_ratemask", "0"),
        ("ipv6/icmp/ratelimit", "0"),
    ] {
        sysctl(path, value);
    }
    let (machine, guest) = (Guest::start(), Guest::start());
    for (name, peer) in [("machine0", &machine), ("nat0", &guest)] {
        let thread = peer.run(gettid);
        ip(&format!(
            "link add {name} type veth peer name eth0 netns {thread}"
        ));
        ip(&format!("link set {name} up"));
        peer.run(|| ip("link set eth0 up"));
    }
    ip(&format!("addr add {}/24 dev machine0", HOST[0]));
    ip(&format!("addr add {}/64 dev machine0 nodad", HOST[1]));
    ip(&format!("addr add {}/24 dev nat0", GATEWAY[0]));
    ip(&format!("addr add {}/64 dev nat0 nodad", GATEWAY[1]));
    guest.run(|| configure("eth0"));
    machine.run(|| {
        sysctl("ipv4/ip_forward", "1");
        sysctl("ipv6/conf/all/forwarding", "1");
        sysctl("ipv4/icmp_ratelimit", "0");
        sysctl("ipv6/icmp/ratelimit", "0");
        ip(&format!("addr add {}/24 dev eth0", MACHINE[0]));
        ip(&format!("addr add {}/64 dev eth0 nodad", MACHINE[1]));
        // Without NAT, for lack of iptables, the machine sees the guest itself.
        ip(&format!("route add 10.0.2.0/24 via {}", HOST[0]));
        ip(&format!("-6 route add fd00::/64 via {}", HOST[1]));
        ip("route add unreachable 198.51.100.0/25");
        ip("route add prohibit 198.51.100.128/25");
        ip("-6 route add unreachable 2001:db8:6::/48 dev lo");
        ip("-6 route add prohibit 2001:db8:7::/48 dev lo");
    });
    for program in ["iptables", "ip6tables"] {
        let _ = Command::new(program)
            .args("-t nat -A POSTROUTING -o machine0 -j MASQUERADE".split(' '))
            .stderr(Stdio::null())
            .status();
    }
    ip(&format!("route add 198.51.100.0/24 via {}", MACHINE[0]));
    ip(&format!("-6 route add 2001:db8:6::/47 via {}", MACHINE[1]));
    for (family, kind, to) in ROUTES {
        ip(&format!("{family} route add {kind} {to}"));
    }
    (machine, guest)
}

/// Routes of the host that forward nothing. Unreachable IPv6 routes are not among them: a program of
/// the host gets `EHOSTUNREACH`, but the kernel reports `ENETUNREACH` to others.
const ROUTES: [(&str, &str, &str); 5] = [
    ("-4", "unreachable", "203.0.113.0/25"),
    ("-4", "prohibit", "203.0.113.128/26"),
    ("-4", "blackhole", "203.0.113.192/26"),
    ("-6", "prohibit", "2001:db8:b::/48 dev lo"),
    ("-6", "blackhole", "2001:db8:c::/48"),
];

fn sysctl(path: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{path}"), value).unwrap_or_else(|e| panic!("{path}: {e}"));
}

/// Returns the name of an error, as the guest's program sees it.
fn name(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => format!("{:?}", Errno::from_raw(number)),
        None => format!("{:?}", error.kind()),
    }
}

fn connect(guest: &Guest, to: SocketAddr) -> String {
    let connected = guest.run(move || TcpStream::connect_timeout(&to, LIMIT));
    connected.map_or_else(|error| name(&error), |_| "connected".into())
}

/// Sends a datagram, and returns the error that its socket gets.
fn send(guest: &Guest, to: SocketAddr) -> String {
    guest.run(move || {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => [0; 4].into(),
            SocketAddr::V6(_) => [0; 16].into(),
        };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.connect(to).unwrap();
        // Also errors that may be temporary are reported.
        if to.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4RecvErr, &true).unwrap();
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvErr, &true).unwrap();
        }
        socket.set_read_timeout(Some(REPEAT)).unwrap();
        let mut result = None;
        wait_until("the socket has an error", || {
            // A pending error is reported in place of sending.
            let received = socket.send(b"?").and_then(|_| socket.recv(&mut [0; 9]));
            result = match received {
                Ok(_) => Some("an answer".into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                Err(error) => Some(name(&error)),
            };
            result.is_some()
        });
        result.unwrap_or_default()
    })
}

/// Returns the results of connections and datagrams that do not arrive.
fn failures(pair: &Pair<'_>) -> Vec<String> {
    let mut results = Vec::new();
    // No program listens there.
    let closed = MACHINE.map(|address| with_port(address, 9));
    let unreachable = [
        // The host has no route.
        "192.88.99.1:9",
        "[2001:db8:f::1]:9",
        // The host's routes.
        "203.0.113.1:9",
        "203.0.113.129:9",
        "[2001:db8:b::1]:9",
        // The machine's routes.
        "198.51.100.1:9",
        "198.51.100.129:9",
        "[2001:db8:6::1]:9",
        "[2001:db8:7::1]:9",
        // No machine has the address.
        "198.18.0.77:9",
        "[2001:db8:5::77]:9",
    ];
    let unreachable = unreachable.map(|to| to.parse().unwrap());
    for to in closed.into_iter().chain(unreachable) {
        results.push(format!("TCP to {to}: {}", connect(pair.guest, to)));
        results.push(format!("UDP to {to}: {}", send(pair.guest, to)));
    }
    for to in ["203.0.113.193:9", "[2001:db8:c::1]:9"] {
        let to: SocketAddr = to.parse().unwrap();
        let unanswered = pair
            .guest
            .run(move || TcpStream::connect_timeout(&to, UNANSWERED));
        results.push(format!("TCP to {to}: {}", name(&unanswered.unwrap_err())));
    }
    results
}

/// Returns a connection: the guest's end and the machine's.
fn connected(pair: &Pair<'_>, family: usize) -> (TcpStream, TcpStream) {
    let listener = pair
        .machine
        .run(move || TcpListener::bind((MACHINE[family], 0)).unwrap());
    let to = listener.local_addr().unwrap();
    let guest = pair.guest.run(move || TcpStream::connect(to).unwrap());
    let (server, _) = listener.accept().unwrap();
    for stream in [&guest, &server] {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
    }
    (guest, server)
}

/// Closes a connection with a RST.
#[allow(clippy::needless_pass_by_value, reason = "the stream is closed here")]
fn reset(stream: TcpStream) {
    SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

/// Reads to the end, and returns how the stream ended.
fn end_of(mut stream: &TcpStream) -> String {
    let mut buf = vec![0; 1 << 16];
    loop {
        match stream.read(&mut buf) {
            Ok(0) => return "the end".into(),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return "nothing".into(),
            Err(error) => return name(&error),
        }
    }
}

/// Waits until the socket has an error, and returns it.
fn error_of(stream: &TcpStream) -> String {
    let mut found = None;
    wait_until("the socket has an error", || {
        found = stream.take_error().unwrap();
        found.is_some()
    });
    found.as_ref().map(name).unwrap_or_default()
}

/// Writes until that fails, and returns the error.
fn write_error(mut stream: &TcpStream) -> String {
    let mut error = None;
    wait_until("a write fails", || {
        error = stream.write(b"x").err();
        error.is_some()
    });
    error.as_ref().map(name).unwrap_or_default()
}

/// Waits until the kernel of `stream` has received a FIN or more.
fn wait_for_end(mut stream: &TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

type Scenario = (&'static str, fn(&TcpStream, TcpStream) -> String);

/// What happens to a connection. Each gets the guest's end and the machine's.
const SCENARIOS: &[Scenario] = &[
    ("the server closes", |guest, server| {
        drop(server);
        format!("{}, then {}", end_of(guest), write_error(guest))
    }),
    ("the server resets", |guest, server| {
        reset(server);
        format!("{}, then {}", end_of(guest), write_error(guest))
    }),
    ("the server closes with data unread", |guest, server| {
        (&mut &*guest).write_all(b"unread").unwrap();
        server.peek(&mut [0]).unwrap();
        drop(server);
        end_of(guest)
    }),
    ("the server writes and resets", |guest, mut server| {
        server.write_all(&[7; 100_000]).unwrap();
        reset(server);
        end_of(guest)
    }),
    (
        "the guest ends its side, the server answers",
        |guest, mut server| {
            guest.shutdown(Shutdown::Write).unwrap();
            wait_for_end(&server);
            server.write_all(b"answer").unwrap();
            drop(server);
            end_of(guest)
        },
    ),
    (
        "the guest ends its side, the server resets",
        |guest, server| {
            guest.shutdown(Shutdown::Write).unwrap();
            wait_for_end(&server);
            reset(server);
            end_of(guest)
        },
    ),
    ("the server ends its side, then resets", |guest, server| {
        server.shutdown(Shutdown::Write).unwrap();
        wait_for_end(guest);
        reset(server);
        error_of(guest)
    }),
    ("both end their sides", |guest, server| {
        guest.shutdown(Shutdown::Write).unwrap();
        wait_for_end(&server);
        drop(server);
        format!("{}, then {}", end_of(guest), write_error(guest))
    }),
    (
        "the guest writes to a server that has closed its side",
        |guest, server| {
            server.shutdown(Shutdown::Write).unwrap();
            wait_for_end(guest);
            (&mut &*guest).write_all(b"late").unwrap();
            server.set_read_timeout(Some(LIMIT)).unwrap();
            let mut late = [0; 4];
            (&mut &server).read_exact(&mut late).unwrap();
            String::from_utf8_lossy(&late).into_owned()
        },
    ),
];

/// Compares the server's view through the gateway with that through the kernel's NAT.
const OF_THE_SERVER: &[Scenario] = &[
    ("the guest closes", |server, guest| {
        drop(guest);
        format!("{}, then {}", end_of(server), write_error(server))
    }),
    ("the guest resets", |server, guest| {
        reset(guest);
        format!("{}, then {}", end_of(server), write_error(server))
    }),
    ("the guest closes with data unread", |server, guest| {
        (&mut &*server).write_all(b"unread").unwrap();
        guest.peek(&mut [0]).unwrap();
        drop(guest);
        end_of(server)
    }),
    ("the guest ends its side, then resets", |server, guest| {
        guest.shutdown(Shutdown::Write).unwrap();
        wait_for_end(server);
        reset(guest);
        error_of(server)
    }),
];

fn connections(pair: &Pair<'_>) -> Vec<String> {
    let mut results = Vec::new();
    for family in [0, 1] {
        for (what, scenario) in SCENARIOS {
            let (guest, server) = connected(pair, family);
            results.push(format!("{what}: {}", scenario(&guest, server)));
        }
        for (what, scenario) in OF_THE_SERVER {
            let (guest, server) = connected(pair, family);
            results.push(format!("{what}, the server: {}", scenario(&server, guest)));
        }
        // The server's program does not accept, and closes its listener.
        let listener = pair
            .machine
            .run(move || TcpListener::bind((MACHINE[family], 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let guest = pair.guest.run(move || TcpStream::connect(to).unwrap());
        guest.set_read_timeout(Some(LIMIT)).unwrap();
        drop(listener);
        results.push(format!("the listener closes: {}", end_of(&guest)));
    }
    results
}

#[test]
fn errors_and_ends_are_those_of_the_kernels_nat() {
    with_gateway(Config::default(), |rig| {
        let (machine, nat_guest) = start_others();
        let through = |guest| {
            let pair = Pair {
                guest,
                machine: &machine,
            };
            [failures(&pair), connections(&pair)].concat()
        };
        let expected = through(&nat_guest);
        let found = through(&rig.guest);
        for line in &expected {
            println!("{line}");
        }
        assert_eq!(found, expected);
    });
}
