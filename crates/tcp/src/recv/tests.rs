use alloc::vec;
use alloc::vec::Vec;

use fullsend_offload::{Chain, Pool, Slice};
use fullsend_wire::SeqNum;
use fullsend_wire::tcp::SackBlock;
use proptest::prelude::*;

use super::ofo_queue::MAX_RUNS;
use super::{InsertOutcome, RecvQueue};

/// Close to the wrap, so that every test crosses it.
const IRS: u32 = u32::MAX - 300;

fn seq(n: u32) -> SeqNum {
    SeqNum::new(IRS) + n
}

fn block(left: u32, right: u32) -> SackBlock {
    SackBlock {
        left: seq(left),
        right: seq(right),
    }
}

fn byte(n: u32) -> u8 {
    (n.wrapping_mul(2_654_435_761) >> 24) as u8
}

fn data(from: u32, len: u32) -> Chain {
    let bytes: Vec<u8> = (from..from + len).map(byte).collect();
    Slice::copied_from(&bytes).into()
}

struct Peer {
    pool: Pool,
    queue: RecvQueue,
}

impl Peer {
    fn new() -> Self {
        Self {
            pool: Pool::new(1 << 20),
            queue: RecvQueue::new(seq(0)),
        }
    }

    fn sends(&mut self, from: u32, to: u32) -> InsertOutcome {
        self.sends_fin(from, to, false)
    }

    fn sends_fin(&mut self, from: u32, to: u32, fin: bool) -> InsertOutcome {
        let outcome = self
            .queue
            .insert(&self.pool, seq(from), data(from, to - from), fin);
        if let Some(ofo) = &self.queue.ofo {
            ofo.queue.check();
        }
        outcome
    }

    fn sacks(&mut self) -> Vec<SackBlock> {
        self.queue.take_sack_blocks(3).as_slice().to_vec()
    }

    /// Reads all data and checks it against the stream from `from`. Returns the end of the data
    /// read.
    fn reads_from(&mut self, from: u32) -> u32 {
        let mut out = vec![0; self.queue.readable()];
        let n = self.queue.read(&mut out) as u32;
        assert!(
            out.iter()
                .eq(&(from..from + n).map(byte).collect::<Vec<_>>())
        );
        from + n
    }
}

fn in_order(bytes: u32) -> InsertOutcome {
    InsertOutcome::InOrder {
        bytes,
        had_gap: false,
    }
}

fn after_gap(bytes: u32) -> InsertOutcome {
    InsertOutcome::InOrder {
        bytes,
        had_gap: true,
    }
}

#[test]
fn in_order_data_is_readable_at_once() {
    let mut peer = Peer::new();
    assert_eq!(peer.sends(0, 1000), in_order(1000));
    assert_eq!(peer.sends(1000, 1500), in_order(500));
    assert_eq!(
        (peer.queue.rcv_nxt(), peer.queue.readable()),
        (seq(1500), 1500)
    );
    assert_eq!(peer.reads_from(0), 1500);
    assert!(peer.sacks().is_empty());
}

#[test]
fn a_hole_is_reported_and_filled() {
    let mut peer = Peer::new();
    assert_eq!(peer.sends(100, 200), InsertOutcome::OutOfOrder);
    assert_eq!(peer.sends(300, 400), InsertOutcome::OutOfOrder);
    assert_eq!(peer.sacks(), [block(300, 400), block(100, 200)]);
    assert_eq!(peer.sends(200, 250), InsertOutcome::OutOfOrder);
    assert_eq!(peer.sacks(), [block(100, 250), block(300, 400)]);
    assert_eq!(peer.sends(0, 100), after_gap(250));
    assert_eq!(peer.sacks(), [block(300, 400)]);
    assert_eq!(peer.queue.ofo_bytes(), 100);
    assert_eq!(peer.sends(250, 300), after_gap(150));
    assert!(peer.sacks().is_empty() && peer.queue.ofo.is_none());
    assert_eq!(peer.reads_from(0), 400);
}

