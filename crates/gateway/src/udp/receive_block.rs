//! The memory that datagrams of a host's socket are read into.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSliceMut;

use fullsend::{Pool, Slice, WriteBuf};

/// Memory for the datagrams of one `recvmsg`, and for as many short ones as fit.
const BYTES: usize = 64 << 10;
/// Datagrams that are shorter than this together are copied out of it, so that they do not keep it
/// allocated.
const MIN_KEPT_BYTES: usize = 16 << 10;
/// No further datagram is read into a block that has less room than this, bytes.
const MIN_ROOM: usize = 1500;

thread_local! {
    /// The part of a datagram that a block has no room for.
    static REST: RefCell<Vec<u8>> = RefCell::new(vec![0; BYTES]);
}

/// A block that datagrams are read into one after the other, so that those of one size can leave as
/// one packet.
pub(super) struct ReceiveBlock<'a> {
    pool: &'a Pool,
    block: WriteBuf,
    /// The lengths of what the calls have read, and the sizes of its datagrams.
    reads: Vec<(usize, usize)>,
    /// What the last call has read and the block had no room for, with the size of its datagrams.
    last: Option<(Slice, usize)>,
}

impl<'a> ReceiveBlock<'a> {
    pub(super) fn new(pool: &'a Pool) -> Self {
        Self {
            pool,
            block: pool.alloc(BYTES),
            reads: Vec::new(),
            last: None,
        }
    }

    /// Returns whether another datagram can be read, most likely without a copy.
    pub(super) fn has_room(&self) -> bool {
        self.last.is_none() && self.block.remaining() >= MIN_ROOM
    }

    /// Calls `read` with memory that holds the longest datagram, and returns its result.
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

    /// Records that `len` bytes of datagrams of `size` bytes have been read.
    pub(super) fn advance(&mut self, len: usize, size: usize) {
        let filled = self.block.filled().len();
        let beyond = len.saturating_sub(self.block.remaining());
        self.block.advance(len - beyond);
        if beyond == 0 {
            return self.reads.push((len, size));
        }
        let mut whole = self.pool.alloc(len);
        whole.write(&self.block.filled()[filled..]);
        REST.with_borrow(|rest| whole.write(&rest[..beyond]));
        self.last = Some((whole.freeze(), size));
    }

    /// Appends the datagrams to `data`.
    pub(super) fn append_to(self, data: &mut VecDeque<Slice>) {
        let mut block = self.block;
        let len: usize = self.reads.iter().map(|(len, _)| len).sum();
        if len < MIN_KEPT_BYTES {
            let mut small = self.pool.alloc(len);
            small.write(&block.filled()[..len]);
            block = small;
        }
        let all = block.freeze();
        let mut start = 0;
        for (len, size) in self.reads {
            split(&all.slice(start..start + len), size, data);
            start += len;
        }
        if let Some((last, size)) = self.last {
            split(&last, size, data);
        }
    }
}

/// Appends the datagrams of `size` bytes in `all` to `data`. An empty datagram is one, too.
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
    use super::*;

    fn lengths(len: usize, size: usize) -> Vec<usize> {
        let mut data = VecDeque::new();
        split(&Slice::copied_from(&vec![0; len]), size, &mut data);
        data.iter().map(Slice::len).collect()
    }

    /// Returns the lengths of the datagrams after reads of these lengths, and checks their bytes.
    fn read(reads: &[usize]) -> Vec<usize> {
        let pool = Pool::new(1 << 20);
        let mut block = ReceiveBlock::new(&pool);
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
            block.advance(len, len);
        }
        let mut data = VecDeque::new();
        block.append_to(&mut data);
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
        let pool = Pool::new(1 << 20);
        let mut block = ReceiveBlock::new(&pool);
        block.read(|_| ());
        block.advance(100, 100);
        let mut data = VecDeque::new();
        block.append_to(&mut data);
        assert!(data[0].pinned() <= 512, "{} bytes", data[0].pinned());
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
