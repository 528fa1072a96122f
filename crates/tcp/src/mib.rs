//! TCP counters under their `nstat` names.

fullsend_wire::counters! {
    /// The TCP counters of one host, each under its `nstat` name.
    pub struct TcpMib {
        /// Connections opened by this host.
        active_opens: "TcpActiveOpens",
        /// Connections opened by peers.
        passive_opens: "TcpPassiveOpens",
        /// Connection attempts that failed.
        attempt_fails: "TcpAttemptFails",
        /// Established connections that were reset.
        estab_resets: "TcpEstabResets",
        /// Segments received; each segment of a coalesced run counts.
        in_segs: "TcpInSegs",
        /// Segments sent without retransmissions; each segment of a super-segment counts.
        out_segs: "TcpOutSegs",
        /// Segments retransmitted.
        retrans_segs: "TcpRetransSegs",
        /// Segments received in error.
        in_errs: "TcpInErrs",
        /// RST segments sent.
        out_rsts: "TcpOutRsts",
        /// Times that autocorking held small writes until the device completed previous packets.
        auto_corking: "TcpExtTCPAutoCorking",
        /// Times that a connection began to wait for a completion: autocorking, TCP Small Queues,
        /// or a retransmission whose previous transmission is still in the host's queues (Linux has
        /// no such counter).
        small_queue_throttled: "TcpExtTCPSmallQueueThrottled",
        /// Retransmissions deferred because the previous transmission was still in the host's
        /// queues.
        spurious_rtx_host_queues: "TcpExtTCPSpuriousRtxHostQueues",
        /// Segments or super-segments dropped by a queue of the host (Linux has no such counter).
        host_drops: "TcpExtFullsendHostDrops",
        /// SYNs and SYN-ACKs retransmitted.
        syn_retrans: "TcpExtTCPSynRetrans",
        /// Connections whose SYN-ACK acknowledged the data in our SYN.
        fastopen_active: "TcpExtTCPFastOpenActive",
        /// Connections whose data in our SYN had to be retransmitted.
        fastopen_active_fail: "TcpExtTCPFastOpenActiveFail",
        /// Connections opened immediately by a peer's SYN with a cookie.
        fastopen_passive: "TcpExtTCPFastOpenPassive",
        /// SYNs with a wrong cookie.
        fastopen_passive_fail: "TcpExtTCPFastOpenPassiveFail",
        /// SYNs that found a listener's Fast Open queue full.
        fastopen_listen_overflow: "TcpExtTCPFastOpenListenOverflow",
        /// SYNs that requested a cookie.
        fastopen_cookie_reqd: "TcpExtTCPFastOpenCookieReqd",
        /// Times that Fast Open was disabled for a while because the path dropped its packets.
        fastopen_blackhole: "TcpExtTCPFastOpenBlackhole",
        /// SYNs whose cookie matched the backup key.
        fastopen_passive_alt_key: "TcpExtTCPFastOpenPassiveAltKey",
        /// Path MTU probes that were delivered.
        mtup_success: "TcpExtTCPMTUPSuccess",
        /// Path MTU probes that were lost.
        mtup_fail: "TcpExtTCPMTUPFail",
        /// Times that a connection reduced its segment size because its segments disappeared (RFC
        /// 4821 7.7; Linux has no such counter).
        black_holes: "TcpExtFullsendMtuBlackHoles",
        /// Retransmission timeouts.
        timeouts: "TcpExtTCPTimeouts",
        /// Retransmissions after loss detection by SACK or duplicate acknowledgements.
        fast_retrans: "TcpExtTCPFastRetrans",
        /// Retransmissions in slow start after a timeout.
        slow_start_retrans: "TcpExtTCPSlowStartRetrans",
        /// Retransmissions that were lost as well.
        lost_retransmit: "TcpExtTCPLostRetransmit",
        /// Recoveries entered by SACK.
        sack_recovery: "TcpExtTCPSackRecovery",
        /// Reductions undone because the original segments arrived (Eifel).
        full_undo: "TcpExtTCPFullUndo",
        /// Reductions undone because DSACKs reported every retransmission as a duplicate.
        dsack_undo: "TcpExtTCPDSACKUndo",
        /// Timeouts undone.
        loss_undo: "TcpExtTCPLossUndo",
        /// Reductions undone within a recovery because an original segment filled a hole.
        partial_undo: "TcpExtTCPPartialUndo",
        /// Tail loss probes sent (RFC 8985).
        loss_probes: "TcpExtTCPLossProbes",
        /// Losses that a tail loss probe recovered.
        loss_probe_recovery: "TcpExtTCPLossProbeRecovery",
        /// Timeouts found spurious by F-RTO (RFC 5682).
        spurious_rtos: "TcpExtTCPSpuriousRTOs",
        /// Times that a receiver discarded data that it had SACKed.
        sack_reneging: "TcpExtTCPSACKReneging",
        /// Times that SACK revealed reordering.
        sack_reorder: "TcpExtTCPSACKReorder",
        /// Times that timestamps revealed reordering.
        ts_reorder: "TcpExtTCPTSReorder",
        /// Times that duplicate acknowledgements revealed reordering.
        reno_reorder: "TcpExtTCPRenoReorder",
        /// Timeouts while segments were SACKed and no recovery had begun.
        sack_failures: "TcpExtTCPSackFailures",
        /// Timeouts after duplicate acknowledgements when no recovery had begun.
        reno_failures: "TcpExtTCPRenoFailures",
        /// Timeouts in a recovery entered by SACK.
        sack_recovery_fail: "TcpExtTCPSackRecoveryFail",
        /// Timeouts in a recovery entered by duplicate acknowledgements.
        reno_recovery_fail: "TcpExtTCPRenoRecoveryFail",
        /// Timeouts during the recovery from an earlier timeout.
        loss_failures: "TcpExtTCPLossFailures",
        /// Recoveries entered by duplicate acknowledgements.
        reno_recovery: "TcpExtTCPRenoRecovery",
        /// Segments dropped because of an old timestamp (PAWS).
        paws_estab: "TcpExtPAWSEstab",
        /// Challenge ACKs sent (RFC 5961).
        challenge_ack: "TcpExtTCPChallengeACK",
        /// SYNs received in synchronized states (RFC 5961 4).
        syn_challenge: "TcpExtTCPSYNChallenge",
        /// ACKs for out-of-window segments withheld by the rate limit.
        ack_skipped_seq: "TcpExtTCPACKSkippedSeq",
        /// ACKs for segments with old timestamps withheld by the rate limit.
        ack_skipped_paws: "TcpExtTCPACKSkippedPAWS",
        /// Challenge ACKs withheld by the rate limit.
        ack_skipped_challenge: "TcpExtTCPACKSkippedChallenge",
        /// ACKs in TIME-WAIT withheld by the rate limit.
        ack_skipped_time_wait: "TcpExtTCPACKSkippedTimeWait",
        /// Delayed acknowledgements sent by the timer.
        delayed_acks: "TcpExtDelayedACKs",
        /// Duplicate data received, which is acknowledged immediately.
        delayed_ack_lost: "TcpExtDelayedACKLost",
        /// Segments put into the out-of-order queue.
        ofo_queue: "TcpExtTCPOFOQueue",
        /// Out-of-order segments dropped for lack of memory.
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
        /// Segments delivered together with an echo of Congestion Experienced.
        delivered_ce: "TcpExtTCPDeliveredCE",
        /// DSACKs received.
        dsack_recv: "TcpExtTCPDSACKRecv",
        /// DSACKs received for data above a hole.
        dsack_ofo_recv: "TcpExtTCPDSACKOfoRecv",
        /// Segments reported by DSACKs.
        dsack_recv_segs: "TcpExtTCPDSACKRecvSegs",
        /// DSACKs for more data than was retransmitted, or than the largest window.
        dsack_ignored_dubious: "TcpExtTCPDSACKIgnoredDubious",
        /// Times that the host came under memory pressure.
        memory_pressures: "TcpExtTCPMemoryPressures",
        /// ICMP errors about segments that are not in flight.
        out_of_window_icmps: "TcpExtOutOfWindowIcmps",
        /// ICMP messages that reported a smaller path MTU while segments of the present size
        /// arrived (RFC 5927 7.2; Linux has no such counter).
        too_big_doubted: "TcpExtFullsendTooBigDoubted",
        /// Milliseconds of the memory pressure periods that have ended.
        memory_pressures_chrono: "TcpExtTCPMemoryPressuresChrono",
        /// Times that data arrived while memory was exhausted.
        prune_called: "TcpExtPruneCalled",
        /// Times that out-of-order data was discarded to make room for data in order.
        ofo_pruned: "TcpExtOfoPruned",
        /// Times that discarding out-of-order data made no room.
        rcv_pruned: "TcpExtRcvPruned",
        /// In-order segments dropped for lack of memory.
        rcv_q_drop: "TcpExtTCPRcvQDrop",
        /// Segments dropped because they lay or reached beyond the window.
        beyond_window: "TcpExtBeyondWindow",
        /// Data segments dropped because the window was closed.
        zero_window_drop: "TcpExtTCPZeroWindowDrop",
    }
}
