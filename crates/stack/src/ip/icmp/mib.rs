//! ICMP counters.

use fullsend_wire::ndp::NdpRepr;

use super::{Icmp, Problem};

fullsend_wire::counters! {
    /// ICMP for IPv4.
    pub(crate) struct IcmpMib {
        in_msgs: "IcmpInMsgs",
        in_errors: "IcmpInErrors",
        in_csum_errors: "IcmpInCsumErrors",
        in_dest_unreachs: "IcmpInDestUnreachs",
        in_time_excds: "IcmpInTimeExcds",
        in_parm_probs: "IcmpInParmProbs",
        in_echos: "IcmpInEchos",
        in_echo_reps: "IcmpInEchoReps",
        out_msgs: "IcmpOutMsgs",
        out_rate_limit_global: "IcmpOutRateLimitGlobal",
        out_rate_limit_host: "IcmpOutRateLimitHost",
        out_dest_unreachs: "IcmpOutDestUnreachs",
        out_time_excds: "IcmpOutTimeExcds",
        out_parm_probs: "IcmpOutParmProbs",
        out_echos: "IcmpOutEchos",
        out_echo_reps: "IcmpOutEchoReps",
        ping_dropped: "IcmpFullsendPingDropped",
    }
}

fullsend_wire::counters! {
    /// ICMP for IPv6.
    pub(crate) struct Icmp6Mib {
        in_msgs: "Icmp6InMsgs",
        in_errors: "Icmp6InErrors",
        in_csum_errors: "Icmp6InCsumErrors",
        in_dest_unreachs: "Icmp6InDestUnreachs",
        in_pkt_too_bigs: "Icmp6InPktTooBigs",
        in_time_excds: "Icmp6InTimeExcds",
        in_parm_problems: "Icmp6InParmProblems",
        in_echos: "Icmp6InEchos",
        in_echo_replies: "Icmp6InEchoReplies",
        in_router_solicits: "Icmp6InRouterSolicits",
        in_router_advertisements: "Icmp6InRouterAdvertisements",
        in_neighbor_solicits: "Icmp6InNeighborSolicits",
        in_neighbor_advertisements: "Icmp6InNeighborAdvertisements",
        out_msgs: "Icmp6OutMsgs",
        out_rate_limit_host: "Icmp6OutRateLimitHost",
        out_rate_limit_global: "Icmp6OutRateLimitGlobal",
        out_dest_unreachs: "Icmp6OutDestUnreachs",
        out_time_excds: "Icmp6OutTimeExcds",
        out_parm_problems: "Icmp6OutParmProblems",
        out_echos: "Icmp6OutEchos",
        out_echo_replies: "Icmp6OutEchoReplies",
        ping_dropped: "Icmp6FullsendPingDropped",
        out_neighbor_solicits: "Icmp6OutNeighborSolicits",
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
