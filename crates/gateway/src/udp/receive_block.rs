//! The memory into which datagrams of a host's socket are read.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSliceMut;

use fullsend::{Slice, WriteBuf};

use super::local_addr::Peer;
use crate::payload_memory::PayloadMemory;

/// Size of a block, bytes: the datagrams of one `recvmsg`, or of several calls if they are short.
const BYTES: usize = 64 << 10;
/// Total bytes of datagrams below which they are copied out of the block, so that they do not pin it.
const MIN_KEPT_BYTES: usize = 16 << 10;
/// Room below which no further datagram is read into a block, bytes.
const MIN_ROOM: usize = 1500;

thread_local! {
    /// The part of a datagram for which a block has no room.
    static REST: RefCell<Vec<u8>> = RefCell::new(vec![0; BYTES]);
}

/// Datagrams of a host's socket, in the order of their arrival.
#[derive(Default)]
pub(super) struct ReceivedDatagrams {
    payloads: VecDeque<Slice>,
    runs: VecDeque<Run>,
}

/// Consecutive datagrams of one sender.
struct Run {
    peer: Option<Peer>,
    count: usize,
}

impl ReceivedDatagrams {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.payloads.len()
    }

    /// Removes all datagrams.
    pub(super) fn clear(&mut self) {
        self.payloads.clear();
        self.runs.clear();
    }

    /// Removes and returns the first datagrams that are of one sender.
    pub(super) fn pop(&mut self) -> Option<(Option<Peer>, impl ExactSizeIterator<Item = Slice>)> {
        let run = self.runs.pop_front()?;
        Some((run.peer, self.payloads.drain(..run.count)))
    }

    /// Appends the datagrams of `size` bytes of one sender in `all`, which may be one empty datagram.
    fn push(&mut self, peer: Option<Peer>, all: &Slice, size: usize) {
        let before = self.payloads.len();
        split(all, size, &mut self.payloads);
        let count = self.payloads.len() - before;
        match self.runs.back_mut() {
            Some(last) if last.peer == peer => last.count += count,
            _ => self.runs.push_back(Run { peer, count }),
        }
    }
}

/// A block into which datagrams are read one after the other, so that those of one size can leave as one
/// packet.
pub(super) struct ReceiveBlock<'a> {
    pool: &'a PayloadMemory,
    block: WriteBuf,
    /// The datagrams that each call has read into the block.
    reads: Vec<Read>,
    /// The datagrams of the last call for which the block had no room.
    last: Option<(Slice, Read)>,
}

/// Datagrams of one size from one sender, which one call has read.
#[derive(Clone, Copy)]
pub(super) struct Read {
    /// The total length of the datagrams, bytes.
    pub(super) len: usize,
    /// The length of each datagram, bytes; the last may be shorter.
    pub(super) size: usize,
    /// The sender; `None` if the kernel has not reported it.
    pub(super) peer: Option<Peer>,
}

impl<'a> ReceiveBlock<'a> {
    /// Returns an empty block, or `None` while memory is refused.
    pub(super) fn new(pool: &'a PayloadMemory) -> Option<Self> {
        Some(Self {
            pool,
            block: pool.try_alloc_any(BYTES)?,
            reads: Vec::new(),
            last: None,
        })
    }

    /// Returns whether another datagram can be read, most likely without a copy.
    pub(super) fn has_room(&self) -> bool {
        self.last.is_none() && self.block.remaining() >= MIN_ROOM
    }

