//! The receive path: the times of ACKs, reassembly, windows.

use crate::harness::{Bench, Setup};

fn plain() -> Setup {
    Setup::default()
}

#[test]
fn the_first_segments_are_acknowledged_at_once() {
    Bench::established(&plain()).play(
        "< P. 1:101(100) ack 1
         > . 1:1(0) ack 101
         < P. 101:201(100) ack 1
         > . 1:1(0) ack 201",
    );
}

#[test]
fn a_lone_segment_is_acknowledged_after_40_ms() {
    let mut bench = Bench::warmed_up(&plain());
    bench.play(
        "< P. 1601:1701(100) ack 1
         +40ms
         > . 1:1(0) ack 1701
         +10s",
    );
    assert_eq!(bench.mib.delayed_acks, 1);
}

#[test]
fn every_second_full_segment_is_acknowledged() {
    Bench::warmed_up(&plain()).play(
        "< . 1601:3061(1460) ack 1
         < . 3061:4521(1460) ack 1
         > . 1:1(0) ack 4521
         < . 4521:5981(1460) ack 1
         < . 5981:6041(60) ack 1
         > . 1:1(0) ack 6041",
    );
}

#[test]
fn a_coalesced_run_counts_its_segments() {
    Bench::warmed_up(&plain()).play(
        "< . 1601:5981(4380) ack 1 gro 1460
         > . 1:1(0) ack 5981",
    );
}

#[test]
fn the_ack_is_piggybacked_on_the_answer() {
    // The first reply shows that the application replies; from then on data is not acknowledged
    // separately.
    Bench::warmed_up(&plain()).play(
        "< P. 1601:1701(100) ack 1
         read 100
         write 200
         > P. 1:201(200) ack 1701
         < P. 1701:5797(4096) ack 201 gro 1460
         read 4096
         write 4096
         > P. 201:4297(4096) ack 5797
         < P. 5797:9893(4096) ack 4297 gro 1460
         +1ms
         > . 4297:4297(0) ack 9893
         # No answer came, so the next run is acknowledged at once.
         < P. 9893:13989(4096) ack 4297 gro 1460
         > . 4297:4297(0) ack 13989",
    );
}

#[test]
fn quickack_can_be_switched() {
    Bench::warmed_up(&plain()).play(
        "set quickack 1
         < P. 1601:1701(100) ack 1
         > . 1:1(0) ack 1701
         set quickack 0
         < P. 1701:1801(100) ack 1
         set quickack 1
         > . 1:1(0) ack 1801",
    );
}

#[test]
fn out_of_order_data_is_sacked_and_read_in_order() {
    let mut bench = Bench::warmed_up(&plain());
    bench.play(
        "< . 3061:4521(1460) ack 1
         > . 1:1(0) ack 1601 <sack 3061:4521>
         < . 5981:7441(1460) ack 1
         > . 1:1(0) ack 1601 <sack 5981:7441,sack 3061:4521>
         read 1 = WouldBlock
         < . 1601:3061(1460) ack 1
         > . 1:1(0) ack 4521 <sack 5981:7441>
         < . 4521:5981(1460) ack 1
         > . 1:1(0) ack 7441 <>
         read 5840",
    );
    assert_eq!(bench.mib.ofo_queue, 2);
}

/// RFC 5681 4.2: each segment of a batch has its own duplicate ACK, because a peer without SACK
/// detects a loss by the third one.
#[test]
fn without_sack_each_out_of_order_segment_draws_a_duplicate_ack() {
    let setup = Setup {
        sack: false,
        ..Setup::default()
    };
    Bench::established(&setup).play(
        "< . 1001:2001(1000) ack 1
         << . 2001:3001(1000) ack 1
         << . 3001:4001(1000) ack 1
         > . 1:1(0) ack 1 win 502
         > . 1:1(0) ack 1 win 502
         > . 1:1(0) ack 1 win 502
         < . 1:1001(1000) ack 1
         > . 1:1(0) ack 4001
         read 4000",
    );
    // With SACK one ACK reports all of them.
    Bench::established(&Setup::default()).play(
        "< . 1001:2001(1000) ack 1
         << . 2001:3001(1000) ack 1
         << . 4001:5001(1000) ack 1
         > . 1:1(0) ack 1 <sack 4001:5001,sack 1001:3001>",
    );
}

