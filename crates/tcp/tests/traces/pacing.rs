//! Pacing: departure times that the connection keeps itself, or passes to fq.

use fullsend_tcp::SendLimit;
use fullsend_wire::{Instant, Nanos};

use crate::harness::{Bench, Setup};

#[test]
fn a_pacing_rate_spaces_departures() {
    let mut bench = Bench::established(&Setup::default());
    // 1460 bytes of payload and 60 of headers each millisecond. The first ten segments leave at
    // once, and the next ones follow at the times that these would have taken.
    bench.play(
        "set max_pacing_rate 1520000
         write 40000
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 14601
         +5ms
         > P. 14601:29201(14600) ack 1
         +10ms
         > P. 29201:40001(10800) ack 1",
    );
    let paced = bench.report().time(SendLimit::Pacing);
    assert_eq!(paced, Nanos::from_millis(15));
}

fn with_fq() -> Bench {
    let mut setup = Setup::without_probes();
    setup.device.fq = true;
    Bench::established(&setup)
}

/// Returns the microseconds until the next segment's departure, and its length.
fn next_departure(bench: &mut Bench) -> (u64, usize) {
    let segment = bench.next_out().expect("a segment");
    let wait = segment.departure.since(bench.now());
    assert!(segment.departure >= bench.now());
    (wait.as_micros(), segment.payload.len())
}

/// With fq segments have the departure times of `a_pacing_rate_spaces_departures`, and the
/// connection holds none back.
#[test]
fn each_super_segment_has_a_departure_time_for_fq() {
    let mut bench = with_fq();
    bench.play("set max_pacing_rate 1520000");
    assert!(bench.try_write(40_000));
    assert_eq!(next_departure(&mut bench), (0, 7300));
    assert_eq!(next_departure(&mut bench), (0, 7300));
    bench.acknowledge(14_601);
    assert_eq!(next_departure(&mut bench), (5_000, 14_600));
    assert_eq!(next_departure(&mut bench), (15_000, 10_800));
    assert_eq!(bench.report().time(SendLimit::Pacing), Nanos::ZERO);
}

#[test]
fn rtt_is_measured_from_the_departure() {
    let mut bench = with_fq();
    bench.play("set max_pacing_rate 1520000");
    assert!(bench.try_write(29_200));
    while bench.next_out().is_some() {}
    bench.acknowledge(14_601);
    let (wait, len) = next_departure(&mut bench);
    assert_eq!((wait, len), (5_000, 14_600));
    bench.advance(Nanos::from_millis(25));
    bench.acknowledge(29_201);
    // 25 ms less 5 ms in the queue; an eighth of it enters the smoothed round trip.
    assert_eq!(bench.info().tcpi_rtt, 20_000 / 8);
}

#[test]
fn a_pure_ack_is_not_paced() {
    let mut bench = with_fq();
    bench.play("set max_pacing_rate 1520000");
    assert!(bench.try_write(14_600));
    while bench.next_out().is_some() {}
    bench.deliver_data(1, 100);
    let ack = bench.next_out().expect("an ACK");
    assert_eq!((ack.payload.len(), ack.departure), (0, Instant::ZERO));
}

/// Every flow through fq is paced at 120 or 200 percent of cwnd per round trip.
#[test]
fn fq_paces_by_cwnd_and_round_trip() {
    let mut bench = with_fq();
    assert!(bench.try_write(60_000));
    while bench.next_out().is_some() {}
    bench.advance(Nanos::from_millis(10));
    bench.acknowledge(14_601);
    let info = bench.info();
    let rtt = u64::from(info.tcpi_rtt);
    // In slow start at 200 percent.
    let expected = 2 * 1460 * u64::from(info.tcpi_snd_cwnd) * 1_000_000 / rtt;
    assert_eq!(info.tcpi_pacing_rate, expected);
    let mut ends = Vec::new();
    while let Some(segment) = bench.next_out() {
        ends.push((segment.departure.since(bench.now()), segment.payload.len()));
    }
    let wire = |len: usize| (len + 60 * len.div_ceil(1460)) as u64;
    for pair in ends.windows(2) {
        let gap = pair[1].0.saturating_sub(pair[0].0);
        let exact = wire(pair[0].1) * 1_000_000_000 / expected;
        assert!(gap.as_nanos() <= exact && 2 * gap.as_nanos() >= exact - 1);
    }
    assert!(ends.len() > 1);
}

/// The retransmission timer starts at the departure of the segment that it covers.
#[test]
fn rto_starts_at_the_departure_of_a_paced_segment() {
    let mut bench = with_fq();
    bench.play("set max_pacing_rate 15200");
    assert!(bench.try_write(29_200));
    while bench.next_out().is_some() {}
    bench.acknowledge(14_601);
    // A tenth of a second for each segment.
    let (wait, _) = next_departure(&mut bench);
    assert_eq!(wait, 500_000);
    bench.advance(Nanos::from_millis(650));
    assert_eq!(bench.mib.timeouts, 0);
}
