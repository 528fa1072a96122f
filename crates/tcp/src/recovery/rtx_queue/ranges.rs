//! Ordered sets of byte ranges, with operations in logarithmic time.

use alloc::collections::BTreeMap;

/// A position in the stream that never wraps.
pub(super) type Pos = u64;

/// Ranges that neither overlap nor touch.
#[derive(Debug, Default)]
pub(super) struct RangeSet {
    ends: BTreeMap<Pos, Pos>,
    /// Entries visited, for tests of the cost of operations.
    #[cfg(test)]
    pub(super) visited: core::cell::Cell<u64>,
}

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn clear(&mut self) {
        self.ends.clear();
    }

    /// Iterates over the ranges in order, from either end.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Pos, Pos)> {
        self.ends.iter().map(|(&start, &end)| {
            self.visit();
            (start, end)
        })
    }

    pub(super) fn first(&self) -> Option<(Pos, Pos)> {
        self.iter().next()
    }

    /// Returns the end of the highest range.
    pub(super) fn end(&self) -> Option<Pos> {
        self.iter().next_back().map(|(_, end)| end)
    }

    /// Returns the range that contains `pos`.
    pub(super) fn at(&self, pos: Pos) -> Option<(Pos, Pos)> {
        self.visit();
        let (&start, &end) = self.ends.range(..=pos).next_back()?;
        (pos < end).then_some((start, end))
    }

    /// Returns the start of the first range at or after `pos`.
    pub(super) fn next_start(&self, pos: Pos) -> Option<Pos> {
        self.visit();
        self.ends.range(pos..).next().map(|(&start, _)| start)
    }

    /// Adds a range. Calls `new` with each part that was not in the set.
    pub(super) fn insert(&mut self, start: Pos, end: Pos, mut new: impl FnMut(Pos, Pos)) {
        if start >= end {
            return;
        }
        let (mut from, mut to) = (start, end);
        let mut pos = start;
        if let Some((before, its_end)) = self.touching(start) {
            from = before;
            pos = its_end;
            to = to.max(its_end);
        }
        while pos <= end
            && let Some((&next, &next_end)) = self.ends.range(pos..=end).next()
        {
            self.visit();
            // Ranges do not touch, so there is a part between them.
            new(pos, next);
            self.ends.remove(&next);
            pos = next_end;
            to = to.max(next_end);
        }
        if pos < end {
            new(pos, end);
        }
        self.ends.insert(from, to);
    }

    /// Returns the range that contains `pos` or ends there.
    fn touching(&self, pos: Pos) -> Option<(Pos, Pos)> {
        self.visit();
        let (&start, &end) = self.ends.range(..=pos).next_back()?;
        (pos <= end).then_some((start, end))
    }

    /// Removes a range. Calls `removed` with each part that was in the set.
    pub(super) fn remove(&mut self, start: Pos, end: Pos, mut removed: impl FnMut(Pos, Pos)) {
        if start >= end {
            return;
        }
        if let Some((first, its_end)) = self.at(start) {
            removed(start, its_end.min(end));
            self.ends.remove(&first);
            if first < start {
                self.ends.insert(first, start);
            }
            if end < its_end {
                self.ends.insert(end, its_end);
            }
        }
        while let Some((&first, &its_end)) = self.ends.range(start..end).next() {
            self.visit();
            removed(first, its_end.min(end));
            self.ends.remove(&first);
            if end < its_end {
                self.ends.insert(end, its_end);
            }
        }
    }

    #[cfg(test)]
    fn visit(&self) {
        self.visited.set(self.visited.get() + 1);
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the version for tests counts")]
    const fn visit(&self) {}
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::RangeSet;

    fn ranges(set: &RangeSet) -> Vec<(u64, u64)> {
        set.iter().collect()
    }

    #[test]
    fn touching_ranges_become_one() {
        let mut set = RangeSet::default();
        let mut new = Vec::new();
        set.insert(10, 20, |a, b| new.push((a, b)));
        set.insert(30, 40, |a, b| new.push((a, b)));
        set.insert(20, 25, |a, b| new.push((a, b)));
        assert_eq!(ranges(&set), [(10, 25), (30, 40)]);
        set.insert(5, 35, |a, b| new.push((a, b)));
        assert_eq!(ranges(&set), [(5, 40)]);
        assert_eq!(new, [(10, 20), (30, 40), (20, 25), (5, 10), (25, 30)]);
        assert_eq!((set.at(39), set.at(40)), (Some((5, 40)), None));
    }

    #[test]
    fn no_empty_part_is_reported() {
        let mut set = RangeSet::default();
        let (mut new, mut removed) = (Vec::new(), Vec::new());
        set.insert(30, 40, |_, _| ());
        set.insert(5, 40, |a, b| new.push((a, b)));
        assert_eq!((new, ranges(&set)), (vec![(5, 30)], vec![(5, 40)]));
        set.remove(5, 15, |a, b| removed.push((a, b)));
        assert_eq!((removed, ranges(&set)), (vec![(5, 15)], vec![(15, 40)]));
    }

    proptest! {
        /// After any operations a set of ranges matches a set of numbers.
        #[test]
        fn is_a_set(ops in prop::collection::vec((any::<bool>(), 0..60u64, 0..20u64), 1..60)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (add, start, len) in ops {
                let end = start + len;
                let before: BTreeSet<u64> = model.clone();
                let mut reported = BTreeSet::new();
                if add {
                    set.insert(start, end, |a, b| reported.extend(a..b));
                    model.extend(start..end);
                    prop_assert_eq!(&reported, &model.difference(&before).copied().collect());
                } else {
                    set.remove(start, end, |a, b| reported.extend(a..b));
                    model.retain(|n| !(start..end).contains(n));
                    prop_assert_eq!(&reported, &before.difference(&model).copied().collect());
                }
                let all: BTreeSet<u64> = set.iter().flat_map(|(a, b)| a..b).collect();
                prop_assert_eq!(&all, &model);
                let runs = model.iter().filter(|n| **n == 0 || !model.contains(&(**n - 1))).count();
                prop_assert_eq!(set.len(), runs);
            }
        }
    }
}
