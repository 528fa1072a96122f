//! The guest's datagrams.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fullsend::{Chain, Datagram, UnreachableCode};
use nix::errno::Errno;
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::error_queue::ReportedError;
use super::host_socket::{HostUdp, MAX_SEGMENTS, MAX_SEND_BYTES, Received};
use super::send_to_guest;
use super::table::{FlowKey, UdpFlow};
use crate::counters::add;
use crate::dns::relay_query;
use crate::gateway::Shared;
use crate::guests::Guest;
use crate::icmp::{report_error, report_unreachable};
use crate::policy::FlowProtocol;
use crate::route::Route;

/// Largest number of datagrams that are taken from the stack at once.
const MAX_BATCH: usize = 256;
/// Number of flows after which other tasks run: the socket of a replaced flow is closed when its task
/// runs.
const OPEN_BUDGET: usize = 16;
/// How often idle flows are looked for.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(1);

/// Ends idle flows and removes old names of addresses, forever.
pub(crate) async fn expire_flows(shared: Arc<Shared>) {
    let mut ticks = interval(EXPIRE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        shared.udp.table.lock().expire(now);
        shared.expire_names(now);
    }
}

/// Sends the guest's datagrams through the sockets of their flows until the stack stops.
pub(crate) async fn receive_outbound(shared: Arc<Shared>) {
    let mut batch = Vec::new();
    let mut opened = 0_usize;
    while shared
        .udp
        .socket
        .recv_many(&mut batch, MAX_BATCH)
        .await
        .is_ok()
    {
        let mut datagrams = batch.drain(..).peekable();
        while let Some(first) = datagrams.next() {
            let mut train = Train::new(first);
            while let Some(next) = datagrams.next_if(|next| train.accepts(next)) {
                train.push(next);
            }
            if forward_train(&shared, &train) {
                opened += 1;
                if opened.is_multiple_of(OPEN_BUDGET) {
                    yield_now().await;
                }
            }
        }
    }
}

/// Consecutive datagrams of one flow, of one size except for the last.
struct Train {
    key: FlowKey,
    data: Chain,
    size: usize,
    count: usize,
    /// Whether the last datagram was shorter.
    ended: bool,
}

impl Train {
    fn new(first: Datagram) -> Self {
        let Datagram {
            payload, from, to, ..
        } = first;
        Self {
            key: FlowKey {
                guest: from,
                remote: to,
            },
            size: payload.len(),
            data: payload,
            count: 1,
            ended: false,
        }
    }

    fn accepts(&self, next: &Datagram) -> bool {
        !self.ended
            && next.from == self.key.guest
            && next.to == self.key.remote
            && (1..=self.size).contains(&next.payload.len())
            && self.count < MAX_SEGMENTS
            && self.data.len() + next.payload.len() <= MAX_SEND_BYTES
    }

    /// Returns the datagrams one by one.
    fn datagrams(&self) -> impl Iterator<Item = Chain> {
        (0..self.count).map(|n| {
            let start = n * self.size;
            let len = self.size.min(self.data.len() - start);
            self.data.range(start, len)
        })
    }

    fn push(&mut self, next: Datagram) {
        self.ended = next.payload.len() < self.size;
        self.count += 1;
        self.data.append(next.payload);
    }
}

/// Sends datagrams of the guest through the socket of their flow, which is opened if there is none.
/// Returns whether it was opened.
fn forward_train(shared: &Arc<Shared>, train: &Train) -> bool {
    let flow = shared.udp.table.lock().get(&train.key).cloned();
    let (flow, opened) = match flow {
        Some(flow) => (flow, false),
        None => match open_flow(shared, train) {
            Some(flow) => (flow, true),
            None => return false,
        },
    };
    if !flow.owner.tx_rate.try_take(train.data.len()) {
        add(&shared.counters.udp_dropped, train.count as u64);
        return opened;
    }
    flow.record_use(flow.client.is_some());
    match flow.socket.send(&train.data, train.size, flow.peer()) {
        Ok(()) => {
            add(&shared.counters.udp_tx_datagrams, train.count as u64);
            flow.add_tx_bytes(train.data.len());
        }
        Err(error) => {
            add(&shared.counters.udp_dropped, train.count as u64);
            on_send_error(shared, train, &error);
        }
    }
    opened
}

