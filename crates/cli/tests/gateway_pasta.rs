//! Pasta's command lines as Podman and RootlessKit write them, and its port specifications, against
//! this machine's kernel. Needs root.

mod pasta_net;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use pasta_net::{
    HOST, LIMIT, LOOPBACK, MACHINE, Namespace, Net, Over, RESOLVER, ROUTER, ask, serve, wait_until,
    with_net, with_port,
};

const BOTH: [Over; 2] = [Over::Tcp, Over::Udp];

/// A query for the A record of x.
const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01x\0\0\x01\0\x01";

/// Answers DNS queries at `at` with themselves, marked as answers.
fn serve_dns(at: SocketAddr) {
    let udp = UdpSocket::bind(at).unwrap();
    let tcp = TcpListener::bind(at).unwrap();
    thread::spawn(move || {
        let mut buf = [0; 512];
        loop {
            let (len, from) = udp.recv_from(&mut buf).unwrap();
            buf[2] |= 0x80;
            udp.send_to(&buf[..len], from).unwrap();
        }
    });
    thread::spawn(move || {
        for stream in tcp.incoming() {
            let mut stream = stream.unwrap();
            let mut buf = [0; 2 + QUERY.len()];
            if stream.read_exact(&mut buf).is_ok() {
                buf[4] |= 0x80;
                let _ = stream.write_all(&buf);
            }
        }
    });
}

/// Sends a DNS query from the guest over UDP and over TCP; the answers must be those of [`serve_dns`].
fn assert_dns(guest: &Namespace, relay: &'static str) {
    let mut expected = QUERY.to_vec();
    expected[2] |= 0x80;
    let answers = guest.run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.send_to(QUERY, (relay, 53)).unwrap();
        let mut by_udp = vec![0; 512];
        let len = socket.recv(&mut by_udp).unwrap();
        by_udp.truncate(len);
        let mut stream = TcpStream::connect((relay, 53)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&[0, QUERY.len() as u8]).unwrap();
        stream.write_all(QUERY).unwrap();
        let mut by_tcp = vec![0; 2 + QUERY.len()];
        stream.read_exact(&mut by_tcp).unwrap();
        [by_udp, by_tcp.split_off(2)]
    });
    assert_eq!(answers, [expected.clone(), expected]);
}

fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
}

/// Returns the guest's answer to a client on the host.
fn answer(over: Over, address: &str, port: u16) -> String {
    let to = with_port(address, port);
    ask(over, to).unwrap_or_else(|error| panic!("{over:?} {to}: {error}"))
}

