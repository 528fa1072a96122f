//! The operating system's random numbers.

use std::fs::File;
use std::io::{self, Read};

use fullsend_wire::Seed;

/// Returns an unpredictable seed from `/dev/urandom`.
///
/// # Errors
/// Returns the error of opening or reading `/dev/urandom`.
pub fn os_seed() -> io::Result<Seed> {
    let mut bytes = [[0; 8]; 4];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(bytes.as_flattened_mut()))
        .map_err(|error| {
            let text = format!("cannot read /dev/urandom: {error}; set a seed instead");
            io::Error::new(error.kind(), text)
        })?;
    Ok(Seed(bytes.map(u64::from_ne_bytes)))
}
