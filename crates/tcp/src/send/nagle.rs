//! Nagle's algorithm in Minshall's form, and corking (RFC 9293 3.7.4, RFC 896).

use fullsend_wire::SeqNum;

/// The inputs of the decision whether a partial segment waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Nagle {
    /// `TCP_NODELAY`.
    pub(crate) off: bool,
    /// `TCP_CORK`, or `MSG_MORE` on the last write.
    pub(crate) cork: bool,
    /// Data is in flight.
    pub(crate) in_flight: bool,
    /// A small segment is in flight ([`small_outstanding`]).
    pub(crate) small_out: bool,
}

impl Nagle {
    /// Returns whether a segment must wait; `partial`: it is not full.
    #[inline]
    pub(crate) fn holds(self, partial: bool) -> bool {
        partial && (self.cork || (!self.off && self.in_flight && self.small_out))
    }
}

/// Returns whether the last short segment sent is not acknowledged yet (Minshall).
#[inline]
pub(crate) fn small_outstanding(una: SeqNum, sml: SeqNum, nxt: SeqNum) -> bool {
    una.before(sml) && sml.before_eq(nxt)
}

#[cfg(test)]
mod tests {
    use fullsend_wire::SeqNum;

    use super::{Nagle, small_outstanding};

    const QUIET: Nagle = Nagle {
        off: false,
        cork: false,
        in_flight: false,
        small_out: false,
    };

    #[test]
    fn partial_segment_waits_only_for_a_small_segment() {
        let mut busy = QUIET;
        busy.in_flight = true;
        assert!(!busy.holds(true), "full segments in flight do not hold");
        busy.small_out = true;
        assert!(busy.holds(true));
        assert!(!busy.holds(false));
        busy.off = true;
        assert!(!busy.holds(true));
        busy.cork = true;
        assert!(busy.holds(true), "a cork holds with NODELAY too");
        assert!(!QUIET.holds(true));
    }

    #[test]
    fn small_is_outstanding_until_acknowledged() {
        let at = |n: u32| SeqNum::new(u32::MAX - 5) + n;
        assert!(small_outstanding(at(0), at(10), at(10)));
        assert!(!small_outstanding(at(10), at(10), at(10)));
        assert!(!small_outstanding(at(12), at(10), at(20)));
    }
}
