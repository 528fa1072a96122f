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
