//! The gateway's counters.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $label:literal,)*) => {
        /// The counters of a gateway since its start, at one moment.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns the counters with their names, for tools.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$(($label, self.$name)),*]
            }
        }

        /// The counters that tasks increment.
        #[derive(Debug, Default)]
        pub(crate) struct AtomicCounters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl AtomicCounters {
            pub(crate) fn read(&self) -> Counters {
                Counters {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }
        }
    };
}

counters! {
    /// TCP connections that the guest opened and a host answered.
    tcp_established: "GatewayTcpEstablished",
    /// TCP connections that a host refused.
    tcp_refused: "GatewayTcpRefused",
    /// TCP connections whose destination could not be reached.
    tcp_unreachable: "GatewayTcpUnreachable",
    /// TCP connections that no host answered.
    tcp_timed_out: "GatewayTcpTimedOut",
    /// TCP connections that ended with a RST from one side.
    tcp_reset: "GatewayTcpReset",
    /// SYNs that were dropped because of [`Limits::tcp_connections`](crate::Limits) or a lack of
    /// descriptors.
    tcp_dropped: "GatewayTcpDropped",
    /// TCP connections that exist now, including deferred SYNs.
    tcp_open: "GatewayTcpOpen",
    /// TCP payload from the guest, bytes.
    tcp_tx_bytes: "GatewayTcpTxBytes",
    /// TCP payload to the guest, bytes.
    tcp_rx_bytes: "GatewayTcpRxBytes",
    /// UDP flows that the guest or a forward opened.
    udp_flows: "GatewayUdpFlows",
    /// UDP flows that exist now.
    udp_open: "GatewayUdpOpen",
    /// Sockets of the host that exist now for the guest's UDP flows: one for each address and port of the
    /// guest.
    udp_sockets: "GatewayUdpSockets",
    /// UDP flows that were replaced because of [`Limits::udp_flows`](crate::Limits) or a lack of
    /// descriptors.
    udp_replaced: "GatewayUdpReplaced",
    /// Datagrams from the guest.
    udp_tx_datagrams: "GatewayUdpTxDatagrams",
    /// Datagrams to the guest.
    udp_rx_datagrams: "GatewayUdpRxDatagrams",
    /// Datagrams that were dropped: their flow got no descriptor, a queue had no room, or the host's
    /// socket rejected them.
    udp_dropped: "GatewayUdpDropped",
    /// Datagrams of other hosts to the guest's ports that [`Config::udp_filtering`](crate::Config) or the
    /// policy did not let in.
    udp_filtered: "GatewayUdpFiltered",
    /// Errors of the host's sockets that were passed to the guest as ICMP messages.
    icmp_errors: "GatewayIcmpErrors",
    /// Echo requests that were relayed.
    ping_requests: "GatewayPingRequests",
    /// Echo replies that were relayed.
    ping_replies: "GatewayPingReplies",
    /// Echo requests that were dropped.
    ping_dropped: "GatewayPingDropped",
    /// Sequences of echo requests that were replaced because of
    /// [`Limits::ping_flows`](crate::Limits).
    ping_replaced: "GatewayPingReplaced",
    /// DNS queries of the guest.
    dns_queries: "GatewayDnsQueries",
    /// DNS answers.
    dns_answers: "GatewayDnsAnswers",
    /// DNS queries that were dropped: malformed, or beyond [`Limits::dns_queries`](crate::Limits) or
    /// the rate.
    dns_dropped: "GatewayDnsDropped",
    /// Further resolvers that were queried because the first one of a query was silent or unreachable.
    dns_other_resolvers: "GatewayDnsOtherResolvers",
    /// Allocations for received data that the system refused (the data stays in the host's socket, or the
    /// datagram is dropped), and DNS messages over TCP that were refused because relays held the memory.
    memory_refused: "GatewayMemoryRefused",
    /// DHCP and DHCPv6 messages that were answered.
    dhcp_answers: "GatewayDhcpAnswers",
    /// Router advertisements that were sent.
    router_advertisements: "GatewayRouterAdvertisements",
    /// Flows, DNS names and answers that the policy rejected or dropped: the sum of the next five.
    policy_denied: "GatewayPolicyDenied",
    /// TCP connections that the policy rejected or dropped; each retransmitted SYN counts.
    policy_denied_tcp: "GatewayPolicyDeniedTcp",
    /// Datagrams, or trains of datagrams, of UDP flows that the policy rejected or dropped.
    policy_denied_udp: "GatewayPolicyDeniedUdp",
    /// Echo requests that the policy rejected or dropped.
    policy_denied_ping: "GatewayPolicyDeniedPing",
    /// DNS queries for names that the policy denied.
    policy_denied_names: "GatewayPolicyDeniedNames",
    /// DNS answers that the policy denied because of an address or an alias.
    policy_denied_answers: "GatewayPolicyDeniedAnswers",
    /// Policies that have replaced another one while the gateway ran.
    policy_changes: "GatewayPolicyChanges",
    /// Refusals, and connections beyond [`Limits::tcp_connections`](crate::Limits), that the log's rate
    /// limit suppressed.
    log_suppressed: "GatewayLogSuppressed",
    /// Flows of guests that were refused because they led to a server of the gateway's own program
    /// ([`Handle::hide_from_guests`]), or to the forward of a guest that the sender must not reach; and trains of
    /// datagrams to the port of such a guest's socket, or of its forward.
    ///
    /// [`Handle::hide_from_guests`]: crate::Handle::hide_from_guests
    service_refused: "GatewayServiceRefused",
    /// Pairs of an address and one of its names that are known now.
    dns_addresses: "GatewayDnsAddresses",
    /// Pairs of an address and a name that were replaced, or not added, because of
    /// [`Limits::dns_addresses`](crate::Limits), the bound of the names of an address or that of the
    /// addresses of a name.
    dns_addresses_replaced: "GatewayDnsAddressesReplaced",
    /// Flows that clients opened through forwards.
    forwarded: "GatewayForwarded",
    /// Frames of guests that other guests have received ([`Builder::join_guests`]).
    ///
    /// [`Builder::join_guests`]: crate::Builder::join_guests
    switch_forwarded: "GatewaySwitchForwarded",
    /// Frames to one address that went to all guests, as none was known to have it.
    switch_flooded: "GatewaySwitchFlooded",
    /// Packets that were dropped because too many waited for one of several guests.
    switch_dropped: "GatewaySwitchDropped",
    /// Frames that were dropped because their source is the address of another guest or of the gateway.
    switch_refused: "GatewaySwitchRefused",
    /// Frames between guests that were dropped because no guest that the sender reaches has their
    /// address, or because their header is invalid.
    switch_unreachable: "GatewaySwitchUnreachable",
    /// TCP connections between two sockets of the kernel, which `splice` relayed.
    spliced: "GatewaySpliced",
}

/// Adds `n` to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Increments a counter while it exists.
pub(crate) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    pub(crate) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
