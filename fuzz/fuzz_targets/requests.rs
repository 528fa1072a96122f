//! Requests of the sockets of slirp4netns, pesto and gvproxy, and of capture filters: no panic, and each
//! request has an answer or an error.
#![no_main]

use fullsend::control::fuzzing::filter_frame;
use fullsend_cli::fuzzing::{answer_slirp4netns, parse_gvproxy, parse_pesto};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    match kind % 4 {
        0 => answer_slirp4netns(bytes),
        1 => parse_pesto(bytes),
        2 => parse_gvproxy(bytes),
        _ => {
            // The first line is the filter.
            let at = bytes.iter().position(|byte| *byte == b'\n');
            let (filter, frame) = bytes.split_at(at.unwrap_or(bytes.len()));
            filter_frame(&String::from_utf8_lossy(filter), frame);
        }
    }
});
