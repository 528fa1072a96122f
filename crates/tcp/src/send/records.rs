//! `MSG_EOR`: where a record ends, and with it a transmit unit that nothing may join.

use alloc::collections::VecDeque;

use fullsend_units::SeqNum;

use super::Blocked;
use crate::connection::Connection;

/// Most marks kept; a writer that sets more gets them forgotten.
const MAX_MARKS: usize = 1024;

/// The ends of records that are not sent yet, in order.
#[derive(Debug, Default)]
pub(crate) struct Records {
    ends: VecDeque<SeqNum>,
}

impl Connection {
    /// What was written so far ends a record.
    #[cold]
    pub(crate) fn end_record(&mut self) {
        let (end, nxt) = (self.snd.write_seq(), self.snd.nxt);
        let records = &mut self.extras_mut().records;
        if end == nxt || records.ends.back() == Some(&end) || records.ends.len() == MAX_MARKS {
            return;
        }
        records.ends.push_back(end);
        self.snd.queue.end_unit();
        // Nothing will fill it up, so nothing is to be waited for.
        if self.snd.blocked == Blocked::Autocork {
            self.snd.blocked = Blocked::No;
            self.out.any = true;
        }
    }

    /// Bytes from `snd_nxt` to the end of the first record; `u32::MAX` if none ends.
    #[inline]
    pub(crate) fn record_left(&self) -> u32 {
        match &self.extras {
            None => u32::MAX,
            Some(extras) => {
                let end = extras.records.ends.front();
                end.map_or(u32::MAX, |end| end.since(self.snd.nxt))
            }
        }
    }

    /// Text left: forgets the records that ended in it.
    #[cold]
    pub(super) fn pass_records(&mut self) {
        let nxt = self.snd.nxt;
        if let Some(extras) = &mut self.extras {
            while extras
                .records
                .ends
                .front()
                .is_some_and(|end| end.before_eq(nxt))
            {
                extras.records.ends.pop_front();
            }
        }
    }
}
