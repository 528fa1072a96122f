//! The send path: the sizes of super-segments, Nagle and corks, windows, PSH, memory.

use fullsend_tcp::{FlowReport, SendLimit};
use fullsend_wire::Nanos;

use crate::harness::{Bench, Setup};

/// Returns a setup with timestamps, which take 12 bytes: the MSS is 1448.
fn with_timestamps() -> Setup {
    Setup {
        timestamps: true,
        ..Setup::default()
    }
}

#[test]
fn a_4096_byte_write_is_one_super_segment() {
    Bench::established(&with_timestamps()).play(
        "set nodelay 1
         write 4096
         > P. 1:4097(4096) ack 1
         # NODELAY: also with something small in flight.
         write 4096
         > P. 4097:8193(4096) ack 1",
    );
    Bench::established(&with_timestamps()).play(
        "write 4096
         > P. 1:4097(4096) ack 1",
    );
}

/// The trailing 1200 bytes make the super-segment small in the sense of Minshall's rule, although
/// it has three segments.
#[test]
fn nagle_is_applied_when_splitting() {
    Bench::established(&with_timestamps()).play(
        "write 4096
         > P. 1:4097(4096) ack 1
         write 4096
         > P. 4097:6993(2896) ack 1
         < . 1:1(0) ack 4097
         > P. 6993:8193(1200) ack 1",
    );
}

#[test]
fn a_small_segment_in_flight_delays_a_partial_segment() {
    Bench::established(&Setup::default()).play(
        "write 100
         > P. 1:101(100) ack 1
         write 2000
         > . 101:1561(1460) ack 1
         < . 1:1(0) ack 101
         > P. 1561:2101(540) ack 1",
    );
    Bench::established(&Setup::default()).play(
        "set nodelay 1
         write 100
         > P. 1:101(100) ack 1
         write 2000
         > P. 101:2101(2000) ack 1",
    );
}

#[test]
fn full_segments_in_flight_do_not_delay_a_partial_segment() {
    Bench::established(&Setup::default()).play(
        "write 1460
         > P. 1:1461(1460) ack 1
         write 2000
         > P. 1461:3461(2000) ack 1
         # Now its end is small.
         write 2000
         > . 3461:4921(1460) ack 1
         < . 1:1(0) ack 3461
         > P. 4921:5461(540) ack 1",
    );
}

#[test]
fn small_writes_are_coalesced_while_one_is_in_flight() {
    Bench::established(&Setup::default()).play(
        "write 128
         > P. 1:129(128) ack 1
         write 128
         write 128
         write 1000
         write 128
         write 128
         > . 129:1589(1460) ack 1
         write 128
         < . 1:1(0) ack 129
         > P. 1589:1769(180) ack 1",
    );
}

#[test]
fn autocorking_coalesces_small_writes_while_the_device_is_busy() {
    let mut bench = Bench::established(&Setup::default());
    bench.play(
        "set nodelay 1
         busy
         write 1000
         > P. 1:1001(1000) ack 1
         # As large as what the device has.
         write 1000
         write 100
         complete
         > P. 1001:2101(1100) ack 1
         # Larger.
         write 5000
         > P. 2101:7101(5000) ack 1
         # The acknowledgement is another chance.
         write 100
         write 100
         < . 1:1(0) ack 2101
         > P. 7101:7301(200) ack 1",
    );
    assert_eq!(bench.mib.auto_corking, 2);
}

#[test]
fn without_autocorking_small_writes_do_not_wait_for_the_device() {
    let mut setup = Setup::default();
    setup.sysctl.tcp_autocorking = false;
    let mut bench = Bench::established(&setup);
    bench.play(
        "set nodelay 1
         busy
         write 1000
         > P. 1:1001(1000) ack 1
         write 1000
         > P. 1001:2001(1000) ack 1
         write 100
         > P. 2001:2101(100) ack 1",
    );
    assert_eq!(bench.mib.auto_corking, 0);
}

#[test]
fn a_cork_delays_data_until_uncorked_or_for_200_ms() {
    Bench::established(&Setup::default()).play(
        "set cork 1
         write 100
         write 2000
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 1461
         set cork 0
         > P. 1461:2101(640) ack 1
         < . 1:1(0) ack 2101
         set cork 1
         set nodelay 1
         write 100
         +200ms
         > P. 2101:2201(100) ack 1",
    );
}

