//! Counters that the host keeps besides those of TCP connections, by their `nstat` names.

use alloc::vec::Vec;

use fullsend_wire::EcnField;

use crate::Host;

fullsend_wire::counters! {
    /// IPv4. A super-segment counts as one packet.
    pub(crate) struct Ip4Mib {
        /// Packets received.
        in_receives: "IpInReceives",
        /// Packets dropped because their header is invalid.
        in_hdr_errors: "IpInHdrErrors",
        /// Packets dropped because their destination is no address of this host, or a loopback address on a
        /// link.
        in_addr_errors: "IpInAddrErrors",
        /// Packets answered or dropped because the host does not have their protocol.
        in_unknown_protos: "IpInUnknownProtos",
        /// Packets given to their protocol.
        in_delivers: "IpInDelivers",
        /// Packets sent by the host's protocols.
        out_requests: "IpOutRequests",
        /// Packets dropped because a queue of the host was full, or the device did not take them.
        out_discards: "IpOutDiscards",
        /// Packets dropped for lack of a route.
        out_no_routes: "IpOutNoRoutes",
        /// Packets sent in fragments.
        frag_oks: "IpFragOKs",
        /// Fragments sent.
        frag_creates: "IpFragCreates",
        /// Bytes of received packets.
        in_octets: "IpExtInOctets",
        /// Bytes of sent packets.
        out_octets: "IpExtOutOctets",
        /// Packets received without ECN (Not-ECT); each packet of a coalesced run counts, here and in the
        /// next three.
        in_no_ect: "IpExtInNoECTPkts",
        /// Packets received with ECT(1).
        in_ect1: "IpExtInECT1Pkts",
        /// Packets received with ECT(0).
        in_ect0: "IpExtInECT0Pkts",
        /// Packets received with Congestion Experienced.
        in_ce: "IpExtInCEPkts",
    }
}

fullsend_wire::counters! {
    /// IPv6. A super-segment counts as one packet.
    pub(crate) struct Ip6Mib {
        /// Packets received.
        in_receives: "Ip6InReceives",
        /// Packets dropped because their header is invalid.
        in_hdr_errors: "Ip6InHdrErrors",
        /// Packets dropped because their destination is no address of this host, or a loopback address on a
        /// link.
        in_addr_errors: "Ip6InAddrErrors",
        /// Packets answered or dropped because the host does not have their protocol.
        in_unknown_protos: "Ip6InUnknownProtos",
        /// Packets given to their protocol.
        in_delivers: "Ip6InDelivers",
        /// Packets sent by the host's protocols.
        out_requests: "Ip6OutRequests",
        /// Packets dropped because a queue of the host was full, or the device did not take them.
        out_discards: "Ip6OutDiscards",
        /// Packets dropped for lack of a route.
        out_no_routes: "Ip6OutNoRoutes",
        /// Packets sent in fragments.
        frag_oks: "Ip6FragOKs",
        /// Fragments sent.
        frag_creates: "Ip6FragCreates",
        /// Addresses of the host that another station has (RFC 4862 5.4).
        dad_duplicates: "Ip6DadDuplicates",
        /// Probes of duplicate address detection that came back from the link (RFC 7527).
        dad_loopbacks: "Ip6DadLoopbacks",
        /// Bytes of received packets.
        in_octets: "Ip6InOctets",
        /// Bytes of sent packets.
        out_octets: "Ip6OutOctets",
        /// Packets received without ECN (Not-ECT); each packet of a coalesced run counts, here and in the
        /// next three.
        in_no_ect: "Ip6InNoECTPkts",
        /// Packets received with ECT(1).
        in_ect1: "Ip6InECT1Pkts",
        /// Packets received with ECT(0).
        in_ect0: "Ip6InECT0Pkts",
        /// Packets received with Congestion Experienced.
        in_ce: "Ip6InCEPkts",
    }
}

fullsend_wire::counters! {
    /// Packets dropped because of their addresses or their link header. The names are those of
    /// Linux's `/proc/net/stat/rt_cache` and of its link statistics.
    pub(crate) struct RouteMib {
        /// Packets dropped because no other host can have their source address.
        in_martian_src: "RtCacheInMartianSrc",
        /// Packets dropped because their frame is for another station.
        rx_otherhost_dropped: "LinkRxOtherhostDropped",
    }
}

fullsend_wire::counters! {
    /// Packets dropped because the hardware address of the neighbour is not resolved. The names are
    /// those of Linux's `/proc/net/stat/arp_cache` and `ndisc_cache`.
    pub(crate) struct NeighMib {
        /// Packets dropped because their neighbour did not answer, or too many waited for it.
        unresolved_discards: "NeighUnresolvedDiscards",
        /// Neighbours that were not recorded as the table was full.
        table_fulls: "NeighTableFulls",
    }
}