#[test]
fn podmans_command_line_copies_the_hosts_network_and_forwards_ports() {
    with_net(|net| {
        let guest = Namespace::guest(false);
        let netns = net.name_network(&guest);
        let pasta = net.start_pasta(&format!(
            "--config-net -t 8080-8081:80-81 -u 127.0.0.1/8053:54 --dns-forward 169.254.1.1 \
             -T none -U none --no-map-gw --quiet --netns {} --map-guest-addr 169.254.1.2",
            netns.display()
        ));
        let network = "ip -o address show up0; ip -o link show up0; ip route; ip -6 route";
        assert_parts(
            &guest.sh(network),
            &[
                "inet 192.0.2.7/24",
                "inet6 2001:db8::7/64",
                "mtu 65520",
                "LOWER_UP",
                "default via 192.0.2.254 dev up0",
                "198.51.100.0/24 via 192.0.2.50 dev up0",
                "default via 2001:db8::fe dev up0",
            ],
        );
        assert_parts(&guest.sh("ip -o link show lo"), &["LOWER_UP"]);
        guest.run(|| [80, 81, 54].map(|port| serve(with_port("::", port))));
        for (port, to) in [(8080, 80), (8081, 81)] {
            for host in LOOPBACK.into_iter().chain(HOST) {
                assert_parts(&answer(Over::Tcp, host, port), &[&format!("{to} ")]);
            }
        }
        let from_loopback = answer(Over::Udp, LOOPBACK[0], 8053);
        assert_eq!(from_loopback, format!("54 {}", HOST[0]));
        let refused = net.machine.run(|| ask(Over::Udp, with_port(HOST[0], 8053)));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);

        serve_dns(with_port(RESOLVER, 53));
        assert_dns(&guest, "169.254.1.1");
        // DNS over TLS would open the host's loopback, which --no-map-gw does not.
        serve(with_port(RESOLVER, 853));
        for over in BOTH {
            let tls = guest.run(move || ask(over, with_port("169.254.1.1", 853)));
            assert_eq!(tls.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
        // Servers of the host, which has the guest's address.
        serve(with_port(HOST[0], 9000));
        let mapped = guest.run(|| ask(Over::Tcp, with_port("169.254.1.2", 9000)));
        assert_parts(&mapped.unwrap(), &["9000 "]);
        // --no-map-gw: the router is not the host's loopback, and is not there.
        serve(with_port(LOOPBACK[0], 9001));
        let unmapped = guest.run(|| ask(Over::Tcp, with_port(ROUTER[0], 9001)));
        assert_eq!(unmapped.unwrap_err().kind(), ErrorKind::HostUnreachable);

        assert!(pasta.is_running());
        pasta_net::sh(&format!("umount -l {0} && rm {0}", netns.display()));
        pasta.wait_for_end();
    });
}

#[test]
fn podmans_command_line_without_ports_forwards_none() {
    with_net(|net| {
        let guest = Namespace::guest(false);
        let netns = net.name_network(&guest);
        let _pasta = net.start_pasta(&format!(
            "--config-net --dns-forward 169.254.1.1 -t none -u none -T none -U none --no-map-gw \
             --quiet --netns {} --map-guest-addr 169.254.1.2",
            netns.display()
        ));
        guest.run(|| serve(with_port("::", 80)));
        for over in BOTH {
            let error = ask(over, with_port(LOOPBACK[0], 80)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{over:?}");
        }
    });
}

/// RootlessKit's options in front of those that differ.
const ROOTLESSKIT: &str = "--stderr --ns-ifname=tap0 --mtu=65520 --config-net --address=10.0.2.100 \
                           --netmask=24 --gateway=10.0.2.2 --dns-forward=10.0.2.3";

/// What RootlessKit expects of the guest's network.
fn assert_rootlesskits_network(guest: &Namespace) {
    assert_parts(
        &guest.sh("ip -o address show tap0; ip -o link show tap0; ip route"),
        &[
            "inet 10.0.2.100/24",
            "mtu 65520",
            "LOWER_UP",
            "default via 10.0.2.2 dev tap0",
        ],
    );
    serve_dns(with_port(RESOLVER, 53));
    assert_dns(guest, "10.0.2.3");
}

#[test]
fn rootlesskits_command_line_follows_the_ports_of_the_guest() {
    with_net(|net| {
        for line in ["--version", "--host-lo-to-ns-lo --version"] {
            assert_eq!(net.pasta(line).status.code(), Some(0), "{line}");
        }
        let guest = Namespace::guest(true);
        let pasta = net.start_pasta(&format!(
            "{ROOTLESSKIT} --tcp-ports=auto --udp-ports=auto --host-lo-to-ns-lo {}",
            guest.pid()
        ));
        assert_rootlesskits_network(&guest);
        // The host's IPv6 network is copied beside the given IPv4 address.
        assert_parts(
            &guest.sh("ip -o address show tap0"),
            &["inet6 2001:db8::7/64"],
        );
        // Without --no-map-gw, the gateway is the host's loopback.
        serve(with_port(LOOPBACK[0], 9000));
        let mapped = guest.run(|| ask(Over::Tcp, with_port("10.0.2.2", 9000)));
        assert_parts(&mapped.unwrap(), &["9000 127.0.0.1"]);

        guest.run(|| serve(with_port("::", 7001)));
        for over in BOTH {
            for host in LOOPBACK.into_iter().chain(HOST) {
                let to = with_port(host, 7001);
                wait_until(&format!("{over:?} {to} is forwarded"), || {
                    ask(over, to).is_ok_and(|answer| answer.starts_with("7001 "))
                });
            }
        }
        let listener = guest.run(|| TcpListener::bind("0.0.0.0:7002").unwrap());
        let to = with_port(LOOPBACK[0], 7002);
        wait_until("7002 is forwarded", || TcpStream::connect(to).is_ok());
        drop(listener);
        wait_until("7002 is no longer forwarded", || {
            let refused = TcpStream::connect(to);
            refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });
        assert!(pasta.is_running());
        drop(guest);
        pasta.wait_for_end();
    });
}

#[test]
fn rootlesskits_command_line_without_ports_forwards_none() {
    with_net(|net| {
        let guest = Namespace::guest(true);
        let pasta = net.start_pasta(&format!(
            "{ROOTLESSKIT} --no-map-gw --ipv4-only --tcp-ports=none --udp-ports=none \
             --userns={} --netns={}",
            guest.path("user"),
            guest.path("net"),
        ));
        assert_rootlesskits_network(&guest);
        let v6 = guest.sh("ip -o -6 address show tap0 scope global; ip -6 route show default");
        assert_eq!(v6, "");
        guest.run(|| serve(with_port("0.0.0.0", 7001)));
        // The guest's ports would be looked up each second.
        thread::sleep(Duration::from_secs(2));
        let error = ask(Over::Tcp, with_port(LOOPBACK[0], 7001)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        drop(guest);
        pasta.wait_for_end();
    });
}

/// A further address of the guest, and the port on which it listens there only.
const OTHER: &str = "10.9.9.9";
const OTHER_PORT: u16 = 6050;

use Client::{Host, Machine};

/// A client that tries a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Client {
    /// On the host.
    Host,
    /// On another machine of the host's network.
    Machine,
}

/// A client, the address and port that it tries, and what it reaches.
type Row = (Client, &'static str, u16, Option<(u16, &'static str)>);

/// The port specifications of one test, and what clients reach: the guest's port and the client's
/// address as the guest sees it over the TAP, or `None` where they are refused.
struct Forwards {
    specs: &'static [&'static str],
    rows: &'static [Row],
}

