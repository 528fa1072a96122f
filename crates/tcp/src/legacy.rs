//! Historical behaviours, for the laboratory that shows what replaced them. Off unless a host is
//! built with the feature `legacy` and told so.

/// Which of the old rules are in force. The default is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Legacy {
    /// The last transmit unit is always cut at a multiple of the segment size (Linux before 3.14).
    pub split_tail: bool,
    /// From the first retransmission on no call sends more than five segments (illumos before
    /// bug 5295).
    pub max_burst: bool,
    /// A waiting writer is woken by every ACK that makes any room (Linux before 5.0).
    pub pollout_on_every_ack: bool,
}
