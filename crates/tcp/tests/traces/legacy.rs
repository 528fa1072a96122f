//! Rules of older stacks, which the lab compares with today's.

use fullsend_tcp::legacy::Legacy;
use fullsend_wire::Nanos;

use crate::harness::{Bench, Setup};

fn with(legacy: Legacy) -> Setup {
    Setup {
        timestamps: true,
        legacy,
        ..Setup::default()
    }
}

/// Linux before 3.14 sends the partial segment at the end of a write separately, with `TCP_NODELAY`
/// or without.
#[test]
fn the_tail_was_split_off() {
    let setup = with(Legacy {
        split_tail: true,
        ..Legacy::default()
    });
    for nodelay in ["set nodelay 0", "set nodelay 1"] {
        Bench::established(&setup).play(&format!(
            "{nodelay}
             write 4096
             > . 1:2897(2896) ack 1
             > P. 2897:4097(1200) ack 1"
        ));
    }
}

/// Returns the sizes of the segments sent while each flight is acknowledged as a whole.
fn stream(bench: &mut Bench, rounds: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    for _ in 0..rounds {
        bench.fill();
        let una = bench.sent();
        while let Some(segment) = bench.next_out() {
            sizes.push(segment.payload.len());
        }
        bench.advance(Nanos::from_micros(50));
        let sent = bench.sent();
        if una == sent {
            continue;
        }
        bench.acknowledge(sent);
    }
    sizes
}

/// illumos before the fix of bug 5295: after one lost segment no send is ever larger than five
/// segments.
#[test]
fn one_loss_bounded_every_later_burst() {
    let run = |max_burst| {
        let mut bench = Bench::established(&with(Legacy {
            max_burst,
            ..Legacy::default()
        }));
        let before = stream(&mut bench, 100);
        assert!(before.contains(&65_160));
        bench.fill();
        let first = bench.next_out().expect("a segment");
        while bench.next_out().is_some() {}
        let (start, end) = (Bench::relative(first.repr.seq), bench.sent());
        bench.acknowledge_with_sack(start, start + 1448, end);
        while bench.next_out().is_some() {}
        bench.advance(Nanos::from_micros(50));
        bench.acknowledge(end);
        while bench.next_out().is_some() {}
        let sent = bench.sent();
        bench.acknowledge(sent);
        let largest = stream(&mut bench, 100).into_iter().max();
        let headroom = bench.report().headroom;
        let most = headroom.iter().map(|(least, _)| least).max();
        assert!(most >= Some(65_536), "{most:?}");
        largest
    };
    assert_eq!(run(true), Some(5 * 1448));
    assert_eq!(run(false), Some(65_160));
}
