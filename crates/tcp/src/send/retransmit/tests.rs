//! Retransmissions, and their numbers in the host's queue.

use alloc::boxed::Box;

use fullsend_wire::Rate;
use fullsend_wire::tcp::SackBlock;

use super::super::pacing::Pacing;
use super::super::properties::{SenderConfig, TestSender};
use crate::connection::Connection;
use crate::send::{BlockedBy, FinState};

const MSS: u32 = 1460;

/// Returns a connection with `super_segments` super-segments of one segment in flight.
fn in_flight(super_segments: usize) -> TestSender {
    let mut sender = TestSender::new(SenderConfig::default());
    sender.conn.parts_mut().settings.nodelay = true;
    for _ in 0..super_segments {
        sender.queue(MSS as usize, 65_160);
        sender.transmit().expect("a segment");
    }
    sender
}

/// Returns a connection with four segments in flight, the first of which is lost.
fn with_loss() -> TestSender {
    let mut sender = in_flight(4);
    let (left, right) = (
        sender.conn.parts().snd.una + MSS,
        sender.conn.parts().snd.nxt,
    );
    sender.acknowledge(sender.conn.parts().snd.una, &[SackBlock { left, right }]);
    assert!(sender.conn.parts().recovery.rtx.has_lost());
    sender
}

fn next_number(sender: &TestSender) -> Option<u16> {
    let flow = sender.conn.parts().snd.flow.as_ref();
    flow.map(|flow| flow.next_number())
}

fn is_original_in_host_queue(sender: &mut TestSender) -> bool {
    sender.with(|conn, cx| {
        let parts = conn.parts_mut();
        let rtx = &parts.recovery.rtx;
        parts.snd.is_original_in_host_queue(cx.mib, rtx)
    })
}

/// A retransmission with data has its own number in the host's queue. A FIN without data is not
/// charged, so no completion counts it.
#[test]
fn retransmissions_with_data_are_numbered() {
    let mut sender = with_loss();
    sender.conn.parts_mut().snd.wmem_inflight = 0;
    assert_eq!(next_number(&sender), Some(5));
    let again = sender.with(Connection::retransmission).expect("a copy");
    assert_eq!(
        (again.seq, again.payload.len()),
        (sender.conn.parts().snd.una, MSS as usize)
    );
    assert_eq!(next_number(&sender), Some(6));

    let mut sender = in_flight(2);
    sender.conn.parts_mut().snd.wmem_inflight = 0;
    sender.with(Connection::tail_probe).expect("a probe");
    assert_eq!(next_number(&sender), Some(4));

    let mut sender = in_flight(1);
    sender.conn.parts_mut().snd.wmem_inflight = 0;
    sender.conn.parts_mut().snd.fin = FinState::Queued;
    sender.transmit().expect("a FIN");
    assert_eq!(next_number(&sender), Some(2));
    let probe = sender.with(Connection::tail_probe).expect("a FIN");
    assert!(probe.payload.is_empty());
    assert_eq!(next_number(&sender), Some(2));
    sender.acknowledge(sender.conn.parts().snd.una + MSS, &[]);
    sender.conn.parts_mut().recovery.rtx.mark_all_lost();
    let again = sender.with(Connection::retransmission).expect("a FIN");
    assert!(again.payload.is_empty());
    assert_eq!(next_number(&sender), Some(2));
}

/// Numbers are modulo 2^16, and a segment may be unacknowledged for longer: an empty host's queue
/// has no segment, whatever the numbers are.
#[test]
fn empty_host_queue_has_no_original() {
    let mut sender = with_loss();
    let flow = sender.conn.parts_mut().snd.flow.as_mut().expect("a flow");
    for _ in 0..40_000 {
        flow.on_completed();
    }
    assert!(flow.is_in_host_queue(1));
    assert!(is_original_in_host_queue(&mut sender));
    sender.conn.parts_mut().snd.wmem_inflight = 0;
    assert!(!is_original_in_host_queue(&mut sender));
}

/// Neither a retransmission nor a tail loss probe is sent before its departure time.
#[test]
fn retransmissions_are_paced() {
    let paced = |mut sender: TestSender| {
        sender.conn.parts_mut().snd.wmem_inflight = 0;
        *sender.conn.parts_mut().data_segs_out = 10;
        sender.conn.parts_mut().snd.pacing = Some(Box::new(Pacing::new(Rate(1000))));
        // An earlier segment of 1520 bytes takes 1.52 s.
        sender.with(|conn, cx| {
            let sent = *conn.parts().data_segs_out;
            let (snd, path) = conn.sender_and_path();
            snd.schedule_departure(cx, path, (MSS, 1), sent)
        });
        sender
    };
    let mut sender = paced(with_loss());
    assert!(sender.with(Connection::retransmission).is_none());
    let mut sender = paced(in_flight(1));
    assert!(sender.with(Connection::tail_probe).is_none());
}

/// cwnd limits retransmissions.
#[test]
fn retransmissions_wait_for_cwnd() {
    let mut sender = with_loss();
    sender.conn.parts_mut().snd.wmem_inflight = 0;
    let in_flight = sender.conn.parts().recovery.rtx.in_flight();
    sender.conn.parts_mut().congestion.set_cwnd(in_flight);
    assert!(sender.with(Connection::retransmission).is_none());
    sender.conn.parts_mut().congestion.set_cwnd(in_flight + 1);
    assert!(sender.with(Connection::retransmission).is_some());
}

/// RFC 8985 7.3: a probe with new data ends that data's wait for a window, but not autocorking,
/// which waits for a completion.
#[test]
fn probe_with_new_data_clears_blocked_by() {
    for (blocked_by, then) in [
        (BlockedBy::Cwnd, BlockedBy::Nothing),
        (BlockedBy::Autocork, BlockedBy::Autocork),
    ] {
        let mut sender = in_flight(1);
        sender.queue(100, 65_160);
        sender.conn.parts_mut().snd.blocked_by = blocked_by;
        let probe = sender.with(Connection::tail_probe).expect("a probe");
        assert_eq!(probe.payload.len(), 100);
        assert_eq!(sender.conn.parts().snd.blocked_by, then);
    }
}

/// An echo does not identify its retransmission: the TSval of an earlier one counts while another
/// one is in flight.
#[test]
fn lag_of_an_earlier_retransmission_counts_while_another_is_in_flight() {
    let mut sender = in_flight(5);
    let (left, right) = (
        sender.conn.parts().snd.una + 2 * MSS,
        sender.conn.parts().snd.nxt,
    );
    sender.acknowledge(sender.conn.parts().snd.una, &[SackBlock { left, right }]);
    for (cwnd, lag) in [(1, 0), (2, 5)] {
        sender.conn.parts_mut().snd.wmem_inflight = 0;
        sender.conn.parts_mut().congestion.set_cwnd(cwnd);
        sender
            .conn
            .parts_mut()
            .recovery
            .on_retransmit(0, 5, 0, false);
        sender.with(Connection::retransmission).expect("a copy");
        assert_eq!(sender.conn.parts().recovery.rtx.retrans_out(), cwnd);
        assert_eq!(
            sender.conn.parts().recovery.max_tsval_lag().as_millis(),
            lag
        );
    }
}