#[test]
fn the_200_ms_cork_limit_applies_with_data_in_flight_too() {
    let mut bench = Bench::established(&Setup::without_probes());
    bench.play(
        "set cork 1
         write 2920
         > P. 1:2921(2920) ack 1
         write 100
         +150ms
         < . 1:1(0) ack 1461
         # Younger bytes of the same segment do not make it wait longer.
         write 100
         +50ms
         > P. 2921:3121(200) ack 1
         # The rest of a segment that filled up is younger.
         < . 1:1(0) ack 3121
         write 100
         +150ms
         write 1400
         > . 3121:4581(1460) ack 1
         +199ms
         < . 1:1(0) ack 4581
         +1ms
         > P. 4581:4621(40) ack 1",
    );
    assert_eq!(bench.mib.win_probe, 0);
    let corked = bench.report().time(SendLimit::Cork);
    assert_eq!(corked, Nanos::from_millis(200 + 150 + 200));
}

/// tcp(7): setting `TCP_NODELAY` sends the queued data in spite of a cork; data written later is
/// corked again.
#[test]
fn nodelay_flushes_corked_data_once_and_cork_overrides_it() {
    Bench::established(&Setup::default()).play(
        "set cork 1
         write 2000
         > . 1:1461(1460) ack 1
         set nodelay 1
         > P. 1461:2001(540) ack 1
         write 100
         < . 1:1(0) ack 2001
         set cork 0
         > P. 2001:2101(100) ack 1",
    );
}

/// A window that is too small when `TCP_NODELAY` is set only delays the corked data.
#[test]
fn nodelay_flushes_corked_data_once_the_window_admits_it() {
    let setup = Setup {
        wscale: None,
        ..Setup::default()
    };
    Bench::established(&setup).play(
        "write 1
         > P. 1:2(1) ack 1
         < . 1:1(0) ack 2 win 10
         set cork 1
         write 2000
         set nodelay 1
         < . 1:1(0) ack 2 win 5000
         > . 2:1462(1460) ack 1
         > P. 1462:2002(540) ack 1
         write 100
         < . 1:1(0) ack 2002 win 5000
         set cork 0
         > P. 2002:2102(100) ack 1",
    );
}

#[test]
fn a_window_probe_does_not_end_the_flush_of_corked_data() {
    let setup = Setup {
        wscale: None,
        ..Setup::default()
    };
    Bench::established(&setup).play(
        "write 1
         > P. 1:2(1) ack 1
         < . 1:1(0) ack 2 win 10
         set cork 1
         write 2000
         set nodelay 1
         +200ms
         > . 2:12(10) ack 1
         < . 1:1(0) ack 12 win 5000
         > . 12:1472(1460) ack 1
         > P. 1472:2002(530) ack 1",
    );
}

/// Data appended to the last segment before it leaves is sent with it; the cork holds later data.
#[test]
fn nodelay_flushes_what_the_last_segment_holds() {
    let setup = Setup {
        wscale: None,
        ..Setup::default()
    };
    Bench::established(&setup).play(
        "write 1
         > P. 1:2(1) ack 1
         < . 1:1(0) ack 2 win 10
         set cork 1
         write 2000
         set nodelay 1
         write 100
         < . 1:1(0) ack 2 win 5000
         > . 2:1462(1460) ack 1
         > P. 1462:2102(640) ack 1
         write 100
         < . 1:1(0) ack 2102 win 5000
         set cork 0
         > P. 2102:2202(100) ack 1",
    );
}

#[test]
fn a_tail_loss_probe_with_the_data_ends_its_flush() {
    let mut bench = Bench::established(&Setup::default());
    bench.play(
        "set cork 1
         write 15100
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         set nodelay 1",
    );
    let probe = bench.run_timers_until_output();
    assert!(probe.starts_with("P. 14601:15101(500)"), "{probe}");
    bench.play(
        "< . 1:1(0) ack 15101
         write 100
         set cork 0
         > P. 15101:15201(100) ack 1",
    );
}

#[test]
fn nagle_applies_after_uncorking() {
    Bench::established(&Setup::default()).play(
        "write 100
         > P. 1:101(100) ack 1
         set cork 1
         write 200
         set cork 0
         < . 1:1(0) ack 101
         > P. 101:301(200) ack 1",
    );
}

