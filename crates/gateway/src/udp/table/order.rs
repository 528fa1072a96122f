//! The order in which flows end.

use std::collections::VecDeque;
use std::mem::discriminant;
use std::time::Duration;

use fullsend_device::PortId;
use tokio::time::Instant;

use super::Table;
use crate::udp::flow::{FlowKey, UdpFlow};

/// Idle time after which a flow without an answer ends, at least two minutes (RFC 4787 4.3, REQ-5).
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Idle time after which a flow with datagrams in both directions ends.
const ANSWERED_TIMEOUT: Duration = Duration::from_secs(3 * 60);

/// The flows that share a bound.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// Flows that a guest has opened.
    OfGuest(Option<PortId>),
    /// Flows that other hosts have opened to a guest, which has not answered yet.
    OfRemotes(Option<PortId>),
    /// Flows of the host's clients of all forwards.
    Forwarded,
    /// Those of them that have a socket in the guest's namespace.
    Spliced,
}

/// An entry of a flow in the order of use.
struct QueueEntry {
    key: FlowKey,
    id: u64,
    /// The time of the flow's last use when the entry was queued.
    used: Instant,
}

/// The order of use of the flows of one kind, and their number.
///
/// Each flow has one entry in one of two queues, ordered by the times of last use. A use changes only the
/// flow; its entry moves when it reaches the front, so that each call takes constant amortised time. The
/// entry of a flow that has ended or changed its kind stays until then, or until there are as many such
/// entries as others.
#[derive(Default)]
pub(super) struct Order {
    unanswered: VecDeque<QueueEntry>,
    answered: VecDeque<QueueEntry>,
    len: usize,
}

impl Order {
    const fn queue(&mut self, answered: bool) -> &mut VecDeque<QueueEntry> {
        if answered {
            &mut self.answered
        } else {
            &mut self.unanswered
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.unanswered.len() + self.answered.len()
    }

    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

/// Most entries of ended flows that may stay in addition to as many as there are flows.
const ENDED_MAX: usize = 64;

impl Table {
    /// Queues a flow of a kind. Returns the number of its entry.
    pub(super) fn enqueue(&mut self, kind: Kind, flow: &UdpFlow) -> u64 {
        self.last_id += 1;
        let (key, id, used) = (flow.key, self.last_id, flow.last_used());
        let order = self.orders.entry(kind).or_default();
        if order.queued() >= 2 * order.len + ENDED_MAX {
            // Entries of ended flows behind that of an idle flow would stay until it ends.
            let flows = &self.flows;
            let exists = |entry: &QueueEntry| {
                flows
                    .get(&entry.key)
                    .is_some_and(|flow| flow.id == entry.id)
            };
            order.unanswered.retain(exists);
            order.answered.retain(exists);
        }
        order
            .queue(flow.is_answered())
            .push_back(QueueEntry { key, id, used });
        order.len += 1;
        id
    }

    /// Removes one flow from the number of a kind.
    pub(super) fn forget(&mut self, kind: Kind) {
        if let Some(order) = self.orders.get_mut(&kind) {
            order.len -= 1;
            if order.len == 0 {
                self.orders.remove(&kind);
            }
        }
    }

    /// Returns the kind of which a flow must end before one of `kind` is added, or `None` if there is
    /// room. If all guests together have too many, it is that of the guest with the most.
    pub(super) fn full_kind(&self, kind: Kind, share: usize) -> Option<Kind> {
        let len_of = |kind| self.orders.get(&kind).map_or(0, |order| order.len);
        let len = len_of(kind);
        if matches!(kind, Kind::Forwarded | Kind::Spliced) {
            let (forwarded, spliced) = (len_of(Kind::Forwarded), len_of(Kind::Spliced));
            return if kind == Kind::Spliced && spliced >= self.bounds.spliced {
                Some(kind)
            } else if forwarded + spliced < self.bounds.forwarded {
                None
            } else if spliced > forwarded {
                Some(Kind::Spliced)
            } else {
                Some(Kind::Forwarded)
            };
        }
        if len >= share {
            return Some(kind);
        }
        let is_alike = |other: &Kind| discriminant(other) == discriminant(&kind);
        let alike = || self.orders.iter().filter(|(other, _)| is_alike(other));
        let all: usize = alike().map(|(_, order)| order.len).sum();
        if all < self.bounds.flows {
            return None;
        }
        let largest = alike().max_by_key(|(_, order)| order.len);
        largest.map(|(kind, _)| *kind)
    }

    /// Ends the flows whose idle time has exceeded their timeout.
    pub(in crate::udp) fn expire(&mut self, now: Instant) {
        let timeouts = [(false, UNANSWERED_TIMEOUT), (true, ANSWERED_TIMEOUT)];
        let kinds: Vec<_> = self.orders.keys().copied().collect();
        for kind in kinds {
            for (answered, timeout) in timeouts {
                while let Some(key) = self.front(kind, answered)
                    && self.idle_time(&key, now) >= timeout
                {
                    self.remove_front(kind, answered, &key);
                }
            }
        }
    }

    /// Ends the least recently used flow, one without an answer if there is any. Returns whether there
    /// was a flow.
    pub(super) fn remove_least_recently_used(&mut self, kind: Kind) -> bool {
        for answered in [false, true] {
            if let Some(key) = self.front(kind, answered) {
                self.remove_front(kind, answered, &key);
                return true;
            }
        }
        false
    }

    /// Ends the flow that [`front`](Self::front) has returned.
    fn remove_front(&mut self, kind: Kind, answered: bool, key: &FlowKey) {
        if let Some(order) = self.orders.get_mut(&kind) {
            order.queue(answered).pop_front();
        }
        self.remove(key);
    }

    fn idle_time(&self, key: &FlowKey, now: Instant) -> Duration {
        let flow = self.flows.get(key);
        flow.map_or(Duration::MAX, |entry| now - entry.flow.last_used())
    }

    /// Returns the least recently used flow of a queue, after moving the entries before it that were used
    /// since, or that belong in the other queue.
    fn front(&mut self, kind: Kind, answered: bool) -> Option<FlowKey> {
        let order = self.orders.get_mut(&kind)?;
        loop {
            let front = order.queue(answered).front()?;
            let (key, id, used) = (front.key, front.id, front.used);
            let current = self.flows.get(&key).filter(|entry| entry.id == id);
            let state = current.map(|entry| (entry.flow.last_used(), entry.flow.is_answered()));
            match state {
                Some((last_used, is_answered)) if last_used == used && is_answered == answered => {
                    return Some(key);
                }
                Some((used, is_answered)) => {
                    order.queue(answered).pop_front();
                    let entry = QueueEntry { key, id, used };
                    order.queue(is_answered).push_back(entry);
                }
                // The flow has ended.
                None => {
                    order.queue(answered).pop_front();
                }
            }
        }
    }
}
