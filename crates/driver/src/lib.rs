//! The pump between a [`Host`] and its [`Device`]: receive, timers, transmit, completions.
//!
//! A [`Pump`] owns the device and the packets on their way to it. It does not wait. Its caller, an
//! async task, a thread or a simulation, calls [`Pump::poll`] when the device is readable or a
//! timer is due, and [`Pump::transmit`] after each call of a socket. Their results name the events
//! that the caller must wait for.
//!
//! [`Host`]: fullsend_stack::Host
//! [`Device`]: fullsend_device::Device
#![forbid(unsafe_code)]

mod clock;
mod outbox;
mod pump;
mod steered;

pub use clock::Clock;
use outbox::Outbox;
pub use pump::{PollOutcome, Pump, RX_BATCH, TransmitOutcome};
pub use steered::{Handover, MAX_SHARDS, SteeredDevice};

// Their types are in public signatures.
pub use fullsend_device;
pub use fullsend_offload;
pub use fullsend_stack;
pub use fullsend_wire;
