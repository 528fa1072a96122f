//! Congestion controls that a program provides.
//!
//! A [`CongestionControl`] determines the window, and optionally the pacing rate, of one connection.
//! [`TcpStream::set_congestion_with`](crate::TcpStream::set_congestion_with) sets it for a connection,
//! [`TcpListener::set_congestion_with`](crate::TcpListener::set_congestion_with) for the connections of a
//! listener, and [`Builder::congestion_with`](crate::Builder::congestion_with) for those of a stack. The
//! example `congestion` is a complete control, and prints its window.

pub use fullsend_tcp::congestion::{Ack, CongestionControl, CongestionEvent, Loss};
pub use fullsend_wire::{Instant, Nanos, Rate};
