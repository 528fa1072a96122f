//! The guests of a gateway, and their shares of its bounds.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fullsend_device::{Device, PortEvent, PortId, SwitchHandle, SwitchStats};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::{Config, Limits};
use crate::dns::AddressNames;
use crate::memory::Shares;
use crate::policy::RefusalLog;
use crate::rate::RateLimit;
use crate::tcp::RelayMemory;

/// A guest and its use of the gateway's tables.
pub(crate) struct Guest {
    /// `None` for the only guest of a gateway without a switch.
    pub(crate) port: Option<PortId>,
    /// Limits of the payload that the guest sends, and of the payload that it receives.
    pub(crate) tx_rate: RateLimit,
    pub(crate) rx_rate: RateLimit,
    /// The names of the addresses that the guest has resolved, for the policy.
    pub(crate) address_names: Mutex<AddressNames>,
    /// The log lines of its refusals.
    pub(crate) refusals: RefusalLog,
    tcp_open: AtomicUsize,
    forwarded_open: AtomicUsize,
    /// Wakes a client of a forward when another one of the guest has ended.
    forwarded_ended: Notify,
    dns_open: AtomicUsize,
    /// Bytes of the buffers of the guest's connections.
    buffers: AtomicUsize,
    /// The memory of the guest's relays.
    pub(crate) relays: RelayMemory,
}

/// Least bytes of the buffers of a connection, both directions together.
const MIN_BUFFERS: usize = 16 << 10;
/// Most bytes of the buffers of a connection: larger ones bring no speed on the link.
const MAX_BUFFERS: usize = 4 << 20;
/// The share of a guest's free buffers that one connection gets.
const BUFFERS_SHARE: usize = 16;

/// Longest time until the share of a guest is computed again for a waiting client of its forwards.
const SHARE_RECHECK: Duration = Duration::from_secs(1);

/// A resource of which each of several guests has a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Share {
    /// TCP connections that the guest opens.
    Tcp,
    /// TCP connections of forwards to the guest.
    Forwarded,
    /// DNS queries without an answer.
    Dns,
}

impl Guest {
    const fn open(&self, kind: Share) -> &AtomicUsize {
        match kind {
            Share::Tcp => &self.tcp_open,
            Share::Forwarded => &self.forwarded_open,
            Share::Dns => &self.dns_open,
        }
    }

    /// Adds one to the guest's use of a resource. Returns `None` if it uses `max`.
    pub(crate) fn try_hold(self: &Arc<Self>, kind: Share, max: usize) -> Option<HeldShare> {
        let more = |open: usize| (open < max).then_some(open + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.open(kind).fetch_update(set, fetch, more).ok()?;
        Some(HeldShare {
            guest: self.clone(),
            kind,
        })
    }
}

/// The buffers of a connection of one of several guests, released on drop.
pub(crate) struct HeldBuffers<'a> {
    guest: &'a Guest,
    bytes: usize,
}

impl HeldBuffers<'_> {
    /// Returns the bytes of the buffer of each direction.
    pub(crate) fn of_direction(&self) -> u32 {
        u32::try_from(self.bytes / 2).unwrap_or(u32::MAX)
    }

    /// Returns the most bytes that a relay may read at once: the largest block that fits a direction's
    /// buffer, because the stack accepts a write that exceeds the buffer.
    pub(crate) fn max_read(&self) -> usize {
        let blocks = [64 << 10, 16 << 10, 4 << 10];
        let fits = |block: &usize| *block <= self.bytes / 2;
        blocks.into_iter().find(fits).unwrap_or(4 << 10)
    }
}

impl Drop for HeldBuffers<'_> {
    fn drop(&mut self) {
        self.guest.buffers.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A unit of a guest's share of a resource, released on drop.
pub(crate) struct HeldShare {
    guest: Arc<Guest>,
    kind: Share,
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        self.guest.open(self.kind).fetch_sub(1, Ordering::Relaxed);
        if self.kind == Share::Forwarded {
            self.guest.forwarded_ended.notify_one();
        }
    }
}

/// The settings of guests that are added later.
#[derive(Clone, Copy)]
struct Settings {
    rate: Option<u64>,
    dns_addresses: usize,
    address_grace: Duration,
}

impl Settings {
    fn guest(&self, port: Option<PortId>, relays: &Arc<RelayMemory>) -> Arc<Guest> {
        Arc::new(Guest {
            port,
            tx_rate: RateLimit::new(self.rate),
            rx_rate: RateLimit::new(self.rate),
            address_names: Mutex::new(AddressNames::new(self.dns_addresses, self.address_grace)),
            refusals: RefusalLog::default(),
            tcp_open: AtomicUsize::new(0),
            forwarded_open: AtomicUsize::new(0),
            forwarded_ended: Notify::new(),
            dns_open: AtomicUsize::new(0),
            buffers: AtomicUsize::new(0),
            relays: RelayMemory::of_guest(relays.clone()),
        })
    }
}

