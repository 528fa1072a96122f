//! The multicast groups that the host's sockets have joined, and when they are reported to routers
//! and switches (RFC 3376, RFC 3810, and for older queriers RFC 1112, RFC 2236 and RFC 2710).

use alloc::vec::Vec;
use core::net::IpAddr;

use fullsend_wire::igmp::RecordKind;
use fullsend_wire::{Instant, Nanos, Rng};

use crate::interface::LOOPBACK;

/// Most groups on all interfaces together, those included that have just been left.
pub(crate) const MAX_GROUPS: usize = 256;
/// Most records in one report: those of IPv6 fit the smallest MTU of 1280 bytes.
pub(super) const MAX_RECORDS: usize = 60;
/// Number of repetitions of a report that no query requested: the robustness variable less one (RFC
/// 3376 8.1).
const REPEATS: u8 = 1;
/// Longest time until a report of the current version is repeated (RFC 3376 8.11).
const REPEAT_WITHIN: Nanos = Nanos::from_secs(1);
/// Longest time until a report of an older version is repeated (RFC 2236 8.10).
const REPEAT_OLD_WITHIN: Nanos = Nanos::from_secs(10);
/// Time that an older version is used after a query of it: twice the default query interval, and ten
/// seconds to respond (RFC 3376 8.12).
const OLDER_QUERIER_PRESENT: Nanos = Nanos::from_secs(260);

fullsend_wire::counters! {
    /// Multicast groups.
    pub(crate) struct MulticastMib {
        /// IGMP and MLD queries received.
        queries: "FullsendMcastQueriesReceived",
        /// IGMP and MLD reports sent.
        reports: "FullsendMcastReportsSent",
        /// Groups that could not be joined as the table was full.
        refused: "FullsendMcastGroupsRefused",
        /// Multicast and broadcast datagrams that no socket wants.
        ignored: "UdpIgnoredMulti",
    }
}

/// A report for the host to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// A report of IGMPv3 or `MLDv2`, about groups of one family.
    Records {
        iface: u16,
        records: Vec<(RecordKind, IpAddr)>,
    },
    /// A report of an older version (1 or 2; 1 in IPv6): the group has been joined, or left.
    Old {
        iface: u16,
        version: u8,
        left: bool,
        group: IpAddr,
    },
}

/// A received query, whose fields are valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub(super) iface: u16,
    pub(super) v6: bool,
    /// 3 for `MLDv2` and 2 for `MLDv1`, as in IGMP.
    pub(super) version: u8,
    pub(super) group: Option<IpAddr>,
    pub(super) max_response: Nanos,
}

/// A group on an interface.
#[derive(Debug)]
struct Group {
    iface: u16,
    address: IpAddr,
    /// Number of sockets that have joined. With none, only the repetition of the report remains.
    members: u32,
    /// Times that joining or leaving is still to be reported.
    repeats: u8,
    change_at: Option<Instant>,
    /// The time at which a query is to be answered.
    answer_at: Option<Instant>,
}

impl Group {
    fn deadline(&self) -> Option<Instant> {
        [self.change_at, self.answer_at].into_iter().flatten().min()
    }

    /// Returns whether routers are interested in the group: not in that of all nodes, nor in groups
    /// that do not leave the host (RFC 3376 6, RFC 3810 6).
    const fn is_reported(&self) -> bool {
        match self.address {
            IpAddr::V4(group) => group.to_bits() != 0xe000_0001,
            IpAddr::V6(group) => {
                let scope = group.octets()[1] & 0xf;
                scope > 1 && !is_all_nodes_v6(group.to_bits())
            }
        }
    }
}

const fn is_all_nodes_v6(bits: u128) -> bool {
    bits == 0xff02_0000_0000_0000_0000_0000_0000_0001
}

/// Until when older versions are used on an interface.
#[derive(Debug)]
struct OldQuerier {
    iface: u16,
    v6: bool,
    v1_until: Instant,
    v2_until: Instant,
}

/// The joined groups of a host.
#[derive(Debug)]
pub(crate) struct Multicast {
    groups: Vec<Group>,
    /// The earliest deadline of the groups; the far future if there is none.
    next: Instant,
    /// Queriers of older versions, at most two for each interface.
    old_queriers: Vec<OldQuerier>,
    pub(crate) mib: MulticastMib,
}

impl Default for Multicast {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            next: Instant::FAR_FUTURE,
            old_queriers: Vec::new(),
            mib: MulticastMib::default(),
        }
    }
}

