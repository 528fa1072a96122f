//! Makes arbitrary calls of the C library, with arbitrary descriptors and with pointers that are null or
//! unaligned: no panic, no access outside of the given memory, and an errno for each failure.
#![no_main]

#[path = "../../crates/capi/tests/random/calls.rs"]
mod calls;
#[path = "../../crates/capi/src/lib.rs"]
mod library;

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
