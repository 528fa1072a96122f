//! The operating system's random numbers.

use std::io;

use fullsend_wire::Seed;

use crate::sys;

/// Returns an unpredictable seed from the kernel (`getrandom`), which needs no file.
///
/// # Errors
/// Returns the kernel's error, e.g. of a system call filter that forbids the call.
pub fn os_seed() -> io::Result<Seed> {
    let mut bytes = [[0; 8]; 4];
    sys::random(bytes.as_flattened_mut()).map_err(|error| {
        let text =
            format!("cannot get random numbers from the kernel: {error}; set a seed instead");
        io::Error::new(error.kind(), text)
    })?;
    Ok(Seed(bytes.map(u64::from_ne_bytes)))
}
