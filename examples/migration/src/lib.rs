//! The two networks of the migration list (docs/tokio.md): the kernel's, with the sockets of
//! `tokio::net`, and a stack's, with those of `fullsend`.
//!
//! The programs in `tests/programs` import their sockets from [`kernel`] or from [`stack`], and open
//! them with that module's `Net`. Nothing else differs between a program that uses one and the same
//! program that uses the other, as both are compiled from one file.

pub mod kernel;
mod network;
pub mod stack;

pub use network::{over_link, over_loopback, over_tun_to_kernel, over_tun_to_stack};
