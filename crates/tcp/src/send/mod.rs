//! The sending side: what is not yet sent, when it may leave, and in what pieces.

mod autosize;
mod build;
mod flow;
mod nagle;
mod output;
mod pacing;
mod split;
mod write_queue;

pub(crate) use flow::Flow;
pub use flow::{FlowReport, Histogram, SendLimit};
pub(crate) use nagle::Nagle;
pub(crate) use output::Blocked;
pub(crate) use pacing::Pacing;
pub(crate) use write_queue::{UNIT_OVERHEAD_BYTES, WriteQueue};
