//! What an idle connection costs.

use fullsend_units::Mss;

use super::Connection;
use crate::recovery::RtxQueue;
use crate::recv::{RecvQueue, RecvWindow};
use crate::send::WriteQueue;

/// The box of the congestion control, and a unit that the queues keep for the next use.
const HEAP: usize = 96 + 80;

#[test]
fn an_idle_connection_is_small() {
    let sizes = [
        size_of::<Connection>(),
        size_of::<WriteQueue>(),
        size_of::<RtxQueue>(),
        size_of::<RecvQueue>(),
        size_of::<RecvWindow>(),
        size_of::<crate::rtt::RttEstimator>(),
        size_of::<crate::recovery::Recovery>(),
        size_of::<super::Sender>(),
        size_of::<super::Receiver>(),
        size_of::<super::Timers>(),
        size_of::<super::Stats>(),
        size_of::<super::Settings>(),
        size_of::<super::UserSide>(),
        size_of::<crate::recv::AckPolicy>(),
    ];
    assert!(sizes[0] + HEAP <= 800, "{sizes:?}");
    let _ = Mss::MIN;
}
