//! Out-of-order data (RFC 9293 3.10.7.4) and the SACK blocks that report it (RFC 2018).

use alloc::collections::VecDeque;

use fullsend_offload::{Chain, Pool};
use fullsend_wire::SeqNum;
use fullsend_wire::tcp::{SackBlock, SackBlocks};

use super::buffer::DataRun;

/// Most runs between holes. Data that would begin another is dropped; the peer retransmits it after a
/// hole has closed.
pub(super) const MAX_RUNS: usize = 1024;
/// Recently changed runs that are remembered for the SACK blocks (RFC 2018 4).
const RECENT: usize = 4;

/// Contiguous data between two holes.
#[derive(Debug)]
struct OfoRun {
    start: SeqNum,
    data: DataRun,
}

impl OfoRun {
    fn end(&self) -> SeqNum {
        self.start + self.data.len() as u32
    }

    fn block(&self) -> SackBlock {
        SackBlock {
            left: self.start,
            right: self.end(),
        }
    }
}

/// The result of storing a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct StoreOutcome {
    /// Bytes not held before.
    pub(super) new_bytes: u32,
    /// The first part that had been received before.
    pub(super) duplicate: Option<SackBlock>,
    /// Data was dropped because there are too many runs.
    pub(super) pruned: bool,
}

impl StoreOutcome {
    fn record_duplicate(&mut self, left: SeqNum, right: SeqNum) {
        self.duplicate.get_or_insert(SackBlock { left, right });
    }
}

/// Out-of-order data: runs in sequence order that neither overlap nor touch.
#[derive(Debug, Default)]
pub(super) struct OfoQueue {
    runs: VecDeque<OfoRun>,
    /// A byte of each recently changed run, most recent first.
    recent: [Option<SeqNum>; RECENT],
    bytes: u32,
    /// Memory that the runs' data holds.
    pinned: usize,
}