#[test]
fn the_block_changed_last_comes_first() {
    let mut peer = Peer::new();
    for from in [100, 300, 500, 700, 900] {
        peer.sends(from, from + 50);
    }
    assert_eq!(
        peer.sacks(),
        [block(900, 950), block(700, 750), block(500, 550)]
    );
    peer.sends(150, 160);
    assert_eq!(
        peer.sacks(),
        [block(100, 160), block(900, 950), block(700, 750)]
    );
    // Joining two runs keeps one block.
    peer.sends(750, 900);
    assert_eq!(
        peer.sacks(),
        [block(700, 950), block(100, 160), block(500, 550)]
    );
}

#[test]
fn the_first_copy_of_a_byte_is_kept() {
    let mut peer = Peer::new();
    peer.sends(100, 200);
    let forged = Slice::copied_from(&[0xee; 400]);
    let outcome = peer.queue.insert(&peer.pool, seq(0), forged.into(), false);
    assert_eq!(outcome, after_gap(400));
    let mut out = vec![0; 400];
    peer.queue.read(&mut out);
    let want: Vec<u8> = (100..200).map(byte).collect();
    assert_eq!(out[100..200], want);
    assert!(out[..100].iter().chain(&out[200..]).all(|&b| b == 0xee));
}

#[test]
fn duplicates_are_reported_once_by_dsack() {
    let mut peer = Peer::new();
    peer.sends(0, 100);
    assert_eq!(peer.sends(20, 80), InsertOutcome::Duplicate);
    assert_eq!(peer.sacks(), [block(20, 80)]);
    assert!(peer.sacks().is_empty());
    // Partly new data.
    assert_eq!(peer.sends(50, 150), in_order(100 - 50));
    assert_eq!(peer.sacks(), [block(50, 100)]);
    // Within an out-of-order run: the duplicate first, then the block that contains it.
    peer.sends(300, 400);
    assert_eq!(peer.sends(320, 350), InsertOutcome::Duplicate);
    assert_eq!(peer.sacks(), [block(320, 350), block(300, 400)]);
}

#[test]
fn a_fin_counts_when_all_data_before_it_is_received() {
    let mut peer = Peer::new();
    assert_eq!(peer.sends_fin(100, 200, true), InsertOutcome::OutOfOrder);
    assert!(!peer.queue.fin_received());
    assert_eq!(peer.sends(0, 100), after_gap(200));
    assert!(peer.queue.fin_received());
    assert_eq!(peer.queue.rcv_nxt(), seq(201));
    assert_eq!(peer.sends_fin(100, 200, true), InsertOutcome::Duplicate);
    assert_eq!(peer.sends(201, 300), InsertOutcome::Duplicate);
    assert_eq!(peer.reads_from(0), 200);
}

#[test]
fn a_bare_fin_is_in_order_or_waits() {
    let mut peer = Peer::new();
    assert_eq!(peer.sends_fin(10, 10, true), InsertOutcome::OutOfOrder);
    assert_eq!(peer.sends_fin(10, 10, true), InsertOutcome::Duplicate);
    assert_eq!(peer.sends(0, 5), in_order(5));
    assert_eq!(peer.sends(5, 10), in_order(5));
    assert!(peer.queue.fin_received());
    let mut peer = Peer::new();
    assert_eq!(peer.sends_fin(0, 0, true), in_order(0));
    assert_eq!(peer.queue.rcv_nxt(), seq(1));
}

#[test]
fn data_at_the_sequence_number_of_an_early_fin_replaces_it() {
    for bare in [false, true] {
        let mut peer = Peer::new();
        peer.sends_fin(if bare { 200 } else { 100 }, 200, true);
        let outcome = peer.sends(0, 300);
        assert!(matches!(outcome, InsertOutcome::InOrder { bytes: 300, .. }));
        assert!(!peer.queue.fin_received());
        assert_eq!(peer.sends_fin(300, 300, true), in_order(0));
        assert!(peer.queue.fin_received());
        assert_eq!(peer.reads_from(0), 300);
    }
    // Also behind a hole.
    let mut peer = Peer::new();
    peer.sends_fin(300, 400, true);
    assert_eq!(peer.sends(300, 500), InsertOutcome::OutOfOrder);
    assert_eq!(peer.sends(0, 300), after_gap(500));
    assert!(!peer.queue.fin_received());
    assert_eq!(peer.sends_fin(500, 500, true), in_order(0));
}

