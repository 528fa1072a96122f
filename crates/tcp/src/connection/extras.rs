//! What few connections need, in a box made at first use.

use super::Connection;
use super::fastopen::Fastopen;
use super::mtu_probing::MtuSearch;
use super::rto_stats::RtoStats;
use super::urgent::Urgent;
use super::watch::{RxTimes, TxWatches};
use crate::send::Records;

/// The box.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub(crate) tx: TxWatches,
    pub(crate) rx: Option<RxTimes>,
    pub(crate) records: Records,
    pub(crate) fastopen: Option<Fastopen>,
    pub(crate) mtu: Option<MtuSearch>,
    pub(crate) urgent: Urgent,
    pub(crate) rto: RtoStats,
}

impl Connection {
    #[cold]
    pub(crate) fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }
}