#[test]
fn msg_more_without_another_write_is_sent_after_200_ms() {
    Bench::established(&Setup::default()).play(
        "set nodelay 1
         write 100 more = 100
         +200ms
         > P. 1:101(100) ack 1",
    );
}

#[test]
fn msg_more_waits_for_the_next_write() {
    Bench::established(&Setup::default()).play(
        "set nodelay 1
         write 100 more = 100
         write 100
         > P. 1:201(200) ack 1
         write 2000 more = 2000
         > . 201:1661(1460) ack 1
         # Any ACK ends the wait.
         < . 1:1(0) ack 201
         > . 1661:2201(540) ack 1",
    );
}

/// As on Linux: the next ACK sends data written with `MSG_MORE`, even if it is a reordered one.
#[test]
fn a_reordered_ack_sends_data_written_with_msg_more() {
    Bench::established(&Setup::default()).play(
        "set nodelay 1
         write 200
         > P. 1:201(200) ack 1
         < . 1:1(0) ack 201
         write 100 more = 100
         < . 1:1(0) ack 101
         > . 201:301(100) ack 1",
    );
}

/// As on Linux: a write of no bytes does not send data written with `MSG_MORE`.
#[test]
fn an_empty_write_does_not_send_data_written_with_msg_more() {
    Bench::established(&Setup::default()).play(
        "set nodelay 1
         write 100 more = 100
         write 0
         write 1
         > P. 1:102(101) ack 1",
    );
}

#[test]
fn the_initial_window_is_ten_segments_in_halves() {
    Bench::established(&Setup::default()).play(
        "write 40000
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 7301
         > P. 14601:24821(10220) ack 1
         cwnd = 15
         # Three more would fit, but an ACK will soon make it a better unit.
         < . 1:1(0) ack 14601
         > P. 24821:39421(14600) ack 1
         > P. 39421:40001(580) ack 1
         cwnd = 20",
    );
}

#[test]
fn the_fin_is_sent_with_the_last_data() {
    Bench::established(&Setup::default()).play(
        "write 100
         > P. 1:101(100) ack 1
         write 100
         shutdown
         > FP. 101:201(100) ack 1",
    );
}

#[test]
fn a_window_below_one_segment_waits_for_more_or_for_the_probe_timer() {
    let narrow = Setup {
        peer_window: 5000,
        wscale: None,
        ..Setup::default()
    };
    Bench::established(&narrow).play(
        "write 7000
         > P. 1:5001(5000) ack 1
         < . 1:1(0) ack 5001 win 600
         +200ms
         > . 5001:5601(600) ack 1
         < . 1:1(0) ack 5601 win 5000
         > P. 5601:7001(1400) ack 1",
    );
}

#[test]
fn a_shrunken_window_is_survived() {
    Bench::established(&Setup::default()).play(
        "write 1460
         > P. 1:1461(1460) ack 1
         write 1460
         > P. 1461:2921(1460) ack 1
         < . 1:1(0) ack 1461 win 1
         write 1460
         < . 1:1(0) ack 2921 win 100
         > P. 2921:4381(1460) ack 1",
    );
}

#[test]
fn without_gso_every_packet_is_one_segment() {
    let mut setup = Setup::default();
    setup.device.gso_max_segs = 1;
    Bench::established(&setup).play(
        "write 4000
         > . 1:1461(1460) ack 1
         > . 1461:2921(1460) ack 1
         > P. 2921:4001(1080) ack 1",
    );
    setup.device.gso_max_segs = 65_535;
    setup.device.gso_max_size = 1500;
    Bench::established(&setup).play(
        "write 2000
         > . 1:1461(1460) ack 1
         > P. 1461:2001(540) ack 1",
    );
}

/// Keeps the send queue full and acknowledges each super-segment by itself. Returns the sizes sent.
fn stream(bench: &mut Bench, super_segments: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut una = 1;
    while sizes.len() < super_segments {
        bench.fill();
        let mut out = Vec::new();
        while let Some(segment) = bench.next_out() {
            out.push(segment.payload.len());
        }
        assert!(!out.is_empty(), "stuck at {una}");
        for len in out {
            una += len;
            sizes.push(len);
            bench.advance(Nanos::from_micros(20));
            bench.acknowledge(una as u32);
        }
    }
    sizes
}

