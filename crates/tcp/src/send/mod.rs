//! The sending side: unsent data, when it may leave, and how it is cut into super-segments.

mod autosize;
mod build;
mod flow;
mod limits;
mod nagle;
mod output;
mod pacing;
mod pending;
#[cfg(test)]
mod properties;
mod push;
mod records;
mod report;
mod retransmit;
mod small_queue;
mod split;
mod write_queue;

pub(crate) use flow::FlowState;
pub(crate) use limits::{BlockedBy, Force};
pub(crate) use nagle::Nagle;
pub(crate) use pacing::{HEADERS_BYTES, Pacing};
pub(crate) use pending::{Pending, Reset};
pub use push::AppendOutcome;
pub(crate) use records::Records;
pub use report::{FlowReport, Histogram, SendLimit};
pub(crate) use write_queue::{SUPER_SEGMENT_OVERHEAD_BYTES, WriteQueue};
