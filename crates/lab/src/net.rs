//! Two hosts on a cable with many flows between them, and the applications of the flows.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use fullsend_offload::{Link, Slice};
use fullsend_sim::{HostId, Netem, NicConfig, Sim, TraceEvent, TracePoint};
use fullsend_stack::{Cidr, Host, IfaceId, Interest, ListenConfig, StackError, TcpId};
use fullsend_tcp::{FlowReport, SocketOption, TcpError, TcpInfo};
use fullsend_wire::{Instant, Nanos, Seed};

/// The side that connects; in most experiments the sender.
pub(crate) const CLIENT: usize = 0;
/// The side that listens.
pub(crate) const SERVER: usize = 1;

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
/// Longest run, in virtual time.
const LONGEST: Nanos = Nanos::from_secs(24 * 3600);
/// The port of iperf.
const PORT: u16 = 5001;

/// One end of a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FlowEnd {
    pub(crate) side: usize,
    pub(crate) flow: usize,
}

/// The event that an application waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ready {
    Read,
    Write,
    Timer,
}

/// The applications at all ends.
pub(crate) trait App {
    /// Runs the application at `end` after the event that it waited for.
    fn on_ready(&mut self, net: &mut Net, end: FlowEnd, ready: Ready);

    /// Returns whether the applications have finished.
    fn done(&self) -> bool {
        false
    }
}

/// The cards of the hosts, and the path between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cable {
    pub(crate) nic: NicConfig,
    /// The directions from the client, and from the server.
    pub(crate) netem: [Netem; 2],
}

/// A TCP packet of a flow, observed at a card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowPacket {
    pub(crate) at: Instant,
    pub(crate) side: usize,
    pub(crate) point: TracePoint,
    pub(crate) flow: usize,
    /// Bytes of payload.
    pub(crate) payload_len: u32,
}

struct ReadyWaker {
    end: FlowEnd,
    ready: Ready,
    ready_queue: ReadyQueue,
}

type ReadyQueue = Arc<Mutex<VecDeque<(FlowEnd, Ready)>>>;

impl Wake for ReadyWaker {
    fn wake(self: Arc<Self>) {
        let mut ready_queue = self
            .ready_queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        ready_queue.push_back((self.end, self.ready));
    }
}

/// Hosts and flows, and the events that applications wait for.
pub(crate) struct Net {
    pub(crate) sim: Sim,
    hosts: [HostId; 2],
    link: fullsend_sim::LinkId,
    ids: [Vec<TcpId>; 2],
    /// Wakers for reading and writing, by side and flow.
    socket_wakers: [Vec<[Waker; 2]>; 2],
    ready_queue: ReadyQueue,
    timers: BinaryHeap<Reverse<(Instant, u64, FlowEnd)>>,
    timers_set: u64,
    wakers: Vec<Waker>,
    observers: Rc<RefCell<Vec<Observer>>>,
}