#[test]
fn steady_state_sends_full_super_segments() {
    let mut bench = Bench::established(&with_timestamps());
    let sizes = stream(&mut bench, 400);
    let steady = &sizes[100..];
    assert_eq!(steady.iter().max(), Some(&65_160));
    let mean = steady.iter().sum::<usize>() / steady.len();
    assert!(mean >= 58_644, "mean {mean} is below 0.9 of 65160");
}

#[test]
fn a_retransmission_does_not_shrink_later_super_segments() {
    let mut bench = Bench::established(&with_timestamps());
    stream(&mut bench, 200);
    bench.fill();
    let first = bench.next_out().expect("a segment");
    let rest: Vec<_> = std::iter::from_fn(|| bench.next_out()).collect();
    let start = Bench::relative(first.repr.seq);
    let end = rest.last().map_or(start, |s| {
        Bench::relative(s.repr.seq) + s.payload.len() as u32
    });
    // The first segment is lost; the rest is SACKed.
    bench.acknowledge_with_sack(start, start + 1448, end);
    let again = bench.next_out().expect("a retransmission");
    assert_eq!(
        (Bench::relative(again.repr.seq), again.payload.len()),
        (start, 1448)
    );
    while bench.next_out().is_some() {}
    bench.advance(Nanos::from_micros(50));
    let nxt = bench.sent();
    bench.acknowledge(nxt);
    assert_eq!(bench.mib.retrans_segs, 1);
    let mut una = nxt;
    let mut largest = 0;
    for _ in 0..200 {
        bench.fill();
        while let Some(segment) = bench.next_out() {
            largest = largest.max(segment.payload.len());
            una += segment.payload.len() as u32;
        }
        bench.advance(Nanos::from_micros(50));
        bench.acknowledge(una);
    }
    assert_eq!(largest, 65_160);
}

#[test]
fn an_idle_connection_restarts_from_a_validated_window() {
    let mut bench = Bench::established(&with_timestamps());
    stream(&mut bench, 60);
    bench.drain();
    let cwnd = bench.info().tcpi_snd_cwnd;
    assert!(cwnd > 100);
    bench.advance(Nanos::from_secs(30));
    bench.fill();
    bench.next_out();
    assert_eq!(bench.info().tcpi_snd_cwnd, 10);
    let mut bench = Bench::established(&with_timestamps());
    bench.setup_mut().sysctl.tcp_slow_start_after_idle = false;
    stream(&mut bench, 60);
    bench.drain();
    bench.advance(Nanos::from_secs(30));
    bench.fill();
    bench.next_out();
    assert!(bench.info().tcpi_snd_cwnd >= cwnd);
}

#[test]
fn a_smaller_path_mtu_resegments_queued_and_unacked_data() {
    let mut bench = Bench::established(&Setup::default());
    bench.play(
        "set nodelay 1
         write 4000
         > P. 1:4001(4000) ack 1
         # About nothing in flight, and about more than we have: ignored.
         too_big 9000 1000
         too_big 1 1500
         too_big 1 1040
         > P. 1:4001(4000) ack 1
         write 1500
         > P. 4001:5501(1500) ack 1
         cwnd = 10",
    );
    assert_eq!(
        (bench.info().tcpi_snd_mss, bench.info().tcpi_pmtu),
        (1000, 1040)
    );
    let mut bench = Bench::established(&Setup::default());
    bench.play("write 10\n> P. 1:11(10) ack 1\ntoo_big 1 30\n> P. 1:11(10) ack 1");
    assert_eq!(bench.info().tcpi_snd_mss, 48);
}

#[test]
fn a_full_buffer_wakes_the_writer_once_a_third_is_free() {
    let mut bench = Bench::established(&Setup::default());
    bench.play("set sndbuf 30000");
    while bench.try_write(4000) {}
    while bench.next_out().is_some() {}
    bench.play("writable = false\nwakes = ");
    let mut una = 1;
    let mut wakes = 0;
    while una < bench.sent() {
        una = (una + 1460).min(bench.sent());
        bench.acknowledge(una);
        wakes += u32::from(bench.conn.take_wakes().write);
        while bench.next_out().is_some() {}
    }
    assert_eq!(wakes, 1);
    bench.play("writable = true");
}

