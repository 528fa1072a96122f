//! Parses arbitrary text as a packet script and checks its code: no panic, and errors give a line
//! of the text.
#![no_main]

use fullsend_script::{families, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match parse(text) {
        Ok(script) => {
            let _ = families(&script);
            let _ = fullsend_script::check_code(&script);
        }
        Err(error) => {
            let lines = text.lines().count() as u32 + 1;
            assert!((1..=lines).contains(&error.pos.line));
        }
    }
});
