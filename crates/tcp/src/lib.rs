//! A sans-IO TCP connection that sends and receives super-segments.
//!
//! A host calls [`Connection::handle_segment`] and [`Connection::handle_timeout`], and then reads
//! the results with [`Connection::poll_transmit`], [`Connection::poll_deadline`] and
//! [`Connection::take_wakes`]. The calls of the application ([`Connection::write`],
//! [`Connection::read`], ...) come in between.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod congestion;
mod congestion_set;
mod connection;
mod ecn;
mod error;
mod info;
mod inspect;
pub mod legacy;
mod limits;
mod memory;
mod mib;
mod options;
mod recovery;
mod recv;
mod rtt;
mod segment;
mod send;
mod sysctl;
mod time_wait;

pub use connection::{
    Connection, FastopenClient, FastopenEvent, IpSettings, Readiness, State, SynAckSent, TxEvent,
    TxStage, TxStages,
};
pub use error::TcpError;
pub use info::TcpInfo;
pub use inspect::{Inspection, SkMem, TimerInfo, TimerKind};
pub use limits::HostLimits;
pub use memory::TcpMemory;
pub use mib::TcpMib;
pub use options::{
    FastopenKeys, Linger, MtuDiscover, SocketOption, SocketOptions, WriteFlags,
    defer_accept_seconds, defer_accept_timeouts,
};
pub use segment::{Cx, DeviceCaps, IcmpError, SegmentIn, SegmentOut, Wakes};
pub use send::{AppendOutcome, FlowReport, Histogram, SendLimit};
pub use sysctl::{PAGE_BYTES, Sysctl, SysctlError, tcp_mem};
pub use time_wait::{TimeWait, TimeWaitAction};

// Their types are in public signatures.
pub use fullsend_offload;
pub use fullsend_wire;
