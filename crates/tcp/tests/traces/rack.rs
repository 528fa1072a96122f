//! RACK's reordering window (RFC 8985 6.2 step 4), observed as the time until a hole is marked
//! lost.

use fullsend_wire::Nanos;

use crate::harness::{Bench, Setup};

/// Segments of each flight: the least that cwnd allows.
const SEGS: u32 = 2;

/// A flow over a path of 20 ms that has shown reordering.
struct Flow {
    bench: Bench,
    /// The first unacknowledged byte.
    una: u32,
}

impl Flow {
    fn new() -> Self {
        let mut setup = Setup::without_probes();
        setup.sysctl.tcp_min_tso_segs = 100;
        let mut bench = Bench::accepting(&setup);
        bench.play(
            "> S. 0:0(0) ack 1
             +20ms
             < . 1:1(0) ack 1
             set nodelay 1
             write 14600
             > P. 1:7301(7300) ack 1
             > P. 7301:14601(7300) ack 1
             +20ms
             < . 1:1(0) ack 1 <sack 7301:8761>
             < . 1:1(0) ack 1 <sack 1461:2921,sack 7301:8761>
             < . 1:1(0) ack 14601",
        );
        assert!(bench.info().tcpi_reord_seen > 0);
        Self { bench, una: 14_601 }
    }

    /// Sends a flight and lets a round trip pass.
    fn send(&mut self) {
        assert!(self.bench.try_write(SEGS as usize * 1460));
        while self.bench.next_out().is_some() {}
        self.bench.advance(Nanos::from_millis(20));
    }

    /// Sends a flight whose first segment is overtaken. Returns the milliseconds until that is
    /// retransmitted.
    fn time_to_retransmit_overtaken(&mut self) -> u64 {
        self.send();
        let una = self.una;
        self.bench.deliver(&format!(
            ". 1:1(0) ack {una} <sack {}:{}>",
            una + 1460,
            una + SEGS * 1460
        ));
        let start = self.bench.now();
        assert!(self.bench.next_out().is_none(), "not at once");
        assert!(self.bench.run_next_timer());
        let again = self.bench.next_out().expect("a retransmission");
        assert_eq!(Bench::relative(again.repr.seq), una);
        self.bench.now().since(start).as_millis()
    }

    /// Delivers the overtaken segment and its retransmission, which the peer reports by a DSACK if
    /// `dsack`.
    fn finish(&mut self, dsack: bool) {
        self.bench.advance(Nanos::from_millis(20));
        let (start, end) = (self.una, self.una + SEGS * 1460);
        self.bench.acknowledge(end);
        if dsack {
            let range = format!("sack {start}:{}", start + 1460);
            self.bench.deliver(&format!(". 1:1(0) ack {end} <{range}>"));
        }
        self.una = end;
        while self.bench.next_out().is_some() {}
    }
}

/// Each round trip with a DSACK widens the window by a quarter of the least round trip, 5 ms, up to
/// the smoothed round trip of 20 ms; timers have a margin of 2 ms.
#[test]
fn the_reordering_window_widens_with_dsacks_up_to_srtt() {
    let mut flow = Flow::new();
    let waits = [(); 6].map(|()| {
        let wait = flow.time_to_retransmit_overtaken();
        flow.finish(true);
        wait
    });
    assert_eq!(waits, [7, 12, 17, 22, 22, 22]);
}

/// The window stays wider for sixteen recoveries without a DSACK.
#[test]
fn a_wider_reordering_window_lasts_for_sixteen_recoveries() {
    let mut flow = Flow::new();
    flow.time_to_retransmit_overtaken();
    flow.finish(true);
    for n in 0..16 {
        assert_eq!(flow.time_to_retransmit_overtaken(), 12, "recovery {n}");
        flow.finish(false);
    }
    assert_eq!(flow.time_to_retransmit_overtaken(), 7);
}

