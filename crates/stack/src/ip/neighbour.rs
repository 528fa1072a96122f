//! The neighbour table of one Ethernet interface: resolution of hardware addresses (ARP for IPv4,
//! Neighbour Discovery for IPv6) and neighbour unreachability detection (RFC 4861 7.3, for both).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_offload::Packet;
use fullsend_wire::arp::{ArpOperation, ArpRepr};
use fullsend_wire::ethernet::Mac;
use fullsend_wire::ndp::{NdpRepr, Nonce};
use fullsend_wire::{Instant, Nanos};

use self::entry::{NeighbourEntry, State};
use self::frames::FrameBuilder;
use self::pending::PendingPackets;
use self::shards::{Resolution, Solicitor, report};
use crate::NeighbourConfig;

mod dad;
mod entry;
mod frames;
mod pending;
mod shards;
#[cfg(test)]
mod tests;

pub(crate) use dad::DadResult;
pub use shards::NeighbourMessage;
pub(crate) use shards::{MessageContent, ShardSet};

/// Interval between two solicitations (RFC 4861 10, RETRANS_TIMER).
const RETRANS: Nanos = Nanos::from_secs(1);
/// Time that a confirmed neighbour counts as reachable (REACHABLE_TIME).
const REACHABLE: Nanos = Nanos::from_secs(30);
/// Time that a stale neighbour is used before it is probed (DELAY_FIRST_PROBE_TIME).
const DELAY: Nanos = Nanos::from_secs(5);
/// Maximum number of neighbours; Linux's `gc_thresh3`.
const MAX_ENTRIES: usize = 1024;
/// Number of neighbours removed at once when the table is full.
const EVICT_BATCH: usize = 64;
/// Maximum number of bytes of memory that packets waiting on one interface hold; beyond it a
/// further packet is dropped.
const MAX_PENDING_TOTAL: usize = 4 << 20;

/// The effects of a call, for the caller to apply.
#[derive(Debug, Default)]
pub(crate) struct NeighbourActions {
    /// Frames to send on this interface, with link header.
    pub(crate) frames: Vec<Packet>,
    /// Packets whose next hop did not answer, without link header.
    pub(crate) unreachable: Vec<Packet>,
    /// Number of packets dropped because too many bytes waited for their neighbour or in all.
    pub(crate) discarded: u64,
    /// Number of packets dropped because every neighbour in the table has packets waiting.
    pub(crate) table_fulls: u64,
    /// Addresses whose duplicate address detection ended.
    pub(crate) dad: Vec<(Ipv6Addr, DadResult)>,
    /// Number of solicitations of the host's own duplicate address detection that were looped back.
    pub(crate) looped_back: u64,
    /// Whether cached link headers must be resolved again.
    pub(crate) changed: bool,
    /// Messages to other shards.
    pub(crate) messages: Vec<(ShardSet, MessageContent)>,
}

/// The neighbour table of one Ethernet interface.
///
/// [`resolve`](Self::resolve) and [`send`](Self::send) are for packets to a neighbour,
/// [`on_arp`](Self::on_arp) and [`on_ndp`](Self::on_ndp) for received messages, and
/// [`poll`](Self::poll) runs the timers at [`deadline`](Self::deadline).
#[derive(Debug)]
pub(crate) struct Neighbours {
    solicitor: Solicitor,
    config: NeighbourConfig,
    entries: BTreeMap<IpAddr, NeighbourEntry>,
    dad: dad::DadTable,
    /// Bytes that the packets waiting for all neighbours are charged, and their limit.
    pending_bytes: usize,
    max_pending: usize,
    max_entries: usize,
    /// No timer fires before this time.
    next: Instant,
}

impl Neighbours {
    pub(crate) const fn new(mac: Mac, config: NeighbourConfig) -> Self {
        let router = config.router;
        Self {
            solicitor: Solicitor {
                frames: FrameBuilder { mac, router },
                requester: None,
            },
            config,
            entries: BTreeMap::new(),
            dad: dad::DadTable::new(),
            pending_bytes: 0,
            max_pending: MAX_PENDING_TOTAL,
            max_entries: MAX_ENTRIES,
            next: Instant::FAR_FUTURE,
        }
    }

    /// Limits the waiting packets to `bytes` of memory, and the number of neighbours in proportion.
    pub(crate) fn limit_memory(&mut self, bytes: usize) {
        self.max_pending = bytes.min(MAX_PENDING_TOTAL);
        self.max_entries = (self.max_pending / (MAX_PENDING_TOTAL / MAX_ENTRIES)).max(EVICT_BATCH);
    }