#[test]
fn notsent_lowat_has_hysteresis() {
    let mut setup = Setup::default();
    // Super-segments of one segment, so that no step skips the range between lowat and half of it.
    setup.device.gso_max_segs = 1;
    let mut bench = Bench::established(&setup);
    bench.play("set sndbuf 1000000\nset notsent_lowat 20000");
    while bench.try_write(1000) {
        while bench.next_out().is_some() {}
    }
    bench.play("writable = false");
    let (mut una, mut between) = (1, 0);
    loop {
        una += 1460;
        bench.acknowledge(una);
        while bench.next_out().is_some() {}
        let unsent = bench.info().tcpi_notsent_bytes;
        let woken = bench.conn.take_wakes().write;
        assert_eq!(woken, unsent * 2 < 20_000, "at {unsent} unsent");
        if woken {
            break;
        }
        between += u32::from(unsent < 20_000);
    }
    assert!(between >= 3, "{between} steps between lowat and its half");
}

#[test]
fn corked_data_does_not_decay_cwnd_twice() {
    let mut bench = Bench::established(&with_timestamps());
    stream(&mut bench, 60);
    bench.drain();
    let cwnd = bench.info().tcpi_snd_cwnd;
    assert!(cwnd > 100);
    // An idle time of a little more than one RTO halves cwnd once, although three writes check the
    // limits.
    bench.advance(Nanos::from_millis(300));
    bench.play("set cork 1\nset nodelay 1");
    for _ in 0..3 {
        assert!(bench.try_write(10));
        bench.repeat_ack();
    }
    assert!(bench.next_out().is_none());
    bench.advance(Nanos::from_millis(200));
    assert_eq!(bench.next_out().map(|s| s.payload.len()), Some(30));
    assert_eq!(bench.info().tcpi_snd_cwnd, cwnd / 2);
}

#[test]
fn slices_are_sent_without_a_copy() {
    let mut bench = Bench::established(&Setup::default());
    bench.play(
        "set nodelay 1
         write_slice 10000 =
         > P. 1:7301(7300) ack 1
         > P. 7301:10001(2700) ack 1
         set sndbuf 2304
         write_slice 5000 = WouldBlock",
    );
}

#[test]
fn flow_report_counts_send_limits_and_blocked_causes() {
    let mut bench = Bench::established(&Setup::without_probes());
    assert_eq!(bench.report(), FlowReport::default());
    bench.play(
        "write 100
         > P. 1:101(100) ack 1
         +3ms
         write 2000
         > . 101:1561(1460) ack 1
         +2ms
         < . 1:1(0) ack 101
         > P. 1561:2101(540) ack 1
         < . 1:1(0) ack 2101
         +5ms",
    );
    let report = bench.report();
    let time = |limit| report.time(limit).as_millis();
    assert_eq!(
        (time(SendLimit::Application), time(SendLimit::Nagle)),
        (8, 2)
    );
    let sends = |limit| report.sends(limit);
    assert_eq!(
        (sends(SendLimit::Application), sends(SendLimit::Nagle)),
        (2, 1)
    );
    assert_eq!(report.limited_by, Some(SendLimit::Application));
    let sizes: Vec<_> = report.send_size.iter().collect();
    assert_eq!(sizes, [(64, 1), (512, 1), (1024, 1)]);
    // Ten segments of cwnd less the data in flight.
    let rooms: Vec<_> = report.headroom.iter().collect();
    assert_eq!(rooms, [(8192, 3)]);
}

#[test]
fn tcp_info_reports_the_rwnd_limited_time() {
    let mut bench = Bench::established(&Setup::without_probes());
    bench.play(
        "set nodelay 1
         write 100
         > P. 1:101(100) ack 1
         < . 1:1(0) ack 101 win 16
         write 4000
         > P. 101:2149(2048) ack 1
         +7ms
         < . 1:1(0) ack 2149 win 500
         > P. 2149:4101(1952) ack 1
         +5ms",
    );
    assert_eq!(bench.info().tcpi_rwnd_limited, 7000);
}

