//! RACK's reordering window (RFC 8985 6.2 step 4), seen in when a hole is taken for lost.

use fullsend_units::Nanos;

use crate::harness::{Bench, Setup};

/// Segments of each flight: the least that cwnd ever admits.
const SEGS: u32 = 2;

/// A flow over 20 ms that has seen reordering, and what it has sent.
struct Flow {
    bench: Bench,
    /// The first byte that is not acknowledged.
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
        self.bench.pass(Nanos::from_millis(20));
    }

    /// Sends a flight whose first segment is overtaken. Returns for how long it is waited for, in
    /// milliseconds, before it is sent again.
    fn wait_for_overtaken(&mut self) -> u64 {
        self.send();
        let una = self.una;
        self.bench.play_in(&format!(
            ". 1:1(0) ack {una} <sack {}:{}>",
            una + 1460,
            una + SEGS * 1460
        ));
        let start = self.bench.now();
        assert!(self.bench.next_out().is_none(), "not at once");
        assert!(self.bench.next_timeout());
        let again = self.bench.next_out().expect("a retransmission");
        assert_eq!(Bench::relative(again.repr.seq), una);
        self.bench.now().since(start).as_millis()
    }

    /// The overtaken segment and its retransmission arrive; `dsack`: the peer says so.
    fn finish(&mut self, dsack: bool) {
        self.bench.pass(Nanos::from_millis(20));
        let (start, end) = (self.una, self.una + SEGS * 1460);
        self.bench.acknowledge(end);
        if dsack {
            let range = format!("sack {start}:{}", start + 1460);
            self.bench.play_in(&format!(". 1:1(0) ack {end} <{range}>"));
        }
        self.una = end;
        while self.bench.next_out().is_some() {}
    }
}

/// Each round trip with a DSACK widens the window by a quarter of the least round trip, 5 ms, up to
/// the smoothed round trip of 20 ms; timers fire 2 ms later.
#[test]
fn the_window_widens_with_dsacks_up_to_srtt() {
    let mut flow = Flow::new();
    let waits = [(); 6].map(|()| {
        let wait = flow.wait_for_overtaken();
        flow.finish(true);
        wait
    });
    assert_eq!(waits, [7, 12, 17, 22, 22, 22]);
}

/// The wider window lasts for sixteen recoveries without a DSACK.
#[test]
fn a_wider_window_lasts_for_sixteen_recoveries() {
    let mut flow = Flow::new();
    flow.wait_for_overtaken();
    flow.finish(true);
    for n in 0..16 {
        assert_eq!(flow.wait_for_overtaken(), 12, "recovery {n}");
        flow.finish(false);
    }
    assert_eq!(flow.wait_for_overtaken(), 7);
}