#[test]
fn without_sack_duplicate_acks_carry_no_options() {
    let setup = Setup {
        sack: false,
        ..plain()
    };
    Bench::warmed_up(&setup).play(
        "< . 3061:4521(1460) ack 1
         > . 1:1(0) ack 1601 <>
         < . 1601:3061(1460) ack 1
         > . 1:1(0) ack 4521 <>",
    );
}

#[test]
fn data_received_twice_is_reported_by_dsack() {
    let mut bench = Bench::warmed_up(&plain());
    bench.play(
        "< . 1601:3061(1460) ack 1
         < . 1601:3061(1460) ack 1
         > . 1:1(0) ack 3061 <sack 1601:3061>
         < . 101:1601(1500) ack 1
         > . 1:1(0) ack 3061 <sack 101:1601>
         < . 2000:4000(2000) ack 1
         > . 1:1(0) ack 4000 <sack 2000:3061>
         read 2399",
    );
    bench.setup_mut().sysctl.tcp_dsack = false;
    bench.play(
        "< . 101:1601(1500) ack 1
         > . 1:1(0) ack 4000 <>",
    );
}

#[test]
fn full_data_segments_carry_sack_blocks() {
    Bench::warmed_up(&plain()).play(
        "set nodelay 1
         < . 3061:4521(1460) ack 1
         > . 1:1(0) ack 1601 <sack 3061:4521>
         write 1460
         > P. 1:1461(1460) ack 1601 <>
         write 100
         > P. 1461:1561(100) ack 1601 <sack 3061:4521>
         # Both are due: the text first, and the hole by itself because it does not fit.
         < . 5981:7441(1460) ack 1
         > . 1561:1561(0) ack 1601 <sack 5981:7441,sack 3061:4521>",
    );
}

#[test]
fn reading_sends_a_window_update() {
    let mut bench = Bench::warmed_up(&plain());
    bench.play("set rcvbuf 20000");
    let mut seq = 1601;
    // Fill the window to its end.
    loop {
        let window = bench.info().tcpi_rcv_wnd;
        if window == 0 {
            break;
        }
        let len = window.min(1460);
        bench.deliver_data(seq, len);
        seq += len;
        while bench.next_out().is_some() {}
    }
    // The buffer was made smaller, so the last segment did not fit.
    seq -= 1460;
    let all = seq - 1601;
    bench.play(&format!("read {all}\n> . 1:1(0) ack {seq}"));
    assert!(bench.info().tcpi_rcv_wnd >= 2 * 1460);
}

#[test]
fn data_beyond_the_window_is_accepted_only_if_the_receive_queue_is_empty() {
    let mut bench = Bench::warmed_up(&plain());
    bench.play("< . 1601:1701(100) ack 1\n+40ms\n> . 1:1(0) ack 1701");
    let edge = 1701 + bench.info().tcpi_rcv_wnd;
    let (from, to) = (edge - 1000, edge + 1000);
    let text = format!("< . {from}:{to}(2000) ack 1");
    bench.play(&format!("{text}\n> . 1:1(0) ack 1701"));
    assert_eq!(bench.mib.beyond_window, 1);
    bench.play("read 100");
    bench.play(&format!("{text}\n> . 1:1(0) ack 1701 <sack {from}:{to}>"));
}

#[test]
fn data_is_discarded_after_shutdown_of_the_read_side() {
    Bench::warmed_up(&plain()).play(
        "shutdown_read
         < . 1601:3061(1460) ack 1
         < . 3061:4521(1460) ack 1
         > . 1:1(0) ack 4521
         read 10 = 0",
    );
}

#[test]
fn a_waiting_reader_is_woken_once() {
    Bench::warmed_up(&plain()).play(
        "readable = false
         < . 1601:1701(100) ack 1
         wakes = read
         wakes =
         < . 1701:1801(100) ack 1
         wakes =
         readable = true
         read 200
         < . 1801:1901(100) ack 1
         wakes =
         read 1000 = 100
         read 1 = WouldBlock
         < . 1901:2001(100) ack 1
         wakes = read
         +40ms
         > . 1:1(0) ack 2001",
    );
}

