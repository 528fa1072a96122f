//! An entry of the neighbour table, and its timer.

use core::net::IpAddr;

use fullsend_wire::Instant;
use fullsend_wire::ethernet::Mac;

use super::pending::PendingPackets;
use super::shards::{Resolution, ShardSet, Solicitor, report};
use super::{NeighbourActions, RETRANS};

/// Maximum number of solicitations (MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT).
const MAX_TRIES: u8 = 3;

/// The state of a neighbour (RFC 4861 7.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Solicited, with no answer yet.
    Incomplete { tries: u8, due: Instant },
    /// Confirmed recently.
    Reachable { until: Instant },
    /// Confirmed some time ago, and not used since.
    Stale,
    /// Used since it became stale; probed at `until` unless confirmed before.
    Delay { until: Instant },
    /// Probed with unicast solicitations.
    Probe { tries: u8, due: Instant },
}

impl State {
    /// Returns when the entry's timer fires, if it has one.
    pub(super) const fn due(self) -> Option<Instant> {
        match self {
            Self::Incomplete { due, .. } | Self::Probe { due, .. } => Some(due),
            Self::Reachable { until } | Self::Delay { until } => Some(until),
            Self::Stale => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct NeighbourEntry {
    pub(super) state: State,
    /// The hardware address, which is not valid while the state is `Incomplete`.
    pub(super) mac: Mac,
    /// The local address that solicitations are sent from.
    pub(super) source: IpAddr,
    pub(super) used: Instant,
    pub(super) pending: PendingPackets,
    /// The other shards that have requested the neighbour.
    pub(super) shards: ShardSet,
}

impl NeighbourEntry {
    /// Returns the rank of the entry when entries are removed to make room; the lowest are removed
    /// first. An entry that other shards have requested, e.g. to answer a SYN, may be of a host that does
    /// not exist, so confirmed ones rank higher.
    pub(super) fn rank(&self) -> (bool, bool, Instant) {
        let is_confirmed = matches!(
            self.state,
            State::Reachable { .. } | State::Delay { .. } | State::Probe { .. }
        );
        (is_confirmed, !self.shards.is_empty(), self.used)
    }

    /// Makes a reachable neighbour stale, so that its next use begins to confirm it. Paths with a cached
    /// link header resolve it again, which shows that it is still in use.
    pub(super) fn become_stale(&mut self, out: &mut NeighbourActions) {
        if matches!(self.state, State::Reachable { .. }) {
            self.state = State::Stale;
            out.changed = true;
        }
    }

    /// Runs the entry's timer if it is due. Returns `false` if the entry is to be removed.
    pub(super) fn on_timer(
        &mut self,
        now: Instant,
        neighbour: IpAddr,
        solicitor: Solicitor,
        out: &mut NeighbourActions,
    ) -> bool {
        if self.state.due().is_none_or(|due| now < due) {
            return true;
        }
        let due = now + RETRANS;
        match self.state {
            State::Incomplete { tries, .. } if tries < MAX_TRIES => {
                let tries = tries + 1;
                self.state = State::Incomplete { tries, due };
                solicitor.solicit(self.source, neighbour, None, out);
            }
            State::Incomplete { .. } => {
                out.unreachable.extend(self.pending.drain());
                report(self.shards, neighbour, Resolution::Unreachable, out);
                return false;
            }
            State::Reachable { .. } => self.become_stale(out),
            State::Delay { .. } => {
                self.state = State::Probe { tries: 1, due };
                solicitor.solicit(self.source, neighbour, Some(self.mac), out);
            }
            State::Probe { tries, .. } if tries < MAX_TRIES => {
                let tries = tries + 1;
                self.state = State::Probe { tries, due };
                solicitor.solicit(self.source, neighbour, Some(self.mac), out);
            }
            State::Probe { .. } => {
                out.changed = true;
                report(self.shards, neighbour, Resolution::Unreachable, out);
                return false;
            }
            State::Stale => {}
        }
        true
    }
}
