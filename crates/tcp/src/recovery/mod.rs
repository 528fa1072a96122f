//! Loss recovery: what is in flight, what of it arrived, what is lost, and how fast to repair.

mod control;
mod host_drop;
mod prr;
mod rtx_queue;
mod undo;

use control::MAX_REORDERING_SEGS;
pub(crate) use control::{Phase, Recovery};
pub(crate) use prr::Prr;
pub(crate) use rtx_queue::{AckOutcome, Delivery, Retransmit, RtxQueue, SackOutcome, TransmitUnit};
pub(crate) use undo::Undo;
