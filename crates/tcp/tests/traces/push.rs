//! PSH, and when a writer may write and is woken (spec 1.9 and 3).

use crate::harness::{Bench, Setup};

/// Returns a setup without super-segments, so that their number does not force PSH. The peer's
/// largest window is two segments, half of it one.
fn small_window() -> Setup {
    let mut setup = Setup {
        peer_window: 2920,
        wscale: None,
        ..Setup::default()
    };
    setup.device.gso_max_segs = 1;
    setup
}

/// Spec 1.9: PSH is forced when more than half of the largest window was written since the last
/// one.
#[test]
fn more_than_half_of_the_largest_window_forces_psh() {
    Bench::established(&small_window()).play(
        "set nodelay 1
         write 1460 more = 1460
         # Exactly half.
         > . 1:1461(1460) ack 1
         write 1460 more = 1460
         > P. 1461:2921(1460) ack 1
         < . 1:1(0) ack 2921
         # Counted from the last PSH.
         write 1460 more = 1460
         > . 2921:4381(1460) ack 1
         write 1 more = 1
         write 1459 more = 1459
         > P. 4381:5841(1460) ack 1",
    );
}

/// Spec 3: a new super-segment is begun while less than `TCP_NOTSENT_LOWAT` is unsent, and not at
/// exactly that amount.
#[test]
fn no_super_segment_is_started_at_notsent_lowat() {
    let mut setup = Setup::default();
    // Super-segments of two segments.
    setup.device.gso_max_segs = 2;
    let mut bench = Bench::established(&setup);
    bench.play(
        "set sndbuf 1000000
         set notsent_lowat 5840",
    );
    for _ in 0..5 {
        assert!(bench.try_write(2920));
        assert_eq!(bench.next_out().map(|s| s.payload.len()), Some(2920));
    }
    bench.play(
        "write 2920
         write 2920
         write 1 = WouldBlock
         set notsent_lowat 5841
         write 1
         # The unit that was begun may be filled.
         write 2919
         write 1 = WouldBlock",
    );
}

/// Spec 3: a writer is woken at `2 * notsent < lowat`, exact to the byte. By the rule of Linux
/// before 5.10 it would be woken as soon as it may write again.
#[test]
fn a_writer_is_woken_below_half_of_notsent_lowat() {
    let mut bench = Bench::established(&Setup::default());
    bench.play("set sndbuf 1000000");
    assert!(bench.try_write(14_600));
    while bench.next_out().is_some() {}
    assert!(bench.try_write(1000));
    let unsent = bench.info().tcpi_notsent_bytes;
    assert_eq!(unsent, 1000);
    bench.play("set notsent_lowat 1000\nwritable = false\nwakes = ");
    for lowat in 1001..=2000 {
        bench.play(&format!(
            "set notsent_lowat {lowat}\nwakes = \nwritable = false"
        ));
    }
    bench.play("set notsent_lowat 2001\nwakes = write\nwritable = true");
}

/// Spec 3: the send buffer grows only while less than cwnd is in flight.
#[test]
fn the_send_buffer_does_not_grow_while_the_window_is_full() {
    let mut setup = Setup::without_probes();
    setup.sysctl.tcp_wmem[2] = 200_000;
    let mut bench = Bench::established(&setup);
    bench.play("set nodelay 1");
    while bench.info().tcpi_snd_cwnd < 60 {
        bench.fill();
        while bench.next_out().is_some() {}
        let sent = bench.sent();
        bench.acknowledge(sent);
    }
    bench.fill();
    while bench.next_out().is_some() {}
    let una = bench.info().tcpi_bytes_acked as u32 + 1;
    let at = |segs: u32| una + segs * 1460;
    // Every second of the first twelve segments is lost and retransmitted. RFC 9937 allows seven
    // segments for ten that are delivered, so that after three ACKs of ten cwnd equals the data in
    // flight.
    for n in (1..12).step_by(2) {
        let range = format!("sack {}:{}", at(n), at(n + 1));
        bench.deliver(&format!(". 1:1(0) ack {una} <{range}>"));
        while bench.next_out().is_some() {}
    }
    let (mut full, mut roomy) = (0, 0);
    for hole in (2..=12).step_by(2) {
        bench.fill();
        let before = bench.conn.memory().sndbuf as u32;
        bench.setup_mut().sysctl.tcp_wmem[2] = before + 4096;
        bench.acknowledge(at(hole));
        let info = bench.info();
        let in_flight = info.tcpi_unacked - info.tcpi_sacked - info.tcpi_lost + info.tcpi_retrans;
        let grown = bench.conn.memory().sndbuf as u32 - before;
        if in_flight < info.tcpi_snd_cwnd {
            roomy += 1;
            assert_eq!(grown, 4096, "{in_flight} of {}", info.tcpi_snd_cwnd);
        } else {
            full += 1;
            assert_eq!(grown, 0, "{in_flight} of {}", info.tcpi_snd_cwnd);
        }
        while bench.next_out().is_some() {}
    }
    assert!(full > 0 && roomy > 0, "{full} full, {roomy} not");
}
