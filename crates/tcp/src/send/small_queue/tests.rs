//! The limits of TCP Small Queues and of autocorking, exact to the byte (spec 2).

use fullsend_units::Rate;

use super::super::pacing::Pacing;
use super::super::properties::{Kind, World};
use super::{Connection, Handout};

const MSS: u32 = 1460;

/// Returns a connection with `units` super-segments of one segment in flight, and this limit in
/// bytes.
fn in_flight(units: usize, limit_output_bytes: u32) -> World {
    let mut world = World::new(Kind::default());
    for _ in 0..units {
        world.queue(MSS as usize, 65_160);
        world.with(Connection::transmit).expect("a segment");
    }
    assert_eq!(world.conn.snd.rtx.units(), units);
    world.sysctl.tcp_limit_output_bytes = limit_output_bytes;
    world
}

/// Returns the least number of bytes in the host's queues that holds back `len` bytes more.
fn least(world: &mut World, len: u32, what: Handout) -> Option<u32> {
    (0..100_000).find(|&n| {
        world.conn.snd.wmem_inflight = n;
        world.with(|conn, cx| conn.small_queue_holds(cx, len, what))
    })
}

/// The limit is the memory of two super-segments, or the bytes of 2^-10 s at the pacing rate if
/// these are more. Only where nothing is paced it is at most `tcp_limit_output_bytes`.
#[test]
fn the_limit_is_two_units_or_a_millisecond_of_the_rate() {
    let paced = |world: &mut World, rate| {
        world.conn.snd.pacing = Some(alloc::boxed::Box::new(Pacing::new(Rate(rate))));
    };
    let mut world = in_flight(2, 4_000_000);
    paced(&mut world, 1024 * 3511);
    assert_eq!(least(&mut world, 1500, Handout::First), Some(3512));
    paced(&mut world, 1024 * 3513);
    assert_eq!(least(&mut world, 1500, Handout::First), Some(3513));
    world.sysctl.tcp_limit_output_bytes = 3000;
    assert_eq!(least(&mut world, 1500, Handout::First), Some(3513));
    // No round trip was measured, so the rate is unlimited.
    world.conn.snd.pacing = None;
    assert_eq!(least(&mut world, 1500, Handout::First), Some(3000));
    // At a high rate more than two super-segments are allowed.
    world.sysctl.tcp_limit_output_bytes = 50_000;
    assert_eq!(least(&mut world, 1500, Handout::First), Some(50_000));
}

#[test]
fn retransmissions_may_have_twice_as_much_with_the_host() {
    let mut world = in_flight(2, 3000);
    assert_eq!(least(&mut world, 1500, Handout::Retransmission), Some(6000));
}

/// With at most one super-segment in flight an ACK could arrive before the completion and find
/// nothing to send. With nothing in the host's queues there is no completion to wait for.
#[test]
fn one_unit_in_flight_or_nothing_with_the_host_holds_nothing() {
    for (units, held_at) in [(0, None), (1, None), (2, Some(1)), (3, Some(1))] {
        let mut world = in_flight(units, 0);
        assert_eq!(least(&mut world, 1500, Handout::First), held_at, "{units}");
    }
}

/// `TCPSmallQueueThrottled` counts each time that a connection begins to wait.
#[test]
fn what_waits_is_counted_as_it_begins_to_wait() {
    let mut world = in_flight(2, 0);
    for _ in 0..2 {
        world.with(Connection::throttle);
        assert!(world.conn.snd.throttled);
        assert_eq!(world.mib.small_queue_throttled, 1);
    }
    // A completion ends the wait, but not that of a pure ACK, which is not charged.
    world.conn.snd.more = true;
    world.with(|conn, cx| conn.handle_tx_complete(cx, 0));
    assert!(world.conn.snd.throttled && world.conn.snd.more);
    let charge = world.conn.snd.wmem_inflight / 2;
    world.with(|conn, cx| conn.handle_tx_complete(cx, charge));
    assert!(!world.conn.snd.throttled && !world.conn.snd.more);
    assert_eq!(world.conn.snd.wmem_inflight, charge);
}

/// Autocorking holds a super-segment while the host has at least its memory and 256 bytes. A
/// super-segment that is not the first in the queue is counted by its length.
#[test]
fn autocorking_holds_while_the_host_has_as_much_as_the_unit() {
    let autocorks = |world: &mut World, in_host| {
        world.conn.snd.wmem_inflight = in_host;
        world.conn.autocorks(&world.sysctl)
    };
    let mut world = in_flight(1, 1 << 20);
    world.conn.snd.size_goal = 2920;
    assert!(!autocorks(&mut world, 100_000), "nothing is queued");
    world.queue(100, 2920);
    let unit = world.conn.snd.queue.truesize() as u32 + 256;
    assert!(autocorks(&mut world, unit));
    assert!(!autocorks(&mut world, unit - 1));
    world.sysctl.tcp_autocorking = false;
    assert!(!autocorks(&mut world, unit));
    world.sysctl.tcp_autocorking = true;
    world.queue(2920, 2920);
    assert_eq!(world.conn.snd.queue.tail_len(), 100);
    assert!(autocorks(&mut world, 356));
    assert!(!autocorks(&mut world, 355));
    world.conn.snd.size_goal = 101;
    assert!(autocorks(&mut world, 356));
    world.conn.snd.size_goal = 100;
    assert!(!autocorks(&mut world, 356), "the unit is full");
    world.conn.snd.size_goal = 2920;
    world.conn.snd.queue.end_unit();
    assert!(!autocorks(&mut world, 100_000), "a record ends");
    let mut world = in_flight(0, 1 << 20);
    world.queue(100, 2920);
    assert!(!autocorks(&mut world, 100_000), "no ACK is to come");
}
