//! Small writes that are appended to queued data without a call of the whole send path.

use super::super::properties::{Kind, World};
use super::{Blocked, Connection, Extended};
use crate::connection::State;

const MSS: usize = 1460;

/// Returns a connection with 100 bytes queued in a chunk of 512 bytes, held back by `blocked`.
fn waiting(blocked: Blocked) -> World {
    let mut world = World::new(Kind::default());
    world.queue(100, 65_160);
    world.with(|conn, cx| conn.sync_size_goal(cx));
    world.conn.snd.blocked = blocked;
    world
}

impl World {
    fn extend(&mut self, len: usize) -> Extended {
        let text = alloc::vec![7; len];
        self.conn.extend(&self.sysctl, &text)
    }
}

/// The reason for which data is held back decides whether more data changes anything.
#[test]
fn a_write_joins_what_waits_for_something_else() {
    for (blocked, done) in [
        (Blocked::No, Extended::No),
        (Blocked::Defer, Extended::No),
        (Blocked::Nagle, Extended::Held),
        (Blocked::Cwnd, Extended::Held),
        (Blocked::Rwnd, Extended::Held),
        (Blocked::Pacing, Extended::Held),
        (Blocked::Tsq, Extended::Held),
        (Blocked::Burst, Extended::Held),
        // No completion is awaited.
        (Blocked::Autocork, Extended::No),
    ] {
        let mut world = waiting(blocked);
        let before = world.conn.snd.pushed;
        assert_eq!(world.extend(50), done, "{blocked:?}");
        let snd = &world.conn.snd;
        let held = done == Extended::Held;
        let len = if held { 150 } else { 100 };
        assert_eq!(snd.queue.len(), len, "{blocked:?}");
        let pushed = if held { snd.write_seq() } else { before };
        assert_eq!(snd.pushed, pushed, "PSH where the writer pauses");
        assert!(!world.conn.wants_transmit());
    }
}

/// Nagle's algorithm holds back less than a segment only.
#[test]
fn a_write_that_fills_a_segment_does_not_wait_for_nagle() {
    for (len, done) in [(MSS - 1001, Extended::Held), (MSS - 1000, Extended::No)] {
        let mut world = waiting(Blocked::Nagle);
        world.conn.snd.queue.clear();
        world.queue(1000, 65_160);
        assert_eq!(world.extend(len), done, "{len}");
    }
}

#[test]
fn a_write_that_needs_more_than_room_is_not_an_extension() {
    // The states in which the application may write.
    for state in [State::Established, State::CloseWait] {
        let mut world = waiting(Blocked::Cwnd);
        world.conn.state = state;
        assert_eq!(world.extend(50), Extended::Held);
        world.conn.snd.more = true;
        assert_eq!(world.extend(50), Extended::No, "MSG_MORE ends");
    }
    let mut world = waiting(Blocked::Cwnd);
    world.conn.state = State::FinWait1;
    assert_eq!(world.extend(50), Extended::No, "the write reports an error");

    let mut world = World::new(Kind::with_congestion("bbr"));
    world.queue(100, 65_160);
    world.conn.snd.blocked = Blocked::Cwnd;
    assert_eq!(world.extend(50), Extended::No, "a pause limits the rate");
    // The open chunk and the super-segment limit the length.
    let mut world = waiting(Blocked::Cwnd);
    assert_eq!(world.extend(413), Extended::No);
    world.conn.snd.size_goal = 149;
    assert_eq!(world.extend(50), Extended::No);
    assert_eq!(world.extend(49), Extended::Held);
}

/// Spec 2: autocorking holds data while the device has at least the memory of its super-segment: a
/// chunk of 512 bytes for 100 bytes, and 256 for the super-segment.
#[test]
fn an_autocorked_unit_that_outgrows_the_device_goes() {
    for (in_host, done) in [(768, Extended::Held), (767, Extended::Sendable)] {
        let mut world = waiting(Blocked::Cwnd);
        world.with(Connection::transmit).expect("a segment");
        world.queue(100, 65_160);
        let snd = &mut world.conn.snd;
        (snd.blocked, snd.throttled) = (Blocked::Autocork, true);
        snd.wmem_inflight = in_host;
        world.conn.out.any = false;
        assert_eq!(world.extend(50), done, "{in_host}");
        let held = done == Extended::Held;
        assert_eq!(world.conn.wants_transmit(), !held);
        let blocked = if held { Blocked::Autocork } else { Blocked::No };
        assert_eq!(world.conn.snd.blocked, blocked);
    }
}

/// Data held by Nagle's algorithm causes an attempt to send only if a full segment, or the end of
/// `MSG_MORE`, may release it.
#[test]
fn a_write_that_nagle_holds_asks_for_no_segment() {
    for (queued, more_before, more, asks) in [
        (100, false, false, false),
        (100, false, true, false),
        (100, true, true, false),
        (100, true, false, true),
        (MSS - 1, false, false, false),
        (MSS, false, false, true),
    ] {
        let mut world = World::new(Kind::default());
        world.queue(queued, 65_160);
        world.conn.out.any = false;
        (world.conn.snd.blocked, world.conn.snd.more) = (Blocked::Nagle, more_before);
        world.with(|conn, cx| conn.after_write(cx, more));
        assert_eq!(
            world.conn.wants_transmit(),
            asks,
            "{queued}, {more_before}, {more}"
        );
    }
}

/// A record's end releases the record once more data follows, and not at the end of the queue.
#[test]
fn data_behind_a_records_end_lets_the_record_go() {
    let mut world = World::new(Kind::default());
    world.queue(100, 65_160);
    world.conn.end_record();
    world.conn.snd.blocked = Blocked::Nagle;
    world.conn.out.any = false;
    world.with(|conn, cx| conn.after_write(cx, false));
    assert!(!world.conn.wants_transmit());
    world.queue(1, 65_160);
    world.with(|conn, cx| conn.after_write(cx, false));
    assert!(world.conn.wants_transmit());
}

/// Spec 2: `TCPAutoCorking` counts each beginning of a wait; full super-segments before the held
/// one may be sent.
#[test]
fn autocorking_lets_full_units_ahead_go() {
    let mut world = World::new(Kind::default());
    world.queue(MSS, 65_160);
    world.with(Connection::transmit).expect("a segment");
    (world.conn.snd.wmem_inflight, world.conn.out.any) = (100_000, false);
    world.conn.snd.size_goal = 2 * MSS as u32;
    world.queue(100, 2 * MSS);
    for _ in 0..2 {
        world.with(Connection::push);
        assert_eq!(world.conn.snd.blocked, Blocked::Autocork);
        assert!(!world.conn.wants_transmit());
        assert_eq!(world.mib.auto_corking, 1);
    }
    world.queue(2 * MSS, 2 * MSS);
    for _ in 0..2 {
        world.with(Connection::push);
        assert!(world.conn.wants_transmit());
    }
}