fullsend_wire::counters! {
    /// Counters of listeners and of the socket table.
    pub(crate) struct SocketMib {
        /// Segments dropped because of their checksum.
        csum_errors: "TcpInCsumErrors",
        /// Handshakes dropped because the accept queue of the listener was full.
        listen_overflows: "TcpExtListenOverflows",
        /// SYNs and handshakes dropped by a listener, for any reason.
        listen_drops: "TcpExtListenDrops",
        /// ACKs without data that `TCP_DEFER_ACCEPT` ignored.
        defer_accept_drop: "TcpExtTCPDeferAcceptDrop",
        /// SYNs dropped because the queue of half-open connections was full, without SYN cookies.
        req_q_full_drop: "TcpExtTCPReqQFullDrop",
        /// SYNs answered with a SYN cookie because the queue of half-open connections was full.
        req_q_full_do_cookies: "TcpExtTCPReqQFullDoCookies",
        /// SYN cookies sent.
        syncookies_sent: "TcpExtSyncookiesSent",
        /// ACKs with a valid SYN cookie.
        syncookies_recv: "TcpExtSyncookiesRecv",
        /// ACKs with an invalid SYN cookie.
        syncookies_failed: "TcpExtSyncookiesFailed",
        /// SYNs dropped by `tcp_syn_limit`.
        syns_limited: "TcpExtFullsendSynsLimited",
        /// Connections and SYNs refused because of `tcp_max_sockets`.
        sockets_limited: "TcpExtFullsendSocketsLimited",
        /// RSTs withheld by `tcp_rst_msgs_per_sec`.
        out_rsts_limited: "TcpExtFullsendOutRstsLimited",
        /// Half-open connections that a RST ended.
        embryonic_rsts: "TcpExtEmbryonicRsts",
        /// ACKs of half-open connections withheld by the rate limit.
        ack_skipped_syn_recv: "TcpExtTCPACKSkippedSynRecv",
        /// Segments dropped because they echo a timestamp that was not sent.
        ts_ecr_rejected: "TcpExtTSEcrRejected",
        /// TIME-WAIT entries that a new connection replaced.
        tw_recycled: "TcpExtTWRecycled",
        /// Connections without TIME-WAIT because of `tcp_max_tw_buckets`.
        tw_overflow: "TcpExtTCPTimeWaitOverflow",
        /// Orphaned connections reset because of `tcp_max_orphans` or of memory.
        abort_on_memory: "TcpExtTCPAbortOnMemory",
        /// Deferred SYNs that the application has neither accepted nor rejected in time.
        held_expired: "TcpExtFullsendHeldExpired",
        /// TCP segments dropped because their frame is a broadcast or multicast.
        group_frames: "TcpExtFullsendGroupFrames",
    }
}

fullsend_wire::counters! {
    /// GRO's counters, summed over all interfaces.
    pub(crate) struct GroMib {
        /// Packets received from devices.
        received: "GroReceived",
        /// Packets that GRO joined to an earlier one.
        merged: "GroMerged",
        /// Packets dropped because their headers are invalid.
        malformed: "GroMalformed",
        /// Packets whose transport checksum is wrong, which GRO passes on alone.
        bad_checksum: "GroBadChecksum",
    }
}

/// The counters of the host itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostMib {
    pub(crate) ip4: Ip4Mib,
    pub(crate) ip6: Ip6Mib,
    pub(crate) route: RouteMib,
    pub(crate) neigh: NeighMib,
    pub(crate) socket: SocketMib,
}

impl HostMib {
    /// Counts a packet handed to IP output, without its link header.
    #[inline]
    pub(crate) const fn count_output(&mut self, is_v4: bool, octets: usize) {
        if is_v4 {
            self.ip4.out_requests += 1;
            self.ip4.out_octets += octets as u64;
        } else {
            self.ip6.out_requests += 1;
            self.ip6.out_octets += octets as u64;
        }
    }
}

impl HostMib {
    /// Returns the counter of packets whose source address no host can have. As on Linux, those
    /// over IPv6 count as header errors.
    pub(crate) const fn martian_src(&mut self, v4: bool) -> &mut u64 {
        if v4 {
            &mut self.route.in_martian_src
        } else {
            &mut self.ip6.in_hdr_errors
        }
    }
}

/// Implements the counting of packets by their ECN field. A super-segment counts as the number of
/// packets it has on the wire.
macro_rules! count_ecn {
    ($($mib:ident)*) => {
        $(impl $mib {
            #[inline]
            pub(crate) const fn count_ecn(&mut self, tos: u8, packets: u32) {
                let count = match EcnField::of(tos) {
                    EcnField::NotEct => &mut self.in_no_ect,
                    EcnField::Ect1 => &mut self.in_ect1,
                    EcnField::Ect0 => &mut self.in_ect0,
                    EcnField::Ce => &mut self.in_ce,
                };
                *count += packets as u64;
            }
        })*
    };
}

count_ecn!(Ip4Mib Ip6Mib);

/// Implements access to counters that both families have.
macro_rules! counter_of_family {
    ($($name:ident)*) => {
        impl HostMib {
            $(pub(crate) const fn $name(&mut self, v4: bool) -> &mut u64 {
                if v4 { &mut self.ip4.$name } else { &mut self.ip6.$name }
            })*
        }
    };
}

counter_of_family!(in_addr_errors in_unknown_protos in_delivers out_discards out_no_routes frag_oks frag_creates);

impl Host {
    /// Returns every counter with its `nstat` name, as an absolute value.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut gro = GroMib::default();
        for iface in &self.ifaces {
            let stats = iface.gro.stats();
            gro.received += stats.received;
            gro.merged += stats.merged;
            gro.malformed += stats.malformed;
            gro.bad_checksum += stats.bad_checksum;
        }
        let own = self.mib.ip4.iter().chain(self.mib.ip6.iter());
        own.chain(self.mib.route.iter())
            .chain(self.mib.neigh.iter())
            .chain(self.env.mib.iter())
            .chain(self.mib.socket.iter())
            .chain(self.ip.icmp.v4.iter())
            .chain(self.ip.icmp.v6.iter())
            .chain(self.ip.reassembly.v4.iter())
            .chain(self.ip.reassembly.v6.iter())
            .chain(self.udp.v4.iter())
            .chain(self.udp.v6.iter())
            .chain(self.ip.multicast.mib.iter())
            .chain(gro.iter())
            .collect()
    }
}
