//! Retransmissions, and their numbers in the host's queue.

use alloc::boxed::Box;

use fullsend_units::Rate;
use fullsend_wire::tcp::SackBlock;

use super::super::pacing::Pacing;
use super::super::properties::{Kind, World};
use super::{Blocked, Connection};
use crate::connection::Fin;

const MSS: u32 = 1460;

/// Returns a connection with `units` super-segments of one segment in flight.
fn in_flight(units: usize) -> World {
    let mut world = World::new(Kind::default());
    world.conn.settings.nodelay = true;
    for _ in 0..units {
        world.queue(MSS as usize, 65_160);
        world.with(Connection::transmit).expect("a segment");
    }
    world
}

/// Returns a connection with four segments in flight, the first of which is lost.
fn with_loss() -> World {
    let mut world = in_flight(4);
    let (left, right) = (world.conn.snd.una + MSS, world.conn.snd.nxt);
    world.acknowledge(world.conn.snd.una, &[SackBlock { left, right }]);
    assert!(world.conn.snd.rtx.has_lost());
    world
}

fn next_number(world: &World) -> Option<u16> {
    let flow = world.conn.snd.flow.as_ref();
    flow.map(|flow| flow.next_number())
}

/// A retransmission with data has its own number in the host's queue. A FIN without data is not
/// charged, so no completion counts it.
#[test]
fn copies_with_data_are_numbered() {
    let mut world = with_loss();
    world.conn.snd.wmem_inflight = 0;
    assert_eq!(next_number(&world), Some(5));
    let again = world.with(Connection::retransmission).expect("a copy");
    assert_eq!(
        (again.seq, again.payload.len()),
        (world.conn.snd.una, MSS as usize)
    );
    assert_eq!(next_number(&world), Some(6));

    let mut world = in_flight(2);
    world.conn.snd.wmem_inflight = 0;
    world.with(Connection::tail_probe).expect("a probe");
    assert_eq!(next_number(&world), Some(4));

    let mut world = in_flight(1);
    world.conn.snd.wmem_inflight = 0;
    world.conn.snd.fin = Fin::Queued;
    world.with(Connection::transmit).expect("a FIN");
    assert_eq!(next_number(&world), Some(2));
    let probe = world.with(Connection::tail_probe).expect("a FIN");
    assert!(probe.payload.is_empty());
    assert_eq!(next_number(&world), Some(2));
    world.acknowledge(world.conn.snd.una + MSS, &[]);
    world.conn.snd.rtx.mark_all_lost();
    let again = world.with(Connection::retransmission).expect("a FIN");
    assert!(again.payload.is_empty());
    assert_eq!(next_number(&world), Some(2));
}

/// Numbers are modulo 2^16, and a segment may be unacknowledged for longer: an empty host's queue
/// has no segment, whatever the numbers are.
#[test]
fn an_idle_host_has_no_copy() {
    let mut world = with_loss();
    let flow = world.conn.snd.flow.as_mut().expect("a flow");
    for _ in 0..40_000 {
        flow.on_completed();
    }
    assert!(flow.is_in_host(1));
    assert!(world.with(Connection::first_copy_is_in_host));
    world.conn.snd.wmem_inflight = 0;
    assert!(!world.with(Connection::first_copy_is_in_host));
}

/// Neither a retransmission nor a tail loss probe is sent before its departure time.
#[test]
fn copies_are_paced() {
    let paced = |mut world: World| {
        world.conn.snd.wmem_inflight = 0;
        world.conn.stats.data_segs_out = 10;
        world.conn.snd.pacing = Some(Box::new(Pacing::new(Rate(1000))));
        // An earlier segment of 1520 bytes takes 1.52 s.
        world.with(|conn, cx| conn.depart(cx, MSS, 1));
        world
    };
    let mut world = paced(with_loss());
    assert!(world.with(Connection::retransmission).is_none());
    let mut world = paced(in_flight(1));
    assert!(world.with(Connection::tail_probe).is_none());
}

/// cwnd limits retransmissions.
#[test]
fn copies_wait_for_cwnd() {
    let mut world = with_loss();
    world.conn.snd.wmem_inflight = 0;
    world.conn.cwnd.cwnd = world.conn.snd.rtx.in_flight();
    assert!(world.with(Connection::retransmission).is_none());
    world.conn.cwnd.cwnd += 1;
    assert!(world.with(Connection::retransmission).is_some());
}

/// RFC 8985 7.3: a probe with new data ends that data's wait for a window, but not autocorking,
/// which waits for a completion.
#[test]
fn a_probe_with_new_data_ends_its_wait() {
    for (blocked, then) in [
        (Blocked::Cwnd, Blocked::No),
        (Blocked::Autocork, Blocked::Autocork),
    ] {
        let mut world = in_flight(1);
        world.queue(100, 65_160);
        world.conn.snd.blocked = blocked;
        let probe = world.with(Connection::tail_probe).expect("a probe");
        assert_eq!(probe.payload.len(), 100);
        assert_eq!(world.conn.snd.blocked, then);
    }
}

/// An echo does not identify its retransmission: the TSval of an earlier one counts while another
/// one is in flight.
#[test]
fn the_lag_of_an_earlier_copy_counts_while_another_is_in_flight() {
    let mut world = in_flight(5);
    let (left, right) = (world.conn.snd.una + 2 * MSS, world.conn.snd.nxt);
    world.acknowledge(world.conn.snd.una, &[SackBlock { left, right }]);
    for (cwnd, lag) in [(1, 0), (2, 5)] {
        world.conn.snd.wmem_inflight = 0;
        world.conn.cwnd.cwnd = cwnd;
        world.conn.recovery.on_retransmit(0, 5, 0, false);
        world.with(Connection::retransmission).expect("a copy");
        assert_eq!(world.conn.snd.rtx.retrans_out(), cwnd);
        assert_eq!(world.conn.most_stamp_lag().as_millis(), lag);
    }
}
