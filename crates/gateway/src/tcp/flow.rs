//! The table of TCP flows, read only by tools; the relays record the state of each flow in it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::{Bound, Deref};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use socket2::Socket;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// The event that one direction of a flow waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Stage {
    /// The connection of the host's socket.
    Connecting,
    /// The handshake with the guest.
    Handshake,
    /// Data to relay.
    Data,
    /// Permission of the rate limit.
    RateLimit,
    /// Room in the socket that the direction writes to.
    Room,
    /// Nothing, as the direction has ended.
    Ended,
}

impl Stage {
    const ALL: [Self; 6] = [
        Self::Connecting,
        Self::Handshake,
        Self::Data,
        Self::RateLimit,
        Self::Room,
        Self::Ended,
    ];
}

/// One direction of a flow.
#[derive(Debug)]
pub(crate) struct Direction {
    stage: AtomicU8,
    bytes: AtomicU64,
}

impl Direction {
    const fn new(stage: Stage) -> Self {
        Self {
            stage: AtomicU8::new(stage as u8),
            bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn stage(&self) -> Stage {
        Stage::ALL[usize::from(self.stage.load(Ordering::Relaxed))]
    }

    /// Counts relayed payload, bytes.
    pub(crate) fn add_bytes(&self, n: usize) {
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// One TCP flow.
#[derive(Debug)]
pub(crate) struct TcpFlow {
    /// The guest's address.
    pub(crate) guest: SocketAddr,
    /// The other end's address as the guest sees it.
    pub(crate) remote: SocketAddr,
    /// The other end's address on the host.
    pub(crate) host: SocketAddr,
    /// Whether a client of a forward opened it.
    pub(crate) forwarded: bool,
    pub(crate) started: Instant,
    /// The direction from the guest to the host.
    pub(crate) tx: Direction,
    /// The direction from the host to the guest.
    pub(crate) rx: Direction,
    host_socket: OnceLock<Weak<AsyncFd<Socket>>>,
}

impl TcpFlow {
    fn new(guest: SocketAddr, remote: SocketAddr, host: SocketAddr, forwarded: bool) -> Self {
        // The host's socket of a forwarded flow is connected before the guest's.
        let stage = if forwarded {
            Stage::Handshake
        } else {
            Stage::Connecting
        };
        Self {
            guest,
            remote,
            host,
            forwarded,
            started: Instant::now(),
            tx: Direction::new(stage),
            rx: Direction::new(stage),
            host_socket: OnceLock::new(),
        }
    }

    pub(crate) fn set_host_socket(&self, socket: Weak<AsyncFd<Socket>>) {
        let _ = self.host_socket.set(socket);
    }

    /// Returns the host's socket, or `None` once it is closed.
    pub(crate) fn host_socket(&self) -> Option<Arc<AsyncFd<Socket>>> {
        self.host_socket.get()?.upgrade()
    }

    /// Sets the stage of both directions.
    pub(crate) fn set_stage(&self, stage: Stage) {
        self.tx.set_stage(stage);
        self.rx.set_stage(stage);
    }
}

/// The TCP flows of a gateway, numbered in the order in which they begin.
#[derive(Default)]
pub(crate) struct TcpFlows {
    flows: Mutex<BTreeMap<u64, Arc<TcpFlow>>>,
    last_id: AtomicU64,
}

impl TcpFlows {
    /// Adds a flow that the guest opens.
    pub(crate) fn add_outbound(
        &self,
        guest: SocketAddr,
        remote: SocketAddr,
        host: SocketAddr,
    ) -> TcpFlowEntry<'_> {
        self.add(TcpFlow::new(guest, remote, host, false))
    }

    /// Adds a flow that the client of a forward opens.
    pub(crate) fn add_forwarded(
        &self,
        guest: SocketAddr,
        remote: SocketAddr,
        client: SocketAddr,
    ) -> TcpFlowEntry<'_> {
        self.add(TcpFlow::new(guest, remote, client, true))
    }

    fn add(&self, flow: TcpFlow) -> TcpFlowEntry<'_> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let flow = Arc::new(flow);
        self.flows.lock().insert(id, flow.clone());
        TcpFlowEntry {
            table: self,
            id,
            flow,
        }
    }

    /// Returns whether some flow was accepted by the other end and not closed by the guest.
    pub(crate) fn has_open_tx(&self) -> bool {
        let is_open = |stage| !matches!(stage, Stage::Connecting | Stage::Ended);
        let flows = self.flows.lock();
        flows.values().any(|flow| is_open(flow.tx.stage()))
    }

    /// Returns the first flows with a number greater than `id`, at most `max`.
    pub(crate) fn after(&self, id: u64, max: usize) -> Vec<(u64, Arc<TcpFlow>)> {
        let flows = self.flows.lock();
        let rest = flows.range((Bound::Excluded(id), Bound::Unbounded));
        rest.take(max)
            .map(|(id, flow)| (*id, flow.clone()))
            .collect()
    }
}

/// A flow in the table, removed on drop.
pub(crate) struct TcpFlowEntry<'a> {
    table: &'a TcpFlows,
    id: u64,
    flow: Arc<TcpFlow>,
}

impl Deref for TcpFlowEntry<'_> {
    type Target = TcpFlow;

    fn deref(&self) -> &TcpFlow {
        &self.flow
    }
}

impl Drop for TcpFlowEntry<'_> {
    fn drop(&mut self) {
        self.table.flows.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn flows_are_listed_in_parts_until_they_end() {
        let table = TcpFlows::default();
        let addr = |port| SocketAddr::from(([10, 0, 2, 100], port));
        let mut entries: Vec<_> = (1..=5)
            .map(|port| table.add_outbound(addr(port), addr(80), addr(80)))
            .collect();
        let ports = |after, max| -> Vec<_> {
            let flows = table.after(after, max);
            flows.iter().map(|(id, f)| (*id, f.guest.port())).collect()
        };
        assert_eq!(ports(0, 2), [(1, 1), (2, 2)]);
        entries.remove(2);
        assert_eq!(ports(2, 2), [(4, 4), (5, 5)]);
        assert_eq!(ports(5, 2), []);
        drop(entries);
        assert_eq!(ports(0, 9), []);
    }

    #[test]
    fn stages_are_stored_as_their_numbers() {
        for (n, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(n, stage as usize);
            let direction = Direction::new(Stage::Data);
            direction.set_stage(stage);
            assert_eq!(direction.stage(), stage);
        }
    }
}
