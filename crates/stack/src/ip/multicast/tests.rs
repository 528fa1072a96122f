use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_wire::igmp::RecordKind;
use fullsend_wire::{Instant, Nanos, Rng, Seed};

use super::{MAX_GROUPS, MAX_RECORDS, Multicast, Query, Report};
use crate::interface::LOOPBACK;

fn v4(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    Ipv4Addr::new(239, 1, high, low).into()
}

fn v6(n: u16) -> IpAddr {
    Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, n).into()
}

struct Rig {
    multicast: Multicast,
    rng: Rng,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        Self {
            multicast: Multicast::default(),
            rng: Rng::new(Seed::from_u64(5)),
            now: Instant::from_nanos(1_000_000_000),
        }
    }

    fn join(&mut self, group: IpAddr) -> Vec<Report> {
        let mut out = Vec::new();
        let joined = self
            .multicast
            .join(self.now, (0, group), &mut self.rng, &mut out);
        assert!(joined);
        out
    }

    fn leave(&mut self, group: IpAddr) -> Vec<Report> {
        let mut out = Vec::new();
        self.multicast
            .leave(self.now, (0, group), &mut self.rng, &mut out);
        out
    }

    fn query(&mut self, version: u8, v6: bool, group: Option<IpAddr>) {
        let query = Query {
            iface: 0,
            v6,
            version,
            group,
            max_response: Nanos::from_secs(10),
        };
        self.multicast.on_query(self.now, &query, &mut self.rng);
    }

    /// Runs for `span` and returns the reports sent.
    fn run(&mut self, span: Nanos) -> Vec<Report> {
        let end = self.now + span;
        let mut out = Vec::new();
        while self.multicast.deadline() <= end {
            let at = self.multicast.deadline();
            self.now = at;
            self.multicast.poll(at, &mut self.rng, &mut out);
        }
        self.now = end;
        out
    }
}

fn records(kind: RecordKind, groups: &[IpAddr]) -> Report {
    Report::Records {
        iface: 0,
        records: groups.iter().map(|group| (kind, *group)).collect(),
    }
}

fn old(version: u8, left: bool, group: IpAddr) -> Report {
    Report::Old {
        iface: 0,
        version,
        left,
        group,
    }
}

#[test]
fn joining_and_leaving_are_reported_twice() {
    for group in [v4(1), v6(1)] {
        let mut rig = Rig::new();
        assert_eq!(rig.join(group), [records(RecordKind::Joined, &[group])]);
        assert_eq!(rig.join(group), [], "the second socket");
        assert!(rig.multicast.is_member(0, group) && rig.multicast.is_member(LOOPBACK, group));
        assert!(!rig.multicast.is_member(1, group));
        let second = Nanos::from_secs(1);
        assert_eq!(rig.run(second), [records(RecordKind::Joined, &[group])]);
        assert_eq!(rig.run(second * 100), []);
        assert_eq!(rig.leave(group), []);
        assert_eq!(rig.leave(group), [records(RecordKind::Left, &[group])]);
        assert!(!rig.multicast.is_member(0, group));
        assert_eq!(rig.run(second), [records(RecordKind::Left, &[group])]);
        assert!(rig.multicast.groups.is_empty());
    }
}

#[test]
fn queries_are_answered_once_within_their_time() {
    for (family, groups) in [(false, [v4(1), v4(2)]), (true, [v6(1), v6(2)])] {
        let mut rig = Rig::new();
        for group in groups {
            rig.join(group);
        }
        rig.run(Nanos::from_secs(2));
        rig.query(3, family, None);
        rig.query(3, family, None);
        let all = rig.run(Nanos::from_secs(10));
        let Report::Records { records: found, .. } = &all[0] else {
            panic!("{all:?}");
        };
        assert!(all.len() == 1 && found.len() == 2, "{all:?}");
        rig.query(3, family, Some(groups[1]));
        rig.query(3, !family, None);
        let one = records(RecordKind::IsJoined, &groups[1..]);
        assert_eq!(rig.run(Nanos::from_secs(10)), [one]);
    }
}

