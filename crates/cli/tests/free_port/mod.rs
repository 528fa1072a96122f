//! Ports of the host for servers that a test starts.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 20_000;
const PORTS: u16 = 12_000;

/// Returns a free port of the host, each time another one. It is below the range that the kernel uses
/// for connections and for sockets bound to port 0 (`net.ipv4.ip_local_port_range`), so that none of them
/// takes it before the test's server does. Each process begins with another port.
pub(crate) fn free_port() -> u16 {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        assert!(count < PORTS, "no port is free");
        let offset = (u32::from(count) + std::process::id() * 97) % u32::from(PORTS);
        let port = FIRST + offset as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
