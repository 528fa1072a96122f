//! Ports of the host for servers that a test starts.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Returns a free port of the host, each time another one. The kernel gives connections, and sockets
/// that are bound to port 0, only ports from 32768 on; so no other test takes it before its server.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(port < 32_768, "no port is free");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
