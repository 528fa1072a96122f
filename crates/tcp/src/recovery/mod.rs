//! Loss recovery: the data in flight, the scoreboard, loss detection, and cwnd during recovery.

mod context;
mod control;
mod dsack;
mod frto;
mod host_drop;
mod probe;
mod prr;
mod rack;
mod rtx_queue;
mod tsval;
mod undo;

pub(crate) use context::{CwrAction, RecoveryActions, RecoveryCx, RecoveryTimer, SendVars};
use control::RecoveryOutcome;
pub(crate) use control::{AckSummary, CaState, Recovery};
use frto::Frto;
use probe::TailProbe;
use prr::Prr;
use rack::ReorderingState;
pub(crate) use rtx_queue::{
    AckContext, AckOutcome, DeliverySampler, Retransmit, RtxQueue, SackOutcome, SuperSegment,
};
use tsval::RetransTsval;
use undo::Undo;
