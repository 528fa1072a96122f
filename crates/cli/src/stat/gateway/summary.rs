//! `stat gateway --summary`: the guest's networks, the tables, the memory and the counters.

use std::fmt::Write as _;

use anyhow::Result;
use fullsend::control::{Counters, GatewayView, Request};
use serde_json::{Value, json};

use super::super::connection::Connection;

/// The prefixes of the names of the counters of the gateway and of its link to the guest.
const PREFIXES: [&str; 2] = ["Gateway", "Device"];

pub(super) fn print(stack: &mut Connection, json: bool) -> Result<()> {
    let gateway = stack.request(&Request::Gateway)?;
    let mut counters: Counters = serde_json::from_value(stack.request(&Request::Counters)?)?;
    counters
        .counters
        .retain(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    if json {
        let object = counters.counters.into_iter().map(|(n, v)| (n, v.into()));
        let counters = Value::Object(object.collect());
        outln!("{}", json!({ "gateway": gateway, "counters": counters }));
        return Ok(());
    }
    let gateway: GatewayView = serde_json::from_value(gateway)?;
    out!("{}", text(&gateway, &counters.counters));
    Ok(())
}

fn text(gateway: &GatewayView, counters: &[(String, u64)]) -> String {
    let mut out = String::new();
    for network in &gateway.networks {
        let guest = network.guest.as_deref().unwrap_or("(chosen by the guest)");
        let _ = write!(out, "Guest:    {guest} gateway {}", network.gateway);
        if let Some(dns) = &network.dns {
            let _ = write!(out, " dns {dns}");
        }
        out.push('\n');
    }
    for lease in &gateway.leases {
        let client = match &*lease.client {
            "" => "declined",
            client => client,
        };
        let (address, left) = (&lease.address, lease.expires_s);
        let _ = writeln!(out, "Lease:    {address} client {client} expires {left}s");
    }
    let _ = writeln!(out, "Link:     mtu {} mac {}", gateway.mtu, gateway.mac);
    let flows = gateway.flows.iter();
    let flows: Vec<_> = flows
        .map(|of| format!("{} {} (max {})", of.netid, of.open, of.max))
        .collect();
    let _ = writeln!(out, "Flows:    {}", flows.join(", "));
    let _ = writeln!(out, "Forwards: {}", gateway.forwards);
    if let Some(rate) = gateway.rate {
        let _ = writeln!(out, "Rate:     {rate} bytes/s");
    }
    let resident = gateway.resident_memory;
    let resident = resident.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    let _ = writeln!(
        out,
        "Memory:   resident {resident} (max {} and the program), sockets {} (max {}), relays {} (max {})",
        gateway.memory_max,
        gateway.socket_memory,
        gateway.socket_memory_max,
        gateway.relay_memory,
        gateway.relay_memory_max
    );
    for (name, value) in counters.iter().filter(|(_, value)| *value > 0) {
        let _ = writeln!(out, "{name:<32}{value}");
    }
    out
}

#[cfg(test)]
mod tests {
    use fullsend::control::{FlowCountView, GuestNetworkView, LeaseView};

    use super::*;

    #[test]
    fn networks_leases_tables_memory_and_counters() {
        let gateway = GatewayView {
            mtu: 1500,
            mac: "52:55:0a:00:02:02".to_owned(),
            networks: vec![GuestNetworkView {
                guest: None,
                gateway: "fd00::2/64".to_owned(),
                dns: Some("fd00::3".to_owned()),
            }],
            leases: vec![LeaseView {
                address: "10.0.2.100".to_owned(),
                client: "01ab".to_owned(),
                expires_s: 60,
            }],
            flows: vec![FlowCountView {
                netid: "tcp".to_owned(),
                open: 2,
                max: 9,
            }],
            forwards: 1,
            rate: Some(1000),
            socket_memory: 4096,
            relay_memory: 0,
            socket_memory_max: 16_384,
            relay_memory_max: 8192,
            resident_memory: None,
            memory_max: 65_536,
        };
        let counters = [("GatewayTcpReset", 0), ("GatewayTcpEstablished", 7)];
        let counters = counters.map(|(name, value)| (name.to_owned(), value));
        let want = "\
Guest:    (chosen by the guest) gateway fd00::2/64 dns fd00::3
Lease:    10.0.2.100 client 01ab expires 60s
Link:     mtu 1500 mac 52:55:0a:00:02:02
Flows:    tcp 2 (max 9)
Forwards: 1
Rate:     1000 bytes/s
Memory:   resident - (max 65536 and the program), sockets 4096 (max 16384), relays 0 (max 8192)
GatewayTcpEstablished           7
";
        assert_eq!(text(&gateway, &counters), want);
    }
}
