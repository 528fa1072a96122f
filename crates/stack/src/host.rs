//! The host: its parts, its timers, and the calls of drivers and applications.

use alloc::vec::Vec;
use core::fmt;
use core::task::Waker;

use fullsend_offload::{Packet, Pool, TxToken};
use fullsend_tcp::congestion::CongestionFactory;
use fullsend_tcp::legacy::Legacy;
use fullsend_tcp::{Cx, DeviceCaps, HostLimits, Sysctl, SysctlError, TcpMemory, TcpMib};
use fullsend_wire::{Instant, Rng, Seed, cold_path};

use crate::interface::{Interface, LOOPBACK};
use crate::ip::{Ip, Path};
use crate::mib::HostMib;
use crate::notices::Notices;
use crate::ping::Pings;
use crate::siphash::SipKey;
use crate::tcp::Tcp;
use crate::udp::Udp;
use crate::{IfaceConfig, IfaceId};

/// The parameters of a new [`Host`].
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// All ISNs, ports, keys and IDs are derived from this seed.
    pub seed: Seed,
    /// TCP tunables.
    pub sysctl: Sysctl,
    /// Maximum number of bytes of free payload memory kept for reuse.
    pub pool_bytes: usize,
}

/// The state of the host that every connection uses.
pub(crate) struct Env {
    pub(crate) sysctl: Sysctl,
    pub(crate) pool: Pool,
    pub(crate) mib: TcpMib,
    pub(crate) mem: TcpMemory,
    pub(crate) limits: HostLimits,
    pub(crate) rng: Rng,
    legacy: Legacy,
    /// Device capabilities, indexed by interface.
    pub(crate) caps: Vec<DeviceCaps>,
    loopback: DeviceCaps,
}

impl Env {
    /// Returns the context for a connection on `path`.
    #[inline]
    pub(crate) fn cx(&mut self, now: Instant, path: &Path, ts_offset: u32) -> Cx<'_> {
        let caps = self.caps.get(usize::from(path.iface));
        let device = DeviceCaps {
            mtu: path.mtu,
            ..*caps.unwrap_or(&self.loopback)
        };
        self.cx_on(device, now, ts_offset)
    }

    /// Returns the context for a TIME-WAIT entry, which has no path.
    #[inline]
    pub(crate) fn cx_without_path(&mut self, now: Instant, ts_offset: u32) -> Cx<'_> {
        self.cx_on(self.loopback, now, ts_offset)
    }

    #[inline(always)]
    fn cx_on(&mut self, device: DeviceCaps, now: Instant, ts_offset: u32) -> Cx<'_> {
        Cx {
            now,
            sysctl: &self.sysctl,
            pool: &self.pool,
            mib: &mut self.mib,
            mem: &mut self.mem,
            limits: &mut self.limits,
            rng: &mut self.rng,
            device,
            ts_offset,
            legacy: self.legacy,
        }
    }
}

/// A host: its interfaces, its network layer and its sockets.
///
/// There are three kinds of calls: those of the driver ([`receive`](Self::receive),
/// [`poll`](Self::poll), [`transmit`](Self::transmit), [`complete`](Self::complete)), those of
/// applications, which open sockets ([`tcp_connect`](Self::tcp_connect),
/// [`tcp_listen`](Self::tcp_listen), [`udp_bind`](Self::udp_bind)) and use them through handles
/// ([`tcp`](Self::tcp), [`listener`](Self::listener),
/// [`udp`](Self::udp)), and the queries after either:
/// [`needs_transmit`](Self::needs_transmit), [`poll_deadline`](Self::poll_deadline),
/// [`take_wakers`](Self::take_wakers).
///
/// `receive` sends nothing by itself: ACKs are sent by the next `transmit`, so that they are
/// piggybacked on the data that applications write in between.
pub struct Host {
    pub(crate) env: Env,
    pub(crate) ifaces: Vec<Interface>,
    pub(crate) loopback: Interface,
    pub(crate) ip: Ip,
    pub(crate) tcp: Tcp,
    pub(crate) udp: Udp,
    pub(crate) pings: Pings,
    pub(crate) mib: HostMib,
    pub(crate) notices: Notices,
    pub(crate) wakers: Vec<Waker>,
    /// Wakers that were replaced and are still to be dropped.
    pub(crate) replaced_wakers: Vec<Waker>,
    /// Until this time, the next timer may be the pacing timer of a connection.
    pub(crate) paced_until: Instant,
    /// Scratch buffer for packets between sockets and qdiscs.
    pub(crate) staged: Vec<Packet>,
    /// Scratch buffer of `receive`.
    pub(crate) batch: Vec<Packet>,
    /// Scratch buffer of `poll`.
    due: Vec<u32>,
    /// The limit of the host's memory, if there is one.
    memory_bytes: Option<u64>,
}