#[test]
fn data_that_begins_at_a_bare_fin_replaces_it_in_either_order() {
    for fin_first in [false, true] {
        let mut peer = Peer::new();
        if fin_first {
            assert_eq!(peer.sends_fin(300, 300, true), InsertOutcome::OutOfOrder);
            assert_eq!(peer.sends(300, 500), InsertOutcome::OutOfOrder);
        } else {
            assert_eq!(peer.sends(300, 500), InsertOutcome::OutOfOrder);
            assert_eq!(peer.sends_fin(300, 300, true), InsertOutcome::Duplicate);
        }
        assert_eq!(peer.sends(0, 300), after_gap(500));
        assert!(!peer.queue.fin_received());
        assert_eq!(peer.sends_fin(500, 500, true), in_order(0));
        assert_eq!(peer.reads_from(0), 500);
    }
    // A FIN that arrived with data before it stays.
    let mut peer = Peer::new();
    peer.sends(300, 500);
    peer.sends_fin(200, 300, true);
    peer.sends(0, 200);
    assert!(peer.queue.fin_received());
    assert_eq!(peer.reads_from(0), 300);
}

#[test]
fn a_fin_inside_out_of_order_data_is_ignored() {
    let mut peer = Peer::new();
    peer.sends(300, 500);
    assert_eq!(peer.sends_fin(300, 400, true), InsertOutcome::Duplicate);
    assert_eq!(peer.sends(0, 300), after_gap(500));
    assert!(!peer.queue.fin_received());
}

#[test]
fn an_in_order_fin_overrides_out_of_order_data() {
    // After an out-of-order FIN further on.
    let mut peer = Peer::new();
    peer.sends_fin(1000, 1000, true);
    assert_eq!(peer.sends(0, 100), in_order(100));
    assert_eq!(peer.sends_fin(100, 200, true), in_order(100));
    assert!(peer.queue.fin_received() && peer.queue.ofo.is_none());
    assert_eq!(peer.queue.rcv_nxt(), seq(201));
    // Before data that begins at the FIN's position, or before that.
    for from in [100, 50] {
        let mut peer = Peer::new();
        peer.sends(from, 200);
        assert_eq!(peer.sends_fin(0, 100, true), after_gap(100));
        assert!(peer.queue.fin_received());
        assert_eq!(peer.queue.rcv_nxt(), seq(101));
        assert_eq!(peer.reads_from(0), 100);
    }
}

#[test]
fn the_first_of_several_fins_ends_the_stream() {
    for (a, b) in [(200, 400), (400, 200)] {
        let mut peer = Peer::new();
        peer.sends_fin(a - 100, a, true);
        peer.sends_fin(b - 100, b, true);
        assert_eq!(peer.sends(0, 100), after_gap(200));
        assert!(peer.queue.fin_received());
        assert_eq!(peer.reads_from(0), 200);
    }
    // Data that begins at the FIN's position does not remove it.
    let mut peer = Peer::new();
    peer.sends_fin(300, 400, true);
    assert_eq!(peer.sends(400, 500), InsertOutcome::OutOfOrder);
    assert_eq!(peer.sends(0, 300), after_gap(400));
    assert!(peer.queue.fin_received());
    assert_eq!(peer.reads_from(0), 400);
}

/// A FIN that arrived with data once is not bare.
#[test]
fn a_fin_received_with_data_is_not_replaced_by_data_after_it() {
    for from in [[300, 200], [200, 300]] {
        let mut peer = Peer::new();
        for from in from {
            peer.sends_fin(from, 300, true);
        }
        peer.sends(300, 500);
        peer.sends(0, 200);
        assert!(peer.queue.fin_received(), "{from:?}");
        assert_eq!(peer.reads_from(0), 300);
    }
}

