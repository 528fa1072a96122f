//! Parses arbitrary requests and replies of the control socket: no panic, a request is unchanged
//! when it is formatted and parsed again, and errors are not empty.
#![no_main]

use fullsend::control::{Reply, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match Request::parse(data) {
        Ok(request) => {
            let line = request.to_line();
            assert!(line.ends_with('\n') && !line.trim_end().contains('\n'));
            assert_eq!(Request::parse(line.as_bytes()), Ok(request));
        }
        Err(text) => assert!(!text.is_empty()),
    }
    let _ = Reply::parse(data);
});
