//! The table of UDP flows, with bounds: flows end when they are idle, and a new flow replaces the one
//! that has been idle for the longest time. The guest's flows and those of forwards have bounds of
//! their own, so that clients of a forward do not end the guest's flows.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fullsend_device::PortId;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::host_socket::{HostUdp, Peer};
use crate::forward::ForwardId;
use crate::guests::Guest;

/// Idle time of a flow without an answer.
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle time of a flow with datagrams in both directions.
const ANSWERED_TIMEOUT: Duration = Duration::from_secs(3 * 60);

/// The addresses of a flow as the guest sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FlowKey {
    pub(crate) guest: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// A client of a forward.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ClientKey {
    pub(super) forward: ForwardId,
    pub(super) client: SocketAddr,
    /// The host's address that the client has sent to, if the kernel has reported it.
    pub(super) asked: Option<IpAddr>,
}

/// One UDP flow.
pub(crate) struct UdpFlow {
    pub(crate) key: FlowKey,
    /// The guest whose flow it is.
    pub(super) owner: Arc<Guest>,
    pub(crate) socket: Arc<HostUdp>,
    /// The client of a forward, which the host's socket sends to; `None` for a connected socket.
    pub(crate) client: Option<(ClientKey, Peer)>,
    /// The address that the host's socket is connected to.
    pub(crate) host: SocketAddr,
    pub(crate) started: Instant,
    tx_bytes: AtomicU64,
    rx_bytes: AtomicU64,
    /// Whether datagrams have passed in both directions.
    answered: AtomicBool,
    last_used: Mutex<Instant>,
}

impl UdpFlow {
    pub(super) fn new(
        (key, owner): (FlowKey, Arc<Guest>),
        socket: Arc<HostUdp>,
        host: SocketAddr,
        client: Option<(ClientKey, Peer)>,
    ) -> Self {
        Self {
            key,
            owner,
            socket,
            client,
            host,
            started: Instant::now(),
            tx_bytes: AtomicU64::new(0),
            rx_bytes: AtomicU64::new(0),
            answered: AtomicBool::new(false),
            last_used: Mutex::new(Instant::now()),
        }
    }

    /// Records a datagram; `answer` if its direction is the opposite of the flow's first one.
    pub(super) fn record_use(&self, answer: bool) {
        *self.last_used.lock() = Instant::now();
        if answer {
            self.answered.store(true, Ordering::Relaxed);
        }
    }

