use fullsend_posix::abi::MSG_PEEK;
use fullsend_script::WireSegment;
use fullsend_script::tcp_option::TcpOption;

use super::History;
use crate::event::{ACK, Echo, FIN, FuzzEvent, InjectedSegment, SYN, SocketCall, SocketIndex};
use crate::known::{ESTABLISHED, SYN_RECEIVED};
use crate::side::{CallResult, EventOutcome};
use crate::view::PeerView;

fn segment(flags: u16, seq: u32, ack: u32) -> InjectedSegment {
    InjectedSegment {
        flags,
        seq,
        len: 0,
        ack,
        window: 500,
        urgent: 0,
        options: Vec::new(),
        timestamp: None,
        sack: Vec::new(),
    }
}

/// Returns the view of a side that has received up to 101 and sent up to 1001.
fn view() -> PeerView {
    PeerView {
        acked: Some(101),
        edge: 5001,
        sent: 1001,
        ..PeerView::default()
    }
}

/// Returns the state after a SYN with a timestamp.
fn opened() -> History {
    let mut history = History::default();
    let mut syn = segment(SYN, 0, 0);
    syn.timestamp = Some((1000, Echo::Zero));
    history.on_inject(&syn, [&PeerView::default(); 2]);
    history
}

fn fins_after(inject: &InjectedSegment) -> Vec<u32> {
    let mut history = opened();
    history.on_inject(inject, [&view(); 2]);
    history.fins
}

#[test]
fn a_fin_within_the_window_is_acceptable() {
    assert_eq!(fins_after(&segment(FIN | ACK, 101, 1)), [101]);
    assert_eq!(fins_after(&segment(FIN | ACK, 4000, 1)), [4000]);
}

#[test]
fn a_fin_outside_of_the_window_is_dropped() {
    assert!(fins_after(&segment(FIN | ACK, 50, 1)).is_empty());
    assert!(fins_after(&segment(FIN | ACK, 6000, 1)).is_empty());
}

#[test]
fn a_fin_without_an_acceptable_ack_is_dropped() {
    assert!(fins_after(&segment(FIN, 101, 0)).is_empty());
    assert!(fins_after(&segment(FIN | ACK, 101, 1002)).is_empty());
}

#[test]
fn a_fin_with_an_old_timestamp_is_dropped() {
    let mut fin = segment(FIN | ACK, 101, 1);
    fin.timestamp = Some((999, Echo::Latest(0)));
    assert!(fins_after(&fin).is_empty());
}

#[test]
fn a_fin_that_ends_at_the_last_acknowledgement_is_old() {
    assert!(fins_after(&segment(FIN | ACK, 100, 1)).is_empty());
}

#[test]
fn no_timestamp_is_older_than_one_of_zero() {
    let mut history = opened();
    history.latest_tsval = Some(0);
    assert!(!history.is_old_timestamp(0x9000_0000));
    history.latest_tsval = Some(1);
    assert!(history.is_old_timestamp(0x9000_0000));
}

#[test]
fn connect_begins_another_connection() {
    let mut history = opened();
    history.on_inject(&segment(FIN | ACK, 101, 1001), [&view(); 2]);
    assert!(!history.acks.is_empty());
    let connect = FuzzEvent::Call(SocketCall::Connect(SocketIndex(0)));
    let outcome = EventOutcome {
        segments: vec![segment(SYN, 0, 0).to_wire(0, 0, 0)],
        ..EventOutcome::default()
    };
    history.on_responses(&connect, &outcome, &outcome);
    assert!(history.acks.is_empty() && history.fins.is_empty());
    assert!(history.has_fins());
    assert_eq!(history.repeated_syns, 0);
}

#[test]
fn an_acceptable_segment_updates_the_latest_timestamp() {
    let mut history = opened();
    let mut ack = segment(ACK, 101, 1);
    ack.timestamp = Some((1002, Echo::Latest(0)));
    history.on_inject(&ack, [&view(); 2]);
    assert_eq!(history.latest_tsval, Some(1002));
}

#[test]
fn the_timestamp_that_both_sides_echo_is_the_latest() {
    let mut history = opened();
    let echoing = |ecr: u32| {
        let ack = segment(ACK, 1, 101).to_wire(0, 0, 0);
        let options = vec![TcpOption::Timestamps { val: 100, ecr }];
        EventOutcome {
            segments: vec![WireSegment { options, ..ack }],
            ..EventOutcome::default()
        }
    };
    let event = FuzzEvent::Inject(segment(ACK, 101, 1));
    history.on_responses(&event, &echoing(1002), &echoing(1000));
    assert_eq!(history.latest_tsval, Some(1000));
    history.on_responses(&event, &echoing(1002), &echoing(1002));
    assert_eq!(history.latest_tsval, Some(1002));
}