impl Forwards {
    /// Checks the specifications for TCP and UDP; the guest listens on all ports but the refused
    /// ones, too.
    fn check(&'static self) {
        with_net(move |net| {
            let guest = Namespace::guest(false);
            guest.sh(&format!(
                "ip link set lo up; ip address add {OTHER}/32 dev lo"
            ));
            let specs: Vec<_> = self
                .specs
                .iter()
                .map(|s| format!("-t {s} -u {s}"))
                .collect();
            let _pasta = net.start_pasta(&format!(
                "--config-net --quiet {} {}",
                specs.join(" "),
                guest.pid()
            ));
            let reached = self.rows.iter().map(|row| row.3.map_or(row.2, |to| to.0));
            let mut ports: Vec<u16> = reached.collect();
            ports.sort_unstable();
            ports.dedup();
            guest.run(move || {
                for port in ports {
                    let address = if port == OTHER_PORT { OTHER } else { "::" };
                    serve(with_port(address, port));
                }
            });
            for over in BOTH {
                for row in self.rows {
                    check(net, over, *row);
                }
            }
        });
    }
}

fn check(net: &Net, over: Over, (client, address, port, expected): Row) {
    let to = with_port(address, port);
    let answer = match client {
        Host => ask(over, to),
        Machine => net.machine.run(move || ask(over, to)),
    };
    let expected = match expected {
        // The client's socket is one in the guest, with its own address.
        Some((port, _)) if to.ip().is_loopback() => {
            let own = HOST[usize::from(to.is_ipv6())];
            Ok(format!("{port} {own}"))
        }
        Some((port, seen)) => Ok(format!("{port} {seen}")),
        None => Err(ErrorKind::ConnectionRefused),
    };
    let answer = answer.map_err(|error| error.kind());
    assert_eq!(answer, expected, "{over:?}: {client:?} to {to}");
}

