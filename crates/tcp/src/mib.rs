//! TCP counters, by their `nstat` names.

fullsend_units::counters! {
    /// What TCP counts on one host. Extended freely: a counter is named as `nstat` names it.
    pub struct TcpMib {
        /// Connections opened by us.
        active_opens: "TcpActiveOpens",
        /// Connections opened by peers.
        passive_opens: "TcpPassiveOpens",
        /// Connection attempts that failed.
        attempt_fails: "TcpAttemptFails",
        /// Established connections that were reset.
        estab_resets: "TcpEstabResets",
        /// Segments received, each segment of a coalesced run counted.
        in_segs: "TcpInSegs",
        /// Segments sent, each segment of a super-segment counted, retransmissions not.
        out_segs: "TcpOutSegs",
        /// Segments retransmitted.
        retrans_segs: "TcpRetransSegs",
        /// Segments received in error.
        in_errs: "TcpInErrs",
        /// RST segments sent.
        out_rsts: "TcpOutRsts",
    }
}