    /// Counts payload of the guest.
    pub(super) fn add_tx_bytes(&self, n: usize) {
        self.tx_bytes.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts payload to the guest.
    pub(super) fn add_rx_bytes(&self, n: usize) {
        self.rx_bytes.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn tx_bytes(&self) -> u64 {
        self.tx_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn rx_bytes(&self) -> u64 {
        self.rx_bytes.load(Ordering::Relaxed)
    }

    /// Returns where the host's socket sends to; `None` for a connected one.
    pub(super) fn peer(&self) -> Option<&Peer> {
        self.client.as_ref().map(|(_, peer)| peer)
    }

    fn kind(&self) -> Kind {
        match &self.client {
            Some(_) => Kind::Forwarded,
            None => Kind::OfGuest(self.owner.port),
        }
    }

    pub(crate) fn last_used(&self) -> Instant {
        *self.last_used.lock()
    }

    /// Returns whether datagrams have passed in both directions.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }
}

/// The flows that have a bound in common: those of one guest, or of all forwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    OfGuest(Option<PortId>),
    Forwarded,
}

struct Entry {
    flow: Arc<UdpFlow>,
    /// Distinguishes this flow from an earlier one with the same key.
    id: u64,
    /// The task that receives from the host's socket. Flows of a forward share the forward's.
    task: Option<AbortHandle>,
}

/// A flow in the order of use.
struct QueueEntry {
    key: FlowKey,
    id: u64,
    /// When the flow had last been used as it was queued.
    used: Instant,
}

/// The order of use of a guest's flows, or of those of forwards, and their number.
///
/// Each flow has one entry in one of two queues, ordered by the times of last use. A use changes
/// only the flow; its entry is moved when it comes to the front, so that each call takes constant
/// amortised time.
#[derive(Default)]
struct Order {
    unanswered: VecDeque<QueueEntry>,
    answered: VecDeque<QueueEntry>,
    len: usize,
}

/// All flows, at most a fixed number of those of guests, and of those of forwards.
pub(super) struct Table {
    flows: BTreeMap<FlowKey, Entry>,
    /// The flows of the clients of forwards.
    clients: BTreeMap<ClientKey, FlowKey>,
    /// Of kinds with flows.
    orders: BTreeMap<Kind, Order>,
    /// Number of flows of guests.
    guests_len: usize,
    max: usize,
    max_forwarded: usize,
    last_id: u64,
    /// The substitute port that is tried next.
    next_substitute: u16,
}

/// Ports that stand for clients whose own address and port are in use by another flow.
const SUBSTITUTE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

impl Table {
    /// Returns a table for `max` flows of all guests, and `max_forwarded` ones of forwards.
    pub(super) fn new(max: usize, max_forwarded: usize) -> Self {
        Self {
            flows: BTreeMap::new(),
            clients: BTreeMap::new(),
            orders: BTreeMap::new(),
            guests_len: 0,
            max: max.max(1),
            max_forwarded: max_forwarded.max(1),
            last_id: 0,
            next_substitute: *SUBSTITUTE_PORTS.start(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(super) fn get(&self, key: &FlowKey) -> Option<&Arc<UdpFlow>> {
        self.flows.get(key).map(|entry| &entry.flow)
    }

    /// Returns the first flows after `key` in the order of their addresses, at most `max`.
    pub(super) fn after(&self, key: Option<FlowKey>, max: usize) -> Vec<Arc<UdpFlow>> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.flows.range((from, Bound::Unbounded));
        rest.take(max)
            .map(|(_, entry)| entry.flow.clone())
            .collect()
    }

    /// Returns the flow of a client of a forward.
    pub(super) fn of_client(&self, client: &ClientKey) -> Option<&Arc<UdpFlow>> {
        self.get(self.clients.get(client)?)
    }

    /// Returns a key without a flow for a client that the guest sees as `remote`, if that is in use
    /// with another port. `None` if all ports are in use.
    pub(super) fn free_key(&mut self, guest: SocketAddr, remote: SocketAddr) -> Option<FlowKey> {
        let mut key = FlowKey { guest, remote };
        for _ in 0..=SUBSTITUTE_PORTS.len() {
            if !self.flows.contains_key(&key) {
                return Some(key);
            }
            key.remote.set_port(self.next_substitute);
            // Ports that were used recently come last, so that few are tried.
            self.next_substitute = match self.next_substitute.checked_add(1) {
                Some(next) => next,
                None => *SUBSTITUTE_PORTS.start(),
            };
        }
        None
    }

    /// Adds a flow with its task. `share` is the most flows that its guest may have. Returns whether
    /// another flow was removed for it.
    pub(super) fn insert(
        &mut self,
        flow: Arc<UdpFlow>,
        task: Option<AbortHandle>,
        share: usize,
    ) -> bool {
        self.remove(&flow.key);
        let kind = flow.kind();
        let replaced = self
            .full_kind(kind, share)
            .is_some_and(|full| self.remove_least_recently_used(full));
        self.last_id += 1;
        let (key, id, used) = (flow.key, self.last_id, flow.last_used());
        let order = self.orders.entry(kind).or_default();
        order.unanswered.push_back(QueueEntry { key, id, used });
        order.len += 1;
        self.guests_len += usize::from(kind != Kind::Forwarded);
        if let Some((client, _)) = &flow.client {
            self.clients.insert(*client, key);
        }
        self.flows.insert(key, Entry { flow, id, task });
        replaced
    }

    /// Returns the kind of which a flow must end before one of `kind` is added: if all guests together
    /// have too many, of the guest that has most.
    fn full_kind(&self, kind: Kind, share: usize) -> Option<Kind> {
        let len = self.orders.get(&kind).map_or(0, |order| order.len);
        match kind {
            Kind::Forwarded => (len >= self.max_forwarded).then_some(kind),
            _ if len >= share => Some(kind),
            _ if self.guests_len >= self.max => {
                let of_guests = |(kind, _): &(&Kind, &Order)| **kind != Kind::Forwarded;
                let orders = self.orders.iter().filter(of_guests);
                orders
                    .max_by_key(|(_, order)| order.len)
                    .map(|(kind, _)| *kind)
            }
            Kind::OfGuest(_) => None,
        }
    }

    /// Ends a flow. Its entry in a queue is removed when it comes to the front.
    pub(super) fn remove(&mut self, key: &FlowKey) {
        if let Some(entry) = self.flows.remove(key) {
            let kind = entry.flow.kind();
            if let Some(order) = self.orders.get_mut(&kind) {
                order.len -= 1;
                if order.len == 0 {
                    self.orders.remove(&kind);
                }
            }
            self.guests_len -= usize::from(kind != Kind::Forwarded);
            if let Some((client, _)) = &entry.flow.client {
                self.clients.remove(client);
            }
            entry.end();
        }
    }

    /// Ends the flows of a forward.
    pub(super) fn remove_forward(&mut self, forward: ForwardId) {
        let of_forward = |(client, _): &(&ClientKey, &FlowKey)| client.forward == forward;
        let keys: Vec<_> = self
            .clients
            .iter()
            .filter(of_forward)
            .map(|(_, key)| *key)
            .collect();
        for key in keys {
            self.remove(&key);
        }
    }

    /// Ends the flows that have been idle for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        let timeouts = [(false, UNANSWERED_TIMEOUT), (true, ANSWERED_TIMEOUT)];
        let kinds: Vec<_> = self.orders.keys().copied().collect();
        for kind in kinds {
            for (answered, timeout) in timeouts {
                while let Some(key) = self.front(kind, answered)
                    && self.idle_time(&key, now) >= timeout
                {
                    self.remove_front(kind, answered, &key);
                }
            }
        }
    }

    /// Ends the flow that was used the longest time ago; of those without an answer, if there are
    /// any. Returns whether there was a flow.
    fn remove_least_recently_used(&mut self, kind: Kind) -> bool {
        for answered in [false, true] {
            if let Some(key) = self.front(kind, answered) {
                self.remove_front(kind, answered, &key);
                return true;
            }
        }
        false
    }

    /// Ends the flow that [`front`](Self::front) has returned.
    fn remove_front(&mut self, kind: Kind, answered: bool, key: &FlowKey) {
        if let Some(order) = self.orders.get_mut(&kind) {
            order.queue(answered).pop_front();
        }
        self.remove(key);
    }

    fn idle_time(&self, key: &FlowKey, now: Instant) -> Duration {
        let flow = self.flows.get(key);
        flow.map_or(Duration::MAX, |entry| now - entry.flow.last_used())
    }

    /// Returns the flow that was used the longest time ago of a queue, after it has moved the
    /// entries before it that were used since, or belong in the other queue.
    fn front(&mut self, kind: Kind, answered: bool) -> Option<FlowKey> {
        let order = self.orders.get_mut(&kind)?;
        loop {
            let front = order.queue(answered).front()?;
            let (key, id, used) = (front.key, front.id, front.used);
            let current = self.flows.get(&key).filter(|entry| entry.id == id);
            let state = current.map(|entry| (entry.flow.last_used(), entry.flow.is_answered()));
            match state {
                Some((last_used, is_answered)) if last_used == used && is_answered == answered => {
                    return Some(key);
                }
                Some((used, is_answered)) => {
                    order.queue(answered).pop_front();
                    let entry = QueueEntry { key, id, used };
                    order.queue(is_answered).push_back(entry);
                }
                // The flow has ended.
                None => {
                    order.queue(answered).pop_front();
                }
            }
        }
    }
}

impl Order {
    const fn queue(&mut self, answered: bool) -> &mut VecDeque<QueueEntry> {
        if answered {
            &mut self.answered
        } else {
            &mut self.unanswered
        }
    }
}

impl Entry {
    fn end(self) {
        if let Some(task) = self.task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::guests::Guests;

    fn owner() -> Arc<Guest> {
        let guests = Guests::new(&Config::default(), None, Arc::default());
        guests.only().clone()
    }

    fn flow(n: u16) -> Arc<UdpFlow> {
        let host: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let key = FlowKey {
            guest: SocketAddr::from(([10, 0, 2, 100], n)),
            remote: host,
        };
        let socket = Arc::new(HostUdp::connect(host, &crate::Outbound::default()).unwrap());
        Arc::new(UdpFlow::new((key, owner()), socket, host, None))
    }

    fn ports(table: &Table) -> Vec<u16> {
        table.flows.keys().map(|key| key.guest.port()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn idle_flows_end_and_answered_ones_later() {
        let mut table = Table::new(10, 10);
        let flows = [1, 2, 3].map(flow);
        for flow in &flows {
            table.insert(flow.clone(), None, usize::MAX);
        }
        tokio::time::advance(Duration::from_secs(29)).await;
        flows[1].record_use(true);
        flows[2].record_use(false);
        table.expire(Instant::now());
        assert_eq!(ports(&table), [1, 2, 3]);
        tokio::time::advance(Duration::from_secs(1)).await;
        table.expire(Instant::now());
        assert_eq!(ports(&table), [2, 3]);
        tokio::time::advance(Duration::from_secs(29)).await;
        table.expire(Instant::now());
        assert_eq!(ports(&table), [2]);
        tokio::time::advance(Duration::from_secs(149)).await;
        table.expire(Instant::now());
        assert_eq!(ports(&table), [2]);
        tokio::time::advance(Duration::from_secs(1)).await;
        table.expire(Instant::now());
        assert_eq!(table.len(), 0);
        table.expire(Instant::now());
        assert!(table.orders.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_flow_replaces_the_least_recently_used_one_without_an_answer() {
        let mut table = Table::new(3, 3);
        let flows = [1, 2, 3, 4, 5, 6].map(flow);
        for flow in &flows[..3] {
            flow.record_use(false);
            assert!(!table.insert(flow.clone(), None, usize::MAX));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        flows[0].record_use(true);
        tokio::time::advance(Duration::from_millis(1)).await;
        flows[1].record_use(false);
        assert!(table.insert(flows[3].clone(), None, usize::MAX));
        assert_eq!(ports(&table), [1, 2, 4]);
        tokio::time::advance(Duration::from_millis(1)).await;
        flows[1].record_use(true);
        flows[3].record_use(true);
        // All are answered: the oldest goes.
        assert!(table.insert(flows[4].clone(), None, usize::MAX));
        assert_eq!(ports(&table), [2, 4, 5]);
        assert!(table.insert(flows[5].clone(), None, usize::MAX));
        assert_eq!(ports(&table), [2, 4, 6]);
    }

    #[tokio::test(start_paused = true)]
    async fn queues_stay_bounded_when_flows_are_replaced() {
        let mut table = Table::new(4, 4);
        let flows = [1, 2, 3, 4, 5, 6, 7, 8].map(flow);
        for _ in 0..1000 {
            for flow in &flows {
                table.insert(flow.clone(), None, usize::MAX);
            }
        }
        assert_eq!(table.len(), 4);
        let queued = table.orders[&Kind::OfGuest(None)].unanswered.len();
        assert!(queued <= 8, "{queued}");
    }

    /// A flow of a client of a forward that the guest sees as 10.0.2.2 with `port`.
    fn forwarded(table: &mut Table, forward: u64, client: &str, port: u16) -> Arc<UdpFlow> {
        let client: SocketAddr = client.parse().unwrap();
        let host: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let guest = SocketAddr::from(([10, 0, 2, 100], 53));
        let remote = SocketAddr::from(([10, 0, 2, 2], port));
        let key = table.free_key(guest, remote).unwrap();
        let client_key = ClientKey {
            forward: ForwardId(forward),
            client,
            asked: None,
        };
        let peer = Peer {
            to: client,
            from: None,
        };
        let socket = Arc::new(HostUdp::connect(host, &crate::Outbound::default()).unwrap());
        let flow = Arc::new(UdpFlow::new(
            (key, owner()),
            socket,
            client,
            Some((client_key, peer)),
        ));
        table.insert(flow.clone(), None, usize::MAX);
        flow
    }

    #[tokio::test(start_paused = true)]
    async fn clients_of_forwards_do_not_end_the_guests_flows() {
        let mut table = Table::new(2, 3);
        for n in [1, 2] {
            table.insert(flow(n), None, usize::MAX);
        }
        for n in 0..100 {
            tokio::time::advance(Duration::from_millis(1)).await;
            forwarded(&mut table, 1, &format!("127.0.1.{n}:4000"), 4000 + n);
        }
        assert_eq!(table.len(), 5);
        assert_eq!(table.clients.len(), 3);
        assert!(ports(&table).starts_with(&[1, 2]));
    }

    #[tokio::test(start_paused = true)]
    async fn clients_with_the_same_visible_address_get_ports_of_their_own() {
        let mut table = Table::new(10, 1000);
        let mut remotes: Vec<_> = (0..200)
            .map(|n| forwarded(&mut table, 1, &format!("127.0.1.{n}:4000"), 4000))
            .map(|flow| flow.key.remote.port())
            .collect();
        assert_eq!(remotes[..3], [4000, 49_152, 49_153]);
        remotes.sort_unstable();
        remotes.dedup();
        assert_eq!(remotes.len(), 200);
        let client = ClientKey {
            forward: ForwardId(1),
            client: "127.0.1.7:4000".parse().unwrap(),
            asked: None,
        };
        let found = table.of_client(&client).unwrap().key.remote.port();
        assert_eq!(found, 49_152 + 6);
        let other = ClientKey {
            forward: ForwardId(2),
            ..client
        };
        assert!(table.of_client(&other).is_none());
        table.remove_forward(ForwardId(2));
        assert_eq!(table.len(), 200);
        table.remove_forward(ForwardId(1));
        assert_eq!((table.len(), table.clients.len()), (0, 0));
    }
}
