//! Settings as the C libraries take them: whatever the text, an error or a stack's configuration,
//! and what one run of the parser takes apart another puts together the same way.
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
