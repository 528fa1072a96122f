//! TCP Small Queues, autocorking, and retransmissions that wait for the original in the host's
//! queue.

use fullsend_tcp::SendLimit;
use fullsend_wire::Nanos;

use crate::harness::{Bench, Setup};

/// Returns a connection with this `tcp_limit_output_bytes`, whose device completes nothing by
/// itself.
fn busy(limit_output_bytes: u32) -> Bench {
    let mut setup = Setup::default();
    setup.sysctl.tcp_limit_output_bytes = limit_output_bytes;
    let mut bench = Bench::established(&setup);
    bench.play("set nodelay 1\nbusy");
    bench
}

#[test]
fn the_host_queue_is_bounded() {
    let mut bench = busy(10_000);
    bench.play(
        "write 60000
         > P. 1:7301(7300) ack 1
         # One unit out: an ACK could come before its completion.
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 7301
         # Again one unit out.
         > P. 14601:24821(10220) ack 1
         < . 1:1(0) ack 10221",
    );
    assert_eq!(bench.report().limited_by, Some(SendLimit::Tsq));
    bench.play(
        "complete
         complete
         # 10220 bytes are still in the host.
         complete
         > P. 24821:35041(10220) ack 1
         cwnd = 17",
    );
    assert_eq!(bench.report().limited_by, Some(SendLimit::Cwnd));
}

#[test]
fn two_super_segments_or_a_millisecond_at_the_pacing_rate_are_always_allowed() {
    // The flow is paced, so that the limit in bytes does not apply: 4 MB/s are 3906 bytes in 2^-10
    // s.
    let mut bench = busy(4096);
    bench.setup_mut().sysctl.tcp_autocorking = false;
    bench.play(
        "set max_pacing_rate 4000000
         write 20000
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 14601
         +1900us
         > P. 14601:20001(5400) ack 1
         write 5000
         +1410us
         > P. 20001:25001(5000) ack 1
         write 5000
         +1310us",
    );
    assert_eq!(bench.report().limited_by, Some(SendLimit::Tsq));
    bench.play(
        "complete
         complete
         complete
         # The memory of one unit of 5000 bytes is more than two such units need.
         complete
         > P. 25001:30001(5000) ack 1",
    );
}

#[test]
fn completions_without_deferred_data_send_nothing() {
    let mut bench = busy(4_194_304);
    bench.play(
        "write 20000
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         complete
         complete",
    );
    assert_eq!(bench.report().limited_by, Some(SendLimit::Cwnd));
}

/// "Line-buffered ssh": the first write is sent alone, the next ones together at its completion.
#[test]
fn tiny_writes_are_sent_together_at_the_completion() {
    let mut bench = busy(4_194_304);
    bench.play(
        "write 80
         > P. 1:81(80) ack 1
         write 80
         write 80
         write 80
         complete
         > P. 81:321(240) ack 1
         # Nothing of this flow is in the host: no added delay.
         complete
         write 80
         > P. 321:401(80) ack 1",
    );
    assert_eq!(bench.mib.auto_corking, 1, "counted as it begins to hold");
    assert_eq!(bench.report().limited_by, Some(SendLimit::Application));
}

/// No more data is held than the device has, so that each super-segment is about as large as all
/// before it together, up to the full size.
#[test]
fn steady_tiny_writes_make_super_segments_grow_geometrically() {
    let mut bench = busy(4_194_304);
    let mut sizes = Vec::new();
    for _ in 0..30 {
        // The device is slow: there are a hundred writes to one completion.
        for _ in 0..100 {
            assert!(bench.try_write(128));
            while let Some(segment) = bench.next_out() {
                sizes.push(segment.payload.len());
            }
        }
        let sent = bench.sent();
        bench.complete_one();
        bench.acknowledge(sent);
        while let Some(segment) = bench.next_out() {
            sizes.push(segment.payload.len());
        }
    }
    assert_eq!(sizes[0], 128);
    let largest = sizes.iter().max().copied();
    assert!(largest >= Some(100 * 128), "{sizes:?}");
    let super_segments = sizes.len();
    assert!(
        super_segments < 100,
        "{super_segments} super-segments for 3000 writes"
    );
}

#[test]
fn full_segments_are_sent_and_the_remainder_is_coalesced() {
    let mut bench = busy(4_194_304);
    let goal = 64_240;
    // cwnd grows.
    for _ in 0..40 {
        bench.fill();
        while bench.next_out().is_some() {}
        bench.complete_all();
        bench.advance(Nanos::from_micros(10));
        let sent = bench.sent();
        bench.acknowledge(sent);
    }
    bench.setup_mut().sysctl.tcp_autocorking = false;
    bench.drain();
    bench.complete_all();
    bench.setup_mut().sysctl.tcp_autocorking = true;
    assert!(bench.try_write(goal));
    assert_eq!(bench.next_out().map(|s| s.payload.len()), Some(goal));
    let before = bench.mib.auto_corking;
    // A full super-segment, and 100 bytes of the next one.
    assert!(bench.try_write(goal + 100));
    assert_eq!(bench.next_out().map(|s| s.payload.len()), Some(goal));
    assert!(bench.next_out().is_none());
    assert_eq!(bench.mib.auto_corking, before + 1);
    assert_eq!(bench.report().limited_by, Some(SendLimit::Autocork));
    bench.complete_one();
    assert_eq!(bench.next_out().map(|s| s.payload.len()), Some(100));
}

