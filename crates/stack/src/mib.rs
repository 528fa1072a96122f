//! Counters that the host keeps besides those of TCP connections, by their `nstat` names.

use alloc::vec::Vec;

use fullsend_wire::EcnField;

use crate::Host;

fullsend_wire::counters! {
    /// IPv4. A super-segment counts as one packet.
    pub(crate) struct Ip4Mib {
        in_receives: "IpInReceives",
        in_hdr_errors: "IpInHdrErrors",
        in_addr_errors: "IpInAddrErrors",
        in_unknown_protos: "IpInUnknownProtos",
        in_discards: "IpInDiscards",
        in_delivers: "IpInDelivers",
        out_requests: "IpOutRequests",
        out_discards: "IpOutDiscards",
        out_no_routes: "IpOutNoRoutes",
        frag_oks: "IpFragOKs",
        frag_creates: "IpFragCreates",
        in_octets: "IpExtInOctets",
        out_octets: "IpExtOutOctets",
        in_no_ect: "IpExtInNoECTPkts",
        in_ect1: "IpExtInECT1Pkts",
        in_ect0: "IpExtInECT0Pkts",
        in_ce: "IpExtInCEPkts",
    }
}

fullsend_wire::counters! {
    /// IPv6. A super-segment counts as one packet.
    pub(crate) struct Ip6Mib {
        in_receives: "Ip6InReceives",
        in_hdr_errors: "Ip6InHdrErrors",
        in_addr_errors: "Ip6InAddrErrors",
        in_unknown_protos: "Ip6InUnknownProtos",
        in_discards: "Ip6InDiscards",
        in_delivers: "Ip6InDelivers",
        out_requests: "Ip6OutRequests",
        out_discards: "Ip6OutDiscards",
        out_no_routes: "Ip6OutNoRoutes",
        frag_oks: "Ip6FragOKs",
        frag_creates: "Ip6FragCreates",
        dad_duplicates: "Ip6DadDuplicates",
        dad_loopbacks: "Ip6DadLoopbacks",
        in_octets: "Ip6InOctets",
        out_octets: "Ip6OutOctets",
        in_no_ect: "Ip6InNoECTPkts",
        in_ect1: "Ip6InECT1Pkts",
        in_ect0: "Ip6InECT0Pkts",
        in_ce: "Ip6InCEPkts",
    }
}

fullsend_wire::counters! {
    /// Packets dropped because of their addresses or their link header. The names are those of
    /// Linux's `/proc/net/stat/rt_cache` and of its link statistics.
    pub(crate) struct RouteMib {
        in_martian_src: "RtCacheInMartianSrc",
        rx_otherhost_dropped: "LinkRxOtherhostDropped",
    }
}

fullsend_wire::counters! {
    /// Packets dropped because the hardware address of the neighbour is not resolved. The names are
    /// those of Linux's `/proc/net/stat/arp_cache` and `ndisc_cache`.
    pub(crate) struct NeighMib {
        unresolved_discards: "NeighUnresolvedDiscards",
        table_fulls: "NeighTableFulls",
    }
}

fullsend_wire::counters! {
    /// Counters of listeners and of the socket table.
    pub(crate) struct SocketMib {
        csum_errors: "TcpInCsumErrors",
        listen_overflows: "TcpExtListenOverflows",
        listen_drops: "TcpExtListenDrops",
        defer_accept_drop: "TcpExtTCPDeferAcceptDrop",
        req_q_full_drop: "TcpExtTCPReqQFullDrop",
        req_q_full_do_cookies: "TcpExtTCPReqQFullDoCookies",
        syncookies_sent: "TcpExtSyncookiesSent",
        syncookies_recv: "TcpExtSyncookiesRecv",
        syncookies_failed: "TcpExtSyncookiesFailed",
        syns_limited: "TcpExtFullsendSynsLimited",
        sockets_limited: "TcpExtFullsendSocketsLimited",
        out_rsts_limited: "TcpExtFullsendOutRstsLimited",
        embryonic_rsts: "TcpExtEmbryonicRsts",
        ack_skipped_syn_recv: "TcpExtTCPACKSkippedSynRecv",
        ts_ecr_rejected: "TcpExtTSEcrRejected",
        tw_recycled: "TcpExtTWRecycled",
        tw_overflow: "TcpExtTCPTimeWaitOverflow",
        abort_on_memory: "TcpExtTCPAbortOnMemory",
        held_expired: "TcpExtFullsendHeldExpired",
        group_frames: "TcpExtFullsendGroupFrames",
    }
}

fullsend_wire::counters! {
    /// GRO's counters, summed over all interfaces.
    pub(crate) struct GroMib {
        received: "GroReceived",
        merged: "GroMerged",
        malformed: "GroMalformed",
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
