//! The descriptors of a gateway whose guest scans ports from as many ports. Needs root. The limit is that of the process, so
//! that this file has one test.

mod common;

use std::net::UdpSocket;

use common::{HOST, wait_until, with_port, with_waiting_gateway};
use fullsend_gateway::Config;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Datagrams that the gateway receives at once.
const DATAGRAMS: u16 = 1000;

#[test]
fn a_scan_of_ports_fits_the_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
    with_waiting_gateway(Config::default(), |rig, run| {
        let received = || {
            let counters = rig.gateway.stack().counters();
            let found = counters.iter().find(|(name, _)| *name == "UdpInDatagrams");
            found.map_or(0, |(_, value)| *value)
        };
        for n in 1..=DATAGRAMS {
            // Each port of the guest has a socket of the host.
            let socket = rig.guest.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
            socket.send_to(b"scan", with_port(HOST[0], n)).unwrap();
            if n % 50 == 0 {
                wait_until("the datagrams wait", || received() >= u64::from(n));
            }
        }
        run();
        wait_until("all datagrams are forwarded", || {
            let counters = rig.gateway.counters();
            counters.udp_tx_datagrams + counters.udp_dropped == u64::from(DATAGRAMS)
        });
        let counters = rig.gateway.counters();
        assert_eq!(counters.udp_dropped, 0);
        // The kernel may choose a port twice.
        assert!(counters.udp_replaced > 850, "{counters:?}");
        assert!(counters.udp_sockets < 100, "{counters:?}");
    });
}
