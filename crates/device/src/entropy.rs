//! The operating system's random numbers.

use std::io;

use fullsend_wire::Seed;

/// Returns an unpredictable seed from the operating system (`getrandom` on Linux), which needs no
/// file.
///
/// # Errors
/// Returns the system's error, e.g. of a system call filter that forbids the call.
pub fn os_seed() -> io::Result<Seed> {
    let mut bytes = [[0; 8]; 4];
    random(bytes.as_flattened_mut()).map_err(|error| {
        let text =
            format!("cannot get random numbers from the kernel: {error}; set a seed instead");
        io::Error::new(error.kind(), text)
    })?;
    Ok(Seed(bytes.map(u64::from_ne_bytes)))
}

#[cfg(target_os = "linux")]
use crate::sys::random;

#[cfg(not(target_os = "linux"))]
fn random(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes).map_err(io::Error::other)
}
