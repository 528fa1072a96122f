//! `TCP_INFO`: the history of a connection.

use crate::harness::{Bench, Setup};

/// Busy time is the time with data in flight or queued; the times limited by the peer's window and
/// by the send buffer are parts of it.
#[test]
fn limited_times_are_counted_by_their_cause() {
    let mut bench = Bench::established(&Setup::default());
    bench.play(
        "+1s
         write 1000
         > P. 1:1001(1000) ack 1
         +10ms
         < . 1:1(0) ack 1001
         +1s
         < . 1:1(0) ack 1001 win 0
         write 1000
         +20ms
         < . 1:1(0) ack 1001 win 512
         > P. 1001:2001(1000) ack 1
         +5ms
         < . 1:1(0) ack 2001
         +1s",
    );
    let info = bench.info();
    assert_eq!(info.tcpi_busy_time, 35_000);
    assert_eq!(info.tcpi_rwnd_limited, 20_000);
    assert_eq!(info.tcpi_sndbuf_limited, 0);
}

#[test]
fn sndbuf_limited_time_counts_a_waiting_writer() {
    let mut bench = Bench::established(&Setup::default());
    bench.play(
        "set sndbuf 2000
         write 4380
         > P. 1:4381(4380) ack 1
         +500us
         write 1 = WouldBlock
         +1ms
         < . 1:1(0) ack 4381
         +1s",
    );
    let info = bench.info();
    assert_eq!(info.tcpi_busy_time, 1500);
    assert_eq!(info.tcpi_sndbuf_limited, 1000);
}

#[test]
fn timeouts_and_their_recovery_time_are_counted() {
    let mut bench = Bench::established(&Setup::default());
    bench.play("write 100\n> P. 1:101(100) ack 1");
    let seen = |bench: &mut Bench| {
        let info = bench.info();
        (
            info.tcpi_total_rto,
            info.tcpi_total_rto_recoveries,
            info.tcpi_total_rto_time,
        )
    };
    assert_eq!(seen(&mut bench), (0, 0, 0));
    while bench.info().tcpi_total_rto < 2 {
        let at = bench.conn.poll_deadline().unwrap();
        let now = bench.now();
        bench.advance(at.since(now));
        while bench.next_out().is_some() {}
    }
    assert_eq!(bench.info().tcpi_total_rto_recoveries, 1);
    bench.play("< . 1:1(0) ack 101\n+1s");
    let (total, recoveries, ms) = seen(&mut bench);
    assert_eq!((total, recoveries), (2, 1));
    assert!((100..2000).contains(&ms), "{ms}");
}

#[test]
fn out_of_order_segments_are_counted() {
    let mut bench = Bench::warmed_up(&Setup::default());
    bench.play(
        "< P. 2601:3601(1000) ack 1
         > . 1:1(0) ack 1601 <sack 2601:3601>
         < P. 1601:2601(1000) ack 1
         > . 1:1(0) ack 3601",
    );
    let info = bench.info();
    assert_eq!((info.tcpi_rcv_ooopack, info.tcpi_ato), (1, 40_000));
    assert_eq!(info.tcpi_bytes_received, 3600);
}