/// Maximum number of packets that one call carries over loopback; the rest waits for the next call.
const LOOPBACK_BUDGET: usize = 256;
/// Largest reserve of the pool of a host with a limited memory, in bytes: that of any pool.
const POOL_RESERVE: usize = 2 << 20;

impl Host {
    /// Creates a host without interfaces.
    pub fn new(config: HostConfig) -> Self {
        let mut rng = Rng::new(config.seed);
        let mut key = || SipKey(rng.next_u64(), rng.next_u64());
        let tcp = Tcp::new(&mut key);
        let ip = Ip::new(tcp.derive_key(3));
        let udp = Udp::new(tcp.derive_key(u64::MAX));
        Self {
            env: Env {
                sysctl: config.sysctl,
                pool: Pool::new(config.pool_bytes),
                mib: TcpMib::default(),
                mem: TcpMemory::default(),
                limits: HostLimits::default(),
                rng,
                legacy: Legacy::default(),
                caps: Vec::new(),
                loopback: IfaceConfig::loopback().device_caps(),
            },
            ifaces: Vec::new(),
            loopback: Interface::new(IfaceConfig::loopback(), 0),
            ip,
            tcp,
            udp,
            pings: Pings::new(),
            mib: HostMib::default(),
            notices: Notices::default(),
            wakers: Vec::new(),
            replaced_wakers: Vec::new(),
            paced_until: Instant::ZERO,
            staged: Vec::new(),
            batch: Vec::new(),
            due: Vec::new(),
            memory_bytes: None,
        }
    }

    /// Returns the pool that payload memory is allocated from.
    pub fn pool(&self) -> &Pool {
        &self.env.pool
    }

    /// Returns a random number of the host's generator, for the identifiers of protocols above it.
    pub fn random_u64(&mut self) -> u64 {
        self.env.rng.next_u64()
    }

    /// Returns the TCP tunables.
    pub fn sysctl(&self) -> &Sysctl {
        &self.env.sysctl
    }

    /// Returns the TCP tunables for changes before there are connections. Waiting writers are not
    /// woken by a change; use [`set_sysctl`](Self::set_sysctl) for that.
    pub fn sysctl_mut(&mut self) -> &mut Sysctl {
        &mut self.env.sysctl
    }

    /// Sets a tunable by its Linux name on a running host. The value applies to later events, and
    /// writers that get send-buffer space from a raised limit are woken.
    ///
    /// # Errors
    /// [`SysctlError`] if there is no such tunable or the value is invalid.
    pub fn set_sysctl(&mut self, now: Instant, key: &str, value: &str) -> Result<(), SysctlError> {
        self.env.sysctl.set(key, value)?;
        self.tcp_limits_changed(now);
        if key.ends_with("tcp_fastopen_blackhole_timeout_sec") {
            self.clear_fastopen_blackholes();
        }
        Ok(())
    }

    /// Sets a congestion control that the program brings along for new connections, in place of
    /// `tcp_congestion_control`; `None` returns to the latter. A listener or connection may select
    /// another one.
    pub fn set_congestion_with(&mut self, factory: Option<CongestionFactory>) {
        self.tcp.set_congestion_factory(factory);
    }

    /// Enables superseded rules, to show what replaced them.
    #[cfg(feature = "legacy")]
    pub const fn set_legacy(&mut self, legacy: Legacy) {
        self.env.legacy = legacy;
    }

