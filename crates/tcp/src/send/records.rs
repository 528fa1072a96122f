//! `MSG_EOR`: the ends of records, which no super-segment crosses.

use alloc::collections::VecDeque;

use fullsend_wire::SeqNum;

/// Most ends of records kept; further ones are ignored.
const MAX_RECORD_ENDS: usize = 1024;

/// The ends of records that are not sent yet, in sequence order.
#[derive(Debug, Default)]
pub(crate) struct Records {
    ends: VecDeque<SeqNum>,
}

impl Records {
    /// Returns the number of records that are not completely sent.
    pub(crate) fn unsent(&self) -> usize {
        self.ends.len()
    }

    /// Ends a record at `end`, after data that begins at `nxt`. Returns whether the end is new.
    pub(crate) fn end(&mut self, nxt: SeqNum, end: SeqNum) -> bool {
        if end == nxt || self.ends.back() == Some(&end) || self.ends.len() == MAX_RECORD_ENDS {
            return false;
        }
        self.ends.push_back(end);
        true
    }

    /// Returns the bytes from `nxt` to the end of the first record; `u32::MAX` without records.
    pub(crate) fn left(&self, nxt: SeqNum) -> u32 {
        let end = self.ends.front();
        end.map_or(u32::MAX, |end| end.since(nxt))
    }

    /// Removes the records whose data has been sent, up to `nxt`.
    pub(crate) fn drop_sent(&mut self, nxt: SeqNum) {
        let passed = |end: &SeqNum| end.before_eq(nxt);
        while self.ends.front().is_some_and(passed) {
            self.ends.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::properties::{SenderConfig, TestSender};
    use super::MAX_RECORD_ENDS;
    use crate::send::BlockedBy;

    impl TestSender {
        fn ends(&self) -> usize {
            let records = self
                .conn
                .parts()
                .uncommon
                .as_ref()
                .and_then(|e| e.records.as_ref());
            records.map_or(0, |records| records.unsent())
        }
    }

    /// `MSG_EOR` has no effect after data that is already sent, nor twice at the same byte.
    #[test]
    fn record_end_is_recorded_once_and_only_for_unsent_data() {
        let mut sender = TestSender::new(SenderConfig::default());
        sender.conn.parts_mut().settings.nodelay = true;
        assert_eq!(sender.conn.record_left(), u32::MAX);
        sender.conn.end_record();
        assert_eq!((sender.ends(), sender.conn.record_left()), (0, u32::MAX));
        sender.queue(100, 65_160);
        sender.conn.end_record();
        sender.conn.end_record();
        assert_eq!((sender.ends(), sender.conn.record_left()), (1, 100));
        assert_eq!(sender.conn.parts().snd.queue.tail_len(), 0);
        sender.queue(50, 65_160);
        sender.conn.end_record();
        assert_eq!((sender.ends(), sender.conn.record_left()), (2, 100));
        for (ends, left) in [(1, 50), (0, u32::MAX)] {
            sender.transmit().expect("a segment");
            assert_eq!((sender.ends(), sender.conn.record_left()), (ends, left));
        }
    }

    /// A record cannot grow, so it does not wait for the device (spec 2).
    #[test]
    fn record_end_stops_autocorking() {
        for (blocked_by, then) in [
            (BlockedBy::Autocork, BlockedBy::Nothing),
            (BlockedBy::Cwnd, BlockedBy::Cwnd),
        ] {
            let mut sender = TestSender::new(SenderConfig::default());
            sender.queue(100, 65_160);
            sender.conn.parts_mut().snd.pending.clear_request();
            sender.conn.parts_mut().snd.blocked_by = blocked_by;
            sender.conn.end_record();
            assert_eq!(sender.conn.parts().snd.blocked_by, then);
            assert_eq!(sender.conn.needs_transmit(), then == BlockedBy::Nothing);
        }
    }

    /// The memory for marks is bounded: at 1024 marks further ones are ignored.
    #[test]
    fn record_ends_are_limited() {
        let mut sender = TestSender::new(SenderConfig::default());
        for _ in 0..=MAX_RECORD_ENDS {
            sender.queue(1, 65_160);
            sender.conn.end_record();
        }
        assert_eq!(sender.ends(), 1024);
        assert_eq!(sender.conn.parts().snd.queue.len(), 1025);
        assert_eq!(sender.conn.parts().snd.queue.tail_len(), 1);
    }
}
