//! Historical behaviours, for the lab experiments that show what replaced them. Off unless a host
//! is built with the feature `legacy` and enables them.

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
