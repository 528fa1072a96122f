use super::{is_contradiction, is_impossible};
use crate::history::{AcceptedAck, Range};

const BORDERS: [u32; 6] = [1, 101, 201, 301, 401, 501];

fn ack(ack: u32, sack: &[Range]) -> AcceptedAck {
    AcceptedAck {
        ack,
        seq: 1,
        window: 500,
        is_pure: true,
        in_flight: 5,
        sent_end: 501,
        sack: sack.to_vec(),
    }
}

fn is_impossible_at_1(sack: &[Range]) -> bool {
    is_impossible(&ack(1, sack), &BORDERS)
}

#[test]
fn blocks_of_whole_segments_are_possible() {
    assert!(!is_impossible_at_1(&[]));
    assert!(!is_impossible_at_1(&[(101, 201)]));
    assert!(!is_impossible_at_1(&[(301, 401), (101, 201)]));
}

#[test]
fn a_duplicate_as_the_first_block_is_possible() {
    assert!(!is_impossible(&ack(201, &[(1, 101)]), &BORDERS));
    assert!(!is_impossible(&ack(201, &[(1, 101), (301, 401)]), &BORDERS));
    assert!(!is_impossible_at_1(&[(201, 301), (101, 401)]));
}

#[test]
fn a_duplicate_is_only_the_first_block() {
    assert!(is_impossible(&ack(201, &[(301, 401), (1, 101)]), &BORDERS));
}

#[test]
fn blocks_that_meet_are_impossible() {
    assert!(is_impossible_at_1(&[(101, 301), (201, 401)]));
    assert!(is_impossible_at_1(&[(101, 201), (201, 301)]));
}

#[test]
fn blocks_of_parts_of_segments_are_impossible() {
    assert!(is_impossible_at_1(&[(120, 201)]));
    assert!(is_impossible_at_1(&[(101, 220)]));
}

#[test]
fn blocks_that_contradict_the_ack_or_the_data_sent_are_impossible() {
    assert!(is_impossible_at_1(&[(1, 101)]));
    assert!(is_impossible_at_1(&[(401, 601)]));
    assert!(is_impossible_at_1(&[(301, 201)]));
}

#[test]
fn growing_blocks_agree() {
    assert!(!is_contradiction(
        &ack(1, &[(101, 201)]),
        &ack(1, &[(101, 301)])
    ));
    assert!(!is_contradiction(
        &ack(1, &[(101, 201)]),
        &ack(201, &[(301, 401)])
    ));
    assert!(!is_contradiction(&ack(1, &[(101, 201)]), &ack(1, &[])));
    assert!(!is_contradiction(&ack(1, &[(301, 401)]), &ack(201, &[])));
}

#[test]
fn reordered_acks_agree() {
    assert!(!is_contradiction(
        &ack(1, &[(101, 301)]),
        &ack(1, &[(101, 201)])
    ));
    assert!(!is_contradiction(&ack(301, &[]), &ack(1, &[(101, 201)])));
}

#[test]
fn an_ack_within_a_block_contradicts_it_in_any_order() {
    let (block, within) = (ack(1, &[(101, 301)]), ack(201, &[]));
    assert!(is_contradiction(&block, &within));
    assert!(is_contradiction(&within, &block));
}

#[test]
fn blocks_that_vanish_contradict() {
    assert!(is_contradiction(
        &ack(1, &[(101, 201)]),
        &ack(1, &[(301, 401)])
    ));
    assert!(is_contradiction(
        &ack(1, &[(301, 401)]),
        &ack(101, &[(201, 301)])
    ));
}

#[test]
fn a_lower_ack_cannot_report_later_data() {
    let mut higher = ack(301, &[]);
    higher.sent_end = 401;
    assert!(is_contradiction(&higher, &ack(101, &[(401, 501)])));
}
