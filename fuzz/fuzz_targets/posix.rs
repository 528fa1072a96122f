//! Makes arbitrary calls on arbitrary handles: no panic, and no more bytes than the buffers have
//! space for.
#![no_main]

#[path = "../../crates/posix/tests/random/calls.rs"]
mod calls;

use libfuzzer_sys::fuzz_target;

struct Bytes<'a>(&'a [u8]);

impl calls::Source for Bytes<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}

fuzz_target!(|data: &[u8]| calls::run(&mut Bytes(data)));
