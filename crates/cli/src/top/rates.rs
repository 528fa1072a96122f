//! Rates computed from two readings.

use std::collections::BTreeMap;

/// A reading of a stack.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Snapshot {
    /// The stack's clock, in ns.
    pub(super) at_ns: u64,
    /// Whether the flows belong to a gateway, instead of being sockets.
    pub(super) is_gateway: bool,
    pub(super) flows: Vec<Flow>,
    /// Retransmitted segments of the stack.
    pub(super) retransmissions: u64,
    pub(super) memory: Memory,
}

/// A flow of a gateway, or a socket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Flow {
    pub(super) netid: String,
    pub(super) state: String,
    /// The address of the guest, or of the socket itself.
    pub(super) local: String,
    pub(super) remote: String,
    /// Bytes sent by the local end.
    pub(super) tx_bytes: u64,
    /// Bytes that the local end has received.
    pub(super) rx_bytes: u64,
    pub(super) retransmissions: u64,
    /// Bytes that wait in the stack's queues.
    pub(super) queue: u64,
    pub(super) held_by: String,
}

/// The memory of a stack, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Memory {
    /// The resident memory of the whole process.
    pub(super) resident: Option<u64>,
    /// The data in the stack's sockets.
    pub(super) sockets: u64,
    /// The data between the sockets of a gateway's flows.
    pub(super) relays: Option<u64>,
}

/// A reading with its rates.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Table {
    pub(super) snapshot: Snapshot,
    /// The rates of the flows, in the order of the snapshot's flows.
    pub(super) rates: Vec<Rate>,
    /// Retransmitted segments per second.
    pub(super) retransmission_rate: f64,
}

/// The rates of a flow, bits per second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Rate {
    pub(super) tx: f64,
    pub(super) rx: f64,
}

/// The last reading, from which rates are computed.
#[derive(Default)]
pub(super) struct Rates {
    last: Option<Snapshot>,
}

type Key<'a> = (&'a str, &'a str, &'a str);

fn key(flow: &Flow) -> Key<'_> {
    (&flow.netid, &flow.local, &flow.remote)
}

/// Returns the growth of a counter. A counter that has fallen belongs to a new flow with the same
/// addresses.
const fn growth(before: u64, now: u64) -> u64 {
    if now >= before { now - before } else { now }
}

impl Rates {
    /// Returns a reading with its rates since the previous one, or with zero rates if it is the first.
    pub(super) fn update(&mut self, snapshot: Snapshot) -> Table {
        let table = match &self.last {
            Some(last) => rates_since(last, &snapshot),
            None => Table {
                rates: vec![Rate::default(); snapshot.flows.len()],
                ..Table::default()
            },
        };
        self.last = Some(snapshot.clone());
        Table { snapshot, ..table }
    }
}

fn rates_since(last: &Snapshot, now: &Snapshot) -> Table {
    let seconds = now.at_ns.saturating_sub(last.at_ns) as f64 / 1e9;
    let per_second = |growth: u64| {
        if seconds > 0.0 {
            growth as f64 / seconds
        } else {
            0.0
        }
    };
    let before: BTreeMap<Key<'_>, &Flow> = last.flows.iter().map(|f| (key(f), f)).collect();
    let rate = |flow: &Flow| {
        // A flow that has begun since the last reading had no bytes then.
        let (tx, rx) = before
            .get(&key(flow))
            .map_or((0, 0), |before| (before.tx_bytes, before.rx_bytes));
        Rate {
            tx: 8.0 * per_second(growth(tx, flow.tx_bytes)),
            rx: 8.0 * per_second(growth(rx, flow.rx_bytes)),
        }
    };
    Table {
        snapshot: Snapshot::default(),
        rates: now.flows.iter().map(rate).collect(),
        retransmission_rate: per_second(growth(last.retransmissions, now.retransmissions)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16, tx_bytes: u64, rx_bytes: u64) -> Flow {
        Flow {
            netid: "tcp".to_owned(),
            local: format!("10.0.2.100:{port}"),
            tx_bytes,
            rx_bytes,
            ..Flow::default()
        }
    }

    fn snapshot(at_ms: u64, retransmissions: u64, flows: Vec<Flow>) -> Snapshot {
        Snapshot {
            at_ns: at_ms * 1_000_000,
            flows,
            retransmissions,
            ..Snapshot::default()
        }
    }

    #[test]
    fn rates_are_the_growth_in_bits_per_second_of_the_stacks_clock() {
        let mut rates = Rates::default();
        let first = rates.update(snapshot(1000, 5, vec![flow(1, 100, 9), flow(2, 50, 0)]));
        assert_eq!(first.rates, [Rate::default(); 2]);
        let second = snapshot(3000, 9, vec![flow(2, 1050, 0), flow(1, 100, 259)]);
        let table = rates.update(second);
        let want = [
            Rate {
                tx: 4000.0,
                rx: 0.0,
            },
            Rate {
                tx: 0.0,
                rx: 1000.0,
            },
        ];
        assert_eq!(table.rates, want);
        assert_eq!(table.retransmission_rate.to_string(), "2");
    }

    #[test]
    fn flows_that_began_since_the_last_reading_count_from_zero() {
        let mut rates = Rates::default();
        rates.update(snapshot(0, 0, vec![flow(1, 1000, 1000)]));
        // Port 1 is a new flow with fewer bytes, port 2 was not there.
        let table = rates.update(snapshot(1000, 0, vec![flow(1, 10, 1), flow(2, 20, 2)]));
        let want = [
            Rate { tx: 80.0, rx: 8.0 },
            Rate {
                tx: 160.0,
                rx: 16.0,
            },
        ];
        assert_eq!(table.rates, want);
    }

    #[test]
    fn two_readings_at_one_time_have_no_rates() {
        let mut rates = Rates::default();
        rates.update(snapshot(1000, 0, vec![flow(1, 0, 0)]));
        let table = rates.update(snapshot(1000, 7, vec![flow(1, 9, 9)]));
        assert_eq!(table.rates, [Rate::default()]);
        assert_eq!(table.retransmission_rate.to_string(), "0");
    }
}
