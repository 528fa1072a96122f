use super::{RepeatedAcks, count_repeated};
use crate::history::AcceptedAck;

fn ack(seq: u32, ack: u32, window: u16) -> AcceptedAck {
    AcceptedAck {
        ack,
        seq,
        window,
        is_pure: true,
        in_flight: 10,
        sent_end: 1001,
        sack: Vec::new(),
    }
}

#[test]
fn a_duplicate_repeats_the_ack_and_the_window() {
    let acks = [ack(1, 1, 500), ack(1, 1, 500), ack(1, 1, 500)];
    let expected = RepeatedAcks {
        duplicates: 2,
        ..RepeatedAcks::default()
    };
    assert_eq!(count_repeated(&acks), expected);
}

#[test]
fn a_smaller_window_is_ignored() {
    let acks = [ack(1, 1, 500), ack(1, 1, 10)];
    let expected = RepeatedAcks {
        ignored: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(count_repeated(&acks), expected);
}

#[test]
fn a_larger_window_and_a_closed_window_are_updates() {
    let acks = [ack(1, 1, 500), ack(1, 1, 600), ack(1, 1, 0), ack(1, 1, 0)];
    let expected = RepeatedAcks {
        duplicates: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(count_repeated(&acks), expected);
}

#[test]
fn a_later_sequence_number_updates_the_window() {
    let acks = [ack(1, 1, 500), ack(2, 1, 10), ack(1, 1, 500)];
    let expected = RepeatedAcks {
        ignored: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(count_repeated(&acks), expected);
}

#[test]
fn an_ack_of_new_data_begins_a_new_count() {
    let acks = [
        ack(1, 1, 500),
        ack(1, 1, 10),
        ack(1, 1, 500),
        ack(1, 101, 500),
    ];
    let expected = RepeatedAcks {
        ignored_before: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(count_repeated(&acks), expected);
}

#[test]
fn an_ack_without_data_in_flight_does_not_count() {
    let mut early = ack(1, 1, 500);
    early.in_flight = 0;
    let acks = [early.clone(), early, ack(1, 1, 500)];
    let expected = RepeatedAcks {
        duplicates: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(count_repeated(&acks), expected);
}

#[test]
fn a_single_segment_in_flight_elicits_no_duplicate() {
    let mut early = ack(1, 1, 500);
    early.in_flight = 1;
    let acks = [early.clone(), early.clone(), early, ack(1, 1, 500)];
    let expected = RepeatedAcks {
        duplicates: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(count_repeated(&acks), expected);
}