#[test]
fn single_ports_ranges_translations_and_exclusions_are_forwarded() {
    static FORWARDS: Forwards = Forwards {
        specs: &[
            "5001",
            "5010-5012",
            "5020:6020",
            "5030-5031:6030-6031",
            "5040-5044,~5042",
            "5050:10.9.9.9/6050",
        ],
        rows: &[
            (Host, LOOPBACK[0], 5001, Some((5001, ROUTER[0]))),
            (Host, LOOPBACK[1], 5001, Some((5001, ROUTER[1]))),
            // The guest has the same address.
            (Host, HOST[0], 5001, Some((5001, ROUTER[0]))),
            (Host, HOST[1], 5001, Some((5001, ROUTER[1]))),
            (Machine, HOST[0], 5001, Some((5001, MACHINE[0]))),
            (Machine, HOST[1], 5001, Some((5001, MACHINE[1]))),
            (Machine, HOST[0], 5002, None),
            (Machine, HOST[0], 5010, Some((5010, MACHINE[0]))),
            (Machine, HOST[1], 5012, Some((5012, MACHINE[1]))),
            (Machine, HOST[1], 5013, None),
            (Machine, HOST[0], 5020, Some((6020, MACHINE[0]))),
            (Host, LOOPBACK[1], 5020, Some((6020, ROUTER[1]))),
            (Machine, HOST[0], 5030, Some((6030, MACHINE[0]))),
            (Machine, HOST[1], 5031, Some((6031, MACHINE[1]))),
            (Machine, HOST[0], 5041, Some((5041, MACHINE[0]))),
            (Machine, HOST[0], 5042, None),
            (Machine, HOST[0], 5043, Some((5043, MACHINE[0]))),
            (Machine, HOST[0], 5050, Some((6050, MACHINE[0]))),
        ],
    };
    FORWARDS.check();
}

#[test]
fn ports_are_bound_to_addresses_and_interfaces() {
    static FORWARDS: Forwards = Forwards {
        specs: &[
            "127.0.0.1/5001",
            "[::1]/5002",
            "192.0.2.7/5003:6003",
            "2001:db8::7/5004-5005",
            "%up0/5006",
            "192.0.2.7%up0/5007",
            "%lo/5008",
        ],
        rows: &[
            (Host, LOOPBACK[0], 5001, Some((5001, ROUTER[0]))),
            (Host, LOOPBACK[1], 5001, None),
            (Machine, HOST[0], 5001, None),
            (Host, LOOPBACK[1], 5002, Some((5002, ROUTER[1]))),
            (Host, LOOPBACK[0], 5002, None),
            (Machine, HOST[0], 5003, Some((6003, MACHINE[0]))),
            (Host, LOOPBACK[0], 5003, None),
            (Machine, HOST[1], 5004, Some((5004, MACHINE[1]))),
            (Machine, HOST[1], 5005, Some((5005, MACHINE[1]))),
            (Machine, HOST[0], 5004, None),
            (Machine, HOST[0], 5006, Some((5006, MACHINE[0]))),
            (Machine, HOST[1], 5006, Some((5006, MACHINE[1]))),
            (Host, LOOPBACK[0], 5006, None),
            (Machine, HOST[0], 5007, Some((5007, MACHINE[0]))),
            (Machine, HOST[1], 5007, None),
            (Host, LOOPBACK[0], 5008, Some((5008, ROUTER[0]))),
            (Host, LOOPBACK[1], 5008, Some((5008, ROUTER[1]))),
            (Machine, HOST[0], 5008, None),
        ],
    };
    FORWARDS.check();
}

