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
        /// Times that small writes were held until the device was done with what it had.
        auto_corking: "TcpExtTCPAutoCorking",
        /// Times that a connection began to wait for a completion: autocorking, small queues,
        /// retransmissions whose last copy the host has (ours; Linux has no counter for it).
        small_queue_throttled: "TcpExtTCPSmallQueueThrottled",
        /// Retransmissions withheld because the host still had the last copy.
        spurious_rtx_host_queues: "TcpExtTCPSpuriousRtxHostQueues",
        /// Segments or super-segments that a queue of the host dropped (ours; Linux has no counter
        /// for it).
        host_drops: "TcpExtFullsendHostDrops",
        /// SYNs and SYN-ACKs sent again.
        syn_retrans: "TcpExtTCPSynRetrans",
        /// Text in our SYN that its SYN-ACK acknowledged.
        fastopen_active: "TcpExtTCPFastOpenActive",
        /// Text in our SYN that had to be sent again.
        fastopen_active_fail: "TcpExtTCPFastOpenActiveFail",
        /// Connections that a peer's SYN with a cookie opened at once.
        fastopen_passive: "TcpExtTCPFastOpenPassive",
        /// SYNs whose cookie was wrong.
        fastopen_passive_fail: "TcpExtTCPFastOpenPassiveFail",
        /// SYNs that a listener had no room for in its Fast Open queue.
        fastopen_listen_overflow: "TcpExtTCPFastOpenListenOverflow",
        /// SYNs that asked for a cookie.
        fastopen_cookie_reqd: "TcpExtTCPFastOpenCookieReqd",
        /// Times that Fast Open was turned off for a while, as the path swallowed what it sent.
        fastopen_blackhole: "TcpExtTCPFastOpenBlackhole",
        /// SYNs whose cookie was made with the backup key.
        fastopen_passive_alt_key: "TcpExtTCPFastOpenPassiveAltKey",
        /// Segments sent to find out whether the path carries them that arrived.
        mtup_success: "TcpExtTCPMTUPSuccess",
        /// Those that did not.
        mtup_fail: "TcpExtTCPMTUPFail",
        /// Times that a connection whose segments vanished went on with smaller ones (ours; RFC 4821
        /// 7.7).
        black_holes: "TcpExtFullsendMtuBlackHoles",
        /// Retransmission timeouts.
        timeouts: "TcpExtTCPTimeouts",
        /// Retransmissions started by SACK or duplicate acknowledgements.
        fast_retrans: "TcpExtTCPFastRetrans",
        /// Retransmissions in slow start after a timeout.
        slow_start_retrans: "TcpExtTCPSlowStartRetrans",
        /// Retransmissions that were lost, too.
        lost_retransmit: "TcpExtTCPLostRetransmit",
        /// Recoveries entered by SACK.
        sack_recovery: "TcpExtTCPSackRecovery",
        /// Reductions taken back as the originals arrived (Eifel).
        full_undo: "TcpExtTCPFullUndo",
        /// Reductions taken back as every retransmission was a duplicate.
        dsack_undo: "TcpExtTCPDSACKUndo",
        /// Timeouts taken back.
        loss_undo: "TcpExtTCPLossUndo",
        /// Reductions taken back within a recovery, as the original filled a hole.
        partial_undo: "TcpExtTCPPartialUndo",
        /// Tail loss probes sent (RFC 8985).
        loss_probes: "TcpExtTCPLossProbes",
        /// Losses that a probe repaired.
        loss_probe_recovery: "TcpExtTCPLossProbeRecovery",
        /// Timeouts found spurious by F-RTO (RFC 5682).
        spurious_rtos: "TcpExtTCPSpuriousRTOs",
        /// Times that a receiver threw away what it had SACKed.
        sack_reneging: "TcpExtTCPSACKReneging",
        /// Times that SACK showed reordering.
        sack_reorder: "TcpExtTCPSACKReorder",
        /// Times that timestamps showed reordering.
        ts_reorder: "TcpExtTCPTSReorder",
        /// Times that duplicate acknowledgements showed reordering.
        reno_reorder: "TcpExtTCPRenoReorder",
        /// Timeouts while segments were SACKed and no recovery had begun.
        sack_failures: "TcpExtTCPSackFailures",
        /// The same with duplicate acknowledgements.
        reno_failures: "TcpExtTCPRenoFailures",
        /// Timeouts in a recovery by SACK.
        sack_recovery_fail: "TcpExtTCPSackRecoveryFail",
        /// Timeouts in a recovery by duplicate acknowledgements.
        reno_recovery_fail: "TcpExtTCPRenoRecoveryFail",
        /// Timeouts while an earlier one was being repaired.
        loss_failures: "TcpExtTCPLossFailures",
        /// Recoveries entered by duplicate acknowledgements.
        reno_recovery: "TcpExtTCPRenoRecovery",
        /// Segments dropped because their timestamp was old (PAWS).
        paws_estab: "TcpExtPAWSEstab",
        /// Challenge ACKs sent (RFC 5961).
        challenge_ack: "TcpExtTCPChallengeACK",
        /// SYNs in synchronised states (RFC 5961 4).
        syn_challenge: "TcpExtTCPSYNChallenge",
        /// Answers to out-of-window segments withheld by the rate limit.
        ack_skipped_seq: "TcpExtTCPACKSkippedSeq",
        /// Answers to old timestamps withheld by the rate limit.
        ack_skipped_paws: "TcpExtTCPACKSkippedPAWS",
        /// Challenge ACKs withheld by the rate limit.
        ack_skipped_challenge: "TcpExtTCPACKSkippedChallenge",
        /// Answers in TIME-WAIT withheld by the rate limit.
        ack_skipped_time_wait: "TcpExtTCPACKSkippedTimeWait",
        /// Delayed acknowledgements sent by the timer.
        delayed_acks: "TcpExtDelayedACKs",
        /// Duplicate data received, so the acknowledgement was sent at once.
        delayed_ack_lost: "TcpExtDelayedACKLost",
        /// Segments put into the out-of-order queue.
        ofo_queue: "TcpExtTCPOFOQueue",
        /// Out-of-order segments dropped for want of memory.
        ofo_drop: "TcpExtTCPOFODrop",
        /// Zero-window probes sent.
        win_probe: "TcpExtTCPWinProbe",
        /// Keepalive probes sent.
        keep_alive: "TcpExtTCPKeepAlive",
        /// Connections aborted because data arrived after `close`.
        abort_on_data: "TcpExtTCPAbortOnData",
        /// Connections aborted by `close` with unread data.
        abort_on_close: "TcpExtTCPAbortOnClose",
        /// Connections aborted by timeouts.
        abort_on_timeout: "TcpExtTCPAbortOnTimeout",
        /// Connections entering TIME-WAIT.
        time_waits: "TcpExtTW",
        /// DSACKs sent for duplicate data.
        dsack_old_sent: "TcpExtTCPDSACKOldSent",
        /// Segments that arrived beside an echo of Congestion Experienced.
        delivered_ce: "TcpExtTCPDeliveredCE",
        /// DSACKs received.
        dsack_recv: "TcpExtTCPDSACKRecv",
        /// DSACKs received for text behind a hole.
        dsack_ofo_recv: "TcpExtTCPDSACKOfoRecv",
        /// Segments that DSACKs reported.
        dsack_recv_segs: "TcpExtTCPDSACKRecvSegs",
        /// DSACKs for more than was ever sent twice.
        dsack_ignored_dubious: "TcpExtTCPDSACKIgnoredDubious",
        /// Times that the connections' memory came under pressure.
        memory_pressures: "TcpExtTCPMemoryPressures",
        /// ICMP errors about segments that are not under way.
        out_of_window_icmps: "TcpExtOutOfWindowIcmps",
        /// Path MTUs that ICMP claimed to be smaller while segments of the present size arrived
        /// (ours; RFC 5927 7.2).
        too_big_doubted: "TcpExtFullsendTooBigDoubted",
        /// Milliseconds under pressure, of the times that are over.
        memory_pressures_chrono: "TcpExtTCPMemoryPressuresChrono",
        /// Times that text came while memory was exhausted.
        prune_called: "TcpExtPruneCalled",
        /// Times that out-of-order text was thrown away for text in order.
        ofo_pruned: "TcpExtOfoPruned",
        /// Times that this made no room.
        rcv_pruned: "TcpExtRcvPruned",
        /// In-order segments dropped for want of memory.
        rcv_q_drop: "TcpExtTCPRcvQDrop",
        /// Segments dropped that lay behind the window, or reached beyond it.
        beyond_window: "TcpExtBeyondWindow",
        /// Segments with text dropped because the window was closed.
        zero_window_drop: "TcpExtTCPZeroWindowDrop",
    }
}
