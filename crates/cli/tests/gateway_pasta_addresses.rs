//! pasta on hosts whose addresses and routers are not as on a plain Ethernet. Needs root.

mod pasta_net;

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::thread;
use std::time::Duration;

use pasta_net::{
    HOST, LOOPBACK, MACHINE, Namespace, Over, Pasta, ROUTER, ask, serve, sh, wait_until, with_net,
    with_port,
};

const BOTH: [Over; 2] = [Over::Tcp, Over::Udp];

#[test]
fn a_given_address_may_be_outside_of_the_hosts_network() {
    with_net(|net| {
        net.machine.run(|| serve(with_port(MACHINE[0], 9000)));
        for (arguments, address) in [
            ("-a 203.0.113.9", "203.0.113.9/24"),
            ("-a 203.0.113.9 -n 32", "203.0.113.9/32"),
            ("-a 192.0.2.9 -n 32", "192.0.2.9/32"),
            ("-a 10.0.0.5/8", "10.0.0.5/8"),
        ] {
            let guest = Namespace::guest(false);
            let line = format!(
                "--config-net -q -t 5001 -u 5001 {arguments} {}",
                guest.pid()
            );
            let pasta = net.start_pasta(&line);
            let network = guest.sh("ip -o -4 address show up0; ip route show default");
            for part in [address, &format!("default via {} dev up0", ROUTER[0])] {
                assert!(network.contains(part), "{arguments}: {part}: {network}");
            }
            guest.run(|| serve(with_port("0.0.0.0", 5001)));
            for over in BOTH {
                let answer = guest.run(move || ask(over, with_port(MACHINE[0], 9000)));
                assert_eq!(answer.unwrap(), format!("9000 {}", HOST[0]), "{arguments}");
                let answer = net.machine.run(move || ask(over, with_port(HOST[0], 5001)));
                assert_eq!(
                    answer.unwrap(),
                    format!("5001 {}", MACHINE[0]),
                    "{arguments}"
                );
            }
            pasta.terminate();
            pasta.wait_for_end();
        }
    });
}

#[test]
fn a_link_local_router_of_the_host_is_that_of_the_guest() {
    with_net(|net| {
        const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        sh("ip -6 route replace default via fe80::1 dev up0");
        serve(with_port(LOOPBACK[1], 9000));
        for option in ["", "--config-net"] {
            let guest = Namespace::guest(false);
            let line = format!("-q {option} -t none -u none {}", guest.pid());
            // The gateway warns that the guest's interface is down.
            let file = net.path("pid");
            let output = net.pasta(&format!("--pid {} {line}", file.display()));
            assert!(output.status.success(), "{output:?}");
            let pasta = Pasta::of_file(&file);
            guest.sh("ip link set up0 up");
            wait_until("the default route", || {
                let route = guest.sh("ip -6 route show default");
                route.starts_with("default via fe80::1 dev up0") && route.lines().count() == 1
            });
            // The guest's own address is no longer tentative.
            wait_until("the guest's address", || {
                let addresses = guest.sh("ip -o -6 address show up0");
                addresses.contains("scope global") && !addresses.contains("tentative")
            });
            let index = guest.sh("ip -o link show up0");
            let index: u32 = index.split([':', '\n']).next().unwrap().parse().unwrap();
            for over in BOTH {
                let to = SocketAddr::V6(SocketAddrV6::new(LINK_LOCAL, 9000, 0, index));
                let answer = guest.run(move || ask(over, to));
                assert_eq!(answer.unwrap(), "9000 ::1", "{option} {over:?}");
            }
            pasta.terminate();
            pasta.wait_for_end();
        }
    });
}

/// Answers each client of `at` with `?`, from a socket that is connected to it, as servers of DTLS do.
fn serve_connected(at: SocketAddr) {
    thread::spawn(move || {
        loop {
            let socket = UdpSocket::bind(at).unwrap();
            let mut buf = [0; 64];
            let (_, from) = socket.recv_from(&mut buf).unwrap();
            socket.connect(from).unwrap();
            // A second one, to the connected socket.
            socket
                .set_read_timeout(Some(Duration::from_secs(2)))
                .unwrap();
            let _ = socket.send(b"?");
            if socket.recv(&mut buf).is_ok() {
                let _ = socket.send(b"?");
            }
        }
    });
}

#[test]
fn datagrams_from_a_link_local_router_reach_a_connected_socket_of_the_guest() {
    with_net(|net| {
        sh("ip -6 route replace default via fe80::1 dev up0");
        let guest = Namespace::guest(false);
        // A router solicitation may be lost.
        guest.run(|| sh("sysctl -qw net.ipv6.conf.default.router_solicitations=0"));
        let line = "--config-net -q --no-splice -t none -u 5001 -T none -U none";
        let file = net.path("pid");
        let line = format!("--pid {} {line} {}", file.display(), guest.pid());
        let output = net.pasta(&line);
        assert!(output.status.success(), "{output:?}");
        let _pasta = Pasta::of_file(&file);
        guest.run(|| serve_connected(with_port("::", 5001)));
        // The gateway knows the guest's link-local address from the first answer.
        wait_until("two answers", || {
            let client = UdpSocket::bind(with_port("::1", 0)).unwrap();
            client.connect(with_port("::1", 5001)).unwrap();
            client
                .set_read_timeout(Some(Duration::from_secs(1)))
                .unwrap();
            let answered = || {
                client.send(b"?").unwrap();
                client.recv(&mut [0; 64]).is_ok()
            };
            answered() && answered()
        });
    });
}