    /// Limits the host's queues and tables that no tunable limits, so that they and the data that
    /// [`Sysctl::for_memory`] admits take less than `bytes` of memory together, without the queues
    /// of devices. Call it before interfaces are added.
    ///
    /// Shares: fragments, the queue of each interface and the packets that wait for its neighbours
    /// 1/32 each; dropped SYNs, flows of sent datagrams and path MTUs (two tables) 1/128 each;
    /// free payload memory 1/16, and the pool's reserve 1/64 or 2 MiB.
    pub fn limit_memory(&mut self, bytes: u64) {
        let share = |part: u64| usize::try_from(bytes / part).unwrap_or(usize::MAX);
        self.memory_bytes = Some(bytes);
        self.ip.limit_memory(share(32), share(128));
        self.tcp.limit_memory(share(128));
        self.udp.limit_memory(share(128));
        self.loopback.limit_memory(share(32));
        self.env.pool = Pool::new(share(16));
        self.env.pool.set_reserve(share(64).min(POOL_RESERVE));
    }

    /// Adds an interface and returns its handle.
    pub fn add_interface(&mut self, config: IfaceConfig) -> IfaceId {
        let id = IfaceId(self.ifaces.len() as u16);
        self.env.caps.push(config.device_caps());
        let SipKey(seed, _) = self.tcp.derive_key(4 + u64::from(id.0));
        let mut interface = Interface::new(config, seed);
        if let Some(bytes) = self.memory_bytes {
            interface.limit_memory(usize::try_from(bytes / 32).unwrap_or(usize::MAX));
        }
        if let Some(neighbours) = &mut interface.neighbours {
            match self.later_shard() {
                Some(index) => neighbours.set_shard(index),
                None => neighbours.resolve_for(self.shard_count()),
            }
        }
        self.ifaces.push(interface);
        id
    }

    /// Returns the interface with this index, or the loopback interface for [`LOOPBACK`]. Any other unknown
    /// index is a bug: debug builds panic, and release builds return the loopback interface.
    #[inline]
    pub(crate) fn iface_mut(&mut self, iface: u16) -> &mut Interface {
        let interface = self.ifaces.get_mut(usize::from(iface));
        debug_assert!(interface.is_some() || iface == LOOPBACK);
        interface.unwrap_or(&mut self.loopback)
    }

    /// Treats memory as exhausted while the pool's allocator refuses it: incomplete reassemblies
    /// are discarded when that begins, and writers are woken when it ends.
    #[inline]
    pub(crate) fn update_memory_state(&mut self, now: Instant) {
        if self.env.pool.is_under_pressure() || self.env.mem.is_refused() {
            self.retry_allocation(now);
        }
    }

