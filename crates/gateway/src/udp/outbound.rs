//! The relay of the guest's datagrams.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fullsend::{Chain, Datagram, UnreachableCode};
use nix::errno::Errno;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::busy::count_call;
use super::flow::{FlowKey, MappingKey, Opener, PeerKey, SharedSocket, UdpFlow};
use super::host_socket::{HostUdp, MAX_SEGMENTS, MAX_SEND_BYTES, Outgoing, Received};
use super::inbound::{Mapping, receive_mapped};
use super::local_addr::{LocalAddr, Peer};
use super::receive_block::ReceivedDatagrams;
use super::table::SocketChoice;
use super::{guest_share, report, send_to_guest};
use crate::counters::add;
use crate::dns::relay_query;
use crate::gateway::Shared;
use crate::guests::Guest;
use crate::icmp::report_unreachable;
use crate::policy::FlowProtocol;
use crate::route::Route;

/// Largest number of datagrams that are received from the stack at once.
const MAX_BATCH: usize = 256;
/// Number of new flows after which other tasks may run: the socket of a replaced flow is closed only when
/// its task runs.
const OPEN_BUDGET: usize = 16;
/// Interval of the checks for idle flows.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(1);

/// Ends idle flows and those of guests that have ended, and removes old names of addresses, forever.
pub(crate) async fn expire_flows(shared: Arc<Shared>) {
    let mut ticks = interval(EXPIRE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        shared.udp.table.lock().expire(now);
        let ended = shared.guests.take_ended();
        if !ended.is_empty() {
            // Another guest may have their addresses.
            let is_of_ended =
                |flow: &UdpFlow| flow.owner.port.is_some_and(|port| ended.contains(&port));
            shared.udp.table.lock().remove_where(is_of_ended);
            shared.pings.remove_of(&ended);
        }
        shared.expire_names(now);
    }
}

/// Sends the guest's datagrams through the sockets of their flows until the stack stops.
pub(crate) async fn receive_outbound(shared: Arc<Shared>) {
    let mut batch = Vec::new();
    let mut opened = 0_usize;
    // A strong reference would keep the socket of a removed forward open.
    let mut last = Weak::new();
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
            if forward_train(&shared, &train, &mut last) {
                opened += 1;
                if opened.is_multiple_of(OPEN_BUDGET) {
                    yield_now().await;
                }
            }
        }
    }
}

/// Consecutive datagrams of one flow, all of one size except a shorter last one.
struct Train {
    key: FlowKey,
    data: Chain,
    size: usize,
    count: usize,
    ttl: u8,
    /// Whether the last datagram was shorter, so that no further one fits.
    ended: bool,
}

impl Train {
    fn new(first: Datagram) -> Self {
        let Datagram {
            payload,
            from,
            to,
            ttl,
            ..
        } = first;
        Self {
            key: FlowKey {
                guest: from,
                remote: to,
            },
            size: payload.len(),
            data: payload,
            count: 1,
            ttl,
            ended: false,
        }
    }

