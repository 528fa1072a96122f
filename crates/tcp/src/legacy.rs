//! Historical behaviours, for the lab experiments that show what replaced them. Without the feature
//! `legacy` no rule is in force, and the hot path has no branch for one. The program `fullsend` contains
//! the lab, and so has the feature.

/// The set of historical rules in force; empty by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Legacy {
    /// Always cuts the last super-segment at a multiple of the segment size (Linux before 3.14).
    pub split_tail: bool,
    /// Sends at most five segments in each call from the first retransmission on (illumos before
    /// bug 5295).
    pub max_burst: bool,
    /// Wakes a waiting writer on every ACK that frees any space (Linux before 5.0).
    pub pollout_on_every_ack: bool,
}

impl Legacy {
    /// No historical rule.
    const NONE: Self = Self {
        split_tail: false,
        max_burst: false,
        pollout_on_every_ack: false,
    };

    /// Returns the rules in force: a constant, [`Self::NONE`], without the feature `legacy`.
    #[inline]
    pub(crate) const fn in_force(self) -> Self {
        if cfg!(feature = "legacy") {
            self
        } else {
            Self::NONE
        }
    }
}
