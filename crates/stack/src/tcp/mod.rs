//! TCP sockets: the layer between the connections and the rest of the host.

mod connect;
mod cookie;
mod deferred_syn;
mod dropped_syns;
mod fastopen;
mod half_open;
mod handle;
mod handshake;
mod host_wide;
mod input;
mod inspect;
mod isn;
mod listen;
mod listener_handle;
mod listener_settings;
mod output;
mod ports;
mod post_process;
mod prefetch;
mod reset;
mod saved_syn;
mod socket;
mod sockstat;
mod syn_limit;
mod time_wait;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use fullsend_offload::Packet;
use fullsend_tcp::Sysctl;
use fullsend_tcp::congestion::CongestionFactory;
use fullsend_wire::{Instant, cold_path};

pub use deferred_syn::UnreachableCode;
pub use fastopen::FastopenServer;
pub use handle::{Interest, TcpHandle, TcpQueues, TcpRef};
pub use listen::{Incoming, ListenConfig, ListenerId};
pub use listener_handle::ListenerHandle;
pub use sockstat::SockStat;
pub(crate) use time_wait::TimeWaitTable;

use cookie::SynCookies;
use fastopen::FastopenState;
use isn::IsnGenerator;
use listen::Listeners;
use ports::EphemeralPorts;
use prefetch::PrefetchBuffers;
use socket::SocketEntry;
use syn_limit::SynLimit;

use crate::demux::{FlowKey, FlowOwner, FlowTable};
use crate::rate::TokenBucket;
use crate::siphash::SipKey;
use crate::slab::Slab;
use crate::steering::ShardIndex;
use crate::timer::TimerWheel;

/// A TCP connection's ID; [`Host::tcp`](crate::Host::tcp) gives access to it. It is never reused for
/// another connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpId(pub u64);

/// The state of TCP on a host.
pub(crate) struct Tcp {
    pub(crate) table: Slab<SocketEntry>,
    /// Timers, by slot of `table`.
    pub(crate) wheel: TimerWheel,
    flows: FlowTable,
    pub(crate) time_wait: TimeWaitTable,
    listeners: Listeners,
    isn: IsnGenerator,
    cookies: SynCookies,
    syn_limit: SynLimit,
    ports: EphemeralPorts,
    timestamp_key: SipKey,
    flow_label_key: SipKey,
    fastopen: FastopenState,
    /// The congestion control that the program brings along for new connections.
    congestion_factory: Option<CongestionFactory>,
    /// Headers of SYNs that are kept on request of the application, by slot of `table`.
    saved_syns: BTreeMap<u32, Vec<u8>>,
    resets: TokenBucket,
    /// Number of connections in `table`.
    connections: usize,
    /// Number of connections that the application has closed and that are not finished.
    orphans: usize,
    /// The slot of `table` with which the next search for a connection with unacknowledged data begins.
    unflushed_at: u32,
    /// Scratch buffer for prefetching.
    prefetch_buffers: PrefetchBuffers,
    /// The host's place in a stack of several shards.
    pub(crate) shard: Option<ShardIndex>,
    /// Received segments of other shards' flows, with their shards.
    pub(crate) misdirected: Vec<(usize, Packet)>,
}

impl Tcp {
    pub(crate) fn new(key: &mut impl FnMut() -> SipKey) -> Self {
        let flows = FlowTable::new(key());
        let isn = IsnGenerator::new(key());
        let ports = EphemeralPorts::new(key(), key());
        let (timestamp_key, flow_label_key) = (key(), key());
        Self {
            table: Slab::new(),
            wheel: TimerWheel::new(),
            flows,
            time_wait: TimeWaitTable::new(),
            listeners: Listeners::new(flow_label_key),
            isn,
            ports,
            cookies: SynCookies::new(timestamp_key),
            syn_limit: SynLimit::new(timestamp_key),
            fastopen: FastopenState::new(flow_label_key),
            congestion_factory: None,
            timestamp_key,
            flow_label_key,
            saved_syns: BTreeMap::new(),
            resets: TokenBucket::default(),
            connections: 0,
            orphans: 0,
            unflushed_at: 0,
            prefetch_buffers: PrefetchBuffers::default(),
            shard: None,
            misdirected: Vec::new(),
        }
    }

