//! The table of UDP flows, with a bound: flows end when they are idle, and a new flow replaces the
//! one that has been idle for the longest time.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::host_socket::HostUdp;

/// Idle time of a flow without an answer.
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle time of a flow with datagrams in both directions.
const ANSWERED_TIMEOUT: Duration = Duration::from_mins(3);

/// The addresses of a flow as the guest sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FlowKey {
    pub(super) guest: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// One UDP flow.
pub(super) struct UdpFlow {
    pub(super) key: FlowKey,
    pub(super) socket: Arc<HostUdp>,
    /// Where the host's socket sends to: `None` for a connected one, otherwise the client of a
    /// forward.
    pub(super) client: Option<SocketAddr>,
    /// The address that the host's socket is connected to.
    pub(super) host: SocketAddr,
    /// Whether datagrams have passed in both directions.
    answered: AtomicBool,
    last_used: Mutex<Instant>,
}

impl UdpFlow {
    pub(super) fn new(
        key: FlowKey,
        socket: Arc<HostUdp>,
        host: SocketAddr,
        client: Option<SocketAddr>,
    ) -> Self {
        Self {
            key,
            socket,
            client,
            host,
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

    fn last_used(&self) -> Instant {
        *self.last_used.lock()
    }

    fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }
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

/// All flows, at most a fixed number.
///
/// Each flow has one entry in one of two queues, ordered by the times of last use. A use changes
/// only the flow; its entry is moved when it comes to the front, so that each call takes constant
/// amortised time.
pub(super) struct Table {
    flows: BTreeMap<FlowKey, Entry>,
    unanswered: VecDeque<QueueEntry>,
    answered: VecDeque<QueueEntry>,
    last_id: u64,
    max: usize,
}

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self {
            flows: BTreeMap::new(),
            unanswered: VecDeque::new(),
            answered: VecDeque::new(),
            last_id: 0,
            max: max.max(1),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(super) fn get(&self, key: &FlowKey) -> Option<&Arc<UdpFlow>> {
        self.flows.get(key).map(|entry| &entry.flow)
    }

    /// Adds a flow with its task. Returns whether another flow was removed for it.
    pub(super) fn insert(&mut self, flow: Arc<UdpFlow>, task: Option<AbortHandle>) -> bool {
        self.remove(&flow.key);
        let full = self.flows.len() >= self.max;
        let replaced = full && self.remove_least_recently_used();
        self.last_id += 1;
        let (key, id, used) = (flow.key, self.last_id, flow.last_used());
        self.unanswered.push_back(QueueEntry { key, id, used });
        self.flows.insert(key, Entry { flow, id, task });
        replaced
    }

    /// Ends a flow. Its entry in a queue is removed when it comes to the front.
    pub(super) fn remove(&mut self, key: &FlowKey) {
        if let Some(entry) = self.flows.remove(key) {
            entry.end();
        }
    }

    /// Ends the flows that have been idle for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(key) = self.front(false)
            && self.idle_time(&key, now) >= UNANSWERED_TIMEOUT
        {
            self.unanswered.pop_front();
            self.remove(&key);
        }
        while let Some(key) = self.front(true)
            && self.idle_time(&key, now) >= ANSWERED_TIMEOUT
        {
            self.answered.pop_front();
            self.remove(&key);
        }
    }

    /// Ends the flow that was used the longest time ago; of those without an answer, if there are
    /// any. Returns whether there was a flow.
    fn remove_least_recently_used(&mut self) -> bool {
        for answered in [false, true] {
            if let Some(key) = self.front(answered) {
                self.queue(answered).pop_front();
                self.remove(&key);
                return true;
            }
        }
        false
    }

    fn idle_time(&self, key: &FlowKey, now: Instant) -> Duration {
        let flow = self.flows.get(key);
        flow.map_or(Duration::MAX, |entry| now - entry.flow.last_used())
    }

    const fn queue(&mut self, answered: bool) -> &mut VecDeque<QueueEntry> {
        if answered {
            &mut self.answered
        } else {
            &mut self.unanswered
        }
    }

    /// Returns the flow that was used the longest time ago of a queue, after it has moved the
    /// entries before it that were used since, or belong in the other queue.
    fn front(&mut self, answered: bool) -> Option<FlowKey> {
        loop {
            let front = self.queue(answered).front()?;
            let (key, id, used) = (front.key, front.id, front.used);
            let current = self.flows.get(&key).filter(|entry| entry.id == id);
            let state = current.map(|entry| (entry.flow.last_used(), entry.flow.is_answered()));
            match state {
                Some((last_used, is_answered)) if last_used == used && is_answered == answered => {
                    return Some(key);
                }
                Some((used, is_answered)) => {
                    self.queue(answered).pop_front();
                    let entry = QueueEntry { key, id, used };
                    self.queue(is_answered).push_back(entry);
                }
                // The flow has ended.
                None => {
                    self.queue(answered).pop_front();
                }
            }
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

    fn flow(n: u16) -> Arc<UdpFlow> {
        let host: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let key = FlowKey {
            guest: SocketAddr::from(([10, 0, 2, 100], n)),
            remote: host,
        };
        let socket = Arc::new(HostUdp::connect(host, &crate::Outbound::default()).unwrap());
        Arc::new(UdpFlow::new(key, socket, host, None))
    }

    fn ports(table: &Table) -> Vec<u16> {
        table.flows.keys().map(|key| key.guest.port()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn idle_flows_end_and_answered_ones_later() {
        let mut table = Table::new(10);
        let flows = [1, 2, 3].map(flow);
        for flow in &flows {
            table.insert(flow.clone(), None);
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
        assert!(table.unanswered.is_empty() && table.answered.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_flow_replaces_the_least_recently_used_one_without_an_answer() {
        let mut table = Table::new(3);
        let flows = [1, 2, 3, 4, 5, 6].map(flow);
        for flow in &flows[..3] {
            flow.record_use(false);
            assert!(!table.insert(flow.clone(), None));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        flows[0].record_use(true);
        tokio::time::advance(Duration::from_millis(1)).await;
        flows[1].record_use(false);
        assert!(table.insert(flows[3].clone(), None));
        assert_eq!(ports(&table), [1, 2, 4]);
        tokio::time::advance(Duration::from_millis(1)).await;
        flows[1].record_use(true);
        flows[3].record_use(true);
        // All are answered: the oldest goes.
        assert!(table.insert(flows[4].clone(), None));
        assert_eq!(ports(&table), [2, 4, 5]);
        assert!(table.insert(flows[5].clone(), None));
        assert_eq!(ports(&table), [2, 4, 6]);
    }

    #[tokio::test(start_paused = true)]
    async fn queues_stay_bounded_when_flows_are_replaced() {
        let mut table = Table::new(4);
        let flows = [1, 2, 3, 4, 5, 6, 7, 8].map(flow);
        for _ in 0..1000 {
            for flow in &flows {
                table.insert(flow.clone(), None);
            }
        }
        assert_eq!(table.len(), 4);
        assert!(table.unanswered.len() <= 8, "{}", table.unanswered.len());
    }
}
