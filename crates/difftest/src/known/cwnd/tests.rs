use super::uncertain_reordering;
use crate::history::{AcceptedAck, Range};

/// Ten segments of 100 bytes.
fn sent() -> Vec<Range> {
    (0..10).map(|i| (1 + 100 * i, 101 + 100 * i)).collect()
}

fn ack(ack: u32, sack: &[Range]) -> AcceptedAck {
    AcceptedAck {
        ack,
        seq: 1,
        window: 65535,
        is_pure: true,
        in_flight: 10,
        sent_end: 1001,
        sack: sack.to_vec(),
    }
}

#[test]
fn an_ack_far_above_the_sacked_segments_is_uncertain() {
    let acks = [ack(1, &[(101, 201)]), ack(401, &[]), ack(501, &[])];
    assert_eq!(uncertain_reordering(&sent(), &acks), Some((1, 1)));
}

#[test]
fn many_sacked_segments_in_one_block_are_uncertain() {
    let acks = [ack(1, &[(201, 501)]), ack(101, &[(201, 501)])];
    assert_eq!(uncertain_reordering(&sent(), &acks), Some((1, 1)));
}

#[test]
fn a_late_segment_may_be_sacked() {
    let acks = [ack(1, &[(301, 501)]), ack(1, &[(101, 201), (301, 501)])];
    assert_eq!(uncertain_reordering(&sent(), &acks), Some((1, 101)));
}

#[test]
fn little_and_much_reordering_are_certain() {
    let little = [ack(1, &[(101, 201)]), ack(301, &[])];
    assert_eq!(uncertain_reordering(&sent(), &little), None);
    let much = [ack(1, &[(501, 601)]), ack(601, &[])];
    assert_eq!(uncertain_reordering(&sent(), &much), None);
}

#[test]
fn a_retransmission_is_no_reordering() {
    let sent = [sent(), vec![(1, 101)]].concat();
    let acks = [ack(1, &[(101, 201)]), ack(401, &[])];
    // The next segment that is not SACKed lies above the block.
    assert_eq!(uncertain_reordering(&sent, &acks), None);
}