impl OfoQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the end of the last run.
    pub(super) fn end(&self) -> Option<SeqNum> {
        self.runs.back().map(OfoRun::end)
    }

    /// Returns the number of bytes stored.
    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Returns the bytes of memory held.
    pub(super) fn truesize(&self) -> usize {
        self.runs.capacity() * size_of::<OfoRun>() + self.pinned
    }

    /// Stores data. Bytes that were received before stay as they are (the first data wins). `force`:
    /// stores it even in one run too many, which the caller removes at once.
    pub(super) fn insert(
        &mut self,
        pool: &Pool,
        seq: SeqNum,
        mut data: Chain,
        force: bool,
    ) -> StoreOutcome {
        let mut stored = StoreOutcome::default();
        let mut cur = seq;
        // The first run that touches or follows the data.
        let mut i = self.runs.partition_point(|r| r.end().before(seq));
        while !data.is_empty() {
            match self.runs.get(i) {
                Some(run) if run.start.before_eq(cur) => {
                    let held = run.end().since(cur).min(data.len() as u32);
                    if held > 0 {
                        stored.record_duplicate(cur, cur + held);
                        data.advance(held as usize);
                        cur += held;
                    }
                }
                _ if self.runs.len() < MAX_RUNS || force => {
                    let run = OfoRun {
                        start: cur,
                        data: DataRun::default(),
                    };
                    self.runs.insert(i, run);
                }
                _ => {
                    stored.pruned = true;
                    break;
                }
            }
            let new = self.extend_run(pool, i, &mut data);
            stored.new_bytes += new;
            cur += new;
            if data.is_empty() {
                break;
            }
            i = self.runs.partition_point(|r| r.end().before(cur));
        }
        self.bytes += stored.new_bytes;
        if !force {
            self.mark_recent(cur - 1);
        }
        stored
    }

    /// Appends data to run `i`, up to the next run, and joins the two if they touch.
    fn extend_run(&mut self, pool: &Pool, i: usize, data: &mut Chain) -> u32 {
        let end = self.runs[i].end();
        let hole = self
            .runs
            .get(i + 1)
            .map_or(u32::MAX, |next| next.start.since(end));
        let n = hole.min(data.len() as u32);
        let run = &mut self.runs[i].data;
        self.pinned -= run.truesize();
        run.push(pool, data.split_to(n as usize), true);
        self.pinned += run.truesize();
        if n == hole
            && let Some(next) = self.runs.remove(i + 1)
        {
            let run = &mut self.runs[i].data;
            self.pinned -= run.truesize() + next.data.truesize();
            run.append(next.data);
            self.pinned += run.truesize();
        }
        n
    }

    /// Records the run with the byte `seq` as the most recently changed one.
    fn mark_recent(&mut self, seq: SeqNum) {
        let Some(block) = self.block_with(seq) else {
            return;
        };
        let mut new = [Some(block.left), None, None, None];
        // One entry for each run. Entries of runs that are gone are removed.
        let is_other_run = |seq: &SeqNum| {
            let other = self.block_with(*seq);
            other.is_some_and(|other| other != block)
        };
        let others = self.recent.iter().flatten().filter(|seq| is_other_run(seq));
        for (slot, other) in new[1..].iter_mut().zip(others) {
            *slot = Some(*other);
        }
        self.recent = new;
    }

    /// Returns whether a run has data at `seq`, the place of a FIN. At the run's start the data
    /// counts only if the FIN is `bare`, without data of its own.
    pub(super) fn has_data_at_fin(&self, seq: SeqNum, bare: bool) -> bool {
        let block = self.block_with(seq);
        block.is_some_and(|block| bare || block.left.before(seq))
    }

    fn block_with(&self, seq: SeqNum) -> Option<SackBlock> {
        let i = self.runs.partition_point(|r| r.end().before_eq(seq));
        let run = self.runs.get(i)?;
        run.start.before_eq(seq).then(|| run.block())
    }

    /// Removes and returns the first run if `rcv_nxt` has reached it.
    pub(super) fn take_in_order(&mut self, rcv_nxt: SeqNum) -> Option<DataRun> {
        if self.runs.front()?.start.after(rcv_nxt) {
            return None;
        }
        let mut run = self.runs.pop_front()?;
        self.bytes -= run.data.len() as u32;
        self.pinned -= run.data.truesize();
        run.data.advance(rcv_nxt.since(run.start) as usize);
        Some(run.data)
    }

    /// Drops the highest runs until `bytes` of memory are free or none is left. Returns whether there
    /// was any.
    pub(super) fn prune(&mut self, bytes: usize) -> bool {
        let mut freed = 0;
        while freed < bytes
            && let Some(run) = self.runs.pop_back()
        {
            self.bytes -= run.data.len() as u32;
            self.pinned -= run.data.truesize();
            freed += run.data.truesize();
        }
        if self.runs.is_empty() {
            *self = Self::default();
        }
        freed > 0
    }

    /// Appends blocks to `out` up to `max`: of recently changed runs, then of others, as RFC 2018 4
    /// requires as many distinct blocks as fit.
    pub(super) fn sack_blocks(&self, out: &mut SackBlocks, max: usize) {
        let first = out.as_slice().len();
        let recent = self.recent.iter().flatten();
        let recent = recent.filter_map(|seq| self.block_with(*seq));
        for block in recent.chain(self.runs.iter().map(OfoRun::block)) {
            if out.as_slice().len() >= max {
                return;
            }
            if !out.as_slice()[first..].contains(&block) {
                out.push(block);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let data: usize = self.runs.iter().map(|r| r.data.len()).sum();
        assert_eq!(data, self.bytes());
        let pinned: usize = self.runs.iter().map(|r| r.data.truesize()).sum();
        assert_eq!(pinned, self.pinned);
        assert!(self.truesize() >= self.runs.len() * size_of::<OfoRun>() + pinned);
        assert!(self.runs.iter().all(|r| !r.data.is_empty()));
        for (run, next) in self.runs.iter().zip(self.runs.iter().skip(1)) {
            assert!(run.end().before(next.start));
        }
    }
}
