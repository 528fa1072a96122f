//! The reply and the next state for each state and each kind of segment (RFC 9293 3.10.7). Each
//! line of `table.txt` is one cell; its diff shows each change of behaviour.

use crate::harness::{Bench, Setup};

/// The states: name, script that leads to it, `rcv_nxt`, and the acknowledgement of all that we
/// sent.
const STATES: [(&str, &str, u32, u32); 9] = [
    ("SynReceived", "> S. 0:0(0) ack 1", 1, 1),
    ("Established", "> S. 0:0(0) ack 1\n< . 1:1(0) ack 1", 1, 1),
    (
        "FinWait1",
        "> S. 0:0(0) ack 1\n< . 1:1(0) ack 1\nshutdown\n> F. 1:1(0) ack 1",
        1,
        2,
    ),
    (
        "FinWait2",
        "> S. 0:0(0) ack 1\n< . 1:1(0) ack 1\nshutdown\n> F. 1:1(0) ack 1\n< . 1:1(0) ack 2",
        1,
        2,
    ),
    (
        "CloseWait",
        "> S. 0:0(0) ack 1\n< . 1:1(0) ack 1\n< F. 1:1(0) ack 1\n> . 1:1(0) ack 2",
        2,
        1,
    ),
    (
        "Closing",
        "> S. 0:0(0) ack 1\n< . 1:1(0) ack 1\nshutdown\n> F. 1:1(0) ack 1\n< F. 1:1(0) ack 1\n> . 2:2(0) ack 2",
        2,
        2,
    ),
    (
        "LastAck",
        "> S. 0:0(0) ack 1\n< . 1:1(0) ack 1\n< F. 1:1(0) ack 1\n> . 1:1(0) ack 2\nshutdown\n> F. 1:1(0) ack 2",
        2,
        2,
    ),
    (
        "Closed",
        "> S. 0:0(0) ack 1\n< . 1:1(0) ack 1\n< R. 1:1(0) ack 1",
        1,
        1,
    ),
    ("SynSent", "> S 0:0(0)", 0, 1),
];

/// The segments: name, flags, length, and distance from `rcv_nxt`.
const EVENTS: [(&str, &str, u32, i64); 8] = [
    ("ack", ".", 0, 0),
    ("text", "P.", 10, 0),
    ("fin", "F.", 0, 0),
    ("rst", "R.", 0, 0),
    ("rst in window", "R.", 0, 9),
    ("rst outside", "R.", 0, 900_000),
    ("syn", "S", 0, 5),
    ("outside", "P.", 10, 900_000),
];

/// Returns `reply,reply -> state` for one state and one event.
fn cell(state: (&str, &str, u32, u32), event: (&str, &str, u32, i64)) -> String {
    let setup = Setup::default();
    let mut bench = match state.0 {
        "SynSent" => Bench::connecting(&setup),
        _ => Bench::accepting(&setup),
    };
    bench.play(state.1);
    assert_eq!(format!("{:?}", bench.conn.state()), state.0);
    let seq = (i64::from(state.2) + event.3) as u32;
    let ack = if event.1.contains('.') {
        format!(" ack {}", state.3)
    } else {
        String::new()
    };
    let answers = bench.answers(&format!(
        "{} {seq}:{}({}){ack}",
        event.1,
        seq + event.2,
        event.2
    ));
    format!("{}->{:?}", answers.join(","), bench.conn.state())
}

#[test]
fn every_state_receives_every_segment() {
    let row = |state: (&str, &str, u32, u32)| {
        EVENTS.map(|e| format!("{} {}: {}", state.0, e.0, cell(state, e)))
    };
    let table: Vec<String> = STATES.iter().flat_map(|&state| row(state)).collect();
    let expected: Vec<&str> = include_str!("table.txt").lines().collect();
    assert_eq!(table.len(), expected.len(), "{}", table.join("\n"));
    for (got, want) in table.iter().zip(expected) {
        assert_eq!(got, want);
    }
}