    fn accepts(&self, next: &Datagram) -> bool {
        !self.ended
            && next.from == self.key.guest
            && next.to == self.key.remote
            && next.ttl == self.ttl
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

/// Sends datagrams of the guest through the socket of their flow, and opens the flow if there is none.
/// `last` is the flow of the previous datagrams. Returns whether a flow was opened.
fn forward_train(shared: &Arc<Shared>, train: &Train, last: &mut Weak<UdpFlow>) -> bool {
    let is_next = |flow: &Arc<UdpFlow>| flow.key == train.key && !flow.is_ended();
    let known = last.upgrade().filter(is_next);
    let known = known.or_else(|| shared.udp.table.lock().get(&train.key).cloned());
    let (flow, opened) = match known {
        Some(flow) => (flow, false),
        None => match open_flow(shared, train) {
            Some(flow) => (flow, true),
            None => return false,
        },
    };
    send_train(shared, train, &flow);
    *last = Arc::downgrade(&flow);
    opened
}

fn send_train(shared: &Arc<Shared>, train: &Train, flow: &Arc<UdpFlow>) {
    // RFC 1122 3.2.1.7: a datagram without time to live is not sent. The datagrams of a flow between
    // loopbacks do not cross the link.
    if train.ttl == 0 || flow.spliced().is_some() || !flow.owner.tx_rate.try_take(train.data.len())
    {
        return add(&shared.counters.udp_dropped, train.count as u64);
    }
    if flow.opener == Opener::Remote && !flow.is_answered() {
        let share = guest_share(shared);
        let replaced = shared.udp.table.lock().promote(&train.key, share);
        add(&shared.counters.udp_replaced, replaced as u64);
    }
    // A port that was free when the flow was opened may be another guest's now.
    if shared.guests.are_apart() && shared.refuses_guest(&flow.owner, train.key.guest, flow.host) {
        return add(&shared.counters.udp_dropped, train.count as u64);
    }
    flow.record_tx();
    count_call(shared, flow);
    let outgoing = Outgoing {
        data: &train.data,
        size: train.size,
        ttl: train.ttl,
        peer: None,
        segmentation: &flow.segmentation,
    };
    if let Some(connected) = flow.connected() {
        match connected.send(&outgoing) {
            Ok(()) => return count_sent(shared, train, flow),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return add(&shared.counters.udp_dropped, train.count as u64);
            }
            // The host may have changed its address; the shared socket follows such changes.
            Err(_) => shared.udp.table.lock().remove_connected(&flow.key),
        }
    }
    let outgoing = Outgoing {
        peer: flow.peer(),
        ..outgoing
    };
    let sent = flow.socket.send(&outgoing);
    if shared.guests.are_apart() {
        flow.socket
            .register_port(&shared.udp.guest_ports, flow.owner.port);
    }
    match sent {
        Ok(()) => count_sent(shared, train, flow),
        Err(error) => {
            add(&shared.counters.udp_dropped, train.count as u64);
            on_send_error(shared, train, &error);
        }
    }
}

fn count_sent(shared: &Shared, train: &Train, flow: &UdpFlow) {
    add(&shared.counters.udp_tx_datagrams, train.count as u64);
    flow.add_tx_bytes(train.data.len());
}

/// Opens the flow of the guest's datagrams. Returns `None` if they are refused or dropped.
fn open_flow(shared: &Arc<Shared>, train: &Train) -> Option<Arc<UdpFlow>> {
    let key = train.key;
    // A sender whose address belongs to no guest gets no answer.
    let Some(owner) = shared.guests.of(key.guest.ip()) else {
        add(&shared.counters.udp_dropped, train.count as u64);
        return None;
    };
    // It may be an answer to a client with a link-local address (see `datagram_target`), and the guest's
    // router solicitation may have been lost.
    shared.record_link_local(key.guest.ip());
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
    match add_flow(shared, (key, owner), host) {
        Ok(flow) => flow,
        Err(error) => {
            add(&shared.counters.udp_dropped, train.count as u64);
            on_send_error(shared, train, &error);
            None
        }
    }
}

/// Adds a flow to `host`, and a socket if no existing one serves. Returns `None` if the gateway has
/// stopped.
///
/// # Errors
/// The error of the operating system if the socket cannot be opened.
fn add_flow(
    shared: &Arc<Shared>,
    (key, owner): (FlowKey, Arc<Guest>),
    host: SocketAddr,
) -> io::Result<Option<Arc<UdpFlow>>> {
    let outbound = &shared.config.outbound;
    let (share, port) = (guest_share(shared), owner.port);
    let opener = (key, owner, Opener::Guest);
    let mut table = shared.udp.table.lock();
    let choice = table.choose_socket(key.guest, host, outbound);
    let replaced;
    let flow = match choice {
        SocketChoice::Shared(id, socket, from) => {
            let flow = flow_of_shared((id, socket, from), opener, host);
            // The lock is still held, as the socket's task ends with its last flow.
            replaced = table.insert(&flow, None, share);
            drop(table);
            flow
        }
        SocketChoice::New(mapping) => {
            drop(table);
            let socket = Arc::new(HostUdp::open(host, outbound)?);
            let id = SharedSocket::Mapping(mapping);
            let flow = flow_of_shared((id, socket.clone(), None), opener, host);
            // The task may run at once; the lock makes it wait until the table has the socket.
            let mut table = shared.udp.table.lock();
            let task = start_mapping(shared, mapping, &flow);
            let Some(task) = task else { return Ok(None) };
            let more = table.insert_mapping(mapping, (socket, task), (port, share));
            replaced = more + table.insert(&flow, None, share);
            flow
        }
        SocketChoice::Connected => {
            drop(table);
            let socket = Arc::new(HostUdp::connect(host, outbound)?);
            let flow = Arc::new(UdpFlow::new(opener, socket, host, None));
            let mut table = shared.udp.table.lock();
            let task = shared.spawn(receive_answers(shared.clone(), flow.clone()));
            let Some(task) = task else { return Ok(None) };
            replaced = table.insert(&flow, Some(task), share);
            flow
        }
    };
    add(&shared.counters.udp_flows, 1);
    add(&shared.counters.udp_replaced, replaced as u64);
    Ok(Some(flow))
}

fn flow_of_shared(
    (id, socket, from): (SharedSocket, Arc<HostUdp>, Option<LocalAddr>),
    opener: (FlowKey, Arc<Guest>, Opener),
    host: SocketAddr,
) -> Arc<UdpFlow> {
    let key = PeerKey {
        socket: id,
        peer: host,
        asked: None,
    };
    let peer = Peer { to: host, from };
    Arc::new(UdpFlow::new(opener, socket, host, Some((key, peer))))
}

/// Starts the task that receives from the socket of a mapping, whose first flow is `flow`.
fn start_mapping(shared: &Arc<Shared>, key: MappingKey, flow: &UdpFlow) -> Option<AbortHandle> {
    let (owner, socket) = (flow.owner.clone(), flow.socket.clone());
    let mapping = Mapping {
        key,
        owner,
        socket: socket.clone(),
    };
    shared.spawn(receive_mapped(shared.clone(), mapping, socket))
}

/// Reports an error of the host's socket to the guest.
fn on_send_error(shared: &Shared, train: &Train, error: &io::Error) {
    let code = match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::EHOSTUNREACH | Errno::EHOSTDOWN => UnreachableCode::Host,
        Errno::ENETUNREACH | Errno::EADDRNOTAVAIL | Errno::EINVAL => UnreachableCode::Network,
        Errno::EACCES | Errno::EPERM => UnreachableCode::Prohibited,
        // With a full queue or no memory, the datagram is lost, as in a network. Errors of earlier
        // datagrams (ECONNREFUSED) are in the error queue.
        _ => return,
    };
    let FlowKey { guest, remote } = train.key;
    report_unreachable(shared, guest, remote, &train.data, code);
}

/// Sends the datagrams that the connected socket of a flow receives to the guest, until the flow ends.
async fn receive_answers(shared: Arc<Shared>, flow: Arc<UdpFlow>) {
    let remote = flow.key.remote;
    let mut datagrams = ReceivedDatagrams::default();
    loop {
        match flow.socket.receive(&shared.pool, &mut datagrams).await {
            Ok(Received::Datagrams) => {
                while let Some((_, run)) = datagrams.pop() {
                    send_to_guest(&shared, &flow, run);
                }
            }
            Ok(Received::Error(error)) => report(&shared, &flow, &error),
            Err(error) => {
                tracing::debug!(%error, %remote, "the socket of a UDP flow failed");
                return shared.udp.table.lock().remove(&flow.key);
            }
        }
    }
}