#[test]
fn a_segment_with_a_too_old_ack_does_not_update_the_latest_timestamp() {
    let mut history = opened();
    history.on_inject(&segment(ACK, 101, 900), [&view(); 2]);
    let mut old = segment(ACK, 101, 300);
    old.timestamp = Some((1002, Echo::Latest(0)));
    history.on_inject(&old, [&view(); 2]);
    assert_eq!(history.latest_tsval, Some(1000));
}

fn acks_after(injects: &[InjectedSegment]) -> Vec<u32> {
    let mut history = opened();
    for inject in injects {
        history.on_inject(inject, [&view(); 2]);
    }
    history.acks.iter().map(|ack| ack.ack).collect()
}

#[test]
fn an_ack_of_data_that_was_not_sent_is_not_accepted() {
    assert_eq!(acks_after(&[segment(ACK, 101, 900)]), [900]);
    assert!(acks_after(&[segment(ACK, 101, 1002)]).is_empty());
}

#[test]
fn an_ack_with_an_old_timestamp_is_accepted_only_as_a_duplicate() {
    let old = |ack: u32| {
        let mut old = segment(ACK, 101, ack);
        old.timestamp = Some((900, Echo::Latest(0)));
        old
    };
    let first = segment(ACK, 101, 500);
    assert_eq!(acks_after(&[first.clone(), old(900)]), [500]);
    assert_eq!(acks_after(&[first, old(500)]), [500, 500]);
}

#[test]
fn a_syn_ack_after_the_handshake_is_not_accepted() {
    let acks = [segment(ACK, 101, 500), segment(SYN | ACK, 101, 900)];
    assert_eq!(acks_after(&acks), [500]);
}

/// Returns the acknowledgement numbers that are accepted in SYN-RECEIVED of a simultaneous open, after
/// a SYN with sequence number 0.
fn acks_in_syn_received(injects: &[InjectedSegment]) -> Vec<u32> {
    let mut history = opened();
    history.states = (vec![(0, SYN_RECEIVED)], vec![(0, SYN_RECEIVED)]);
    let view = PeerView {
        acked: Some(1),
        edge: 5001,
        sent: 1,
        ..PeerView::default()
    };
    for inject in injects {
        history.on_inject(inject, [&view; 2]);
    }
    history.acks.iter().map(|ack| ack.ack).collect()
}

#[test]
fn the_syn_ack_that_repeats_the_syn_ends_a_simultaneous_open() {
    let syn_ack = |seq: u32, ack: u32| segment(SYN | ACK, seq, ack);
    assert_eq!(acks_in_syn_received(&[syn_ack(0, 1)]), [1]);
    assert_eq!(
        acks_in_syn_received(&[syn_ack(1000, 0), syn_ack(0, 1)]),
        [1]
    );
}

#[test]
fn another_syn_ack_does_not_end_a_simultaneous_open() {
    let syn_ack = |seq: u32, ack: u32| segment(SYN | ACK, seq, ack);
    let mut with_data = syn_ack(0, 1);
    with_data.len = 10;
    let mut shifted = syn_ack(u32::MAX, 1);
    shifted.len = 1;
    let mut old = syn_ack(0, 1);
    old.timestamp = Some((900, Echo::Latest(0)));
    let others = [syn_ack(0, 0), syn_ack(1000, 1), with_data, shifted, old];
    assert!(acks_in_syn_received(&others).is_empty());
}

#[test]
fn only_an_echo_of_the_latest_timestamp_times_the_syn() {
    let is_echoed = |timestamp: Option<(u32, Echo)>, later: Option<(u32, Echo)>| {
        let mut history = opened();
        let mut ack = segment(ACK, 101, 1);
        for timestamp in [timestamp, later] {
            ack.timestamp = timestamp;
            history.on_inject(&ack, [&view(); 2]);
        }
        history.syn_echoed
    };
    let latest = Some((1002, Echo::Latest(0)));
    assert!(is_echoed(latest, None));
    assert!(!is_echoed(None, latest));
    assert!(!is_echoed(Some((1002, Echo::Zero)), latest));
    assert!(!is_echoed(Some((1002, Echo::Latest(1000))), latest));
}

#[test]
fn only_a_call_that_removes_bytes_has_read_them() {
    let mut history = opened();
    for flags in [0, MSG_PEEK] {
        let fd = SocketIndex(0);
        let event = FuzzEvent::Call(SocketCall::Receive { fd, len: 10, flags });
        let outcome = EventOutcome {
            returned: Some(CallResult::from_value(7)),
            ..EventOutcome::default()
        };
        history.on_responses(&event, &outcome, &outcome);
    }
    assert_eq!(history.read, 7);
}

#[test]
fn a_syn_after_the_handshake_does_not_begin_a_connection() {
    let mut history = opened();
    history.states = (vec![(0, ESTABLISHED)], vec![(0, ESTABLISHED)]);
    let mut syn = segment(SYN, 5000, 0);
    syn.timestamp = Some((2000, Echo::Zero));
    history.on_inject(&syn, [&PeerView::default(); 2]);
    assert_eq!(history.latest_tsval, Some(1000));
}
