//! TCP sockets: what stands between the connections and the rest of the host.

mod calls;
mod connect;
mod cookie;
mod dropped_syns;
mod fastopen;
mod half_open;
mod input;
mod inspect;
mod isn;
mod listen;
mod listener_settings;
mod look_ahead;
mod output;
mod pending;
mod ports;
mod request;
mod reset;
mod saved_syn;
mod settle;
mod socket;
mod socket_calls;
mod sockstat;
mod syn_limit;
mod time_wait;
mod watch;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use fullsend_tcp::Sysctl;
use fullsend_units::Instant;

pub use calls::Interest;
pub use listen::{Incoming, ListenConfig, ListenerId};
pub use socket_calls::TcpQueues;
pub use sockstat::SockStat;
pub(crate) use time_wait::TimeWaits;

use cookie::SynCookies;
use fastopen::Fastopen;
use isn::IsnGenerator;
use listen::Listeners;
use look_ahead::Ahead;
use ports::EphemeralPorts;
use socket::Entry;
use syn_limit::SynLimit;

use crate::demux::{FlowKey, FlowTable, Target};
use crate::rate::TokenBucket;
use crate::siphash::SipKey;
use crate::table::Table;
use crate::timer::Wheel;

/// A TCP connection's handle; never reused for another connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpId(pub u64);

/// The state of TCP on a host.
pub(crate) struct Tcp {
    pub(crate) table: Table<Entry>,
    /// By slot of `table`.
    pub(crate) wheel: Wheel,
    flows: FlowTable,
    pub(crate) time_wait: TimeWaits,
    listeners: Listeners,
    isn: IsnGenerator,
    cookies: SynCookies,
    syn_limit: SynLimit,
    ports: EphemeralPorts,
    timestamp_key: SipKey,
    flow_label_key: SipKey,
    fastopen: Fastopen,
    /// Headers of SYNs that users asked to keep, by slot of `table`.
    saved_syns: BTreeMap<u32, Vec<u8>>,
    resets: TokenBucket,
    /// Connections whose user let go.
    orphans: usize,
    /// Scratch of `look_ahead`.
    ahead: Ahead,
}

impl Tcp {
    pub(crate) fn new(key: &mut impl FnMut() -> SipKey) -> Self {
        let flows = FlowTable::new(key());
        let isn = IsnGenerator::new(key());
        let ports = EphemeralPorts::new(key(), key());
        let (timestamp_key, flow_label_key) = (key(), key());
        Self {
            table: Table::new(),
            wheel: Wheel::new(),
            flows,
            time_wait: TimeWaits::new(),
            listeners: Listeners::new(flow_label_key),
            isn,
            ports,
            cookies: SynCookies::new(timestamp_key),
            syn_limit: SynLimit::new(timestamp_key),
            fastopen: Fastopen::new(flow_label_key),
            timestamp_key,
            flow_label_key,
            saved_syns: BTreeMap::new(),
            resets: TokenBucket::default(),
            orphans: 0,
            ahead: Ahead::default(),
        }
    }

    /// A key for the rest of the host; 1, 2 and the last but one are taken. IP has 3, UDP the last, interfaces have
    /// those from 4 on.
    pub(crate) fn derive_key(&self, label: u64) -> SipKey {
        self.timestamp_key.derive(label)
    }

    /// Who has the four-tuple.
    #[inline]
    pub(crate) fn find(&mut self, key: &FlowKey) -> Option<Target> {
        let (table, time_wait) = (&self.table, &self.time_wait);
        self.flows.find(key, |target| match target {
            Target::Socket(index) => table.get(index).is_some_and(|e| e.key() == key),
            Target::TimeWait(index) => time_wait.get(index).is_some_and(|e| e.key == *key),
        })
    }

    /// Nobody has the four-tuple, or one in TIME-WAIT that can be told from a new one.
    fn is_free(&mut self, now: Instant, key: &FlowKey, tcp_tw_reuse: u32) -> bool {
        match self.find(key) {
            None => true,
            Some(Target::Socket(_)) => false,
            Some(Target::TimeWait(index)) => self.time_wait.is_reusable(now, index, tcp_tw_reuse),
        }
    }

    /// A port for a connection to where `key` says.
    fn ephemeral_port(&mut self, now: Instant, key: &FlowKey, sysctl: &Sysctl) -> Option<u16> {
        let to = (key.local, key.remote, key.remote_port);
        let [first, last] = sysctl.ip_local_port_range;
        let mut ports = self.ports.clone();
        let port = ports.choose(first..=last, to, |local_port| {
            let key = FlowKey { local_port, ..*key };
            !self.listeners.uses_port(local_port) && self.is_free(now, &key, sysctl.tcp_tw_reuse)
        });
        self.ports = ports;
        port
    }

    /// RFC 7323 5.4: timestamps of one pair of hosts grow together, those of others are unrelated.
    fn timestamp_offset(&self, key: &FlowKey) -> u32 {
        let pair = FlowKey {
            local_port: 0,
            remote_port: 0,
            ..*key
        };
        pair.hash(self.timestamp_key) as u32
    }

    /// RFC 6437 3: constant in a flow, unguessable outside.
    fn flow_label(&self, key: &FlowKey) -> u32 {
        key.hash(self.flow_label_key) as u32 & 0xf_ffff
    }
}

/// The larger of a family's headers without options: IP and TCP.
const fn headers_len(is_v4: bool) -> u32 {
    if is_v4 { 40 } else { 60 }
}

fn addr_is_usable(addr: SocketAddr) -> bool {
    !addr.ip().is_multicast() && !addr.ip().is_unspecified()
}