impl Multicast {
    /// Returns whether a socket has joined the group on the interface, or on any if the packet came
    /// over the loopback interface. Each host is a member of the group of all nodes.
    pub(crate) fn is_member(&self, iface: u16, address: IpAddr) -> bool {
        let all_nodes = match address {
            IpAddr::V4(address) => address.to_bits() == 0xe000_0001,
            IpAddr::V6(address) => is_all_nodes_v6(address.to_bits()),
        };
        let is_joined = |group: &Group| {
            group.address == address
                && group.members > 0
                && (iface == LOOPBACK || group.iface == iface)
        };
        all_nodes || self.groups.iter().any(is_joined)
    }

    /// Returns the version of IGMP to use on an interface; for IPv6, 3 means `MLDv2` and 2 `MLDv1`.
    fn version(&self, now: Instant, iface: u16, v6: bool) -> u8 {
        let mut known = self.old_queriers.iter();
        match known.find(|old| (old.iface, old.v6) == (iface, v6)) {
            Some(old) if now < old.v1_until => 1,
            Some(old) if now < old.v2_until => 2,
            _ => 3,
        }
    }

    fn position(&self, iface: u16, address: IpAddr) -> Option<usize> {
        let same = |group: &Group| group.iface == iface && group.address == address;
        self.groups.iter().position(same)
    }

    /// Adds a member to a group. Returns `false` if there are too many groups.
    pub(super) fn join(
        &mut self,
        now: Instant,
        (iface, address): (u16, IpAddr),
        rng: &mut Rng,
        out: &mut Vec<Report>,
    ) -> bool {
        let index = match self.position(iface, address) {
            Some(index) => index,
            None if self.make_room() => {
                self.groups.push(Group {
                    iface,
                    address,
                    members: 0,
                    repeats: 0,
                    change_at: None,
                    answer_at: None,
                });
                self.groups.len() - 1
            }
            None => {
                self.mib.refused += 1;
                return false;
            }
        };
        self.groups[index].members += 1;
        if self.groups[index].members == 1 {
            self.report_change(now, index, rng, out);
        }
        true
    }

    /// Removes a member from a group.
    pub(super) fn leave(
        &mut self,
        now: Instant,
        (iface, address): (u16, IpAddr),
        rng: &mut Rng,
        out: &mut Vec<Report>,
    ) {
        let Some(index) = self.position(iface, address) else {
            return;
        };
        let group = &mut self.groups[index];
        group.members = group.members.saturating_sub(1);
        if group.members == 0 {
            group.answer_at = None;
            self.report_change(now, index, rng, out);
        }
    }

    /// Makes room for a group, if necessary by removing one that was left.
    fn make_room(&mut self) -> bool {
        if self.groups.len() < MAX_GROUPS {
            return true;
        }
        let left = self.groups.iter().position(|group| group.members == 0);
        left.map(|index| self.groups.swap_remove(index)).is_some()
    }

    /// Reports at once that a group has been joined or left, and again after a random time. A group
    /// that was left is removed when nothing remains to be reported.
    fn report_change(&mut self, now: Instant, index: usize, rng: &mut Rng, out: &mut Vec<Report>) {
        let group = &self.groups[index];
        let version = self.version(now, group.iface, group.address.is_ipv6());
        let group = &mut self.groups[index];
        let left = group.members == 0;
        // Older versions report only once that a group was left, and version 1 does not at all.
        let repeats = if left && version < 3 { 0 } else { REPEATS };
        group.repeats = if group.is_reported() { repeats } else { 0 };
        if group.is_reported() {
            push_change(group, version, out);
        }
        self.schedule_repeat(now, index, version, rng);
        self.update_deadline();
    }

    fn schedule_repeat(&mut self, now: Instant, index: usize, version: u8, rng: &mut Rng) {
        let group = &mut self.groups[index];
        group.change_at = None;
        if group.repeats > 0 {
            let within = if version < 3 {
                REPEAT_OLD_WITHIN
            } else {
                REPEAT_WITHIN
            };
            group.change_at = Some(now + random_span(within, rng));
        } else if group.members == 0 {
            self.groups.swap_remove(index);
        }
    }

    /// Schedules the answers to a query.
    pub(super) fn on_query(&mut self, now: Instant, query: &Query, rng: &mut Rng) {
        self.mib.queries += 1;
        self.record_version(now, query);
        let old = self.version(now, query.iface, query.v6) < 3;
        let mut delay = random_span(query.max_response, rng);
        for group in &mut self.groups {
            let matches = group.iface == query.iface
                && group.address.is_ipv6() == query.v6
                && query.group.is_none_or(|address| address == group.address);
            if !matches || group.members == 0 || !group.is_reported() {
                continue;
            }
            // Answers of the current version share a report. Those of older versions are sent at
            // different times, so that one host's suppresses the others' (RFC 2236 3).
            if old {
                delay = random_span(query.max_response, rng);
            }
            let at = now + delay;
            group.answer_at = Some(group.answer_at.map_or(at, |pending| pending.min(at)));
        }
        self.update_deadline();
    }

