//! `libfullsend_packetdrill.so`: packetdrill loads it in place of the kernel
//! (`--so_filename=libfullsend_packetdrill.so --so_flags=local=192.168.0.1`) to run its scripts
//! against this stack. `docs/packetdrill.md` describes its use.
//!
//! Time is virtual: it passes when packetdrill sleeps, waits for a packet or reads the clock, never
//! during computation. A script of ten minutes takes milliseconds, and every run of it is
//! identical.

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