#[test]
fn older_queriers_receive_their_version_for_a_while() {
    for (version, family, group) in [(2, false, v4(1)), (1, false, v4(1)), (2, true, v6(1))] {
        let mut rig = Rig::new();
        rig.query(version, family, None);
        let shown = if family { 1 } else { version };
        assert_eq!(rig.join(group), [old(shown, false, group)]);
        assert_eq!(rig.run(Nanos::from_secs(11)), [old(shown, false, group)]);
        rig.query(version, family, Some(group));
        assert_eq!(rig.run(Nanos::from_secs(11)), [old(shown, false, group)]);
        // The report of another host suppresses the answer.
        rig.query(version, family, None);
        rig.multicast.on_report(rig.now, 0, group);
        assert_eq!(rig.run(Nanos::from_secs(11)), []);
        let left = if version == 1 {
            vec![]
        } else {
            vec![old(shown, true, group)]
        };
        assert_eq!(rig.leave(group), left);
        assert!(rig.multicast.groups.is_empty());
        rig.run(Nanos::from_secs(260));
        assert_eq!(rig.join(group), [records(RecordKind::Joined, &[group])]);
    }
}

/// RFC 3590 4, RFC 3810 5.2.13.
#[test]
fn groups_are_reported_again_from_a_link_local_address() {
    let mut rig = Rig::new();
    for group in [v4(1), v6(1), v6(2), "ff02::1".parse().unwrap()] {
        rig.join(group);
    }
    rig.leave(v6(2));
    rig.run(Nanos::from_secs(20));
    rig.multicast.on_link_local(rig.now, 1);
    assert_eq!(rig.run(Nanos::from_secs(20)), [], "another interface");
    rig.multicast.on_link_local(rig.now, 0);
    for span in [Nanos::ZERO, Nanos::from_secs(20)] {
        assert_eq!(rig.run(span), [records(RecordKind::Joined, &[v6(1)])]);
    }
}

#[test]
fn groups_of_all_nodes_and_of_the_host_are_not_reported() {
    let mut rig = Rig::new();
    for group in ["224.0.0.1", "ff02::1", "ff01::7"] {
        let group: IpAddr = group.parse().unwrap();
        assert_eq!(rig.join(group), []);
        rig.query(3, group.is_ipv6(), None);
        assert_eq!(rig.run(Nanos::from_secs(20)), []);
        assert_eq!(rig.leave(group), []);
    }
    assert!(rig.multicast.groups.is_empty());
    assert!(rig.multicast.is_member(0, "ff02::1".parse().unwrap()));
}

#[test]
fn the_number_of_groups_and_of_records_is_bounded() {
    let mut rig = Rig::new();
    for n in 0..MAX_GROUPS as u16 {
        rig.join(v4(n));
    }
    let mut out = Vec::new();
    let joined = rig
        .multicast
        .join(rig.now, (0, v6(1)), &mut rig.rng, &mut out);
    assert!(!joined && out.is_empty());
    assert_eq!(rig.multicast.mib.refused, 1);
    // A group that has been left makes room even while it is still to be reported.
    rig.leave(v4(0));
    rig.join(v6(1));
    rig.run(Nanos::from_secs(2));
    rig.query(3, false, None);
    let reports = rig.run(Nanos::from_secs(10));
    let lens = reports.iter().map(|report| match report {
        Report::Records { records, .. } => records.len(),
        Report::Old { .. } => 0,
    });
    let lens: Vec<usize> = lens.collect();
    assert_eq!(lens.iter().sum::<usize>(), MAX_GROUPS - 1);
    assert!(lens.iter().all(|len| *len <= MAX_RECORDS), "{lens:?}");
}

/// RFC 3376 5.2: an answer that waits is not sent any more about a group that was left.
#[test]
fn a_group_that_was_left_is_not_reported_in_answer_to_a_query() {
    let mut rig = Rig::new();
    for n in 0..32 {
        rig.join(v4(n));
    }
    rig.run(Nanos::from_secs(2));
    for n in 0..32 {
        rig.query(3, false, Some(v4(n)));
        assert_eq!(rig.leave(v4(n)), [records(RecordKind::Left, &[v4(n)])]);
    }
    for report in rig.run(Nanos::from_secs(20)) {
        let Report::Records { records, .. } = report else {
            panic!("{report:?}");
        };
        assert!(records.iter().all(|(kind, _)| *kind == RecordKind::Left));
    }
    assert!(rig.multicast.groups.is_empty());
}