type Observer = Box<dyn FnMut(&TraceEvent<'_>)>;

impl Net {
    /// Returns two hosts connected by `cable`, at time zero.
    pub(crate) fn new(cable: &Cable, seed: u64) -> Self {
        let mut sim = Sim::new(Seed::from_u64(seed));
        sim.set_hash_headers_only();
        let hosts = [sim.add_host(), sim.add_host()];
        let link = sim.connect(hosts, cable.nic, cable.netem);
        for (host, addr) in hosts.into_iter().zip(ADDRESSES) {
            let cidr = Cidr {
                addr: addr.into(),
                prefix: 24,
            };
            let added = sim.host(host).add_address(Instant::ZERO, IfaceId(0), cidr);
            added.expect("a first address is free");
        }
        Self {
            sim,
            hosts,
            link,
            ids: [const { Vec::new() }; 2],
            socket_wakers: [const { Vec::new() }; 2],
            ready_queue: ReadyQueue::default(),
            timers: BinaryHeap::new(),
            timers_set: 0,
            wakers: Vec::new(),
            observers: Rc::default(),
        }
    }

    /// Sets a tunable of one host, before connections are opened.
    pub(crate) fn sysctl(&mut self, side: usize, key: &str, value: &str) {
        let done = self.host(side).sysctl_mut().set(key, value);
        done.unwrap_or_else(|error| panic!("{error}"));
    }

    pub(crate) fn host(&mut self, side: usize) -> &mut Host {
        self.sim.host(self.hosts[side])
    }

    pub(crate) const fn now(&self) -> Instant {
        self.sim.now()
    }

    /// Changes the direction from one side.
    pub(crate) fn set_netem(&mut self, side: usize, netem: Netem) {
        self.sim.set_netem(self.link, self.hosts[side], netem);
    }

    /// Opens `flows` connections, and completes their handshakes.
    pub(crate) fn open(&mut self, flows: usize) {
        let to = SocketAddr::new(IpAddr::V4(ADDRESSES[SERVER]), PORT);
        let config = ListenConfig {
            backlog: flows.max(1),
            defer_syn_ack: false,
            any_destination: false,
        };
        let listener = self.host(SERVER).tcp_listen(to, config);
        let listener = listener.expect("the port is free");
        let now = self.now();
        let mut by_port = std::collections::BTreeMap::new();
        for flow in 0..flows {
            let id = self.host(CLIENT).tcp_connect(now, None, to);
            let id = id.expect("the number of flows fits the ports");
            let (local, _) = self.host(CLIENT).tcp(id).addrs().expect("just opened");
            by_port.insert(local.port(), flow);
            self.ids[CLIENT].push(id);
        }
        let mut accepted = vec![None; flows];
        let hosts = self.hosts;
        let done = self.sim.run_until(now + Nanos::from_secs(60), |sim| {
            let server = sim.host(hosts[SERVER]);
            while let Ok(Some(incoming)) = server.listener(listener).accept() {
                let (_, remote) = server.tcp(incoming.id).addrs().expect("just accepted");
                accepted[by_port[&remote.port()]] = Some(incoming.id);
            }
            accepted.iter().all(Option::is_some)
        });
        assert!(done, "the handshakes did not complete");
        self.ids[SERVER] = accepted.into_iter().flatten().collect();
        for side in [CLIENT, SERVER] {
            self.socket_wakers[side] = (0..flows)
                .map(|flow| self.make_wakers(FlowEnd { side, flow }))
                .collect();
        }
    }

    fn make_wakers(&self, end: FlowEnd) -> [Waker; 2] {
        [Ready::Read, Ready::Write].map(|ready| {
            Waker::from(Arc::new(ReadyWaker {
                end,
                ready,
                ready_queue: self.ready_queue.clone(),
            }))
        })
    }

    pub(crate) fn flows(&self) -> usize {
        self.ids[CLIENT].len()
    }

    pub(crate) fn id(&self, end: FlowEnd) -> TcpId {
        self.ids[end.side][end.flow]
    }

    pub(crate) fn set_option(&mut self, end: FlowEnd, option: SocketOption) {
        let (now, id) = (self.now(), self.id(end));
        let done = self.host(end.side).tcp(id).set_option(now, option);
        done.unwrap_or_else(|error| panic!("{option:?}: {error}"));
    }

    pub(crate) fn info(&mut self, end: FlowEnd) -> TcpInfo {
        let (now, id) = (self.now(), self.id(end));
        self.host(end.side).tcp(id).info(now).expect("it is open")
    }

    pub(crate) fn report(&mut self, end: FlowEnd) -> FlowReport {
        let (now, id) = (self.now(), self.id(end));
        let report = self.host(end.side).tcp(id).flow_report(now);
        report.expect("it is open")
    }

    pub(crate) fn counter(&mut self, side: usize, name: &str) -> u64 {
        let all = self.host(side).counters();
        let found = all.iter().find(|(n, _)| *n == name);
        found
            .unwrap_or_else(|| panic!("`{name}` is not a counter"))
            .1
    }

    /// Copies data to the connection; returns the number of bytes accepted. If it is not all, the
    /// application is run when it can write again.
    pub(crate) fn write(&mut self, end: FlowEnd, data: &[u8]) -> usize {
        let (now, id) = (self.now(), self.id(end));
        let written = match self.host(end.side).tcp(id).write(now, data, false) {
            Ok(written) => written,
            Err(StackError::Tcp(TcpError::WouldBlock)) => 0,
            Err(error) => panic!("cannot write: {error}"),
        };
        if written < data.len() {
            self.notify_when(end, Ready::Write);
        }
        written
    }

    /// Lends `data` to the connection. If there is no room for all of it, returns `false`, and runs
    /// the application when it can write again.
    pub(crate) fn lend(&mut self, end: FlowEnd, data: Slice) -> bool {
        let (now, id) = (self.now(), self.id(end));
        match self.host(end.side).tcp(id).write_slice(now, data) {
            Ok(()) => true,
            Err((StackError::Tcp(TcpError::WouldBlock), _)) => {
                self.notify_when(end, Ready::Write);
                false
            }
            Err((error, _)) => panic!("cannot write: {error}"),
        }
    }

    /// Reads all data available; returns its length in bytes. The application is run when there is
    /// more.
    pub(crate) fn read(&mut self, end: FlowEnd) -> u64 {
        let (now, id) = (self.now(), self.id(end));
        let mut got = 0;
        loop {
            match self.host(end.side).tcp(id).read_slice(now, usize::MAX) {
                Ok(slice) if slice.is_empty() => return got,
                Ok(slice) => got += slice.len() as u64,
                Err(StackError::Tcp(TcpError::WouldBlock)) => break,
                Err(error) => panic!("cannot read: {error}"),
            }
        }
        self.notify_when(end, Ready::Read);
        got
    }

    /// Requests that the application is run when `end` is ready, which may be at once.
    pub(crate) fn notify_when(&mut self, end: FlowEnd, ready: Ready) {
        let (now, id) = (self.now(), self.id(end));
        let (interest, index) = match ready {
            Ready::Read => (Interest::Read, 0),
            Ready::Write | Ready::Timer => (Interest::Write, 1),
        };
        let waker = self.socket_wakers[end.side][end.flow][index].clone();
        let now_ready = self
            .host(end.side)
            .tcp(id)
            .poll_ready(now, interest, &waker);
        if now_ready.expect("it is open") {
            waker.wake();
        }
    }

    /// Requests that the application is run at a time.
    pub(crate) fn set_timer(&mut self, at: Instant, end: FlowEnd) {
        self.timers_set += 1;
        self.timers.push(Reverse((at, self.timers_set, end)));
    }

    /// Advances time until `until` or until the applications have finished, and runs them.
    ///
    /// # Panics
    /// After a day of virtual time: no experiment takes that long, unless its applications wait for
    /// an event that never occurs.
    pub(crate) fn run(&mut self, until: Instant, app: &mut impl App) {
        let longest = Instant::ZERO + LONGEST;
        loop {
            assert!(
                self.now() < longest,
                "the experiment takes longer than a day"
            );
            self.run_ready_apps(app);
            if app.done() {
                return;
            }
            let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
            let limit = timer.unwrap_or(until).min(until);
            if self.sim.step(limit) {
                continue;
            }
            match timer {
                Some(at) if at <= until => {
                    if let Some(Reverse((_, _, end))) = self.timers.pop() {
                        app.on_ready(self, end, Ready::Timer);
                    }
                }
                _ => return,
            }
        }
    }

    fn run_ready_apps(&mut self, app: &mut impl App) {
        loop {
            let mut wakers = std::mem::take(&mut self.wakers);
            for side in [CLIENT, SERVER] {
                let host = self.host(side);
                if host.has_wakers() {
                    host.take_wakers(&mut wakers);
                }
            }
            wakers.drain(..).for_each(Waker::wake);
            self.wakers = wakers;
            let next = self
                .ready_queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front();
            let Some((end, ready)) = next else { return };
            app.on_ready(self, end, ready);
        }
    }

    /// Sets a callback for every TCP packet of the flows at a card. The flows must be open.
    pub(crate) fn observe_tcp(&mut self, mut callback: impl FnMut(&FlowPacket) + 'static) {
        let mut by_port = vec![0; 1 << 16];
        for flow in 0..self.flows() {
            let id = self.ids[CLIENT][flow];
            let (local, _) = self.host(CLIENT).tcp(id).addrs().expect("it is open");
            by_port[usize::from(local.port())] = flow;
        }
        let hosts = self.hosts;
        self.add_observer(move |event| {
            let side = usize::from(event.host == hosts[SERVER]);
            let outgoing = !matches!(event.point, TracePoint::Arrived);
            let at = if outgoing == (side == CLIENT) { 0 } else { 2 };
            let Some(&[high, low]) = event.packet.transport_header().get(at..at + 2) else {
                return;
            };
            callback(&FlowPacket {
                at: event.at,
                side,
                point: event.point,
                flow: by_port[usize::from(u16::from_be_bytes([high, low]))],
                payload_len: event.packet.payload.len() as u32,
            });
        });
    }

    /// Adds a callback for every packet at a card.
    pub(crate) fn add_observer(&mut self, callback: impl FnMut(&TraceEvent<'_>) + 'static) {
        self.observers.borrow_mut().push(Box::new(callback));
        let all = self.observers.clone();
        self.sim.set_observer(move |event| {
            all.borrow_mut()
                .iter_mut()
                .for_each(|callback| callback(event));
        });
    }
}

/// The link layer of all experiments.
pub(crate) const LINK: Link = Link::Ip;