/// Opens the flow of the guest's datagrams, if they go anywhere.
fn open_flow(shared: &Arc<Shared>, train: &Train) -> Option<Arc<UdpFlow>> {
    let key = train.key;
    // A sender without an address of its own gets no answer.
    let Some(owner) = shared.guests.of(key.guest.ip()) else {
        add(&shared.counters.udp_dropped, train.count as u64);
        return None;
    };
    let unreachable = |code| report_unreachable(shared, key.guest, key.remote, &train.data, code);
    let host = match shared.route(FlowProtocol::Udp, key.guest, key.remote) {
        Route::Connect(host) => host,
        Route::Dns => {
            for query in train.datagrams() {
                relay_query(shared, &owner, (key.guest, key.remote), &query);
            }
            return None;
        }
        Route::DnsOverTls => {
            let Some(host) = shared.resolver_over_tls(key.remote.port()) else {
                unreachable(UnreachableCode::Port);
                return None;
            };
            host
        }
        Route::Reject => {
            unreachable(UnreachableCode::Port);
            return None;
        }
        Route::Prohibited => {
            unreachable(UnreachableCode::Prohibited);
            return None;
        }
        Route::Unreachable => {
            unreachable(UnreachableCode::Network);
            return None;
        }
        Route::Drop => return None,
    };
    match HostUdp::connect(host, &shared.config.outbound) {
        Ok(socket) => add_flow(shared, (key, owner), Arc::new(socket), host),
        Err(error) => {
            add(&shared.counters.udp_dropped, train.count as u64);
            on_send_error(shared, train, &error);
            None
        }
    }
}

/// Adds a flow with a connected socket. `None` if the gateway has stopped.
fn add_flow(
    shared: &Arc<Shared>,
    key: (FlowKey, Arc<Guest>),
    socket: Arc<HostUdp>,
    host: SocketAddr,
) -> Option<Arc<UdpFlow>> {
    let (all, limits) = (shared.limits.udp, &shared.config.limits);
    let max = shared.guests.part_of(all, limits.udp_flows);
    let flow = Arc::new(UdpFlow::new(key, socket, host, None));
    // The task may run at once. It removes the flow if the socket has failed, and waits until the
    // table has it.
    let mut table = shared.udp.table.lock();
    let task = shared.spawn(receive_answers(shared.clone(), flow.clone()))?;
    let replaced = table.insert(flow.clone(), Some(task), max);
    drop(table);
    add(&shared.counters.udp_flows, 1);
    add(&shared.counters.udp_replaced, u64::from(replaced));
    Some(flow)
}

/// Reports the error of a socket of the host to the guest.
fn on_send_error(shared: &Shared, train: &Train, error: &io::Error) {
    let code = match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::EHOSTUNREACH | Errno::EHOSTDOWN => UnreachableCode::Host,
        Errno::ENETUNREACH | Errno::EADDRNOTAVAIL | Errno::EINVAL => UnreachableCode::Network,
        Errno::EACCES | Errno::EPERM => UnreachableCode::Prohibited,
        Errno::ECONNREFUSED => UnreachableCode::Port,
        // A full queue or no memory: the datagram is lost, as in a network.
        _ => return,
    };
    let FlowKey { guest, remote } = train.key;
    report_unreachable(shared, guest, remote, &train.data, code);
}

/// Sends what the socket of a flow receives to the guest, until the flow ends.
async fn receive_answers(shared: Arc<Shared>, flow: Arc<UdpFlow>) {
    let remote = flow.key.remote;
    let mut datagrams = VecDeque::new();
    loop {
        match flow.socket.receive(&shared.pool, &mut datagrams).await {
            Ok(Received::Datagrams(_)) => {
                flow.record_use(true);
                flow.add_rx_bytes(send_to_guest(&shared, &flow, &mut datagrams));
            }
            Ok(Received::Error(error)) => report(&shared, &flow, &error),
            Err(error) => {
                tracing::debug!(%error, %remote, "the socket of a UDP flow failed");
                return shared.udp.table.lock().remove(&flow.key);
            }
        }
    }
}

/// Passes an ICMP error about one of the guest's datagrams on.
fn report(shared: &Shared, flow: &UdpFlow, error: &ReportedError) {
    // An error of the destination comes from its address as the guest sees it.
    let offender = match error.offender {
        Some(offender) if offender != flow.host.ip() && !offender.is_loopback() => offender,
        _ => flow.key.remote.ip(),
    };
    report_error(shared, flow.key.guest, flow.key.remote, offender, error);
}