#[test]
fn data_after_the_fin_is_ignored() {
    let mut peer = Peer::new();
    assert_eq!(peer.sends_fin(0, 100, true), in_order(100));
    assert_eq!(peer.sends(101, 150), InsertOutcome::Duplicate);
    assert_eq!(peer.queue.readable(), 100);
}

#[test]
fn an_early_fin_is_bare_while_no_data_is_queued() {
    let mut peer = Peer::new();
    assert!(!peer.queue.has_only_ofo_fin());
    // A duplicate to report is no FIN.
    peer.sends(0, 50);
    peer.sends(0, 50);
    assert!(!peer.queue.has_only_ofo_fin());
    peer.sends_fin(200, 200, true);
    assert!(peer.queue.has_only_ofo_fin());
    peer.sends(100, 150);
    assert!(!peer.queue.has_only_ofo_fin());
}

#[test]
fn out_of_order_data_is_kept_and_charged() {
    let mut peer = Peer::new();
    peer.sends(0, 100);
    peer.sends(200, 250);
    assert_eq!((peer.queue.buffered(), peer.queue.ofo_bytes()), (150, 50));
    assert!(peer.queue.truesize() >= 150);
    assert_eq!(peer.queue.read_slice(&peer.pool, 60).len(), 60);
    assert_eq!((peer.queue.readable(), peer.queue.buffered()), (40, 90));
}

/// Pruning frees the highest runs first, and no more of them than necessary.
#[test]
fn pruning_frees_the_highest_data_first() {
    let mut peer = Peer::new();
    for from in [100, 300, 500] {
        peer.sends(from, from + 100);
    }
    let left = |peer: &Peer| {
        if let Some(ofo) = &peer.queue.ofo {
            ofo.queue.check();
        }
        (peer.queue.ofo_bytes(), peer.queue.ofo_data_end())
    };
    assert_eq!(left(&peer), (300, Some(seq(600))));
    let all = peer.queue.truesize();
    assert!(peer.queue.prune(1));
    assert_eq!(left(&peer), (200, Some(seq(400))));
    // The amount that the highest run holds.
    let one = all - peer.queue.truesize();
    assert!(peer.queue.prune(one));
    assert_eq!(left(&peer), (100, Some(seq(200))));
    assert!(peer.queue.prune(1));
    assert!(!peer.queue.prune(1));
    // An out-of-order FIN holds no memory to free.
    peer.sends_fin(200, 200, true);
    assert!(!peer.queue.prune(1));
}

#[test]
fn the_number_of_runs_is_bounded() {
    let mut peer = Peer::new();
    for n in 0..MAX_RUNS as u32 {
        assert_eq!(peer.sends(2 * n + 1, 2 * n + 2), InsertOutcome::OutOfOrder);
    }
    let end = 2 * MAX_RUNS as u32 + 1;
    assert_eq!(peer.sends(end, end + 1), InsertOutcome::Pruned);
    // Closing a hole allows another run.
    peer.sends(2, 3);
    assert_eq!(peer.sends(end, end + 1), InsertOutcome::OutOfOrder);
}

#[test]
fn blocks_are_reported_while_data_in_order_arrives() {
    let mut peer = Peer::new();
    for from in [3000, 5000, 7000] {
        peer.sends(from, from + 500);
    }
    let all = [block(7000, 7500), block(5000, 5500), block(3000, 3500)];
    for from in (0..2000).step_by(100) {
        assert_eq!(peer.sends(from, from + 100), after_gap(100));
        assert_eq!(peer.sacks(), all);
    }
    // A run that was joined to the stream is no longer reported.
    peer.sends(2000, 3000);
    assert_eq!(peer.sacks(), all[..2]);
}