/// Spec 1.6: the device's limit may change during a connection, and applies from the next write on.
#[test]
fn super_segments_follow_a_changed_gso_limit() {
    let mut bench = Bench::established(&Setup::default());
    bench.play(
        "set nodelay 1
         busy
         write 6000
         > P. 1:6001(6000) ack 1",
    );
    // Two segments, with room for headers.
    bench.setup_mut().device.gso_max_size = 20 + 61 + 2920;
    bench.play(
        "# Full, so autocorking does not hold it.
         write 2920
         > P. 6001:8921(2920) ack 1
         write 2919",
    );
    assert_eq!(bench.report().limited_by, Some(SendLimit::Autocork));
}

/// RFC 2018 3: data segments carry SACK blocks if they have room for them: up to four without
/// timestamps, up to three with them.
#[test]
fn data_segments_with_space_carry_sack_blocks() {
    let plain = Setup::default();
    let stamped = with_timestamps();
    for (setup, most, ts) in [(plain, 1460 - 36, ""), (stamped, 1448 - 28, "ts,")] {
        let more = most + 1;
        let end = 1 + most;
        let option = ts.trim_end_matches(',');
        Bench::established(&setup).play(&format!(
            "set nodelay 1
             < P. 101:201(100) ack 1
             > . 1:1(0) ack 1 <{ts}sack 101:201>
             write {most}
             > P. 1:{end}({most}) ack 1 <{ts}sack 101:201>
             write {more}
             > P. {end}:{}({more}) ack 1 <{option}>",
            end + more
        ));
    }
}

/// RFC 5681 4.2: an out-of-order segment is acknowledged at once. If a data segment has no room for
/// its SACK block, a pure ACK follows.
#[test]
fn a_sack_block_without_option_space_is_sent_in_its_own_ack() {
    Bench::established(&Setup::default()).play(
        "< . 1:1(0) ack 1 win 0
         write 1460
         < P. 101:201(100) ack 1 win 512
         > P. 1:1461(1460) ack 1 <>
         > . 1461:1461(0) ack 1 <sack 101:201>",
    );
}

/// RFC 2883: a DSACK that does not fit on a data segment is not sent on a pure ACK of its own.
#[test]
fn a_dsack_without_option_space_is_not_sent_in_its_own_ack() {
    Bench::established(&Setup::default()).play(
        "< P. 1:101(100) ack 1 win 0
         > . 1:1(0) ack 101
         write 1460
         < P. 1:101(100) ack 1 win 0
         << . 101:101(0) ack 1 win 512
         > P. 1:1461(1460) ack 101 <>",
    );
}

/// tcp(7): `TCP_NODELAY` sends all queued data, even if that is more than one segment.
#[test]
fn nodelay_flushes_the_remainder_after_full_segments_too() {
    Bench::established(&Setup::default()).play(
        "set cork 1
         write 2000
         & set nodelay 1
         > . 1:1461(1460) ack 1
         > P. 1461:2001(540) ack 1
         # It was for that alone.
         write 100
         < . 1:1(0) ack 2001",
    );
}

/// tcp(7): the 200 ms of a cork begin when the cork begins to hold data, not when Nagle's algorithm
/// held it before.
#[test]
fn a_cork_set_while_nagle_delays_lasts_200_ms() {
    Bench::established(&Setup::default()).play(
        "write 100
         > P. 1:101(100) ack 1
         write 100
         +10ms
         set cork 1
         < . 1:1(0) ack 101
         +200ms
         > P. 101:201(100) ack 1",
    );
}

/// The timer of a cork that was removed does not override Nagle's algorithm.
#[test]
fn the_timer_of_a_removed_cork_flushes_nothing() {
    Bench::established(&Setup::without_probes()).play(
        "set cork 1
         write 100
         +100ms
         set nodelay 1
         > P. 1:101(100) ack 1
         set nodelay 0
         set cork 0
         write 100
         # The cork's time ends.
         +100ms
         < . 1:1(0) ack 101
         > P. 101:201(100) ack 1",
    );
}

/// The pacing timer does not send data that a cork holds.
#[test]
fn the_pacing_timer_does_not_flush_corked_data() {
    Bench::established(&Setup::without_probes()).play(
        "set max_pacing_rate 1520000
         write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 14601
         set cork 1
         write 2000
         +5ms
         > . 14601:16061(1460) ack 1
         +1ms
         < . 1:1(0) ack 16061
         +199ms
         set cork 0
         > P. 16061:16601(540) ack 1",
    );
}

