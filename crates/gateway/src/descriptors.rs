//! The numbers of flows that the process's descriptors and the gateway's memory allow.

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::Semaphore;

use crate::config::Limits;
use crate::memory::Shares;

/// Descriptors that are left to everything except flows and forwards: 64 clients of the control
/// socket, 16 of the metrics, and the gateway's own.
const OTHER_DESCRIPTORS: usize = 144;
/// Most descriptors of a spliced connection: two sockets, and two for each direction's pipe. The
/// connection counts as this many.
pub(crate) const SPLICED_DESCRIPTORS: u32 = 6;

/// Most UDP flows of all guests: their entries use memory, but no descriptors.
const UDP_FLOWS_MAX: usize = 65_536;

/// The bounds of everything that has a socket of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SocketLimits {
    /// TCP connections, including those to the DNS relay: each has one upstream socket at most.
    pub(crate) tcp: usize,
    /// Sockets for the UDP flows of guests, each of which serves an address and port of a guest.
    pub(crate) udp: usize,
    /// UDP flows of guests; any number of them share a socket.
    pub(crate) udp_flows: usize,
    /// UDP flows between the loopbacks of host and guest that clients of the host open; each has a socket
    /// in the guest's namespace.
    pub(crate) spliced_udp: usize,
    pub(crate) ping: usize,
    pub(crate) dns: usize,
    pub(crate) forwards: usize,
}

impl SocketLimits {
    /// Returns the configured bounds, lowered to the memory of the gateway and to the descriptors that
    /// the process may have. `forwarded_udp_flows` is the bound of flows between loopbacks.
    pub(crate) fn of_process(limits: &Limits, memory: &Shares) -> Self {
        let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let descriptors = usize::try_from(soft).unwrap_or(usize::MAX);
        Self::new(&limits_of_memory(limits, memory), descriptors)
    }

    fn new(limits: &Limits, descriptors: usize) -> Self {
        let mut left = descriptors.saturating_sub(OTHER_DESCRIPTORS);
        let mut grant = |wanted: usize, share: usize| {
            let granted = wanted.min(left / share).max(1);
            left = left.saturating_sub(granted);
            granted
        };
        // The order matters: each part is taken from what the earlier ones left.
        let ping = grant(limits.ping_flows, 16);
        let dns = grant(limits.dns_queries, 8);
        let spliced_udp = match limits.forwarded_udp_flows {
            0 => 0,
            wanted => grant(wanted, 8),
        };
        let udp_flows = limits.udp_flows.min(UDP_FLOWS_MAX);
        let udp = grant(udp_flows, 3);
        let forwards = grant(limits.forwards, 4);
        let tcp = grant(limits.tcp_connections, 1);
        Self {
            // Tokio's semaphores have their own limit.
            tcp: tcp.min(Semaphore::MAX_PERMITS),
            udp,
            udp_flows: udp_flows.max(1),
            spliced_udp,
            ping,
            dns: dns.min(Semaphore::MAX_PERMITS),
            forwards,
        }
    }
}

/// Returns `limits`, lowered to the memory of the gateway.
fn limits_of_memory(limits: &Limits, memory: &Shares) -> Limits {
    let least = |limit: usize, share: u64| limit.min(usize::try_from(share).unwrap_or(usize::MAX));
    Limits {
        tcp_connections: least(limits.tcp_connections, memory.tcp_connections),
        udp_flows: least(limits.udp_flows, memory.udp_flows),
        ping_flows: least(limits.ping_flows, memory.pings),
        dns_queries: least(limits.dns_queries, memory.dns_queries),
        ..*limits
    }
}

impl SocketLimits {
    /// Returns the most TCP connections of all forwards together.
    pub(crate) fn tcp_of_forwards(&self) -> usize {
        (self.tcp / 2).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        tcp_connections: usize::MAX,
        udp_flows: usize::MAX,
        forwarded_udp_flows: usize::MAX,
        ping_flows: usize::MAX,
        dns_addresses: 0,
        dns_queries: usize::MAX,
        forwards: usize::MAX,
        rate: None,
        memory: None,
    };

    #[test]
    fn all_sockets_together_fit_the_descriptors() {
        for descriptors in [1024, 4096, 65_536, 1 << 20] {
            let granted = SocketLimits::new(&LIMITS, descriptors);
            let SocketLimits {
                tcp,
                udp,
                spliced_udp,
                ping,
                dns,
                forwards,
                ..
            } = granted;
            let sum = tcp + udp + spliced_udp + ping + dns + forwards;
            assert_eq!(sum, descriptors - OTHER_DESCRIPTORS, "{granted:?}");
            assert!(tcp >= sum / 3, "{granted:?}");
        }
        let many = SocketLimits::new(&LIMITS, usize::MAX);
        assert!(many.dns <= Semaphore::MAX_PERMITS);
        assert!(many.tcp <= Semaphore::MAX_PERMITS);
    }

    #[test]
    fn the_bounds_fit_the_memory() {
        let shares = crate::MemoryBudget::new(64 << 20).unwrap().shares();
        let limits = limits_of_memory(&LIMITS, &shares);
        assert_eq!(limits.tcp_connections as u64, shares.tcp_connections);
        assert_eq!(limits.udp_flows as u64, shares.udp_flows);
        assert_eq!(limits.dns_queries as u64, shares.dns_queries);
        let fewer = Limits {
            tcp_connections: 10,
            ..LIMITS
        };
        assert_eq!(limits_of_memory(&fewer, &shares).tcp_connections, 10);
    }

    #[test]
    fn the_configured_bounds_apply_where_descriptors_suffice() {
        let limits = Limits {
            tcp_connections: 100,
            udp_flows: 10,
            forwarded_udp_flows: 0,
            ping_flows: 1,
            dns_queries: 2,
            forwards: 3,
            ..LIMITS
        };
        let expected = SocketLimits {
            tcp: 100,
            udp: 10,
            udp_flows: 10,
            spliced_udp: 0,
            ping: 1,
            dns: 2,
            forwards: 3,
        };
        assert_eq!(SocketLimits::new(&limits, 1 << 20), expected);
    }
}