#[test]
fn older_sack_blocks_fill_the_remaining_option_space() {
    let mut peer = Peer::new();
    for from in [900, 700, 500, 300, 100] {
        peer.sends(from, from + 50);
    }
    // The first one that arrived, after a DSACK.
    assert_eq!(peer.sends(0, 700), after_gap(750));
    assert_eq!(peer.sacks(), [block(100, 150), block(900, 950)]);
    // Pruned runs are no longer reported, either.
    for from in [1100, 1300, 1500, 1700] {
        peer.sends(from, from + 50);
    }
    assert!(peer.queue.prune(1));
    let left = [block(1500, 1550), block(1300, 1350), block(1100, 1150)];
    assert_eq!(peer.sacks(), left);
}

#[test]
fn a_hostile_peer_pins_a_bounded_amount_of_memory() {
    let mut peer = Peer::new();
    let tiny = |pool: &Pool| {
        let mut buf = pool.alloc(65_536);
        buf.write(b"x");
        Chain::from(buf.freeze())
    };
    let mut pruned = 0;
    for i in 0..30_000 {
        let outcome = peer
            .queue
            .insert(&peer.pool, seq(2 + 2 * i), tiny(&peer.pool), false);
        pruned += u32::from(outcome == InsertOutcome::Pruned);
    }
    assert!(pruned > 0);
    assert!(peer.queue.truesize() < 1 << 20, "{}", peer.queue.truesize());
    // In-order data is always accepted.
    assert_eq!(peer.sends(0, 2), after_gap(3));
    // A run that grows byte by byte is collapsed as it grows.
    let mut peer = Peer::new();
    for i in 0..30_000 {
        peer.queue
            .insert(&peer.pool, seq(1 + i), tiny(&peer.pool), false);
    }
    assert!(
        peer.queue.truesize() < 4 * 30_000,
        "{}",
        peer.queue.truesize()
    );
}

proptest! {
    /// The reader gets the stream from segments in any order, overlapping and repeated.
    #[test]
    fn reassembles_any_arrival_order(
        len in 1..600u32,
        segments in prop::collection::vec((any::<prop::sample::Index>(), 1..80u32, any::<bool>()), 0..120),
    ) {
        let mut peer = Peer::new();
        let mut held = vec![false; len as usize];
        let mut read = 0;
        let all = (0..len).step_by(50).map(|from| (from, (from + 50).min(len), true));
        let segments = segments.into_iter().map(|(from, n, reads)| {
            let from = from.index(len as usize) as u32;
            (from, (from + n).min(len), reads)
        });
        for (from, to, reads) in segments.chain(all) {
            let nxt = held.iter().position(|h| !h).map_or(len, |n| n as u32);
            let new = held[from as usize..to as usize].iter().any(|h| !h);
            held[from as usize..to as usize].fill(true);
            let after = held.iter().position(|h| !h).map_or(len, |n| n as u32);
            let fin_is_new = to == len && !peer.queue.fin_received()
                && peer.queue.ofo.as_ref().is_none_or(|b| b.fin_at.is_none());
            let outcome = peer.sends_fin(from, to, to == len);
            match outcome {
                InsertOutcome::InOrder { bytes, .. } => prop_assert_eq!(bytes, after - nxt),
                InsertOutcome::OutOfOrder => prop_assert!((new || fin_is_new) && after == nxt),
                InsertOutcome::Duplicate => prop_assert!(!new && !fin_is_new),
                InsertOutcome::Pruned => prop_assert!(false),
            }
            let fin = u32::from(peer.queue.fin_received());
            prop_assert_eq!(peer.queue.rcv_nxt(), seq(after + fin));
            // Every block is a run of received bytes.
            let blocks = peer.queue.take_sack_blocks(4);
            let reported = blocks.as_slice().iter().map(|b| (b.left.since(seq(0)), b.right.since(seq(0))));
            for (left, right) in reported {
                prop_assert!(held[left as usize..(right.min(len)) as usize].iter().all(|h| *h));
            }
            if reads {
                read = peer.reads_from(read);
            }
        }
        prop_assert_eq!(peer.reads_from(read), len);
        prop_assert!(peer.queue.fin_received());
    }
}
