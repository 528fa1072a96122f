//! The tables of two shards, the second of which requests its neighbours from the first.

use super::*;
use crate::ip::neighbour::{MessageContent, REACHABLE, Resolution};

struct Shards {
    first: Rig,
    second: Rig,
}

impl Shards {
    fn new() -> Self {
        let mut second = Rig::new();
        second.neighbours.set_shard(1);
        Self {
            first: Rig::new(),
            second,
        }
    }

    fn set_time(&mut self, now: Instant) {
        (self.first.now, self.second.now) = (now, now);
    }

    /// Passes messages and their answers on. Returns the frames and events of the second shard.
    fn pass_on(&mut self, out: &NeighbourActions) -> Vec<String> {
        let mut lines = Vec::new();
        for (_, message) in &out.messages {
            let mut out = NeighbourActions::default();
            match *message {
                MessageContent::Request(request) => {
                    let Rig { neighbours, now } = &mut self.first;
                    neighbours.on_request(*now, &request, &mut out);
                    lines.extend(self.pass_on(&out));
                }
                MessageContent::Update {
                    neighbour,
                    resolution,
                } => {
                    let Rig { neighbours, now } = &mut self.second;
                    neighbours.on_update(*now, neighbour, resolution, &mut out);
                    lines.extend(show(&out));
                }
                MessageContent::Detected { .. } => panic!("no address is tentative"),
            }
        }
        lines
    }

    /// Sends a packet of the second shard. Returns its frames and events.
    fn send(&mut self, n: u8, to: &str) -> Vec<String> {
        let out = self.second.on_send(n, to);
        let mut lines = show(&out);
        lines.extend(self.pass_on(&out));
        lines
    }

    /// Runs the timers of the second shard. Returns its frames and events.
    fn poll_second(&mut self) -> Vec<String> {
        let out = self.second.on_poll();
        let mut lines = show(&out);
        lines.extend(self.pass_on(&out));
        lines
    }

    /// Resolves 10.0.0.2 for a packet of the first shard.
    fn resolve_first(&mut self) {
        assert_eq!(self.first.send(1, "10.0.0.2"), [REQUEST]);
        assert_eq!(
            self.first.arp(Reply, ("10.0.0.2", THEIRS), "10.0.0.1"),
            ["02:00:00:00:00:02 packet 1", "changed"]
        );
    }

    /// Receives an advertisement of fd00::2 from `mac`, which does not replace another address. Returns
    /// the frames and events of the second shard.
    fn advertise(&mut self, mac: Mac) -> Vec<String> {
        let message = NdpRepr::NeighbourAdvert {
            target: ip6("fd00::2"),
            router: false,
            solicited: true,
            override_cache: false,
            target_mac: Some(mac),
        };
        let header = (ip6("fd00::2"), ip6("fd00::1"), 255);
        let mut out = NeighbourActions::default();
        let Rig { neighbours, now } = &mut self.first;
        neighbours.on_ndp(*now, header, &message, is_ours, &mut out);
        self.pass_on(&out)
    }
}

#[test]
fn a_neighbour_is_reachable_for_the_same_time_on_all_shards() {
    let mut shards = Shards::new();
    shards.resolve_first();
    let until = shards.first.now + REACHABLE;
    shards.set_time(shards.first.now + Nanos::from_secs(29));
    assert_eq!(
        shards.send(2, "10.0.0.2"),
        ["02:00:00:00:00:02 packet 2", "changed"]
    );
    shards.set_time(until);
    let mut out = NeighbourActions::default();
    shards.first.neighbours.poll(until, &mut out);
    assert_eq!(shards.poll_second(), ["changed"], "stale");
    // Its use begins to confirm it.
    assert_eq!(shards.send(3, "10.0.0.2"), ["02:00:00:00:00:02 packet 3"]);
    shards.set_time(until + Nanos::from_secs(5));
    let probe = shards.second.on_poll();
    let [(_, MessageContent::Request(request))] = probe.messages[..] else {
        panic!("{probe:?}");
    };
    let mut out = NeighbourActions::default();
    let Rig { neighbours, now } = &mut shards.first;
    neighbours.on_request(*now, &request, &mut out);
    assert_eq!(show(&out), [PROBE]);
}

#[test]
fn a_claim_of_the_address_is_a_doubt_on_all_shards() {
    let mut shards = Shards::new();
    assert_eq!(shards.send(1, "fd00::2"), NONE);
    let resolved = ["02:00:00:00:00:02 packet 1", "changed"];
    assert_eq!(shards.advertise(THEIRS), resolved);
    assert_eq!(shards.advertise(OTHER), ["changed"]);
    // Further claims change nothing.
    assert_eq!(shards.advertise(OTHER), NONE);
    assert_eq!(shards.send(2, "fd00::2"), ["02:00:00:00:00:02 packet 2"]);
    assert_eq!(shards.second.wait().0, 1000, "a timer without effects");
    let next = shards.second.neighbours.deadline();
    assert_eq!(next, shards.first.now + Nanos::from_secs(5));
}

/// Unauthenticated hosts cause requests for neighbours that do not exist, e.g. by SYNs with their
/// addresses.
#[test]
fn requests_of_other_shards_do_not_remove_a_confirmed_neighbour() {
    let mut shards = Shards::new();
    shards.resolve_first();
    for n in 0..2 * MAX_ENTRIES {
        shards.set_time(shards.first.now + Nanos::from_micros(1));
        // Packets wait for every neighbour in the table of one shard, and then in that of another.
        if n == MAX_ENTRIES {
            let now = shards.second.now;
            shards.second = Rig::new();
            shards.second.neighbours.set_shard(2);
            shards.second.now = now;
        }
        shards.send(1, &format!("10.1.{}.{}", n >> 8, n & 0xff));
    }
    let entries = &shards.first.neighbours.entries;
    assert!(entries.len() <= MAX_ENTRIES && entries.len() > MAX_ENTRIES * 9 / 10);
    assert!(entries.contains_key(&ip("10.0.0.2")));
}

/// An entry that was removed to make room is requested again, and a late report of that is ignored.
#[test]
fn a_forgotten_neighbour_is_resolved_again() {
    let mut shards = Shards::new();
    shards.resolve_first();
    shards.send(2, "10.0.0.2");
    let forget = |second: &mut Rig| {
        let mut out = NeighbourActions::default();
        let Rig { neighbours, now } = second;
        neighbours.on_update(*now, ip("10.0.0.2"), Resolution::Forgotten, &mut out);
        show(&out)
    };
    assert_eq!(forget(&mut shards.second), ["changed"]);
    let request = shards.second.on_send(3, "10.0.0.2");
    assert_eq!(forget(&mut shards.second), NONE);
    assert_eq!(
        shards.pass_on(&request),
        ["02:00:00:00:00:02 packet 3", "changed"]
    );
}

#[test]
fn the_first_shard_has_room_for_the_neighbours_of_all() {
    let mut shards = Shards::new();
    // Room for 64 neighbours on each of four shards.
    for table in [&mut shards.first, &mut shards.second] {
        table.neighbours.limit_memory(256 << 10);
    }
    shards.first.neighbours.resolve_for(4);
    for n in 0..64 {
        shards.first.send(1, &format!("10.1.0.{n}"));
        shards.send(1, &format!("10.1.1.{n}"));
    }
    let lens = [&shards.first, &shards.second].map(|table| table.neighbours.entries.len());
    assert_eq!(lens, [128, 64]);
    shards.first.neighbours.resolve_for(1000);
    assert_eq!(shards.first.neighbours.max_entries, MAX_ENTRIES);
}