/// The guests that are behind the ports of a switch now.
#[derive(Default)]
pub(crate) struct PortGuests {
    guests: Mutex<BTreeMap<PortId, Arc<Guest>>>,
    /// Guests that have ended since [`take_ended`](Guests::take_ended).
    ended: Mutex<Vec<PortId>>,
    /// Whether guests reach each other over the switch.
    is_joined: bool,
}

impl PortGuests {
    pub(crate) fn new(is_joined: bool) -> Self {
        Self {
            is_joined,
            ..Self::default()
        }
    }

    /// Removes a guest whose port has ended.
    pub(crate) fn on_event(&self, event: PortEvent) {
        if let PortEvent::Disconnected { port, .. } = event {
            let removed = self.guests.lock().remove(&port);
            if removed.is_some() {
                self.ended.lock().push(port);
            }
        }
    }
}

/// The guests of a gateway.
pub(crate) struct Guests {
    /// `None` for a single guest, whose device is not behind a switch.
    switch: Option<SwitchHandle>,
    /// The single guest. With a switch, the state of addresses that no guest has used, which clients of
    /// forwards may address.
    only: Arc<Guest>,
    ports: Arc<PortGuests>,
    settings: Mutex<Settings>,
    /// Bytes of the buffers of all connections at most.
    buffers: usize,
    /// Bytes of the buffers of one guest's connections at most.
    buffers_of_guest: usize,
    /// Most pairs of an address and a name of all guests.
    names: usize,
    /// The memory of all relays.
    relays: Arc<RelayMemory>,
    /// Bytes that the relays of one guest may hold at most.
    relays_of_guest: usize,
}

impl Guests {
    pub(crate) fn new(
        config: &Config,
        memory: &Shares,
        switch: Option<SwitchHandle>,
        ports: Arc<PortGuests>,
    ) -> Self {
        let names = usize::try_from(memory.names).unwrap_or(usize::MAX);
        let settings = Settings {
            rate: config.limits.rate,
            dns_addresses: config.limits.dns_addresses.min(names),
            address_grace: config.dns.address_grace,
        };
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let of_guest = config.limits.memory.map(Shares::tcp_data_of);
        let relays_of_guest = config.limits.memory.map(Shares::relays_of);
        let relays = Arc::new(RelayMemory::new(memory.relays));
        Self {
            buffers: bytes(memory.tcp_data),
            buffers_of_guest: of_guest.map_or(usize::MAX, bytes),
            relays_of_guest: relays_of_guest.map_or(usize::MAX, bytes),
            switch,
            only: settings.guest(None, &relays),
            ports,
            settings: Mutex::new(settings),
            names,
            relays,
        }
    }

    /// Returns the guest that has used an address, or `None` if no guest behind the switch has.
    pub(crate) fn of(&self, address: IpAddr) -> Option<Arc<Guest>> {
        let Some(switch) = &self.switch else {
            return Some(self.only.clone());
        };
        let port = switch.port_of_address(address)?;
        let mut guests = self.ports.guests.lock();
        if let Some(guest) = guests.get(&port) {
            return Some(guest.clone());
        }
        let guest = self.settings.lock().guest(Some(port), &self.relays);
        // The end of a port is reported once: a port that has ended since the lookup must not be added.
        if switch.port_of_address(address) == Some(port) {
            guests.insert(port, guest.clone());
        }
        Some(guest)
    }

    /// Returns the guests that have ended since the last call.
    pub(crate) fn take_ended(&self) -> Vec<PortId> {
        std::mem::take(&mut *self.ports.ended.lock())
    }

    /// Returns the guest of a gateway without a switch.
    pub(crate) fn only(&self) -> &Arc<Guest> {
        &self.only
    }

    /// Returns the guest that has used an address, or the shared state of addresses that no guest has
    /// used.
    pub(crate) fn of_or_unknown(&self, address: IpAddr) -> Arc<Guest> {
        self.of(address).unwrap_or_else(|| self.only.clone())
    }

    /// Returns the part of `of_all`, the bound of all guests together, that one guest may use: with `n`
    /// guests behind a switch at most 1/(n+1), so that another one finds room, and at most `of_one`. A link is
    /// a guest's from its first frame on.
    pub(crate) fn part_of(&self, of_all: usize, of_one: usize) -> usize {
        match &self.switch {
            Some(_) => (of_all / self.parts() as usize).min(of_one).max(1),
            None => of_all,
        }
    }

    /// Returns the number of shares of what all guests have, of which each guest has one: with `n` guests
    /// n+1, as for [`part_of`](Self::part_of).
    pub(crate) fn parts(&self) -> u32 {
        let guests = self
            .switch
            .as_ref()
            .map_or(0, |switch| switch.guests().max(1));
        u32::try_from(guests).map_or(u32::MAX, |guests| guests.saturating_add(1))
    }

    /// Returns the number of refusals of all guests that had no line in the log, once a minute; `at_once`
    /// without waiting.
    pub(crate) fn take_suppressed(&self, now: Instant, at_once: bool) -> u64 {
        let all = self.all().into_iter();
        all.map(|guest| guest.refusals.take_suppressed(now, at_once))
            .sum()
    }

