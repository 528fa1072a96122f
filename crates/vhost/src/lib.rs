//! A virtio-net device for a virtual machine, over vhost-user.
//!
//! A [`VhostUser`] is a [`Device`] whose peer is the driver in a guest. A virtual machine monitor (QEMU,
//! cloud-hypervisor, libkrun) connects to its Unix socket and passes the guest's memory and the files of
//! its rings. Afterwards packets move between the stack and the rings without the monitor, and while both
//! sides are busy without a system call: a super-segment of up to 64 KiB is one descriptor chain, copied
//! once.
//!
//! ```no_run
//! use fullsend_vhost::VhostUser;
//!
//! let device = VhostUser::listen("/run/vm0.sock").open()?;
//! let counters = device.stats_handle();
//! // Then pass the device to a stack: `Stack::builder().device(Box::new(device))`.
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! When the monitor or the guest restarts, the device stays: packets for the guest are dropped and
//! counted until the next driver runs, and the stack's connections continue.
//!
//! # Trust
//! The guest is not trusted: indices, descriptors, addresses and headers that it must not write cause a
//! counter, a dropped packet or a stopped ring, and never an access outside of its memory.
//!
//! An access to a page that the file of the memory does not have is a `SIGBUS`, which ends the process: the
//! monitor may shorten a file that is not sealed, and a sparse file can be larger than the free space of its file
//! system. So the memory must be in a memfd that is sealed or that the device can seal, as QEMU's
//! `memory-backend-memfd`; the connection of a monitor with other memory is closed. A program that accepts it, or
//! serves several guests, permits a handler of the signal with [`VhostUserBuilder::handle_sigbus`]: then the
//! device closes the connection of that monitor alone and counts `memory_faults`. Without this permission the
//! crate installs no handler.
//!
//! The monitor is trusted in one respect: it can block the thread that drives the device. Memory in files
//! of FUSE or of a network is refused, and eventfds are written only while they have room, but the
//! monitor can change both after the check. A program that another thread executes at the moment at which
//! a message arrives can inherit the descriptors of that message.
//!
//! # Why not `vhost-user-backend`
//! `vhost-user-backend` runs threads with their own event loops. A [`Device`] is called by the driver of
//! its stack and has one file to wait for, so this crate uses the message layer of `vhost`
//! (`BackendReqHandler`), `virtio-queue` and `vm-memory`. The message layer reads from the socket in a
//! loop, so it is called only when a whole message has arrived.
#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("fullsend-vhost needs Linux: it uses system calls that other systems do not have");

mod backend;
mod builder;
mod connection;
mod control;
mod cursor;
mod device;
mod fault;
mod features;
mod memory;
mod pair;
mod receive;
mod ring;
mod source;
mod stats;
#[cfg(test)]
mod tests;
mod transmit;

pub use builder::VhostUserBuilder;
pub use device::VhostUser;
#[doc(no_inline)]
pub use fullsend_device::{Device, DeviceCounters};
pub use stats::{StatsHandle, VhostUserStats};

// The types of these crates are in public signatures.
pub use fullsend_offload;