    #[cold]
    fn retry_allocation(&mut self, now: Instant) {
        let refused = !self.env.pool.try_end_pressure();
        if refused == self.env.mem.is_refused() {
            return;
        }
        let env = &mut self.env;
        env.mem.set_refused(now, &env.sysctl, &mut env.mib, refused);
        if refused {
            self.ip.reassembly.abandon_all();
        } else {
            self.tcp_limits_changed(now);
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn poll(&mut self, now: Instant) {
        self.poll_until(now, now);
    }

    /// Runs the timers that were due at `until`, which is not after `now`. It is for a driver that
    /// has received all that arrived before `until` but perhaps not what arrived since, such as the
    /// ACK that stops a later timer.
    pub fn poll_until(&mut self, now: Instant, until: Instant) {
        self.update_memory_state(now);
        let mut due = core::mem::take(&mut self.due);
        self.tcp.wheel.expire(until, &mut due);
        self.tcp.prefetch_due(&due);
        for index in due.drain(..) {
            self.tcp_timeout(now, index);
        }
        self.due = due;
        self.expire_time_wait(now);
        self.poll_ip(now);
        self.poll_qdiscs(now);
        self.poll_loopback(now);
    }

    /// Returns the time at which `poll` must be called at the latest.
    #[inline]
    pub fn poll_deadline(&self) -> Option<Instant> {
        if self.loopback.needs_transmit() {
            return Some(Instant::ZERO);
        }
        let tcp = self.tcp.wheel.next().min(self.tcp.time_wait.next());
        let first = tcp.min(self.ip_deadline());
        (first != Instant::FAR_FUTURE).then_some(first)
    }

    /// Returns whether [`transmit`](Self::transmit) has something to do for this interface or for
    /// the loopback interface. Cheap.
    #[inline]
    pub fn needs_transmit(&self, iface: IfaceId) -> bool {
        let interface = self.ifaces.get(usize::from(iface.0));
        interface.is_some_and(Interface::needs_transmit) || self.loopback.needs_transmit()
    }

    /// Appends the packets that the interface should send now, about `max` super-segments at most
    /// (software GSO makes several packets of each). Each must be completed with
    /// [`complete`](Self::complete).
    ///
    /// The interface's qdisc first pulls packets from the sockets; with `max` 0 only that happens.
    pub fn transmit(&mut self, now: Instant, iface: IfaceId, out: &mut Vec<Packet>, max: usize) {
        self.poll_loopback(now);
        let before = out.len();
        let index = usize::from(iface.0);
        let Some(interface) = self.ifaces.get_mut(index) else {
            cold_path();
            return;
        };
        if interface.qdisc.is_some() {
            self.qdisc_transmit(now, iface.0, out, max);
            return self.ifaces[index].stats.count_sent(&out[before..]);
        }
        let sent = interface.drain(out, max);
        self.tcp_transmit(now, iface.0, out, max - sent);
        let interface = &mut self.ifaces[index];
        // A segment to an unresolved neighbour causes an ARP or ND request, sent in its place.
        let left = max.saturating_sub(out.len() - before);
        interface.drain(out, left);
        interface.stats.count_sent(&out[before..]);
    }

    /// Delivers the packets on the loopback interface.
    #[inline]
    pub(crate) fn poll_loopback(&mut self, now: Instant) {
        if self.loopback.needs_transmit() {
            self.deliver_loopback(now);
        }
    }

    #[inline(never)]
    fn deliver_loopback(&mut self, now: Instant) {
        let mut batch = Vec::new();
        for _ in 0..LOOPBACK_BUDGET {
            if self.loopback.drain(&mut batch, 1) == 0 {
                self.tcp_transmit(now, LOOPBACK, &mut batch, 1);
            }
            if batch.is_empty() {
                return;
            }
            for mut packet in batch.drain(..) {
                self.complete(now, packet.tx);
                // The reader may be slow, and the lender of the memory must not have to wait for
                // it.
                if packet.payload.has_loans() && !packet.payload.copy_loans(&self.env.pool) {
                    continue;
                }
                self.ip_input(now, LOOPBACK, &mut packet);
            }
        }
    }

    /// Returns how many times a connection began to wait for the device to complete its packets
    /// (autocorking, TCP Small Queues). When the count grows, completions should not be delayed.
    #[inline]
    pub fn throttle_count(&self) -> u64 {
        self.env.mib.small_queue_throttled
    }

    /// Completes a packet that carried `token`: the device no longer uses it.
    #[inline]
    pub fn complete(&mut self, now: Instant, token: TxToken) {
        if token.socket != 0 {
            self.tcp_complete(now, token);
        }
    }

    /// Returns whether `take_wakers` or `take_replaced_wakers` has wakers to return.
    #[inline]
    pub fn has_wakers(&self) -> bool {
        self.wakers.len() + self.replaced_wakers.len() != 0
    }

    /// Moves the wakers of tasks whose sockets became ready to `out`. Wake them after releasing any
    /// lock. Drops the replaced wakers that [`take_replaced_wakers`](Self::take_replaced_wakers) has not
    /// taken.
    #[inline]
    pub fn take_wakers(&mut self, out: &mut Vec<Waker>) {
        self.replaced_wakers.clear();
        out.append(&mut self.wakers);
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("interfaces", &self.ifaces.len())
            .field("sockets", &self.tcp.table.len())
            .finish_non_exhaustive()
    }
}