    /// Calls `read` with memory for the longest datagram, and returns its result.
    /// [`advance`](Self::advance) must be called after a success.
    pub(super) fn read<T>(&mut self, read: impl FnOnce(&mut [IoSliceMut<'_>]) -> T) -> T {
        REST.with_borrow_mut(|rest| {
            let mut vectors = [
                IoSliceMut::new(self.block.spare_mut()),
                IoSliceMut::new(rest),
            ];
            read(&mut vectors)
        })
    }

    /// Records datagrams that were read. If memory is refused, those beyond the block are dropped.
    pub(super) fn advance(&mut self, read: Read) {
        let len = read.len;
        let filled = self.block.filled().len();
        let beyond = len.saturating_sub(self.block.remaining());
        self.block.advance(len - beyond);
        if beyond == 0 {
            return self.reads.push(read);
        }
        let whole = self.pool.try_alloc(len);
        let Some(mut whole) = whole else {
            return;
        };
        whole.write(&self.block.filled()[filled..]);
        REST.with_borrow(|rest| whole.write(&rest[..beyond]));
        self.last = Some((whole.freeze(), read));
    }

    /// Appends the datagrams to `data`.
    pub(super) fn append_to(self, data: &mut ReceivedDatagrams) {
        let mut block = self.block;
        let len: usize = self.reads.iter().map(|read| read.len).sum();
        if len < MIN_KEPT_BYTES
            && len < block.filled().len() + block.remaining()
            && let Some(mut small) = self.pool.try_alloc(len)
        {
            small.write(&block.filled()[..len]);
            block = small;
        }
        let all = block.freeze();
        let mut start = 0;
        for read in self.reads {
            data.push(read.peer, &all.slice(start..start + read.len), read.size);
            start += read.len;
        }
        if let Some((last, read)) = self.last {
            data.push(read.peer, &last, read.size);
        }
    }
}

/// Appends the datagrams of `size` bytes in `all` to `data`.
fn split(all: &Slice, size: usize, data: &mut VecDeque<Slice>) {
    let size = size.max(1);
    let mut start = 0;
    while start == 0 || start < all.len() {
        let end = all.len().min(start + size);
        data.push_back(all.slice(start..end));
        start = end.max(1);
    }
}

#[cfg(test)]
mod tests {
    use fullsend::Pool;

    use super::*;

    #[test]
    fn datagrams_that_memory_is_refused_for_are_dropped() {
        let pool = PayloadMemory::new(Pool::new(1 << 20));
        pool.pool().set_reserve(usize::MAX);
        let mut block = ReceiveBlock::new(&pool).unwrap();
        let room = block.block.remaining();
        assert!(room < 16 << 10, "{room} bytes of a reserve");
        for (fill, len) in [(1, room - 10), (2, 9000)] {
            block.read(|vectors| vectors.iter_mut().for_each(|vector| vector.fill(fill)));
            block.advance(read_of(len));
        }
        let mut data = ReceivedDatagrams::default();
        block.append_to(&mut data);
        assert_eq!(data.len(), 1);
        assert_eq!(data.payloads[0][..], vec![1; room - 10]);
        assert!(pool.refused() > 0);
        let _stock = pool.exhaust();
        assert!(ReceiveBlock::new(&pool).is_none());
    }

    fn lengths(len: usize, size: usize) -> Vec<usize> {
        let mut data = VecDeque::new();
        split(&Slice::copied_from(&vec![0; len]), size, &mut data);
        data.iter().map(Slice::len).collect()
    }

    fn read_of(len: usize) -> Read {
        Read {
            len,
            size: len,
            peer: None,
        }
    }

    /// Returns the lengths of the datagrams after reads of these lengths, and checks their bytes.
    fn read(reads: &[usize]) -> Vec<usize> {
        let pool = PayloadMemory::new(Pool::new(1 << 20));
        let mut block = ReceiveBlock::new(&pool).unwrap();
        for (byte, &len) in (1..).zip(reads) {
            let mut left = len;
            block.read(|vectors| {
                for vector in vectors {
                    let n = left.min(vector.len());
                    vector[..n].fill(byte);
                    left -= n;
                }
            });
            assert_eq!(left, 0);
            block.advance(read_of(len));
        }
        let mut data = ReceivedDatagrams::default();
        block.append_to(&mut data);
        let data = data.payloads;
        for (byte, datagram) in (1..).zip(&data) {
            assert!(datagram.iter().all(|&found| found == byte));
        }
        data.iter().map(Slice::len).collect()
    }

    #[test]
    fn datagrams_are_read_one_after_the_other() {
        let long = vec![1472; 44];
        for reads in [
            &[1][..],
            &[0],
            &[65_507],
            &[500, 500, 40],
            &[9000, 0, 1],
            &long,
        ] {
            assert_eq!(read(reads), reads);
        }
    }

    #[test]
    fn the_last_datagram_may_be_longer_than_the_rest_of_the_block() {
        for reads in [&[65_000, 65_507][..], &[1000, 65_507], &[20_000, 60_000]] {
            assert_eq!(read(reads), reads);
        }
    }

    #[test]
    fn short_datagrams_pin_little_memory() {
        let pool = PayloadMemory::new(Pool::new(1 << 20));
        let mut block = ReceiveBlock::new(&pool).unwrap();
        block.read(|_| ());
        block.advance(read_of(100));
        let mut data = ReceivedDatagrams::default();
        block.append_to(&mut data);
        let pinned = data.payloads[0].pinned();
        assert!(pinned <= 512, "{pinned} bytes");
    }

    #[test]
    fn datagrams_of_different_senders_stay_apart() {
        let pool = PayloadMemory::new(Pool::new(1 << 20));
        let mut block = ReceiveBlock::new(&pool).unwrap();
        let [a, b] = ["192.0.2.1:5", "192.0.2.1:6"].map(|to| {
            let to = to.parse().unwrap();
            Some(Peer { to, from: None })
        });
        for (peer, len) in [(a, 200), (a, 70), (b, 65_507)] {
            block.read(|_| ());
            let size = 100;
            block.advance(Read { len, size, peer });
        }
        let mut data = ReceivedDatagrams::default();
        block.append_to(&mut data);
        let (peer, datagrams) = data.pop().unwrap();
        let lengths: Vec<_> = datagrams.map(|datagram| datagram.len()).collect();
        assert_eq!((peer, lengths), (a, vec![100, 100, 70]));
        let (peer, count) = data.pop().map(|(peer, run)| (peer, run.len())).unwrap();
        assert_eq!((peer, count), (b, 656));
        assert!(data.pop().is_none());
    }

    #[test]
    fn coalesced_datagrams_are_divided() {
        assert_eq!(lengths(2500, 1000), [1000, 1000, 500]);
        assert_eq!(lengths(2000, 1000), [1000, 1000]);
        assert_eq!(lengths(700, 700), [700]);
        assert_eq!(lengths(0, 0), [0]);
        assert_eq!(lengths(1, 1), [1]);
    }
}
