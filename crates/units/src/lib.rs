//! Typed quantities that all layers of Fullsend share.
//!
//! Sequence numbers have no total order, windows in a header differ from windows in bytes, and time
//! is a number of nanoseconds that the caller measured. Nothing here does I/O, reads a clock or
//! draws randomness.
#![no_std]
#![forbid(unsafe_code)]

mod counters;
mod prefetch;
mod rng;
mod seq;
mod size;
mod time;

pub use prefetch::prefetch;
pub use rng::{Rng, Seed};
pub use seq::SeqNum;
pub use size::{Mss, Rate, Window, WindowScale, WireWindow};
pub use time::{Instant, Nanos};
