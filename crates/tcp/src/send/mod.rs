//! The sending side: what is not yet sent.

mod write_queue;

pub(crate) use write_queue::{Taken, UNIT_OVERHEAD_BYTES, WriteQueue};
