//! The words for the reason why a flow is waiting.

use fullsend::SendLimit;

use crate::tcp::Stage;

/// The word of a direction that waits for nothing.
pub(super) const NONE: &str = "-";

/// The limit of the stack's connection to the guest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GuestLimit {
    /// The limit that last stopped the connection.
    pub(super) limit: Option<SendLimit>,
    /// Bytes that were written to the connection and not sent.
    pub(super) unsent: u64,
}

impl GuestLimit {
    fn word(self) -> &'static str {
        match self.limit {
            Some(SendLimit::Rwnd) => "guest-window",
            Some(SendLimit::Cwnd) => "cwnd",
            Some(SendLimit::Pacing) => "pacing",
            Some(SendLimit::Tsq | SendLimit::Size | SendLimit::Autocork) => "device",
            // The limit is the application, Nagle's algorithm, a cork, or unknown.
            Some(_) | None => "sndbuf",
        }
    }
}

/// Returns the word for the direction from the guest to the host.
pub(super) const fn tx(stage: Stage) -> &'static str {
    match stage {
        Stage::Connecting => "connecting",
        Stage::Handshake => "handshake",
        Stage::Data => "guest-idle",
        Stage::RateLimit => "rate-limit",
        Stage::Room => "host-full",
        Stage::Ended => "closed",
    }
}

/// Returns the word for the direction from the host to the guest.
pub(super) fn rx(stage: Stage, limit: GuestLimit) -> &'static str {
    match stage {
        Stage::Room => limit.word(),
        // The relay waits for the host, but the guest has not received all of its data.
        Stage::Data | Stage::Ended if limit.unsent > 0 => limit.word(),
        Stage::Connecting => "connecting",
        Stage::Handshake => "handshake",
        Stage::Data => "host-idle",
        Stage::RateLimit => "rate-limit",
        Stage::Ended => "closed",
    }
}

/// Returns the word of a flow, given the words of its directions and their bytes: that of a direction
/// that waits for something other than data, or of a direction that is not closed, or of the one with
/// more bytes.
pub(super) fn of_flow(tx: (&'static str, u64), rx: (&'static str, u64)) -> &'static str {
    let rank = |word: &str| match word {
        "closed" => 0,
        "guest-idle" | "host-idle" | NONE => 1,
        _ => 2,
    };
    let (tx_key, rx_key) = ((rank(tx.0), tx.1), (rank(rx.0), rx.1));
    if tx_key > rx_key { tx.0 } else { rx.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn limit(limit: SendLimit, unsent: u64) -> GuestLimit {
        GuestLimit {
            limit: Some(limit),
            unsent,
        }
    }

    #[test]
    fn data_that_the_guest_does_not_have_yet_is_held_by_the_stacks_limit() {
        for (name, word) in [
            (SendLimit::Rwnd, "guest-window"),
            (SendLimit::Cwnd, "cwnd"),
            (SendLimit::Tsq, "device"),
            (SendLimit::Application, "sndbuf"),
        ] {
            assert_eq!(rx(Stage::Room, limit(name, 0)), word);
            assert_eq!(rx(Stage::Data, limit(name, 1)), word);
            assert_eq!(rx(Stage::Ended, limit(name, 1)), word);
            assert_eq!(rx(Stage::Data, limit(name, 0)), "host-idle");
            assert_eq!(rx(Stage::Ended, limit(name, 0)), "closed");
            assert_eq!(rx(Stage::RateLimit, limit(name, 1)), "rate-limit");
        }
    }

    #[test]
    fn a_flow_has_the_word_of_the_direction_that_is_held_back() {
        let rows = [
            (("guest-idle", 9), ("guest-window", 1), "guest-window"),
            (("host-full", 1), ("host-idle", 9), "host-full"),
            (("host-full", 9), ("cwnd", 1), "host-full"),
            (("guest-idle", 9), ("closed", 10), "guest-idle"),
            (("closed", 9), ("host-idle", 1), "host-idle"),
            (("guest-idle", 9), ("host-idle", 10), "host-idle"),
            (("guest-idle", 9), ("host-idle", 1), "guest-idle"),
            (("connecting", 0), ("connecting", 0), "connecting"),
            (("closed", 2), ("closed", 1), "closed"),
        ];
        for (tx, rx, word) in rows {
            assert_eq!(of_flow(tx, rx), word, "{tx:?} {rx:?}");
        }
    }
}
