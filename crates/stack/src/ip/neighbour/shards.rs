//! The neighbours of a stack with several shards. The first shard receives all ARP and Neighbour
//! Discovery messages, and resolves neighbours. The tables of the other shards run the same state
//! machine, with requests to the first shard in place of solicitations, and its updates in place of
//! advertisements. A message may be lost, as on a link: requests are repeated.

use core::net::{IpAddr, Ipv6Addr};

use fullsend_wire::Instant;
use fullsend_wire::ethernet::Mac;

use super::frames::FrameBuilder;
use super::{
    DELAY, DadResult, MAX_ENTRIES, NeighbourActions, NeighbourUpdate, Neighbours, RETRANS, State,
};

/// A message between the neighbour tables of a stack's shards, which
/// [`Host::take_neighbour_messages`](crate::Host::take_neighbour_messages) returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourMessage {
    pub(crate) iface: u16,
    pub(crate) content: MessageContent,
}

impl NeighbourMessage {
    /// Returns whether the message may be dropped when too many wait: its loss only delays a
    /// resolution. The others are as few as the addresses of the host.
    pub const fn may_be_lost(&self) -> bool {
        !matches!(self.content, MessageContent::Detected { .. })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MessageContent {
    /// A message to the first shard: another shard uses a neighbour.
    Request(ResolutionRequest),
    /// A message to the other shards: a neighbour changed at the first shard.
    Update {
        neighbour: IpAddr,
        resolution: Resolution,
    },
    /// A message to the other shards: the result of duplicate address detection.
    Detected {
        address: Ipv6Addr,
        result: DadResult,
    },
}

/// A report of the first shard about a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolution {
    Resolved {
        mac: Mac,
        /// The time until which the neighbour counts as reachable, if it was confirmed recently. The
        /// shards of a stack have one clock.
        reachable_until: Option<Instant>,
    },
    /// Another host has claimed the address, without replacing the neighbour.
    Doubtful,
    /// The neighbour did not answer.
    Unreachable,
    /// The entry was removed, to make room. A further change would not be reported.
    Forgotten,
}

/// A request of another shard to the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResolutionRequest {
    /// The index of the shard.
    shard: usize,
    neighbour: IpAddr,
    /// The local address to send solicitations from.
    source: IpAddr,
    /// Whether the shard has the hardware address, and needs to know that it is still valid.
    confirm: bool,
}

/// A set of shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ShardSet(u64);

impl ShardSet {
    /// The first shard.
    const FIRST: Self = Self(1);

    /// Returns the set of all of `shards` shards but the first.
    pub(crate) const fn all_but_first(shards: usize) -> Self {
        let all = match shards {
            0..64 => (1 << shards) - 1,
            _ => u64::MAX,
        };
        Self(all & !Self::FIRST.0)
    }

    /// Adds a shard. Its index is below 64.
    fn insert(&mut self, shard: usize) {
        self.0 |= 1 << shard;
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the indices of the shards.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |shard| self.0 & 1 << shard != 0)
    }
}

/// Sends solicitations: as frames, or as requests of the shard `requester` to the first shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Solicitor {
    pub(super) frames: FrameBuilder,
    pub(super) requester: Option<usize>,
}

impl Solicitor {
    /// Sends a solicitation for `neighbour`, whose hardware address may be `known`.
    pub(super) fn solicit(
        self,
        source: IpAddr,
        neighbour: IpAddr,
        known: Option<Mac>,
        out: &mut NeighbourActions,
    ) {
        let Some(shard) = self.requester else {
            out.frames
                .push(self.frames.solicit(source, neighbour, known));
            return;
        };
        let request = ResolutionRequest {
            shard,
            neighbour,
            source,
            confirm: known.is_some(),
        };
        out.messages
            .push((ShardSet::FIRST, MessageContent::Request(request)));
    }
}

/// Reports a change of a neighbour at the first shard to `shards`.
pub(super) fn report(
    shards: ShardSet,
    neighbour: IpAddr,
    resolution: Resolution,
    out: &mut NeighbourActions,
) {
    if !shards.is_empty() {
        let update = MessageContent::Update {
            neighbour,
            resolution,
        };
        out.messages.push((shards, update));
    }
}

impl Neighbours {
    /// Makes the table that of shard `index`, which is not the first, of a stack with several.
    pub(crate) const fn set_shard(&mut self, index: usize) {
        self.solicitor.requester = Some(index);
    }

    /// Makes the table that of the first of `shards` shards, which has the neighbours of all, up to the
    /// limit of a stack without limited memory. Call it after [`limit_memory`](Self::limit_memory).
    pub(crate) fn resolve_for(&mut self, shards: usize) {
        self.max_entries = self.max_entries.saturating_mul(shards).min(MAX_ENTRIES);
    }

    /// Makes [`poll`](Self::poll) due, as the caller has messages to pass on.
    pub(crate) fn poll_soon(&mut self, now: Instant) {
        self.next = self.next.min(now);
    }

    /// Processes the request of another shard, as a use of the neighbour by this host.
    pub(crate) fn on_request(
        &mut self,
        now: Instant,
        request: &ResolutionRequest,
        out: &mut NeighbourActions,
    ) {
        let ResolutionRequest {
            shard,
            neighbour,
            source,
            confirm,
        } = *request;
        if !self.entries.contains_key(&neighbour)
            && !self.begin_resolution(now, (source, neighbour), out)
        {
            return;
        }
        let solicitor = self.solicitor;
        let Some(entry) = self.entries.get_mut(&neighbour) else {
            return;
        };
        entry.shards.insert(shard);
        entry.used = now;
        let due = now + RETRANS;
        match entry.state {
            State::Stale | State::Delay { .. } if confirm => {
                // The other shard has waited already.
                entry.state = State::Probe { tries: 1, due };
                solicitor.solicit(entry.source, neighbour, Some(entry.mac), out);
            }
            State::Stale => entry.state = State::Delay { until: now + DELAY },
            _ => {}
        }
        if let Some(due) = entry.state.due() {
            self.next = self.next.min(due);
        }
        let reachable_until = match entry.state {
            State::Reachable { until } => Some(until),
            _ => None,
        };
        let is_known = !matches!(entry.state, State::Incomplete { .. });
        if reachable_until.is_some() || is_known && !confirm {
            let resolution = Resolution::Resolved {
                mac: entry.mac,
                reachable_until,
            };
            let mut shards = ShardSet::default();
            shards.insert(shard);
            report(shards, neighbour, resolution, out);
        }
    }

    /// Processes an update from the first shard. It creates no entry.
    pub(crate) fn on_update(
        &mut self,
        now: Instant,
        neighbour: IpAddr,
        resolution: Resolution,
        out: &mut NeighbourActions,
    ) {
        if let Resolution::Resolved {
            mac,
            reachable_until,
        } = resolution
        {
            let update = NeighbourUpdate {
                mac: Some(mac),
                reachable_until,
                may_replace: true,
                create: false,
            };
            // An existing entry keeps its source.
            return self.update_entry(now, neighbour, neighbour, &update, out);
        }
        let Some(entry) = self.entries.get_mut(&neighbour) else {
            return;
        };
        if resolution == Resolution::Doubtful {
            return entry.become_stale(out);
        }
        let is_incomplete = matches!(entry.state, State::Incomplete { .. });
        if is_incomplete && resolution == Resolution::Forgotten {
            // A request is on its way, or will be repeated.
            return;
        }
        self.pending_bytes -= entry.pending.bytes();
        out.unreachable.extend(entry.pending.drain());
        out.changed = true;
        self.entries.remove(&neighbour);
    }
}
