//! `MSG_EOR`: the ends of records, which no super-segment crosses.

use alloc::collections::VecDeque;

use fullsend_units::SeqNum;

use super::Blocked;
use crate::connection::Connection;

/// Most ends of records kept; further ones are ignored.
const MAX_MARKS: usize = 1024;

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
}

impl Connection {
    /// Ends a record after the data written so far.
    #[cold]
    pub(crate) fn end_record(&mut self) {
        let (end, nxt) = (self.snd.write_seq(), self.snd.nxt);
        let records = self.extras_mut().records.get_or_insert_default();
        if end == nxt || records.ends.back() == Some(&end) || records.ends.len() == MAX_MARKS {
            return;
        }
        records.ends.push_back(end);
        self.snd.queue.end_unit();
        // The record's last super-segment cannot grow, so it does not wait.
        if self.snd.blocked == Blocked::Autocork {
            self.snd.blocked = Blocked::No;
            self.out.any = true;
        }
    }

    /// Returns the bytes from `snd_nxt` to the end of the first record; `u32::MAX` without records.
    #[inline]
    pub(crate) fn record_left(&self) -> u32 {
        match &self.extras {
            None => u32::MAX,
            Some(extras) => {
                let records = extras.records.as_ref();
                let end = records.and_then(|records| records.ends.front());
                end.map_or(u32::MAX, |end| end.since(self.snd.nxt))
            }
        }
    }

    /// Removes the records whose data has been sent.
    #[cold]
    pub(super) fn pass_records(&mut self) {
        let nxt = self.snd.nxt;
        let extras = self.extras.as_mut();
        if let Some(records) = extras.and_then(|extras| extras.records.as_mut()) {
            let passed = |end: &SeqNum| end.before_eq(nxt);
            while records.ends.front().is_some_and(passed) {
                records.ends.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::properties::{Kind, World};
    use super::{Blocked, Connection, MAX_MARKS};

    impl World {
        fn ends(&self) -> usize {
            let records = self.conn.extras.as_ref().and_then(|e| e.records.as_ref());
            records.map_or(0, |records| records.unsent())
        }
    }

    /// `MSG_EOR` has no effect after data that is already sent, nor twice at the same byte.
    #[test]
    fn a_record_ends_once_and_before_it_is_sent() {
        let mut world = World::new(Kind::default());
        world.conn.settings.nodelay = true;
        assert_eq!(world.conn.record_left(), u32::MAX);
        world.conn.end_record();
        assert_eq!((world.ends(), world.conn.record_left()), (0, u32::MAX));
        world.queue(100, 65_160);
        world.conn.end_record();
        world.conn.end_record();
        assert_eq!((world.ends(), world.conn.record_left()), (1, 100));
        assert_eq!(world.conn.snd.queue.tail_len(), 0);
        world.queue(50, 65_160);
        world.conn.end_record();
        assert_eq!((world.ends(), world.conn.record_left()), (2, 100));
        for (ends, left) in [(1, 50), (0, u32::MAX)] {
            world.with(Connection::transmit).expect("a segment");
            assert_eq!((world.ends(), world.conn.record_left()), (ends, left));
        }
    }

    /// A record cannot grow, so it does not wait for the device (spec 2).
    #[test]
    fn a_records_end_ends_autocorking() {
        for (blocked, then) in [
            (Blocked::Autocork, Blocked::No),
            (Blocked::Cwnd, Blocked::Cwnd),
        ] {
            let mut world = World::new(Kind::default());
            world.queue(100, 65_160);
            world.conn.out.any = false;
            world.conn.snd.blocked = blocked;
            world.conn.end_record();
            assert_eq!(world.conn.snd.blocked, then);
            assert_eq!(world.conn.wants_transmit(), then == Blocked::No);
        }
    }

    /// The memory for marks is bounded: at 1024 marks further ones are ignored.
    #[test]
    fn marks_are_bounded() {
        let mut world = World::new(Kind::default());
        for _ in 0..=MAX_MARKS {
            world.queue(1, 65_160);
            world.conn.end_record();
        }
        assert_eq!(world.ends(), 1024);
        assert_eq!(world.conn.snd.queue.len(), 1025);
        assert_eq!(world.conn.snd.queue.tail_len(), 1);
    }
}
