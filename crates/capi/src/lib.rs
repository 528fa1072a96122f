//! The C ABI: `libfullsend.so`. What each function does is in `include/fullsend.h`.
//!
//! Stacks and descriptors are numbers that are looked up in tables, so that a stale one is an
//! error and no access to freed memory.

mod callbacks;
mod files;
mod last_error;
mod many;
mod messages;
mod sockets;
mod stacks;
mod table;
