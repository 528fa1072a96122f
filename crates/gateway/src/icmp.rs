//! ICMP: errors for the guest, and its echo requests.

mod error;
mod ping;

use std::sync::Arc;

pub(crate) use error::{report_error, report_unreachable};
pub(crate) use ping::{PingInfo, Pings};

use crate::gateway::Shared;

/// Relays the guest's echo requests until the stack stops.
pub(crate) async fn receive_icmp(shared: Arc<Shared>) {
    while let Ok(message) = shared.icmp.recv().await {
        if ping::is_echo_request(&message) {
            ping::relay_echo_request(&shared, &message);
        } else {
            // The stack passes on no other messages than router solicitations.
            shared.router_solicited.notify_one();
        }
    }
}
