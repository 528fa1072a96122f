//! Retransmission timeouts, window probes, keepalive and user timeouts.

use crate::harness::{Bench, Setup};

fn open() -> Bench {
    Bench::established(&Setup::without_probes())
}

#[test]
fn the_timeout_doubles_and_cwnd_is_one() {
    let mut bench = open();
    bench.play(
        "write 2000
         > P. 1:2001(2000) ack 1
         +200ms
         > . 1:1461(1460) ack 1
         cwnd = 1
         +400ms
         > . 1:1461(1460) ack 1
         +800ms
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 1461
         > P. 1461:2001(540) ack 1
         < . 1:1(0) ack 2001
         +300s",
    );
    assert_eq!(bench.mib.timeouts, 3);
    assert_eq!(bench.info().tcpi_total_retrans, 4);
}

#[test]
fn an_ack_restarts_the_timer() {
    open().play(
        "set nodelay 1
         write 2920
         > P. 1:2921(2920) ack 1
         write 5840
         > P. 2921:8761(5840) ack 1
         +100ms
         < . 1:1(0) ack 2921
         # srtt is an eighth of the one sample of 100 ms, and the variation counts 200 ms.
         +212.5ms
         > . 2921:4381(1460) ack 1",
    );
}

/// RFC 7765: with fewer than four segments in flight the timer counts from the head's departure.
#[test]
fn with_little_in_flight_the_timer_restarts_from_the_heads_departure() {
    open().play(
        "set nodelay 1
         write 1460
         > P. 1:1461(1460) ack 1
         +20ms
         write 1460
         > P. 1461:2921(1460) ack 1
         +100ms
         < . 1:1(0) ack 1461
         # srtt is 15 ms; 100 ms of the timeout are over.
         +115ms
         > P. 1461:2921(1460) ack 1",
    );
}

#[test]
fn a_peer_that_vanishes_is_a_timeout() {
    let mut bench = open();
    bench.play("readable = false\nwrite 10\n> P. 1:11(10) ack 1");
    let mut sent = 0;
    while bench.run_next_timer() {
        sent += u32::from(bench.next_out().is_some());
    }
    assert_eq!(sent, 15);
    bench.play("wakes = read\nread 1 = TimedOut\nstate = Closed");
    assert!(
        (924..=1045).contains(&bench.elapsed_s()),
        "{}",
        bench.elapsed_s()
    );
}

#[test]
fn the_user_timeout_ends_the_connection_earlier() {
    let mut bench = open();
    bench.play("set user_timeout 5\nwrite 10\n> P. 1:11(10) ack 1");
    while bench.run_next_timer() {
        bench.next_out();
    }
    bench.play("write 1 = TimedOut");
    assert_eq!(bench.elapsed_s(), 5);
}

#[test]
fn a_closed_window_is_probed() {
    let mut bench = open();
    bench.play(
        "set nodelay 1
         write 1460
         > P. 1:1461(1460) ack 1
         < . 1:1(0) ack 1461 win 0
         write 3000
         +200ms
         > . 1460:1460(0) ack 1
         < . 1:1(0) ack 1461 win 0
         +400ms
         > . 1460:1460(0) ack 1
         +800ms
         > . 1460:1460(0) ack 1
         < . 1:1(0) ack 1461 win 1000
         > P. 1461:4461(3000) ack 1
         # The timeout is back to normal.
         +200ms
         > . 1461:2921(1460) ack 1",
    );
    assert_eq!(bench.mib.win_probe, 3);
}

#[test]
fn a_zero_window_peer_times_out_only_if_it_ignores_probes() {
    let mut bench = open();
    bench.play(
        "write 1460
         > P. 1:1461(1460) ack 1
         < . 1:1(0) ack 1461 win 0
         write 100",
    );
    for _ in 0..100 {
        assert!(bench.run_next_timer());
        assert!(bench.next_out().is_some());
        bench.play("< . 1:1(0) ack 1461 win 0");
    }
    let mut probes = 0;
    while bench.run_next_timer() {
        probes += u32::from(bench.next_out().is_some());
    }
    assert_eq!(probes, 15);
    bench.play("error = Some(TimedOut)");
}

