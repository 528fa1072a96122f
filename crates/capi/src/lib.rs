//! The C ABI: `libfullsend.so`. `include/fullsend.h` documents the functions.
//!
//! Stacks and descriptors are numbers that are looked up in tables, so that a stale one causes an
//! error instead of an access to freed memory.

mod callbacks;
mod calls;
mod last_error;
mod stacks;
mod table;