#[test]
fn clients_on_the_hosts_loopback_reach_the_guest_as_requested() {
    with_net(|net| {
        for (option, address, seen) in [
            ("", HOST[0], HOST[0]),
            ("--no-splice", HOST[0], ROUTER[0]),
            ("--host-lo-to-ns-lo", LOOPBACK[0], LOOPBACK[0]),
        ] {
            let guest = Namespace::guest(false);
            let pid = guest.pid();
            let line = format!("--config-net --quiet {option} -t 5001 -u 5001 {pid}");
            let pasta = net.start_pasta(&line);
            guest.run(move || serve(with_port(address, 5001)));
            for over in BOTH {
                assert_eq!(
                    answer(over, LOOPBACK[0], 5001),
                    format!("5001 {seen}"),
                    "{option} {over:?}"
                );
            }
            pasta.terminate();
            pasta.wait_for_end();
        }
    });
}

#[test]
fn ports_of_the_guests_loopback_lead_to_the_hosts() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], 9000));
        serve(with_port(LOOPBACK[1], 9000));
        let guest = Namespace::guest(false);
        let _pasta = net.start_pasta(&format!(
            "--config-net --quiet -t none -u none -T 8000:9000 -U 8000:9000 {}",
            guest.pid()
        ));
        for (over, loopback) in BOTH.into_iter().flat_map(|o| LOOPBACK.map(|l| (o, l))) {
            let found = guest.run(move || ask(over, with_port(loopback, 8000)));
            assert_eq!(found.unwrap(), format!("9000 {loopback}"), "{over:?}");
        }
    });
}

#[test]
fn udp_ports_of_the_hosts_loopback_are_followed_and_loops_are_refused() {
    with_net(|net| {
        let guest = Namespace::guest(false);
        let pid = guest.pid();
        let loops = format!("--host-lo-to-ns-lo -u 7000 -U 7000 {pid}");
        let output = net.pasta(&format!("--config-net --quiet {loops}"));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_parts(
            &errors,
            &["--udp-ports 7000 and --udp-ns 7000 lead to each other"],
        );
        serve(with_port(LOOPBACK[0], 9000));
        // The port of a client: the kernel chooses from these.
        let client = UdpSocket::bind((LOOPBACK[0], 0)).unwrap();
        let chosen = client.local_addr().unwrap().port();
        let _pasta = net.start_pasta(&format!("--config-net --quiet -t none -u none {pid}"));
        wait_until("9000 is forwarded", || {
            let found = guest.run(|| ask(Over::Udp, with_port(LOOPBACK[0], 9000)));
            found.is_ok_and(|answer| answer == "9000 127.0.0.1")
        });
        guest.run(move || UdpSocket::bind((LOOPBACK[0], chosen)).expect("no forward has the port"));
    });
}

/// Sends datagrams of these lengths from `from`, and returns the lengths of the answers.
fn echoes(from: &UdpSocket, lengths: &[usize]) -> Vec<usize> {
    from.set_read_timeout(Some(LIMIT)).unwrap();
    let mut buf = vec![0; 1 << 16];
    let echo = |&len: &usize| {
        from.send(&vec![7; len]).unwrap();
        from.recv(&mut buf).unwrap()
    };
    lengths.iter().map(echo).collect()
}

/// Answers the first client at `at` with its own datagrams, through a connected socket.
fn serve_echo_connected(at: SocketAddr) {
    let socket = UdpSocket::bind(at).unwrap();
    thread::spawn(move || {
        let mut buf = vec![0; 1 << 16];
        let (mut len, from) = socket.recv_from(&mut buf).unwrap();
        socket.connect(from).unwrap();
        loop {
            socket.send(&buf[..len]).unwrap();
            len = socket.recv(&mut buf).unwrap();
        }
    });
}

#[test]
fn datagrams_of_all_lengths_pass_between_the_loopbacks_also_empty_ones() {
    with_net(|net| {
        let lengths = [5120, 0, 1, 65_507, 0, 9000];
        for loopback in LOOPBACK {
            let guest = Namespace::guest(false);
            let _pasta = net.start_pasta(&format!(
                "--config-net --quiet --host-lo-to-ns-lo -t none -u 5001 -T none -U 8000:9000 {}",
                guest.pid()
            ));
            guest.run(move || serve_echo_connected(with_port(loopback, 5001)));
            let client = UdpSocket::bind((loopback, 0)).unwrap();
            client.connect(with_port(loopback, 5001)).unwrap();
            assert_eq!(echoes(&client, &lengths), lengths, "{loopback}");

            serve_echo_connected(with_port(loopback, 9000));
            let found = guest.run(move || {
                let client = UdpSocket::bind((loopback, 0)).unwrap();
                client.connect(with_port(loopback, 8000)).unwrap();
                echoes(&client, &lengths)
            });
            assert_eq!(found, lengths, "{loopback}");
        }
    });
}

