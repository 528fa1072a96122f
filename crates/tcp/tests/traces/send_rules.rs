//! Rules of the sender that only a boundary or a combination of limits shows.

use fullsend_tcp::Sysctl;

use crate::harness::{Bench, Setup};

/// Returns a connection whose handshake took 100 ms, so that super-segments follow the pacing rate.
fn over_long_path(sysctl: Sysctl) -> Bench {
    let setup = Setup {
        sysctl,
        ..Setup::default()
    };
    let mut bench = Bench::accepting(&setup);
    bench.play("> S. 0:0(0) ack 1\n+100ms\n< . 1:1(0) ack 1");
    bench
}

/// RFC 9293 3.4: a FIN takes a byte of the window. With data that fills the window it would lie beyond.
#[test]
fn a_fin_is_not_sent_with_data_that_fills_the_window() {
    let established = |peer_window| {
        Bench::established(&Setup {
            wscale: None,
            peer_window,
            ..Setup::default()
        })
    };
    established(2000).play(
        "& write 2000
         & shutdown
         > P. 1:2001(2000) ack 1
         < . 1:1(0) ack 2001
         > F. 2001:2001(0) ack 1",
    );
    established(2001).play(
        "& write 2000
         & shutdown
         > FP. 1:2001(2000) ack 1",
    );
}

/// On a long path a super-segment carries what the pacing rate sends in about a millisecond, even if
/// nothing is in flight and all data fits one.
#[test]
fn on_a_long_path_all_data_is_not_sent_whole() {
    over_long_path(Sysctl::default()).play(
        "write 7300
         > P. 1:2921(2920) ack 1
         > P. 2921:5841(2920) ack 1
         > P. 5841:7301(1460) ack 1",
    );
}

/// BBR replaces `tcp_min_tso_segs` by a value of its own.
#[test]
fn the_congestion_control_chooses_the_least_super_segment() {
    let sysctl = Sysctl {
        tcp_min_tso_segs: 5,
        ..Sysctl::default()
    };
    let whole = "> P. 1:7301(7300) ack 1";
    let in_twos = "> P. 1:2921(2920) ack 1
                   > P. 2921:5841(2920) ack 1
                   > P. 5841:7301(1460) ack 1";
    for (name, segments) in [("cubic", whole), ("bbr", in_twos)] {
        let mut bench = over_long_path(sysctl.clone());
        bench.congestion(name);
        bench.play(&format!(
            "set max_pacing_rate 400000\nwrite 7300\n{segments}"
        ));
    }
}

/// A write that fills a super-segment counts on its transmission only if the host's queue has room:
/// what stays unsent meets `TCP_NOTSENT_LOWAT`.
#[test]
fn a_full_host_queue_is_not_counted_as_sent_within_a_write() {
    let busy = |limit_output_bytes| {
        let mut setup = Setup::default();
        setup.sysctl.tcp_limit_output_bytes = limit_output_bytes;
        setup.sysctl.tcp_autocorking = false;
        let mut bench = Bench::established(&setup);
        bench.play(
            "set nodelay 1
             set sndbuf 1000000
             set notsent_lowat 60000
             busy
             write 7300
             > P. 1:7301(7300) ack 1",
        );
        bench
    };
    // The queue holds the limit already.
    busy(4096).play(
        "write 100000 = 64240
         > P. 7301:14601(7300) ack 1",
    );
    // With room in it, the write goes on beyond the first super-segment.
    busy(4_194_304).play(
        "write 100000 = 71540
         > P. 7301:14601(7300) ack 1",
    );
}

/// A super-segment that TCP Small Queues holds below that limit does not count either.
#[test]
fn a_held_super_segment_is_not_counted_as_sent_within_a_write() {
    let mut bench = over_long_path(Sysctl {
        tcp_autocorking: false,
        ..Sysctl::default()
    });
    bench.play(
        "set nodelay 1
         set sndbuf 1000000
         set notsent_lowat 64000
         busy
         write 20000
         > P. 1:2921(2920) ack 1
         > P. 2921:5841(2920) ack 1
         write 100000 = 50080",
    );
}

/// tcp(7): `TCP_NODELAY` sends what is queued, so it ends the wait of the last write with `MSG_MORE`:
/// when pacing admits the data, all of it leaves as one super-segment.
#[test]
fn nodelay_ends_the_wait_of_msg_more() {
    let mut bench = Bench::established(&Setup::default());
    bench.play(
        "set max_pacing_rate 1000000
         write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 14601
         write 2000 more = 2000
         set nodelay 1",
    );
    let sent = bench.run_timers_until_output();
    assert!(sent.starts_with("P. 14601:16601(2000)"), "{sent}");
}

/// A writer is woken when a third of the buffer is free, exact to the byte.
#[test]
fn a_writer_is_woken_when_exactly_a_third_of_the_buffer_is_free() {
    let mut bench = Bench::established(&Setup::default());
    bench.play("set sndbuf 1000000\nwrite 7300\n> P. 1:7301(7300) ack 1");
    let queued = bench.memory().wmem_queued;
    let boundary = queued + queued / 2;
    assert!(boundary.is_multiple_of(2), "SO_SNDBUF sets even sizes");
    let half = boundary / 2;
    bench.play(&format!(
        "set sndbuf {}
         writable = false
         wakes =
         set sndbuf {half}
         wakes = write
         writable = true",
        half - 1
    ));
}

/// RFC 9293 3.8.6.2.1: for a peer with a tiny window a segment has at most half of the largest window
/// that it has offered, so that two of them are in flight.
#[test]
fn segments_grow_with_the_largest_window_of_the_peer() {
    let mut bench = Bench::established(&Setup {
        wscale: None,
        peer_window: 1000,
        ..Setup::default()
    });
    assert_eq!(bench.info().tcpi_snd_mss, 500);
    bench.play("< . 1:1(0) ack 1 win 65535");
    assert_eq!(bench.info().tcpi_snd_mss, 1460);
}