/// RFC 8985 6.2 step 2 takes the round trip from the segment delivered last. On a path that
/// reorders that segment may have overtaken all others, so the smoothed round trip is used (RFC
/// 9002 6.1.2).
#[test]
fn a_segment_that_overtakes_does_not_shorten_rack_rtt_after_reordering() {
    let wait = |bench: &mut Bench, una: u32| {
        assert!(bench.try_write(SEGS as usize * 1460));
        while bench.next_out().is_some() {}
        bench.advance(Nanos::from_millis(5));
        let range = format!("sack {}:{}", una + 1460, una + SEGS * 1460);
        bench.deliver(&format!(". 1:1(0) ack {una} <{range}>"));
        let start = bench.now();
        assert!(bench.next_out().is_none() && bench.run_next_timer());
        assert!(bench.next_out().is_some());
        bench.now().since(start).as_micros()
    };
    let mut flow = Flow::new();
    // 18.125 ms of srtt and 5 ms of reordering window, less the 5 ms that have passed, and a margin
    // of 2 ms.
    assert_eq!(wait(&mut flow.bench, flow.una), 20_125);
    let mut setup = Setup::without_probes();
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::accepting(&setup);
    bench.play("> S. 0:0(0) ack 1\n+20ms\n< . 1:1(0) ack 1\nset nodelay 1");
    // 5 ms of round trip, 5 ms of reordering window and 2 ms of margin, less the 5 ms that have
    // passed.
    assert_eq!(wait(&mut bench, 1), 7000);
}

/// If the window was widened after the timer was set (here by the sysctl), the timer is set again
/// when it fires, and nothing is marked lost before that.
#[test]
fn a_reordering_timer_that_fires_early_is_rearmed() {
    let mut flow = Flow::new();
    flow.time_to_retransmit_overtaken();
    flow.finish(true);
    flow.send();
    // RACK with a window that does not adapt.
    flow.bench.setup_mut().sysctl.tcp_recovery = 3;
    let una = flow.una;
    let block = format!("sack {}:{}", una + 1460, una + SEGS * 1460);
    flow.bench.deliver(&format!(". 1:1(0) ack {una} <{block}>"));
    flow.bench.setup_mut().sysctl.tcp_recovery = 1;
    let (start, before) = (flow.bench.now(), flow.bench.mib.sack_recovery);
    assert!(flow.bench.run_next_timer() && flow.bench.next_out().is_none());
    assert_eq!(flow.bench.now().since(start).as_millis(), 7);
    assert_eq!(flow.bench.mib.sack_recovery, before);
    assert!(flow.bench.run_next_timer() && flow.bench.next_out().is_some());
    assert_eq!(flow.bench.now().since(start).as_millis(), 12);
    assert_eq!(flow.bench.mib.sack_recovery, before + 1);
}

/// RFC 8985 6.2 step 5: segments sent before a retransmission that was delivered are lost. This
/// includes the end of the flight, behind which nothing was SACKed.
#[test]
fn a_lost_tail_is_retransmitted_after_a_retransmission_is_acked() {
    let mut setup = Setup::without_probes();
    setup.sysctl.tcp_min_tso_segs = 100;
    Bench::accepting(&setup).play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1
         write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         +20ms
         < . 1:1(0) ack 1 <sack 1461:13141>
         > . 1:1461(1460) ack 1
         +20ms
         < . 1:1(0) ack 13141
         > P. 13141:14601(1460) ack 1",
    );
}

/// The reordering timer is kept when the last mark of the scoreboard is gone. An ACK of a part of
/// the overtaken data sets it again, by that ACK's round trip of 24 ms and a quarter of the least
/// one.
#[test]
fn segments_overtaken_by_a_retransmission_wait_for_the_reordering_timer() {
    let mut setup = Setup::without_probes();
    setup.sysctl.tcp_min_tso_segs = 100;
    Bench::accepting(&setup).play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1
         write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         +20ms
         < . 1:1(0) ack 1 <sack 1461:5841>
         > . 1:1461(1460) ack 1
         write 2920
         < . 1:1(0) ack 1 <sack 1461:8761>
         > P. 14601:17521(2920) ack 1
         +3ms
         < . 1:1(0) ack 1 <sack 10221:14601,sack 1461:8761>
         > . 8761:10221(1460) ack 1
         +20ms
         < . 1:1(0) ack 14601
         +1ms
         < . 1:1(0) ack 16061
         +7ms
         > P. 16061:17521(1460) ack 1",
    );
}