    /// Records that a querier of an older version is present.
    fn record_version(&mut self, now: Instant, query: &Query) {
        if query.version >= 3 {
            return;
        }
        let key = (query.iface, query.v6);
        let mut known = self.old_queriers.iter();
        let index = known.position(|old| (old.iface, old.v6) == key);
        let index = index.unwrap_or_else(|| {
            self.old_queriers.push(OldQuerier {
                iface: query.iface,
                v6: query.v6,
                v1_until: Instant::ZERO,
                v2_until: Instant::ZERO,
            });
            self.old_queriers.len() - 1
        });
        let until = now + OLDER_QUERIER_PRESENT;
        let old = &mut self.old_queriers[index];
        if query.version == 1 {
            old.v1_until = until;
        } else {
            old.v2_until = until;
        }
    }

    /// Suppresses the answer about a group that another host has reported, which older versions do.
    pub(super) fn on_report(&mut self, now: Instant, iface: u16, address: IpAddr) {
        let old = self.version(now, iface, address.is_ipv6()) < 3;
        if old && let Some(index) = self.position(iface, address) {
            self.groups[index].answer_at = None;
            self.update_deadline();
        }
    }

    /// Reports the joined IPv6 groups of an interface again, as routers ignore reports that were sent
    /// before the interface had a valid link-local address (RFC 3590 4, RFC 3810 5.2.13).
    pub(super) fn on_link_local(&mut self, now: Instant, iface: u16) {
        for group in &mut self.groups {
            let is_ours = group.iface == iface && group.address.is_ipv6();
            if is_ours && group.members > 0 && group.is_reported() {
                group.repeats = REPEATS + 1;
                group.change_at = Some(now);
            }
        }
        self.update_deadline();
    }

    /// Appends the reports that are due.
    pub(super) fn poll(&mut self, now: Instant, rng: &mut Rng, out: &mut Vec<Report>) {
        if now < self.next {
            return;
        }
        for index in (0..self.groups.len()).rev() {
            let group = &self.groups[index];
            let version = self.version(now, group.iface, group.address.is_ipv6());
            let group = &mut self.groups[index];
            if group.answer_at.is_some_and(|at| at <= now) {
                group.answer_at = None;
                push_report(group, version, RecordKind::IsJoined, out);
            }
            if group.change_at.is_some_and(|at| at <= now) {
                group.repeats -= 1;
                push_change(group, version, out);
                self.schedule_repeat(now, index, version, rng);
            }
        }
        self.update_deadline();
    }

    /// Returns when [`poll`](Self::poll) must be called; the far future for never.
    #[inline]
    pub(super) const fn deadline(&self) -> Instant {
        self.next
    }

    /// Updates the deadline after a change of the groups' times.
    fn update_deadline(&mut self) {
        let deadlines = self.groups.iter().filter_map(Group::deadline);
        self.next = deadlines.min().unwrap_or(Instant::FAR_FUTURE);
    }
}

/// Appends a report that a group has been joined or left.
fn push_change(group: &Group, version: u8, out: &mut Vec<Report>) {
    let kind = if group.members == 0 {
        RecordKind::Left
    } else {
        RecordKind::Joined
    };
    // Version 1 does not report that a group was left.
    if version > 1 || kind == RecordKind::Joined {
        push_report(group, version, kind, out);
    }
}

/// Appends a report about a group, to one of the same interface and family that has room.
fn push_report(group: &Group, version: u8, kind: RecordKind, out: &mut Vec<Report>) {
    let &Group { iface, address, .. } = group;
    if version < 3 {
        return out.push(Report::Old {
            iface,
            version: if address.is_ipv6() { 1 } else { version },
            left: kind == RecordKind::Left,
            group: address,
        });
    }
    for report in &mut *out {
        if let Report::Records { iface: on, records } = report
            && *on == iface
            && records.len() < MAX_RECORDS
            && records[0].1.is_ipv6() == address.is_ipv6()
        {
            return records.push((kind, address));
        }
    }
    out.push(Report::Records {
        iface,
        records: alloc::vec![(kind, address)],
    });
}

/// Returns a random span of at most `most`.
const fn random_span(most: Nanos, rng: &mut Rng) -> Nanos {
    Nanos::from_nanos(rng.below(most.as_nanos().saturating_add(1)))
}

#[cfg(test)]
mod tests;
