//! State of features that few connections use, in a box allocated at first use.

use alloc::boxed::Box;

use fullsend_wire::SeqNum;

use super::Connection;
use super::fastopen::Fastopen;
use super::mtu_probing::MtuSearch;
use super::rto_stats::RtoStats;
use super::urgent::Urgent;
use super::watch::{RxTimes, TxWatches};
use crate::send::Records;

/// The state of all such features.
#[derive(Debug, Default)]
pub(crate) struct Uncommon {
    pub(crate) tx: Option<Box<TxWatches>>,
    pub(crate) rx: Option<Box<RxTimes>>,
    pub(crate) records: Option<Box<Records>>,
    pub(crate) fastopen: Option<Box<Fastopen>>,
    pub(crate) mtu: Option<Box<MtuSearch>>,
    pub(crate) urgent: Urgent,
    pub(crate) rto: RtoStats,
    /// Segments received out of order (`tcpi_rcv_ooopack`).
    pub(crate) rcv_ooopack: u32,
    /// Right edge of the window before it shrank.
    pub(crate) former_right_edge: Option<SeqNum>,
}

// Every connection with a loss, or with data received out of order, keeps this box.
const _: () = assert!(size_of::<Uncommon>() <= 104);

impl Connection {
    #[cold]
    pub(crate) fn uncommon_mut(&mut self) -> &mut Uncommon {
        self.uncommon.get_or_insert_default()
    }
}
