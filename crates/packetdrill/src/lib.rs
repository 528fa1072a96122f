//! `libfullsend_packetdrill.so`: packetdrill loads it in place of the kernel
//! (`--so_filename=libfullsend_packetdrill.so --so_flags=local=192.168.0.1`), and its scripts run
//! against this stack. How to use it is in `docs/packetdrill.md`.
//!
//! Time is virtual: it passes when packetdrill sleeps, asks for a packet that is not there yet, or
//! looks at the clock, never while the program computes. A script of ten minutes takes
//! milliseconds, and always does the same.

mod calls;
mod checksum;
mod counters;
mod files;
mod flags;
mod idle;
mod instance;
mod interface;
#[cfg(not(test))]
mod interpose;
mod netdev;
#[cfg(not(test))]
mod sendfile;
mod settings;

pub use checksum::{BadChecksum, verify};