    /// Returns whether IPv6 addresses are used only after duplicate address detection.
    pub(crate) const fn detects_duplicates(&self) -> bool {
        self.config.detect_duplicates
    }

    /// Returns whether the solicitation of `sender` for `target`, which is not a local address, is
    /// answered for another host. One for the sender's own address detects duplicates, and one
    /// without a sender may.
    fn is_proxied(&self, sender: IpAddr, target: IpAddr) -> bool {
        self.config.proxy
            && !sender.is_unspecified()
            && sender != target
            && !target.is_multicast()
            && !target.is_unspecified()
    }

    /// Returns the hardware address for packets to `neighbour` if it is known, and counts as a use
    /// of the neighbour. The caller handles directed IPv4 broadcasts.
    pub(crate) fn resolve(&mut self, now: Instant, neighbour: IpAddr) -> Option<Mac> {
        if let Some(mac) = group_mac(neighbour) {
            return Some(mac);
        }
        let entry = self.entries.get_mut(&neighbour)?;
        entry.used = now;
        match entry.state {
            State::Incomplete { .. } => None,
            State::Stale => {
                let until = now + DELAY;
                entry.state = State::Delay { until };
                self.next = self.next.min(until);
                Some(entry.mac)
            }
            _ => Some(entry.mac),
        }
    }