#[test]
fn an_orphan_with_a_closed_window_times_out() {
    let mut bench = open();
    bench.play(
        "write 1460
         > P. 1:1461(1460) ack 1
         < . 1:1(0) ack 1461 win 0
         write 100
         close",
    );
    let mut probes = 0;
    while bench.run_next_timer() {
        if bench.next_out().is_some() {
            probes += 1;
            bench.play("< . 1:1(0) ack 1461 win 0");
        }
    }
    assert_eq!(probes, 8);
    bench.play("state = Closed");
}

#[test]
fn keepalive_probes_and_gives_up() {
    let mut bench = open();
    bench.play(
        "set keepalive 1
         set keepidle 60
         set keepintvl 10
         set keepcnt 3
         +60s
         > . 0:0(0) ack 1
         < . 1:1(0) ack 1
         +60s
         > . 0:0(0) ack 1
         +10s
         > . 0:0(0) ack 1
         +10s
         > . 0:0(0) ack 1
         +10s
         > R. 1:1(0) ack 1
         state = Closed
         error = Some(TimedOut)",
    );
    assert_eq!(bench.mib.keep_alive, 4);
}

#[test]
fn an_idle_connection_has_no_timer() {
    let mut bench = open();
    bench.play("write 10\n> P. 1:11(10) ack 1\n< . 1:1(0) ack 11");
    assert_eq!(bench.conn.poll_deadline(), None);
}

#[test]
fn orphans_time_out_earlier() {
    let mut bench = open();
    bench.play("write 10\n> P. 1:11(10) ack 1\nclose\n> F. 11:11(0) ack 1");
    while bench.run_next_timer() {
        bench.next_out();
    }
    bench.play("state = Closed");
    assert!(
        (102..=205).contains(&bench.elapsed_s()),
        "{}",
        bench.elapsed_s()
    );
}

/// `TCP_USER_TIMEOUT` replaces `TCP_KEEPCNT` (tcp(7)), and allows more probes than an eight-bit
/// counter holds.
#[test]
fn hundreds_of_keepalive_probes_end_with_the_user_timeout() {
    let mut bench = open();
    bench.play(
        "set keepalive 1
         set keepidle 1
         set keepintvl 1
         set user_timeout 300",
    );
    for _ in 0..1000 {
        if bench.run_next_timer() {
            bench.next_out();
        }
    }
    bench.play("state = Closed\nerror = Some(TimedOut)");
    assert_eq!((bench.mib.keep_alive, bench.elapsed_s()), (299, 300));
}

/// A count that the sysctl's setter would reject is limited to 127, as is `TCP_KEEPCNT`.
#[test]
fn the_default_number_of_keepalive_probes_is_bounded() {
    let mut setup = Setup::without_probes();
    setup.sysctl.tcp_keepalive_probes = 1000;
    let mut bench = Bench::established(&setup);
    bench.play(
        "set keepalive 1
         set keepidle 1
         set keepintvl 1
         set keepcnt 128 = InvalidValue",
    );
    for _ in 0..1000 {
        if bench.run_next_timer() {
            bench.next_out();
        }
    }
    bench.play("state = Closed");
    assert_eq!(bench.mib.keep_alive, 127);
}

/// RFC 5482: the user timeout also bounds how long a peer may keep its window closed, from when data
/// waits for it, though it answers each probe.
#[test]
fn the_user_timeout_bounds_a_closed_window() {
    for idle_s in [0, 100] {
        let mut bench = open();
        bench.play(&format!(
            "write 1460
             > P. 1:1461(1460) ack 1
             < . 1:1(0) ack 1461 win 0
             +{idle_s}s
             set user_timeout 5
             write 100"
        ));
        for _ in 0..100 {
            if bench.run_next_timer() && bench.next_out().is_some() {
                bench.play("< . 1:1(0) ack 1461 win 0");
            }
        }
        bench.play("state = Closed\nerror = Some(TimedOut)");
        assert_eq!(bench.elapsed_s(), idle_s + 5);
    }
}

/// `TCP_USER_TIMEOUT` replaces `tcp_retries2`, also where it is longer (tcp(7)).
#[test]
fn a_long_user_timeout_outlasts_the_retries() {
    let mut bench = open();
    bench.play("set user_timeout 2000\nwrite 10\n> P. 1:11(10) ack 1");
    while bench.run_next_timer() {
        bench.next_out();
    }
    bench.play("error = Some(TimedOut)");
    assert_eq!(bench.elapsed_s(), 2000);
}
