//! Loss recovery: the data in flight, the scoreboard, loss detection, and cwnd during recovery.

mod control;
mod dsack;
mod frto;
mod host_drop;
mod probe;
mod prr;
mod rack;
mod rtx_queue;
mod stamp;
mod undo;

use control::Verdict;
pub(crate) use control::{AckNews, Phase, Recovery};
use frto::Frto;
use probe::TailProbe;
use prr::Prr;
use rack::Adaptation;
pub(crate) use rtx_queue::{
    AckOutcome, Delivery, Retransmit, RtxQueue, SackOutcome, Sighting, TransmitUnit,
};
use stamp::CopyStamp;
use undo::Undo;