#[test]
fn segments_in_the_host_queue_are_not_marked_lost() {
    let mut bench = busy(4_194_304);
    bench.play(
        "write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 1 <sack 7301:14601>
         # The completion tries again.
         complete
         > P. 1:7301(7300) ack 1
         # The timer finds that this copy is in the queue too.
         +300ms
         complete
         complete
         > . 1:1461(1460) ack 1",
    );
    assert_eq!(bench.mib.spurious_rtx_host_queues, 3);
    assert_eq!(bench.mib.retrans_segs, 6);
}

#[test]
fn retransmissions_get_twice_the_limit() {
    let mut bench = busy(10_000);
    bench.play(
        "write 29200
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 7301
         > P. 14601:24821(10220) ack 1
         complete
         complete
         < . 1:1(0) ack 7301 <sack 17521:24821>
         # 10220 bytes in the host would hold new text.
         > P. 7301:14601(7300) ack 1",
    );
}

/// Spec 2: the limit in bytes applies to flows that are not paced. 100 MB/s are 97,656 bytes in
/// 2^-10 s.
#[test]
fn the_limit_in_bytes_does_not_bound_a_paced_flow() {
    let third_unit = |paced: bool| {
        let mut bench = busy(4096);
        bench.setup_mut().sysctl.tcp_autocorking = false;
        if paced {
            bench.play("set max_pacing_rate 100000000");
        }
        bench.play(
            "write 14600
             > P. 1:7301(7300) ack 1
             > P. 7301:14601(7300) ack 1
             +2ms
             < . 1:1(0) ack 4381",
        );
        assert!(bench.try_write(8000));
        let sent = bench.next_out().map(|s| s.payload.len());
        (sent, bench.report().limited_by)
    };
    assert_eq!(third_unit(true), (Some(8000), Some(SendLimit::Application)));
    assert_eq!(third_unit(false), (None, Some(SendLimit::Tsq)));
}

/// Spec 2: autocorking waits for a completion only while data is unacknowledged.
#[test]
fn autocorking_does_not_delay_when_all_is_acknowledged() {
    let mut bench = busy(4_194_304);
    bench.play(
        "write 1000
         > P. 1:1001(1000) ack 1
         < . 1:1(0) ack 1001
         # The device still has the first unit.
         write 100
         > P. 1001:1101(100) ack 1",
    );
    assert_eq!(bench.mib.auto_corking, 0);
}

/// Spec 2: a super-segment of `size_goal` bytes cannot grow, so it does not wait.
#[test]
fn autocorking_does_not_delay_a_full_super_segment() {
    let mut setup = Setup::default();
    setup.device.gso_max_segs = 2;
    let mut bench = Bench::established(&setup);
    bench.play(
        "set nodelay 1
         busy
         write 2920
         > P. 1:2921(2920) ack 1
         write 2920
         > P. 2921:5841(2920) ack 1
         # One byte less is not full.
         write 2919",
    );
    assert_eq!(bench.mib.auto_corking, 1);
    assert_eq!(bench.report().limited_by, Some(SendLimit::Autocork));
}

/// Spec 4: data is not retransmitted while the host's queue still has it. A tail loss probe only
/// counts that case (`TCPSpuriousRtxHostQueues`).
#[test]
fn a_tail_loss_probe_skips_segments_in_the_host_queue() {
    let open = || {
        let mut bench = Bench::accepting(&Setup::default());
        bench.play(
            "> S. 0:0(0) ack 1
             +10ms
             < . 1:1(0) ack 1
             busy
             write 1000
             > P. 1:1001(1000) ack 1",
        );
        bench
    };
    let mut bench = open();
    assert!(bench.run_next_timer());
    assert!(bench.next_out().is_none());
    assert_eq!(bench.mib.spurious_rtx_host_queues, 1);
    // A FIN without data is not charged to the host's queue, so it is not found there.
    let mut bench = open();
    bench.play("shutdown\n> F. 1001:1001(0) ack 1");
    assert!(
        bench
            .run_timers_until_output()
            .starts_with("F. 1001:1001(0)")
    );
    assert_eq!(bench.mib.spurious_rtx_host_queues, 0);
}

/// Adjacent lost super-segments are retransmitted as one, up to the first that the host's queue
/// still has.
#[test]
fn segments_in_the_host_queue_are_not_merged_into_a_retransmission() {
    let play = |script: &str| {
        let mut bench = busy(4_194_304);
        bench.setup_mut().sysctl.tcp_autocorking = false;
        bench.play(&format!(
            "write 1460
             > P. 1:1461(1460) ack 1
             write 1460
             > P. 1461:2921(1460) ack 1
             write 5840
             > P. 2921:8761(5840) ack 1
             complete
             {script}"
        ));
    };
    play(
        "< . 1:1(0) ack 1 <sack 2921:8761>
         > P. 1:1461(1460) ack 1
         # The second is in the host.
         complete
         > P. 1461:2921(1460) ack 1",
    );
    play(
        "complete
         # What was SACKed is in the host.
         < . 1:1(0) ack 1 <sack 2921:8761>
         > P. 1:2921(2920) ack 1",
    );
}
