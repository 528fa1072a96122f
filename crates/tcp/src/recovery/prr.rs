//! Proportional rate reduction: brings cwnd down to ssthresh over one round trip (RFC 9937).

/// The state of one reduction. All counts are segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prr {
    delivered: u32,
    out: u32,
    recover_fs: u32,
}

#[allow(
    unused_variables,
    clippy::needless_pass_by_value,
    reason = "bodies land next"
)]
impl Prr {
    /// Recovery (or an ECN reduction) begins with `recover_fs` segments in flight (RecoverFS).
    pub(crate) fn begin(recover_fs: u32) -> Self {
        todo!()
    }

    /// An ACK delivered `delivered` segments (cumulatively and selectively, DSACKs not);
    /// `in_flight` is counted after it. `safe`: it moved snd_una and marked nothing as lost.
    /// Returns the cwnd to use now; `force` one segment for the first fast retransmit.
    pub(crate) fn on_ack(
        &mut self,
        delivered: u32,
        in_flight: u32,
        ssthresh: u32,
        safe: bool,
        force: bool,
    ) -> u32 {
        todo!()
    }

    /// Segments were sent during the reduction, retransmissions included.
    pub(crate) fn on_sent(&mut self, segs: u32) {
        self.out = self.out.saturating_add(segs);
    }
}
