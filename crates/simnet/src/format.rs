//! Formatting of packets as text.

use fullsend_offload::Link;
use fullsend_sim::TraceEvent;

/// Formats a packet that an [observer](crate::Simulation::set_observer) has received as one line, without
/// a line break, in the format of tcpdump:
///
/// `0.020000000 client sent    IP 10.1.0.2.40000 > 10.1.0.1.80: Flags [P.], seq 1:97, ack 1, …`
///
/// Sequence numbers are absolute.
///
/// ```
/// use fullsend_simnet::{Simulation, format_packet};
///
/// let mut sim = Simulation::new(1);
/// sim.set_observer(|host, event| println!("{}", format_packet(host, event)));
/// ```
pub fn format_packet(host: &str, event: &TraceEvent<'_>) -> String {
    let text = fullsend_sim::format_packet(event, Link::Ip);
    text.replacen(&format!(" h{} ", event.host.0), &format!(" {host} "), 1)
}
