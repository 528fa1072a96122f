//! The tests of the socket files, with stacks of four shards.
#![allow(
    clippy::duplicate_mod,
    reason = "each file is a test of its own, with its helpers, and is repeated here"
)]

#[path = "device_loss.rs"]
mod device_loss;
#[path = "kernel.rs"]
mod kernel;
#[path = "kernel_fastopen.rs"]
mod kernel_fastopen;
#[path = "kernel_sending.rs"]
mod kernel_sending;
#[path = "listener.rs"]
mod listener;
#[path = "own_address.rs"]
mod own_address;
#[path = "stream.rs"]
mod stream;
#[path = "tap.rs"]
mod tap;
#[path = "udp.rs"]
mod udp;
#[path = "waiters.rs"]
mod waiters;
#[path = "wakeups.rs"]
mod wakeups;
