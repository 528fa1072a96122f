//! The number of sockets: `ss -s`.

use std::net::SocketAddr;

use anyhow::Result;
use fullsend::control::SocketView;
use serde::Serialize;

/// The number of sockets of one protocol, in all and by family.
#[derive(Serialize, Default)]
struct Families {
    total: usize,
    ipv4: usize,
    ipv6: usize,
}

#[derive(Serialize, Default)]
struct Summary {
    total: usize,
    estab: usize,
    closed: usize,
    orphaned: usize,
    timewait: usize,
    tcp: Families,
    udp: Families,
}

impl Families {
    fn count(&mut self, socket: &SocketView) {
        self.total += 1;
        let v4 = socket.local.parse().is_ok_and(|a: SocketAddr| a.is_ipv4());
        *if v4 { &mut self.ipv4 } else { &mut self.ipv6 } += 1;
    }
}

impl Summary {
    fn new(sockets: &[SocketView]) -> Self {
        let mut out = Self {
            total: sockets.len(),
            ..Self::default()
        };
        for socket in sockets {
            if socket.netid == "udp" {
                out.udp.count(socket);
                continue;
            }
            out.tcp.count(socket);
            out.orphaned += usize::from(socket.owner == "orphan");
            match socket.state.as_str() {
                "ESTAB" => out.estab += 1,
                "UNCONN" => out.closed += 1,
                "TIME-WAIT" => out.timewait += 1,
                _ => {}
            }
        }
        out
    }
}

pub(super) fn print(sockets: &[SocketView], json: bool) -> Result<()> {
    let summary = Summary::new(sockets);
    if json {
        outln!("{}", serde_json::to_string(&summary)?);
        return Ok(());
    }
    let Summary {
        total,
        estab,
        closed,
        orphaned,
        timewait,
        tcp,
        udp,
    } = summary;
    outln!("Total: {total}");
    outln!(
        "TCP:   {} (estab {estab}, closed {closed}, orphaned {orphaned}, timewait {timewait})",
        tcp.total
    );
    outln!();
    outln!(
        "{:<10}{:<10}{:<10}{:<10}",
        "Transport",
        "Total",
        "IP",
        "IPv6"
    );
    for (name, of) in [("UDP", udp), ("TCP", tcp)] {
        outln!("{name:<10}{:<10}{:<10}{:<10}", of.total, of.ipv4, of.ipv6);
    }
    Ok(())
}