/// Each of these lowers the limit of what may arrive while a reader waits for more.
#[test]
fn a_reader_is_woken_when_the_limit_falls_below_what_it_waits_for() {
    let waiting = || {
        let mut bench = Bench::warmed_up(&plain());
        bench.play(
            "set rcvlowat 40000
             readable = false
             < P. 1601:11601(10000) ack 1 gro 1460
             > . 1:1(0) ack 11601
             wakes =",
        );
        bench
    };
    // The buffer is made smaller.
    waiting().play("set rcvbuf 4000\nwakes = read");
    // Data above a hole fills it.
    let mut bench = waiting();
    bench.play(
        "set rcvbuf 10000
         readable = false
         < . 12601:22601(10000) ack 1 gro 1460
         > . 1:1(0) ack 11601
         wakes = read",
    );
    // The allocator refuses memory, so data is dropped.
    let mut bench = waiting();
    let (now, sysctl) = (bench.now(), bench.setup_mut().sysctl.clone());
    bench.mem.set_refused(now, &sysctl, &mut bench.mib, true);
    bench.play(
        "< P. 11601:13061(1460) ack 1
         > . 1:1(0) ack 11601
         wakes = read",
    );
}

/// Data above a hole cannot be read, so it grows the buffer, unless autotuning is off or memory scarce.
#[test]
fn out_of_order_data_grows_the_buffer_only_if_it_may() {
    let plentiful = Setup::default().sysctl.tcp_mem;
    let scarce = [0, 0, plentiful[2]];
    for (autotuning, tcp_mem, grows) in [
        (true, plentiful, true),
        (false, plentiful, false),
        (true, scarce, false),
    ] {
        let mut setup = plain();
        setup.sysctl.tcp_moderate_rcvbuf = autotuning;
        setup.sysctl.tcp_mem = tcp_mem;
        let mut bench = Bench::warmed_up(&setup);
        let before = bench.memory().rcvbuf;
        for seq in [10_001, 12_001, 52_001] {
            bench.deliver_data(seq, 1460);
            while bench.next_out().is_some() {}
        }
        assert_eq!(
            bench.memory().rcvbuf > before,
            grows,
            "{autotuning} {tcp_mem:?}"
        );
    }
}

/// The right edge of a withdrawn window is discarded when data has passed it: 2 GiB later it would
/// seem to lie ahead, and all data before it to be inside the window.
#[test]
fn a_shrunken_window_is_forgotten_once_data_passes_its_edge() {
    let mut bench = Bench::warmed_up(&plain());
    bench.play(
        "< P. 1601:11601(10000) ack 1 gro 1460
         > . 1:1(0) ack 11601
         set rcvbuf 4000
         < P. 11601:13061(1460) ack 1
         > . 1:1(0) ack 11601 win 0
         set rcvbuf 1000000
         read 10000
         > . 1:1(0) ack 11601",
    );
    bench.receive_stream((1 << 31) + (1 << 20));
    let before = bench.mib.beyond_window;
    bench.answers(". 3000000000:3000000000(0) ack 1");
    assert_eq!(bench.mib.beyond_window, before + 1);
}

/// Data behind a FIN comes from a faulty peer or from a second one, and is not kept.
#[test]
fn data_after_the_fin_is_dropped() {
    for late in [false, true] {
        let mut bench = Bench::warmed_up(&plain());
        let behind = "< . 3601:4601(1000) ack 1
                      > . 1:1(0) ack 1601";
        let end = "< F. 2601:2601(0) ack 1
                   > . 1:1(0) ack 1601";
        let (first, second) = if late { (end, behind) } else { (behind, end) };
        bench.play(first).play(second);
        bench.play(
            "< . 1601:2601(1000) ack 1
             > . 1:1(0) ack 2602 <>
             read 1000",
        );
        assert_eq!(bench.conn.truesize(), 0);
    }
}

#[test]
fn a_fin_inside_received_data_is_ignored() {
    Bench::warmed_up(&plain()).play(
        "< . 2601:4601(2000) ack 1
         > . 1:1(0) ack 1601
         < F. 3001:3001(0) ack 1
         > . 1:1(0) ack 1601
         < . 1601:2601(1000) ack 1
         > . 1:1(0) ack 4601
         < P. 4601:4701(100) ack 1
         > . 1:1(0) ack 4701
         < F. 4701:4701(0) ack 1
         state = CloseWait
         +40ms
         > . 1:1(0) ack 4702",
    );
}

/// `SO_RCVLOWAT` is the number of bytes that suffice.
#[test]
fn a_reader_is_woken_by_exactly_the_low_water_mark() {
    Bench::established(&Setup::default()).play(
        "set rcvlowat 1000
         readable = false
         < P. 1:1000(999) ack 1
         > . 1:1(0) ack 1000
         wakes =
         readable = false
         < P. 1000:1001(1) ack 1
         > . 1:1(0) ack 1001
         wakes = read
         readable = true",
    );
}
