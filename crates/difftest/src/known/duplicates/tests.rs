use super::{RepeatedAcks, count_repeated};
use crate::event::{ACK, FuzzEvent, InjectedSegment};

fn ack(seq: u32, ack: u32, window: u16) -> FuzzEvent {
    FuzzEvent::Inject(InjectedSegment {
        flags: ACK,
        seq,
        len: 0,
        ack,
        window,
        urgent: 0,
        options: Vec::new(),
        timestamp: None,
        sack: Vec::new(),
    })
}

fn counts(events: &[FuzzEvent]) -> RepeatedAcks {
    count_repeated(events, 10_000)
}

#[test]
fn a_duplicate_repeats_the_ack_and_the_window() {
    let events = [ack(1, 1, 500), ack(1, 1, 500), ack(1, 1, 500)];
    let expected = RepeatedAcks {
        duplicates: 2,
        ..RepeatedAcks::default()
    };
    assert_eq!(counts(&events), expected);
}

#[test]
fn a_smaller_window_is_ignored() {
    let events = [ack(1, 1, 500), ack(1, 1, 10)];
    let expected = RepeatedAcks {
        ignored: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(counts(&events), expected);
}

#[test]
fn a_larger_window_and_a_closed_window_are_updates() {
    let events = [ack(1, 1, 500), ack(1, 1, 600), ack(1, 1, 0), ack(1, 1, 0)];
    let expected = RepeatedAcks {
        duplicates: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(counts(&events), expected);
}

#[test]
fn a_later_sequence_number_updates_the_window() {
    let events = [ack(1, 1, 500), ack(2, 1, 10), ack(1, 1, 500)];
    let expected = RepeatedAcks {
        ignored: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(counts(&events), expected);
}

#[test]
fn an_ack_of_new_data_begins_a_new_count() {
    let events = [
        ack(1, 1, 500),
        ack(1, 1, 10),
        ack(1, 1, 500),
        ack(1, 101, 500),
    ];
    let expected = RepeatedAcks {
        ignored_before: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(counts(&events), expected);
}

#[test]
fn an_ack_above_the_data_sent_does_not_count() {
    let events = [ack(1, 1, 500), ack(1, 20_000, 500), ack(1, 1, 500)];
    let expected = RepeatedAcks {
        duplicates: 1,
        ..RepeatedAcks::default()
    };
    assert_eq!(counts(&events), expected);
}
