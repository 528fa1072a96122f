//! ICMP counters.

use fullsend_wire::ndp::NdpRepr;

use super::{Icmp, Problem};

fullsend_wire::counters! {
    /// ICMP for IPv4.
    pub(crate) struct IcmpMib {
        /// Messages received.
        in_msgs: "IcmpInMsgs",
        /// Messages dropped: invalid, or about packets that were not sent.
        in_errors: "IcmpInErrors",
        /// Messages dropped because of their checksum.
        in_csum_errors: "IcmpInCsumErrors",
        /// Destination Unreachable received.
        in_dest_unreachs: "IcmpInDestUnreachs",
        /// Time Exceeded received.
        in_time_excds: "IcmpInTimeExcds",
        /// Parameter Problem received.
        in_parm_probs: "IcmpInParmProbs",
        /// Echo requests received.
        in_echos: "IcmpInEchos",
        /// Echo replies received.
        in_echo_reps: "IcmpInEchoReps",
        /// Messages sent.
        out_msgs: "IcmpOutMsgs",
        /// Errors withheld by `icmp_msgs_per_sec`.
        out_rate_limit_global: "IcmpOutRateLimitGlobal",
        /// Errors withheld by `icmp_ratelimit`.
        out_rate_limit_host: "IcmpOutRateLimitHost",
        /// Destination Unreachable sent.
        out_dest_unreachs: "IcmpOutDestUnreachs",
        /// Time Exceeded sent.
        out_time_excds: "IcmpOutTimeExcds",
        /// Parameter Problem sent.
        out_parm_probs: "IcmpOutParmProbs",
        /// Echo requests sent by ping sockets.
        out_echos: "IcmpOutEchos",
        /// Echo replies sent.
        out_echo_reps: "IcmpOutEchoReps",
        /// Echo replies and errors dropped because the queue of their ping socket was full.
        ping_dropped: "IcmpFullsendPingDropped",
    }
}

fullsend_wire::counters! {
    /// ICMP for IPv6.
    pub(crate) struct Icmp6Mib {
        /// Messages received.
        in_msgs: "Icmp6InMsgs",
        /// Messages dropped: invalid, or about packets that were not sent.
        in_errors: "Icmp6InErrors",
        /// Messages dropped because of their checksum.
        in_csum_errors: "Icmp6InCsumErrors",
        /// Destination Unreachable received.
        in_dest_unreachs: "Icmp6InDestUnreachs",
        /// Packet Too Big received.
        in_pkt_too_bigs: "Icmp6InPktTooBigs",
        /// Time Exceeded received.
        in_time_excds: "Icmp6InTimeExcds",
        /// Parameter Problem received.
        in_parm_problems: "Icmp6InParmProblems",
        /// Echo requests received.
        in_echos: "Icmp6InEchos",
        /// Echo replies received.
        in_echo_replies: "Icmp6InEchoReplies",
        /// Router Solicitations received.
        in_router_solicits: "Icmp6InRouterSolicits",
        /// Router Advertisements received.
        in_router_advertisements: "Icmp6InRouterAdvertisements",
        /// Neighbor Solicitations received.
        in_neighbor_solicits: "Icmp6InNeighborSolicits",
        /// Neighbor Advertisements received.
        in_neighbor_advertisements: "Icmp6InNeighborAdvertisements",
        /// Messages sent.
        out_msgs: "Icmp6OutMsgs",
        /// Errors withheld by `icmp_ratelimit`.
        out_rate_limit_host: "Icmp6OutRateLimitHost",
        /// Errors withheld by `icmp_msgs_per_sec`.
        out_rate_limit_global: "Icmp6OutRateLimitGlobal",
        /// Destination Unreachable sent.
        out_dest_unreachs: "Icmp6OutDestUnreachs",
        /// Time Exceeded sent.
        out_time_excds: "Icmp6OutTimeExcds",
        /// Parameter Problem sent.
        out_parm_problems: "Icmp6OutParmProblems",
        /// Echo requests sent by ping sockets.
        out_echos: "Icmp6OutEchos",
        /// Echo replies sent.
        out_echo_replies: "Icmp6OutEchoReplies",
        /// Echo replies and errors dropped because the queue of their ping socket was full.
        ping_dropped: "Icmp6FullsendPingDropped",
        /// Neighbor Solicitations sent.
        out_neighbor_solicits: "Icmp6OutNeighborSolicits",
        /// Neighbor Advertisements sent.
        out_neighbor_advertisements: "Icmp6OutNeighborAdvertisements",
    }
}

macro_rules! counter_of_family {
    ($($name:ident: $v4:ident, $v6:ident;)*) => {
        impl Icmp {
            $(pub(super) fn $name(&mut self, v6: bool) -> &mut u64 {
                if v6 { &mut self.v6.$v6 } else { &mut self.v4.$v4 }
            })*
        }
    };
}

counter_of_family! {
    in_msgs: in_msgs, in_msgs;
    in_errors: in_errors, in_errors;
    in_csum_errors: in_csum_errors, in_csum_errors;
    out_msgs: out_msgs, out_msgs;
    out_rate_limit_global: out_rate_limit_global, out_rate_limit_global;
    out_rate_limit_host: out_rate_limit_host, out_rate_limit_host;
    out_dest_unreachs: out_dest_unreachs, out_dest_unreachs;
    out_time_excds: out_time_excds, out_time_excds;
    out_parm_problems: out_parm_probs, out_parm_problems;
    out_echos: out_echos, out_echos;
    ping_dropped: ping_dropped, ping_dropped;
}

impl Icmp {
    pub(super) fn count_error(&mut self, problem: Problem, v6: bool) {
        *self.out_msgs(v6) += 1;
        let counter = match problem {
            Problem::PortUnreachable => self.out_dest_unreachs(v6),
            Problem::ProtocolUnreachable if !v6 => self.out_dest_unreachs(v6),
            Problem::ReassemblyTime => self.out_time_excds(v6),
            Problem::ProtocolUnreachable | Problem::Header { .. } => self.out_parm_problems(v6),
        };
        *counter += 1;
    }
}

impl Icmp6Mib {
    pub(super) const fn count_ndp_in(&mut self, message: &NdpRepr<'_>) {
        *match message {
            NdpRepr::RouterSolicit { .. } => &mut self.in_router_solicits,
            NdpRepr::RouterAdvert { .. } => &mut self.in_router_advertisements,
            NdpRepr::NeighbourSolicit { .. } => &mut self.in_neighbor_solicits,
            NdpRepr::NeighbourAdvert { .. } => &mut self.in_neighbor_advertisements,
        } += 1;
    }

    /// Counts a sent Neighbour Discovery message by its ICMPv6 type. Returns `false` for other
    /// types.
    pub(crate) const fn count_ndp_out(&mut self, kind: u8) -> bool {
        *match kind {
            135 => &mut self.out_neighbor_solicits,
            136 => &mut self.out_neighbor_advertisements,
            _ => return false,
        } += 1;
        self.out_msgs += 1;
        true
    }
}
