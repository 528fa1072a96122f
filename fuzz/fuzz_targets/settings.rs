//! Parses arbitrary text as settings of the C libraries: no panic, and pairs are unchanged when
//! they are formatted and parsed again.
#![no_main]

use fullsend_blocking::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = Config::parse(text);
    if let Ok(pairs) = Config::pairs(text) {
        let joined: Vec<String> = pairs.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(Config::pairs(&joined.join("\n")).as_ref(), Ok(&pairs));
    }
});
