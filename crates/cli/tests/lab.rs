//! `fullsend lab`, run like a user runs it.

use std::process::{Command, Output};

fn lab(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullsend"));
    let words = line.split(' ').filter(|word| !word.is_empty());
    command.arg("lab").args(words).output().expect("it runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn a_trace_is_text_and_a_capture() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace.pcapng");
    let output = lab(&format!("trace tso-split --pcap {}", path.display()));
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains(": P 1:4097(4096) ack 1 win "));
    let recording = std::fs::read(path).expect("it was written");
    assert_eq!(recording[..4], 0x0a0d_0d0a_u32.to_le_bytes());
}

#[test]
fn traces_depend_on_case_and_seed_only() {
    let trace = |line: &str| text(&lab(line).stdout).to_owned();
    let after = trace("trace max-burst --seed 7");
    assert_eq!(after, trace("trace max-burst --seed 7"));
    assert_ne!(after, trace("trace max-burst --seed 8"));
    let before = trace("trace max-burst --seed 7 --legacy");
    // Sends of five segments: some occur in slow start, all of them with the old rule.
    let bursts = |trace: &str| trace.matches("(7240)").count();
    assert!(bursts(&before) > 50 && bursts(&after) < 10, "{after}");
}

#[test]
fn errors_name_the_value_and_a_hint() {
    for (line, value, hint) in [
        ("run nosuch", "`nosuch`", "write one of tso-split"),
        ("trace all", "`all`", "write one of tso-split"),
        (
            "run max-burst --html /nosuch/lab.html",
            "/nosuch/lab.html",
            "cannot write",
        ),
    ] {
        let output = lab(line);
        assert!(!output.status.success(), "{line}");
        let error = text(&output.stderr);
        assert!(
            error.contains(value) && error.contains(hint),
            "{line}: {error}"
        );
    }
}

#[test]
fn the_list_names_references() {
    let output = lab("list");
    let list = text(&output.stdout);
    for word in ["tso-split", "f54b3111", "a74f0fa0", "illumos bug 5295"] {
        assert!(list.contains(word), "{word}");
    }
}
