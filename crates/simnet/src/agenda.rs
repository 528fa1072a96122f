//! The queue of the next event of each source, ordered by time.

use std::collections::{BTreeMap, BTreeSet};

use fullsend_wire::Instant;

use crate::topology::NodeId;

/// A source of events, which has at most one next event.
///
/// The order of the sources is that of events at the same instant: packets arrive before timers fire, so
/// that the ACK that stops a timer is processed first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Source {
    /// The next arrival at the far end of a link, in the direction from the end with index `from`.
    Link { link: usize, from: usize },
    /// The deadline of a host's stack.
    Stack(NodeId),
    /// The end of the current run.
    End,
}

/// The next event of each source.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    queue: BTreeSet<(Instant, Source)>,
    scheduled: BTreeMap<Source, Instant>,
}

impl Agenda {
    /// Sets the time of the next event of `source`; `None` if it has none.
    pub(crate) fn set(&mut self, source: Source, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.scheduled.insert(source, at),
            None => self.scheduled.remove(&source),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.queue.remove(&(before, source));
        }
        if let Some(at) = at {
            self.queue.insert((at, source));
        }
    }

    /// Returns the time of the next event.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Removes and returns the source of the next event if it is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Source> {
        let (_, source) = self.queue.first().copied().filter(|(at, _)| *at <= now)?;
        self.set(source, None);
        Some(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn events_come_by_time_and_then_by_source() {
        let mut agenda = Agenda::default();
        let link = Source::Link { link: 3, from: 0 };
        agenda.set(Source::Stack(NodeId(1)), Some(at(5)));
        agenda.set(link, Some(at(5)));
        agenda.set(Source::Stack(NodeId(0)), Some(at(9)));
        agenda.set(Source::Stack(NodeId(0)), Some(at(4)));
        agenda.set(Source::End, Some(at(1)));
        agenda.set(Source::End, None);
        assert_eq!(agenda.next_at(), Some(at(4)));
        assert_eq!(agenda.pop_due(at(3)), None);
        let due: Vec<_> = std::iter::from_fn(|| agenda.pop_due(at(5))).collect();
        let want = [Source::Stack(NodeId(0)), link, Source::Stack(NodeId(1))];
        assert_eq!(due, want);
        assert_eq!(agenda.next_at(), None);
    }
}