/// RFC 9293 3.10.4: a CLOSE in SYN-RECEIVED waits until the connection is established.
#[test]
fn a_fin_waits_for_the_handshake() {
    Bench::accepting(&Setup::default()).play(
        "> S. 0:0(0) ack 1
         shutdown
         < . 1:1(0) ack 1
         > F. 1:1(0) ack 1",
    );
}

/// RFC 4898, tcpEStatsPerfDataSegsOut: data segments are counted, retransmissions included, and a
/// FIN without data is not.
#[test]
fn segments_with_data_are_counted_each_time_they_are_sent() {
    let mut bench = Bench::established(&Setup::without_probes());
    bench.play(
        "write 2000
         > P. 1:2001(2000) ack 1
         +200ms
         > . 1:1461(1460) ack 1",
    );
    assert_eq!(bench.info().tcpi_data_segs_out, 3);
    bench.play(
        "< . 1:1(0) ack 2001
         shutdown
         > F. 2001:2001(0) ack 1",
    );
    assert!(
        bench
            .run_timers_until_output()
            .starts_with("F. 2001:2001(0)")
    );
    assert_eq!(bench.info().tcpi_data_segs_out, 3);
}

/// RFC 1213, tcpOutSegs and tcpOutRsts: every segment is counted, with data or without.
#[test]
fn each_transmitted_segment_is_counted() {
    let mut bench = Bench::warmed_up(&Setup::without_probes());
    assert!(bench.mib.out_segs > 1);
    let mut before = bench.mib.out_segs;
    let mut sent = |bench: &mut Bench, script: &str| {
        bench.play(script);
        let sent = bench.mib.out_segs - before;
        before = bench.mib.out_segs;
        sent
    };
    assert_eq!(
        sent(&mut bench, "write 2000\n> P. 1:2001(2000) ack 1601"),
        2
    );
    assert_eq!(sent(&mut bench, "< . 1601:1601(0) ack 2001"), 0);
    let probe = "set keepalive 1\nset keepidle 60\n+60s\n> . 2000:2000(0) ack 1601";
    assert_eq!(sent(&mut bench, probe), 1);
    assert_eq!(bench.mib.keep_alive, 1);
    let answer =
        "< P. 1601:1602(1) ack 2001\n< P. 1603:1604(1) ack 2001\n> . 2001:2001(0) ack 1602";
    assert_eq!(sent(&mut bench, answer), 1);
    assert_eq!(sent(&mut bench, "abort\n> R. 2001:2001(0) ack 1602"), 1);
    assert_eq!(bench.mib.out_rsts, 1);
}

/// A retransmission after a timeout is counted as one of slow start (`TCPSlowStartRetrans`), and by
/// its bytes.
#[test]
fn retransmissions_are_counted_by_their_cause() {
    let mut bench = Bench::established(&Setup::without_probes());
    bench.play(
        "write 1000
         > P. 1:1001(1000) ack 1
         +200ms
         > P. 1:1001(1000) ack 1",
    );
    assert_eq!(
        (bench.mib.slow_start_retrans, bench.mib.fast_retrans),
        (1, 0)
    );
    let info = bench.info();
    assert_eq!(
        (info.tcpi_bytes_retrans, info.tcpi_total_retrans),
        (1000, 1)
    );
}

/// RFC 8985 7.2: the probe of a single segment also waits for a delayed ACK. A second segment draws
/// an ACK at once, so the probe is due two round trips and 2 ms after it.
#[test]
fn a_second_segment_in_flight_shortens_the_probe_timeout() {
    Bench::accepting(&Setup::default()).play(
        "> S. 0:0(0) ack 1
         +10ms
         < . 1:1(0) ack 1
         set nodelay 1
         write 100
         > P. 1:101(100) ack 1
         write 100
         > P. 101:201(100) ack 1
         +22ms
         > P. 101:201(100) ack 1",
    );
}

/// RFC 5682 3.1 (2b): if no new data can be sent after a timeout, retransmission continues.
#[test]
fn corked_data_does_not_stop_retransmission() {
    Bench::established(&Setup::without_probes()).play(
        "write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         set cork 1
         write 100
         +200ms
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 1461
         > P. 1461:4381(2920) ack 1",
    );
}