#[test]
fn each_client_of_a_udp_port_between_loopbacks_gets_its_own_answers() {
    with_net(|net| {
        let guest = Namespace::guest(false);
        let line = "--config-net --quiet -t none -u 5001 -T none -U none";
        let _pasta = net.start_pasta(&format!("{line} {}", guest.pid()));
        guest.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:5001").unwrap();
            thread::spawn(move || {
                let mut buf = [0; 64];
                while let Ok((len, from)) = socket.recv_from(&mut buf) {
                    let _ = socket.send_to(&buf[..len], from);
                }
            });
        });
        let clients = [(); 100].map(|()| {
            let client = UdpSocket::bind((LOOPBACK[0], 0)).unwrap();
            client.connect((LOOPBACK[0], 5001)).unwrap();
            client.set_read_timeout(Some(LIMIT)).unwrap();
            client
        });
        for round in 0_u8..3 {
            for (n, client) in clients.iter().enumerate() {
                client.send(&[round, n as u8]).unwrap();
            }
            for (n, client) in clients.iter().enumerate() {
                let mut buf = [0; 64];
                assert_eq!(client.recv(&mut buf).unwrap(), 2);
                assert_eq!(buf[..2], [round, n as u8]);
            }
        }
    });
}

#[test]
fn pasta_ends_by_a_signal_and_may_outlive_the_namespace() {
    with_net(|net| {
        let guest = Namespace::guest(false);
        let netns = net.name_network(&guest);
        let line = format!(
            "--config-net --no-netns-quit -t none -u none --netns {}",
            netns.display()
        );
        let pasta = net.start_pasta(&line);
        pasta_net::sh(&format!("umount -l {0} && rm {0}", netns.display()));
        drop(guest);
        thread::sleep(Duration::from_secs(2));
        assert!(pasta.is_running());
        pasta.terminate();
        pasta.wait_for_end();
    });
}

#[test]
fn errors_are_one_line_and_leave_no_process() {
    with_net(|net| {
        let guest = Namespace::guest(false);
        let pid = guest.pid();
        let used = TcpListener::bind((LOOPBACK[0], 0)).unwrap();
        let port = used.local_addr().unwrap().port();
        let in_use = format!("cannot bind TCP 127.0.0.1:{port}: Address already in use");
        let rows = [
            ("--netns /no/such/network", "/no/such/network"),
            ("--no-such-option", "unrecognized option '--no-such-option'"),
            ("-t 5001-5000 PID", "invalid port specification `5001-5000`"),
            ("-t 127.0.0.1/PORT PID", &in_use),
            ("-u %none/5001 PID", "UDP 0.0.0.0:5001: No such device"),
            ("-i none PID", "none"),
            ("--pid /no/such/folder/pid PID", "/no/such/folder/pid"),
            ("--mtu 67 PID", "MTU `67`"),
            ("4194305", "4194305"),
        ];
        for (line, text) in rows {
            let line = line
                .replace("PID", &pid.to_string())
                .replace("PORT", &port.to_string());
            let output = net.pasta(&format!("--config-net --quiet {line}"));
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(
                (output.status.code(), &*output.stdout),
                (Some(1), &b""[..]),
                "{line}"
            );
            assert!(
                errors.starts_with("pasta: ") && errors.contains(text),
                "{line}: {errors}"
            );
            let lines = errors.lines().filter(|line| !line.starts_with("usage: "));
            assert_eq!(lines.count(), 1, "{line}: {errors}");
        }
        wait_until("the TAPs of failed calls are gone", || {
            !guest.sh("ip -o link").contains("up0")
        });
    });
}