    /// Waits until the guest at `address` has less than its share of `of_all`, the most connections of all
    /// forwards, and holds a unit of it: the clients of one guest do not use up those of the others.
    pub(crate) async fn hold_forwarded(&self, address: IpAddr, of_all: usize) -> HeldShare {
        loop {
            let guest = self.of_or_unknown(address);
            let ended = guest.forwarded_ended.notified();
            if let Some(held) = guest.try_hold(Share::Forwarded, self.part_of(of_all, usize::MAX)) {
                // The share may have room for one more.
                guest.forwarded_ended.notify_one();
                return held;
            }
            // The share grows when another guest ends, and the address may become another guest's.
            let _ = tokio::time::timeout(SHARE_RECHECK, ended).await;
        }
    }

    /// Reserves the buffers of a new connection of one of several guests: a part of the guest's free
    /// share, so that it does not use up the memory of the others. Returns `None` for the only guest.
    pub(crate) fn hold_buffers<'a>(&self, guest: &'a Guest) -> Option<HeldBuffers<'a>> {
        self.switch.as_ref()?;
        let share = self.part_of(self.buffers, self.buffers_of_guest);
        let free = share.saturating_sub(guest.buffers.load(Ordering::Relaxed));
        let bytes = (free / BUFFERS_SHARE).clamp(MIN_BUFFERS, MAX_BUFFERS);
        guest.buffers.fetch_add(bytes, Ordering::Relaxed);
        Some(HeldBuffers { guest, bytes })
    }

    /// Returns the memory of all relays.
    pub(crate) const fn relays(&self) -> &Arc<RelayMemory> {
        &self.relays
    }

    /// Sets the relay memory of one of several guests to its share with the present number of guests.
    /// Call it when a connection begins.
    pub(crate) fn share_relays(&self, guest: &Guest) {
        if self.are_several() {
            let share = self.part_of(self.relays.budget(), self.relays_of_guest);
            guest.relays.set_budget(share);
        }
    }

    /// Returns whether there may be several guests.
    pub(crate) const fn are_several(&self) -> bool {
        self.switch.is_some()
    }

    /// Returns whether there may be several guests that do not reach each other.
    pub(crate) fn are_apart(&self) -> bool {
        self.are_several() && !self.ports.is_joined
    }

    /// Returns the port of the guest with an Ethernet address.
    pub(crate) fn port_of_mac(&self, mac: [u8; 6]) -> Option<PortId> {
        self.switch.as_ref()?.port_of_mac(mac)
    }

    /// Lets only the guest with this Ethernet address use an IP address for `time`.
    pub(crate) fn lease(&self, address: IpAddr, mac: [u8; 6], time: Duration) {
        if let Some(switch) = &self.switch {
            switch.lease(address, mac, time);
        }
    }

    /// Ends the exclusive use that [`lease`](Self::lease) began.
    pub(crate) fn end_lease(&self, address: IpAddr) {
        if let Some(switch) = &self.switch {
            switch.end_lease(address);
        }
    }

    pub(crate) fn attach(&self, device: Box<dyn Device>) -> io::Result<PortId> {
        match &self.switch {
            Some(switch) => switch.attach(device),
            None => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the gateway has one device; build it with .join_guests(..) or .guest(..)",
            )),
        }
    }

    pub(crate) fn switch_stats(&self) -> SwitchStats {
        let stats = self.switch.as_ref().map(SwitchHandle::stats);
        stats.unwrap_or_default()
    }

    fn all(&self) -> Vec<Arc<Guest>> {
        let mut all: Vec<_> = self.ports.guests.lock().values().cloned().collect();
        all.push(self.only.clone());
        all
    }

    /// Returns the limit of the payload of each guest, bytes per second.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.settings.lock().rate
    }

    /// Changes the limit of the payload of each guest.
    pub(crate) fn set_rate(&self, rate: Option<u64>) {
        self.settings.lock().rate = rate;
        for guest in self.all() {
            guest.tx_rate.set(rate);
            guest.rx_rate.set(rate);
        }
    }

    /// Returns the number of pairs of an address and a name that are known.
    pub(crate) fn name_count(&self) -> usize {
        let all = self.all().into_iter();
        all.map(|guest| guest.address_names.lock().len()).sum()
    }

    /// Removes expired names, and those beyond each guest's share with the present number of guests.
    pub(crate) fn expire_names(&self, now: Instant) {
        let of_one = self.settings.lock().dns_addresses;
        let max = self.part_of(self.names, of_one).min(of_one);
        for guest in self.all() {
            let mut names = guest.address_names.lock();
            names.expire(now);
            names.limit(max);
        }
    }
}

/// Number of guests up to which the bounds of all together grow; the descriptors limit them further.
const GUESTS_MAX: usize = 64;

/// Returns the bounds of all guests together, given the bounds of each of several guests.
pub(crate) fn limits_of_all(limits: &Limits) -> Limits {
    let all = |of_one: usize| of_one.saturating_mul(GUESTS_MAX);
    Limits {
        tcp_connections: all(limits.tcp_connections),
        udp_flows: all(limits.udp_flows),
        ping_flows: all(limits.ping_flows),
        dns_queries: all(limits.dns_queries),
        ..*limits
    }
}
