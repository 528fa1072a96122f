//! ICMP: the relay of the guest's echo requests, and errors for the guest.

mod error;
mod ping;

use std::sync::Arc;

pub(crate) use error::{report_error, report_unreachable};
pub(crate) use ping::{PingInfo, Pings};

use crate::gateway::Shared;

/// Relays the guest's echo requests and reports its router solicitations, until the stack stops.
pub(crate) async fn receive_icmp(shared: Arc<Shared>) {
    while let Ok(message) = shared.icmp.recv().await {
        if ping::is_echo_request(&message) {
            ping::relay_echo_request(&shared, &message);
        } else {
            // The only other messages that the stack passes on are router solicitations.
            shared.router_solicited.notify_one();
            shared.record_link_local(message.from);
        }
    }
}