    /// Sets the congestion control that the program brings along for new connections.
    pub(crate) fn set_congestion_factory(&mut self, factory: Option<CongestionFactory>) {
        self.congestion_factory = factory;
    }

    /// Derives a key for another part of the host. Labels in use: 1 and 2 (SYN cookies), 3 (IP),
    /// from 4 on (one for each interface), `u64::MAX - 3` to `u64::MAX - 1` (the SYN limit) and
    /// `u64::MAX` (UDP).
    pub(crate) fn derive_key(&self, label: u64) -> SipKey {
        self.timestamp_key.derive(label)
    }

    /// Returns whether no further connection may be added (`tcp_max_sockets`).
    pub(super) fn is_full(&self, sysctl: &Sysctl) -> bool {
        let most = sysctl.tcp_max_sockets as usize;
        most != 0 && self.connections >= most
    }

    /// Limits the tables that no tunable limits to about `bytes` of memory.
    pub(crate) fn limit_memory(&mut self, bytes: usize) {
        self.syn_limit.limit_memory(bytes);
    }

    /// Returns the owner of the 4-tuple.
    #[inline]
    pub(crate) fn find(&mut self, key: &FlowKey) -> Option<FlowOwner> {
        let (table, time_wait) = (&self.table, &self.time_wait);
        self.flows.find(key, |owner| match owner {
            FlowOwner::Socket(index) => table.get(index).is_some_and(|e| e.key() == key),
            FlowOwner::TimeWait(index) => {
                cold_path();
                time_wait.get(index).is_some_and(|e| e.key == *key)
            }
        })
    }

    /// Returns whether the 4-tuple is free or held only by a reusable TIME-WAIT entry.
    fn is_free(&mut self, now: Instant, key: &FlowKey, tcp_tw_reuse: u32) -> bool {
        match self.find(key) {
            None => true,
            Some(FlowOwner::Socket(_)) => false,
            Some(FlowOwner::TimeWait(index)) => {
                self.time_wait.is_reusable(now, index, tcp_tw_reuse)
            }
        }
    }

    /// Returns the other shard of the stack that the flow belongs to; `None` if it is this host's.
    #[inline]
    fn other_owner(&self, key: &FlowKey) -> Option<usize> {
        self.shard?.other_owner(key)
    }

    /// Returns an ephemeral port for a connection to the remote end of `key`.
    fn ephemeral_port(&mut self, now: Instant, key: &FlowKey, sysctl: &Sysctl) -> Option<u16> {
        let to = (key.local, key.remote, key.remote_port);
        let [first, last] = sysctl.ip_local_port_range;
        let mut ports = self.ports.clone();
        let port = ports.choose(first..=last, to, |local_port| {
            let key = FlowKey { local_port, ..*key };
            self.other_owner(&key).is_none()
                && !self.listeners.uses_port(local_port)
                && self.is_free(now, &key, sysctl.tcp_tw_reuse)
        });
        self.ports = ports;
        port
    }

    /// Returns the offset of the timestamp clock (RFC 7323 5.4): all connections of one pair of
    /// hosts share it, and those of different pairs are unrelated.
    fn timestamp_offset(&self, key: &FlowKey) -> u32 {
        let pair = FlowKey {
            local_port: 0,
            remote_port: 0,
            ..*key
        };
        pair.hash(self.timestamp_key) as u32
    }

    /// Returns the flow label (RFC 6437 3): constant within a flow, and not predictable by others.
    fn flow_label(&self, key: &FlowKey) -> u32 {
        key.hash(self.flow_label_key) as u32 & 0xf_ffff
    }
}

/// Returns the length of the IP and TCP headers of a family without options, bytes.
const fn headers_len(is_v4: bool) -> u32 {
    if is_v4 { 40 } else { 60 }
}

fn addr_is_usable(addr: SocketAddr) -> bool {
    !addr.ip().is_multicast() && !addr.ip().is_unspecified()
}
