use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use super::{TraceConfig, trace};
use crate::{EXPERIMENTS, by_name};

#[derive(Clone, Default)]
struct SharedOutput(Rc<RefCell<Vec<u8>>>);

impl Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Vec<u8>>>);

impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lines(name: &str, case: usize, wire: bool) -> (Vec<String>, Vec<u8>) {
    let (text, recording) = (SharedOutput::default(), Recording::default());
    let config = TraceConfig {
        case,
        seed: 1,
        wire,
    };
    let pcap = Box::new(recording.clone());
    trace(
        by_name(name).unwrap(),
        config,
        Box::new(text.clone()),
        Some(pcap),
    )
    .unwrap();
    let text = String::from_utf8(text.0.borrow().clone()).unwrap();
    let recording = recording.0.lock().unwrap().clone();
    (text.lines().map(str::to_owned).collect(), recording)
}

/// Returns the part of a line from the flags to the window, which the reference shows.
fn without_time(line: &str) -> &str {
    let (_, line) = line.split_once(": ").unwrap();
    line.split_once(" win ").unwrap().0
}

#[test]
fn a_4096_byte_write_matches_the_reference_trace() {
    let client = |line: &&String| line.contains("IP 10.0.0.1.");
    let first = |case, wire| {
        let (lines, _) = lines("tso-split", case, wire);
        // After the SYN and the ACK of the handshake.
        let sent: Vec<String> = lines.iter().filter(client).skip(2).cloned().collect();
        sent
    };
    assert_eq!(without_time(&first(1, false)[0]), "P 1:4097(4096) ack 1");
    let before = first(0, false);
    assert_eq!(without_time(&before[0]), ". 1:2897(2896) ack 1");
    assert_eq!(without_time(&before[1]), "P 2897:4097(1200) ack 1");
    let wire = first(1, true);
    let wire: Vec<&str> = wire[..3].iter().map(|line| without_time(line)).collect();
    assert_eq!(
        wire,
        [
            ". 1:1449(1448) ack 1",
            ". 1449:2897(1448) ack 1",
            "P 2897:4097(1200) ack 1"
        ]
    );
    assert!(first(1, false)[0].contains("<nop,nop,timestamp "));
}

/// Returns the types of a pcapng file's blocks; panics if their lengths are inconsistent.
fn blocks(mut file: &[u8]) -> Vec<u32> {
    let mut out = Vec::new();
    while !file.is_empty() {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let len = word(4) as usize;
        assert_eq!(word(len - 4) as usize, len);
        out.push(word(0));
        file = &file[len..];
    }
    out
}

#[test]
fn every_line_is_a_packet_of_the_capture() {
    for experiment in EXPERIMENTS.iter().filter(|e| e.trace.is_some()) {
        for (case, wire) in [(0, false), (1, false), (1, true)] {
            let (lines, recording) = lines(experiment.name, case, wire);
            assert!(lines.len() > 10, "{}", experiment.name);
            let blocks = blocks(&recording);
            assert_eq!(blocks[..2], [0x0a0d_0d0a, 1]);
            assert_eq!(blocks[2..], vec![6; lines.len()]);
        }
    }
}
