//! Counters of retransmission timeouts (`tcpi_total_rto*`).

use fullsend_wire::Instant;

use super::Connection;

/// The counters of one connection.
#[derive(Debug, Default)]
pub(crate) struct RtoStats {
    /// Number of timeouts, and of recoveries that began with one.
    pub(super) total: u16,
    pub(super) recoveries: u16,
    /// Milliseconds spent in these recoveries.
    pub(super) time_ms: u32,
    since: Option<Instant>,
}

impl Connection {
    /// Returns the number of timeouts, of recoveries that began with one, and the milliseconds
    /// spent in them.
    pub(crate) fn rto_totals(&self, now: Instant) -> (u16, u16, u32) {
        let Some(RtoStats {
            total,
            recoveries,
            time_ms,
            since,
        }) = self.uncommon.as_ref().map(|uncommon| &uncommon.rto)
        else {
            return (0, 0, 0);
        };
        let now_ms = since.map_or(0, |since| now.since(since).as_millis() as u32);
        (*total, *recoveries, time_ms.saturating_add(now_ms))
    }

    /// Counts a timeout.
    #[cold]
    pub(super) fn count_rto(&mut self, now: Instant) {
        let first = self.timers.retransmits == 0;
        let rto = &mut self.uncommon_mut().rto;
        rto.total = rto.total.saturating_add(1);
        if first {
            rto.recoveries = rto.recoveries.saturating_add(1);
            rto.since = Some(now);
        }
    }

    /// Ends the recovery when data is acknowledged.
    #[cold]
    pub(super) fn end_rto_recovery(&mut self, now: Instant) {
        if let Some(uncommon) = &mut self.uncommon
            && let Some(since) = uncommon.rto.since.take()
        {
            let ms = now.since(since).as_millis() as u32;
            uncommon.rto.time_ms = uncommon.rto.time_ms.saturating_add(ms);
        }
    }
}