    /// Sends `packet`, which begins with its network header, to `neighbour`. Keeps it while the
    /// neighbour is being resolved with solicitations from `source`, a local address.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        (source, neighbour): (IpAddr, IpAddr),
        packet: Packet,
        out: &mut NeighbourActions,
    ) {
        if let Some(mac) = self.resolve(now, neighbour) {
            out.frames
                .push(self.solicitor.frames.with_link(packet, mac));
            return;
        }
        if !self.entries.contains_key(&neighbour)
            && !self.begin_resolution(now, (source, neighbour), out)
        {
            return;
        }
        if let Some(entry) = self.entries.get_mut(&neighbour) {
            let others = self.pending_bytes - entry.pending.bytes();
            let room = self.max_pending.saturating_sub(others);
            out.discarded += entry.pending.push(packet, room);
            self.pending_bytes = others + entry.pending.bytes();
        }
    }

    /// Adds an entry for `neighbour` and solicits it. Returns `false` if there is no room.
    fn begin_resolution(
        &mut self,
        now: Instant,
        (source, neighbour): (IpAddr, IpAddr),
        out: &mut NeighbourActions,
    ) -> bool {
        if !self.make_room(out) {
            out.table_fulls += 1;
            return false;
        }
        let due = now + RETRANS;
        let state = State::Incomplete { tries: 1, due };
        self.insert(now, neighbour, state, Mac::ZERO, source);
        self.solicitor.solicit(source, neighbour, None, out);
        true
    }

    /// Processes an ARP message. `is_ours` returns whether an address is a local one.
    pub(crate) fn on_arp(
        &mut self,
        now: Instant,
        arp: &ArpRepr,
        is_ours: impl Fn(IpAddr) -> bool,
        out: &mut NeighbourActions,
    ) {
        let sender = IpAddr::V4(arp.sender);
        let to_us = is_ours(arp.target.into()) || self.is_proxied(sender, arp.target.into());
        // A message with an invalid or a local sender address is not accepted.
        let usable = !arp.sender.is_unspecified()
            && !arp.sender.is_multicast()
            && !arp.sender.is_broadcast()
            && !arp.sender_mac.is_multicast()
            && !is_ours(sender);
        if usable {
            let is_answer = arp.operation == ArpOperation::Reply && to_us;
            // RFC 826: entries of known senders are always updated; new ones are created only for
            // requests to this host.
            let update = NeighbourUpdate {
                mac: Some(arp.sender_mac),
                reachable_until: is_answer.then(|| now + REACHABLE),
                may_replace: true,
                create: to_us && arp.operation == ArpOperation::Request,
            };
            self.update_entry(now, sender, arp.target.into(), &update, out);
        }
        if to_us && arp.operation == ArpOperation::Request && !arp.sender_mac.is_multicast() {
            out.frames.push(self.solicitor.frames.arp_reply(arp));
        }
    }

    /// Processes a Neighbour Discovery message from `src` to `dst`, received with `hop_limit`.
    pub(crate) fn on_ndp(
        &mut self,
        now: Instant,
        (src, dst, hop_limit): (Ipv6Addr, Ipv6Addr, u8),
        message: &NdpRepr<'_>,
        is_ours: impl Fn(IpAddr) -> bool,
        out: &mut NeighbourActions,
    ) {
        // RFC 4861 6.1 and 7.1: a hop limit of 255 proves that the message comes from this link.
        if hop_limit != 255 || src.is_multicast() || is_ours(src.into()) {
            return;
        }
        match *message {
            NdpRepr::NeighbourSolicit {
                target,
                source_mac,
                nonce,
            } => {
                // RFC 4861 7.1.1: the form of a solicitation in duplicate address detection.
                let is_detection =
                    src.is_unspecified() && source_mac.is_none() && dst == solicited_node(target);
                if self.dad.is_tentative(target) {
                    // RFC 4862 5.4.3: other solicitations for a tentative address are not answered.
                    if is_detection {
                        self.dad.on_solicit(target, nonce, out);
                    }
                } else if is_ours(target.into()) || self.is_proxied(src.into(), target.into()) {
                    self.on_solicit(now, (src, dst), target, source_mac, out);
                }
            }
            NdpRepr::NeighbourAdvert {
                target,
                solicited,
                override_cache,
                target_mac,
                ..
            } => {
                // RFC 4861 7.1.2: a solicited advertisement is not multicast.
                if solicited && dst.is_multicast() {
                    return;
                }
                // RFC 4862 5.4.4: an advertisement of a tentative address shows that another host
                // has it.
                self.dad.fail(target, out);
                if is_ours(target.into()) {
                    return;
                }
                let update = NeighbourUpdate {
                    mac: target_mac,
                    reachable_until: solicited.then(|| now + REACHABLE),
                    may_replace: override_cache,
                    create: false,
                };
                self.update_entry(now, target.into(), dst.into(), &update, out);
            }
            NdpRepr::RouterSolicit { .. } | NdpRepr::RouterAdvert { .. } => {}
        }
    }

    /// Processes a solicitation for a local address (RFC 4861 7.2.3, 7.2.4).
    fn on_solicit(
        &mut self,
        now: Instant,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        target: Ipv6Addr,
        source_mac: Option<Mac>,
        out: &mut NeighbourActions,
    ) {
        if src.is_unspecified() {
            if source_mac.is_none() && dst == solicited_node(target) {
                let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
                let answer = self.solicitor.frames.advertise(target, all, false);
                out.frames.push(
                    self.solicitor
                        .frames
                        .with_link(answer, Mac::of_v6_group(all)),
                );
            }
            return;
        }
        if let Some(mac) = source_mac.filter(|mac| !mac.is_multicast()) {
            let update = NeighbourUpdate {
                mac: Some(mac),
                reachable_until: None,
                may_replace: true,
                create: true,
            };
            self.update_entry(now, src.into(), target.into(), &update, out);
        }
        let answer = self.solicitor.frames.advertise(target, src, true);
        self.send(now, (target.into(), src.into()), answer, out);
    }

    /// Updates a neighbour's entry from a received message (RFC 4861 7.2.5).
    fn update_entry(
        &mut self,
        now: Instant,
        neighbour: IpAddr,
        source: IpAddr,
        update: &NeighbourUpdate,
        out: &mut NeighbourActions,
    ) {
        if !self.entries.contains_key(&neighbour) {
            if let Some(mac) = update.mac.filter(|_| update.create)
                && self.make_room(out)
            {
                self.insert(now, neighbour, State::Stale, mac, source);
            }
            return;
        }
        let Some(entry) = self.entries.get_mut(&neighbour) else {
            return;
        };
        let incomplete = matches!(entry.state, State::Incomplete { .. });
        let mac = match update.mac {
            Some(mac) if !mac.is_multicast() => mac,
            // The message has no hardware address to complete the entry with.
            _ if incomplete => return,
            _ => entry.mac,
        };
        let moved = mac != entry.mac && !incomplete;
        let was_reachable = matches!(entry.state, State::Reachable { .. });
        if moved && !update.may_replace {
            // RFC 4861 7.2.5 I: the entry becomes stale but keeps its address.
            if was_reachable {
                entry.become_stale(out);
                report(entry.shards, neighbour, Resolution::Doubtful, out);
            }
            return;
        }
        entry.mac = mac;
        if let Some(until) = update.reachable_until {
            entry.state = State::Reachable { until };
        } else if moved {
            entry.state = State::Stale;
        } else if incomplete {
            // The packets that waited are a use of the neighbour.
            entry.state = State::Delay { until: now + DELAY };
        }
        if let Some(due) = entry.state.due() {
            self.next = self.next.min(due);
        }
        out.changed |= moved || incomplete;
        let reachable_until = update.reachable_until;
        if moved || incomplete || reachable_until.is_some() && !was_reachable {
            let resolution = Resolution::Resolved {
                mac,
                reachable_until,
            };
            report(entry.shards, neighbour, resolution, out);
        }
        let frames = self.solicitor.frames;
        self.pending_bytes -= entry.pending.bytes();
        let pending = entry.pending.drain();
        out.frames
            .extend(pending.map(|packet| frames.with_link(packet, mac)));
    }

    /// Starts duplicate address detection for `address` (RFC 4862 5.4). The address must not be
    /// used until [`NeighbourActions::dad`] reports it as unique. `nonce` is a random number.
    pub(crate) fn start_dad(
        &mut self,
        now: Instant,
        (address, nonce): (Ipv6Addr, Nonce),
        out: &mut NeighbourActions,
    ) {
        let due = self.dad.start(now, address, nonce);
        self.next = self.next.min(due);
        out.frames
            .push(self.solicitor.frames.dad_solicit(address, nonce));
    }

    /// Returns when [`poll`](Self::poll) must be called at the latest; the far future for never.
    #[inline]
    pub(crate) const fn deadline(&self) -> Instant {
        self.next
    }

    /// Runs the timers that are due.
    pub(crate) fn poll(&mut self, now: Instant, out: &mut NeighbourActions) {
        if now < self.next {
            return;
        }
        self.next = self.dad.poll(now, out).unwrap_or(Instant::FAR_FUTURE);
        let (solicitor, next) = (self.solicitor, &mut self.next);
        let pending_bytes = &mut self.pending_bytes;
        self.entries.retain(|&neighbour, entry| {
            let before = entry.pending.bytes();
            let keep = entry.on_timer(now, neighbour, solicitor, out);
            *pending_bytes -= before - entry.pending.bytes();
            if let Some(due) = entry.state.due().filter(|_| keep) {
                *next = (*next).min(due);
            }
            keep
        });
    }

    fn insert(&mut self, now: Instant, ip: IpAddr, state: State, mac: Mac, source: IpAddr) {
        if let Some(due) = state.due() {
            self.next = self.next.min(due);
        }
        let entry = NeighbourEntry {
            state,
            mac,
            source,
            used: now,
            pending: PendingPackets::default(),
            shards: ShardSet::default(),
        };
        self.entries.insert(ip, entry);
    }

    /// Makes room for one more entry. Returns `false` if packets wait for every neighbour.
    fn make_room(&mut self, out: &mut NeighbourActions) -> bool {
        if self.entries.len() < self.max_entries {
            return true;
        }
        // Removes several entries at once, so that a flood of new neighbours does not scan the
        // table for each of them.
        let idle = self.entries.values().filter(|e| e.pending.is_empty());
        let mut ranks: Vec<_> = idle.map(NeighbourEntry::rank).collect();
        if ranks.is_empty() {
            return false;
        }
        let nth = ranks.len().min(EVICT_BATCH) - 1;
        let (_, &mut highest, _) = ranks.select_nth_unstable(nth);
        let mut remaining = EVICT_BATCH;
        self.entries.retain(|&neighbour, entry| {
            let evict = remaining > 0 && entry.pending.is_empty() && entry.rank() <= highest;
            remaining -= usize::from(evict);
            if evict {
                report(entry.shards, neighbour, Resolution::Forgotten, out);
            }
            !evict
        });
        true
    }
}

/// The contents of a message about its sender (or target).
struct NeighbourUpdate {
    mac: Option<Mac>,
    /// The time until which the neighbour counts as reachable, if the message answers a solicitation of
    /// this host.
    reachable_until: Option<Instant>,
    /// The message may replace a known hardware address.
    may_replace: bool,
    /// An entry is created if there is none.
    create: bool,
}

/// Returns the hardware address of a group or of the limited broadcast address, which needs no
/// resolution.
fn group_mac(ip: IpAddr) -> Option<Mac> {
    match ip {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(Mac::BROADCAST),
        IpAddr::V4(ip) if ip.is_multicast() => Some(Mac::of_v4_group(ip)),
        IpAddr::V6(ip) if ip.is_multicast() => Some(Mac::of_v6_group(ip)),
        _ => None,
    }
}

/// Returns the solicited-node group of `address` (RFC 4291 2.7.1).
pub(crate) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    const PREFIX: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    Ipv6Addr::from_bits(PREFIX | address.to_bits() & 0xff_ffff)
}
