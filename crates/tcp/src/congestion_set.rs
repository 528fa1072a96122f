//! The names of the congestion control algorithms, and sets of them.

use core::fmt;

/// The names of the built-in congestion controls.
pub const AVAILABLE: [&str; 4] = ["cubic", "reno", "bbr", "dctcp"];

/// A set of the available algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionSet(u8);

impl CongestionSet {
    /// The set of all algorithms.
    pub const ALL: Self = Self((1 << AVAILABLE.len()) - 1);

    /// Returns whether the set contains the algorithm called `name`.
    pub fn contains(self, name: &str) -> bool {
        let index = AVAILABLE.iter().position(|known| *known == name);
        index.is_some_and(|index| self.0 >> index & 1 != 0)
    }

    /// Parses names separated by spaces; returns `None` for an unknown name or an empty list.
    pub fn parse(text: &str) -> Option<Self> {
        let index = |name| AVAILABLE.iter().position(|known| *known == name);
        let mut names = text.split_whitespace();
        let set = names.try_fold(0, |set, name| Some(set | 1 << index(name)?));
        set.filter(|set| *set != 0).map(Self)
    }
}

impl fmt::Display for CongestionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = AVAILABLE.iter().filter(|name| self.contains(name));
        for (i, name) in names.enumerate() {
            let sep = if i == 0 { "" } else { " " };
            write!(f, "{sep}{name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::CongestionSet;

    #[test]
    fn sets_are_read_and_shown_by_name() {
        let set = CongestionSet::parse(" bbr  cubic").expect("known");
        assert!(set.contains("bbr") && set.contains("cubic") && !set.contains("reno"));
        assert_eq!(set.to_string(), "cubic bbr");
        assert_eq!(CongestionSet::ALL.to_string(), "cubic reno bbr dctcp");
        assert_eq!(CongestionSet::parse("vegas"), None);
        assert_eq!(CongestionSet::parse(""), None);
    }
}
