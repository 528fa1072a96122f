//! Reassembly of IPv4 and IPv6 fragments (RFC 791, RFC 8200 4.5, RFC 5722), in bounded memory.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_offload::{Chain, HeaderBuf, Layers, Packet, Slice};
use fullsend_wire::checksum::sum;
use fullsend_wire::ipv4;
use fullsend_wire::numbers::ethertype;
use fullsend_wire::{Instant, Nanos, cold_path};

use super::icmp::Problem;
use super::link::LinkHeader;

mod fragment_info;
#[cfg(test)]
mod tests;

use fragment_info::FragmentInfo;

/// Maximum time for the fragments of a packet to arrive (Linux's `ipfrag_time`; RFC 8200 has 60 s).
const TIMEOUT: Nanos = Nanos::from_secs(30);
/// Maximum number of bytes of memory that fragments may hold (`ipfrag_high_thresh`).
const MAX_BYTES: usize = 4 << 20;
/// Maximum number of packets in reassembly.
const MAX_PACKETS: usize = 1024;
/// Maximum number of packets in reassembly from one source (Linux's `ipfrag_max_dist`).
const MAX_PER_SOURCE: usize = 64;
/// Maximum number of fragments of one packet: more than 64 KiB in fragments of 576 bytes.
const MAX_FRAGMENTS: usize = 128;

/// The fields that all fragments of one packet share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ReassemblyKey {
    src: IpAddr,
    dst: IpAddr,
    ident: u32,
    /// Part of the key over IPv4 only; 0 over IPv6.
    protocol: u8,
}

impl ReassemblyKey {
    /// Returns the least and the greatest key with this source.
    const fn bounds_of_source(&self) -> (Self, Self) {
        let (least, greatest) = match self.src {
            IpAddr::V4(_) => (
                IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V4(Ipv4Addr::BROADCAST),
            ),
            IpAddr::V6(_) => (
                IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
            ),
        };
        let first = Self {
            src: self.src,
            dst: least,
            ident: 0,
            protocol: 0,
        };
        let last = Self {
            dst: greatest,
            ident: u32::MAX,
            protocol: u8::MAX,
            ..first
        };
        (first, last)
    }
}

/// A packet in reassembly.
#[derive(Debug)]
struct PartialPacket {
    /// Fragments with their offsets, in order and without overlap.
    fragments: Vec<(usize, Chain)>,
    /// Bytes of payload in `fragments`.
    received: usize,
    /// Length of the whole payload, once the last fragment has arrived.
    total: Option<usize>,
    /// The headers of the first fragment.
    first: Option<FirstFragment>,
    ce: bool,
    /// Link header of a fragment that was received in a frame to a link group.
    group_link: Option<LinkHeader>,
    expires: Instant,
    /// Memory held, bytes.
    bytes: usize,
}

fullsend_wire::counters! {
    /// Reassembly counters for IPv4.
    pub(crate) struct ReassemblyMib {
        /// Fragments received.
        reqds: "IpReasmReqds",
        /// Packets reassembled.
        oks: "IpReasmOKs",
        /// Packets abandoned: timeout, memory limits, overlap or invalid length.
        fails: "IpReasmFails",
        /// Packets abandoned because of the timeout.
        timeouts: "IpReasmTimeout",
        /// Packets abandoned because fragments overlapped.
        overlaps: "IpExtReasmOverlaps",
    }
}

fullsend_wire::counters! {
    /// Reassembly counters for IPv6.
    pub(crate) struct Reassembly6Mib {
        /// Fragments received.
        reqds: "Ip6ReasmReqds",
        /// Packets reassembled.
        oks: "Ip6ReasmOKs",
        /// Packets abandoned: timeout, memory limits, overlap or invalid length.
        fails: "Ip6ReasmFails",
        /// Packets abandoned because of the timeout.
        timeouts: "Ip6ReasmTimeout",
        /// Packets abandoned because fragments overlapped.
        overlaps: "Ip6ReasmOverlaps",
    }
}

/// The result of processing a fragment.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "the value is matched immediately and never stored"
)]
pub(crate) enum Reassembled {
    /// The fragment waits for others, or was dropped.
    Nothing,
    /// The fragment was dropped for a problem that is reported to its sender.
    Invalid(Packet, Problem),
    /// The whole packet, as if just received from a device without link header: it is yet to be
    /// parsed as [`Link::Ip`](fullsend_offload::Link::Ip) and its checksum to be verified.
    ///
    /// The link header is set if any fragment was received in a frame to a link group.
    Complete(Packet, Option<LinkHeader>),
}

/// The packets in reassembly, of both families.
#[derive(Debug)]
pub(crate) struct Reassembly {
    max_bytes: usize,
    max_packets: usize,
    partials: BTreeMap<ReassemblyKey, PartialPacket>,
    /// The packets in order of expiry; includes packets that are finished.
    order: VecDeque<(Instant, ReassemblyKey)>,
    bytes: usize,
    pub(crate) v4: ReassemblyMib,
    pub(crate) v6: Reassembly6Mib,
}

impl Default for Reassembly {
    fn default() -> Self {
        Self {
            max_bytes: MAX_BYTES,
            max_packets: MAX_PACKETS,
            partials: BTreeMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            v4: ReassemblyMib::default(),
            v6: Reassembly6Mib::default(),
        }
    }
}

impl Reassembly {
    /// Limits the fragments to `bytes` of memory, and the number of packets in proportion.
    pub(crate) fn limit_memory(&mut self, bytes: usize) {
        self.max_bytes = bytes.min(MAX_BYTES);
        self.max_packets = (self.max_bytes / (MAX_BYTES / MAX_PACKETS)).max(1);
    }

    /// Adds a parsed packet whose `layers.fragment` is set.
    pub(crate) fn input(&mut self, now: Instant, packet: Packet) -> Reassembled {
        let v6 = packet.layers.ethertype == ethertype::IPV6;
        *self.reqds(v6) += 1;
        let Some(info) = FragmentInfo::parse(&packet) else {
            *self.fails(v6) += 1;
            return Reassembled::Nothing;
        };
        if let Err(fault) = info.check(&packet.payload) {
            *self.fails(v6) += 1;
            return match fault {
                Some(problem) => Reassembled::Invalid(packet, problem),
                None => Reassembled::Nothing,
            };
        }
        let end = info.offset + packet.payload.len();
        if !self.partials.contains_key(&info.key) {
            self.begin(now, info.key);
        }
        let Some(partial) = self.partials.get_mut(&info.key) else {
            return Reassembled::Nothing;
        };
        let before = partial.bytes;
        let inserted = partial.insert_fragment(&info, packet, end);
        self.bytes += partial.bytes - before;
        match inserted {
            InsertResult::Incomplete => self.trim(),
            InsertResult::Complete => return self.finish(info.key),
            InsertResult::Conflict => {
                *self.overlaps(v6) += 1;
                self.abandon(&info.key);
            }
        }
        Reassembled::Nothing
    }

    /// Counts a fragment that is dropped because the allocator refuses memory.
    pub(crate) fn count_refused(&mut self, packet: &Packet) {
        let v6 = packet.layers.ethertype == ethertype::IPV6;
        *self.reqds(v6) += 1;
        *self.fails(v6) += 1;
    }

    /// Abandons all packets in reassembly, to free their memory.
    pub(crate) fn abandon_all(&mut self) {
        while self.abandon_oldest() {}
    }

    /// Returns when [`poll`](Self::poll) must be called at the latest; the far future for never.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        if let Some(&(expires, _)) = self.order.front() {
            cold_path();
            return expires;
        }
        Instant::FAR_FUTURE
    }

    /// Abandons the packets that have timed out. Appends their first fragments to `expired`, for
    /// ICMP errors.
    pub(crate) fn poll(&mut self, now: Instant, expired: &mut Vec<Packet>) {
        while let Some(&(expires, key)) = self.order.front().filter(|(at, _)| *at <= now) {
            self.order.pop_front();
            if self
                .partials
                .get(&key)
                .is_some_and(|p| p.expires == expires)
                && let Some(partial) = self.abandon(&key)
            {
                *self.timeouts(key.src.is_ipv6()) += 1;
                // RFC 792, RFC 8200 4.5: only if the first fragment has arrived.
                expired.extend(partial.into_first_fragment());
            }
        }
    }

    fn begin(&mut self, now: Instant, key: ReassemblyKey) {
        self.limit_source(&key);
        if self.partials.len() >= self.max_packets {
            self.abandon_oldest();
        }
        let expires = now + TIMEOUT;
        let partial = PartialPacket {
            fragments: Vec::new(),
            received: 0,
            total: None,
            first: None,
            ce: false,
            group_link: None,
            expires,
            bytes: 0,
        };
        self.partials.insert(key, partial);
        self.order.push_back((expires, key));
        // Finished packets leave their entry in `order`; a flood of them must not grow the queue
        // without bound.
        if self.order.len() > 4 * self.max_packets {
            let partials = &self.partials;
            self.order
                .retain(|(at, key)| partials.get(key).is_some_and(|p| p.expires == *at));
        }
    }

    /// Abandons the oldest packet of a source that has too many, so that one source does not crowd
    /// out the others.
    fn limit_source(&mut self, key: &ReassemblyKey) {
        let (first, last) = key.bounds_of_source();
        let of_source = self.partials.range(first..=last);
        let oldest = of_source.clone().min_by_key(|(_, partial)| partial.expires);
        if let Some((&oldest, _)) = oldest
            && of_source.count() >= MAX_PER_SOURCE
        {
            self.abandon(&oldest);
        }
    }

    fn trim(&mut self) {
        while self.bytes > self.max_bytes {
            if !self.abandon_oldest() {
                return;
            }
        }
    }

    fn abandon_oldest(&mut self) -> bool {
        while let Some((expires, key)) = self.order.pop_front() {
            if self
                .partials
                .get(&key)
                .is_some_and(|p| p.expires == expires)
            {
                return self.abandon(&key).is_some();
            }
        }
        false
    }

    fn abandon(&mut self, key: &ReassemblyKey) -> Option<PartialPacket> {
        let partial = self.partials.remove(key)?;
        self.bytes -= partial.bytes;
        *self.fails(key.src.is_ipv6()) += 1;
        Some(partial)
    }

    fn finish(&mut self, key: ReassemblyKey) -> Reassembled {
        let Some(partial) = self.partials.remove(&key) else {
            return Reassembled::Nothing;
        };
        self.bytes -= partial.bytes;
        let group_link = partial.group_link;
        let Some(packet) = partial.into_packet() else {
            return Reassembled::Nothing;
        };
        *self.oks(key.src.is_ipv6()) += 1;
        Reassembled::Complete(packet, group_link)
    }
}

macro_rules! counter_of_family {
    ($($name:ident)*) => {
        impl Reassembly {
            $(const fn $name(&mut self, v6: bool) -> &mut u64 {
                if v6 { &mut self.v6.$name } else { &mut self.v4.$name }
            })*
        }
    };
}

counter_of_family!(reqds oks fails timeouts overlaps);

/// The result of adding a fragment to its packet.
enum InsertResult {
    Incomplete,
    Complete,
    /// The fragment contradicts the other ones, or the allocator refused memory for it.
    Conflict,
}

impl PartialPacket {
    /// Adds a fragment that ends at offset `end`.
    fn insert_fragment(&mut self, info: &FragmentInfo, packet: Packet, end: usize) -> InsertResult {
        // The last fragment determines the length; no fragment may end beyond it.
        match self.total {
            Some(total) if end > total || (!info.more && end != total) => {
                return InsertResult::Conflict;
            }
            None if !info.more => {
                if self
                    .fragments
                    .last()
                    .is_some_and(|(at, p)| at + p.len() > end)
                {
                    return InsertResult::Conflict;
                }
                self.total = Some(end);
            }
            _ => {}
        }
        let at = self.fragments.partition_point(|&(at, _)| at < info.offset);
        if let Some((start, same)) = self.fragments.get(at)
            && *start == info.offset
            && same.len() == packet.payload.len()
        {
            // RFC 8200 4.5: an exact duplicate may be dropped silently.
            return InsertResult::Incomplete;
        }
        // RFC 5722: any overlap discards the whole packet.
        let before = at.checked_sub(1).map(|i| &self.fragments[i]);
        let overlaps = before.is_some_and(|(start, p)| start + p.len() > info.offset)
            || self
                .fragments
                .get(at)
                .is_some_and(|&(start, _)| start < end);
        if overlaps || self.fragments.len() >= MAX_FRAGMENTS {
            return InsertResult::Conflict;
        }
        if info.offset == 0 {
            self.first = Some(FirstFragment {
                headers: HeaderBuf::from_slice(packet.network_header()),
                layers: packet.layers,
                fixed_len: info.header_len,
                protocol: info.protocol,
            });
        }
        self.ce |= info.ce;
        self.group_link = LinkHeader::of_group_frame(&packet).or(self.group_link);
        self.received += packet.payload.len();
        let Some(payload) = compact(packet.payload) else {
            return InsertResult::Conflict;
        };
        self.bytes += payload.pinned() + size_of::<(usize, Chain)>();
        self.fragments.insert(at, (info.offset, payload));
        if self.total == Some(self.received) {
            InsertResult::Complete
        } else {
            InsertResult::Incomplete
        }
    }

    /// Returns the whole packet, with its header rewritten.
    fn into_packet(self) -> Option<Packet> {
        let first = self.first?;
        let header = first.whole_header(self.received, self.ce);
        let mut payload = Chain::from(Slice::copied_from(&header));
        for (_, fragment) in self.fragments {
            payload.append(fragment);
        }
        Some(Packet::from_frame(payload))
    }

    /// Returns the first fragment as it was received, without link header. Returns `None` if a
    /// fragment was received in a frame to a link group, as no error is sent about such packets
    /// (RFC 1122 3.2.2).
    fn into_first_fragment(self) -> Option<Packet> {
        let first = self.first.filter(|_| self.group_link.is_none())?;
        let mut layers = first.layers;
        layers.transport -= layers.network[0];
        layers.network = [0; 2];
        Some(Packet {
            header: first.headers,
            payload: self.fragments.into_iter().next()?.1,
            layers,
            ..Packet::default()
        })
    }
}

/// The headers of the first fragment.
#[derive(Debug)]
struct FirstFragment {
    headers: HeaderBuf,
    layers: Layers,
    /// Length of the header that the whole packet keeps, bytes.
    fixed_len: usize,
    protocol: u8,
}

impl FirstFragment {
    /// Returns the header of the whole packet with `len` bytes of payload.
    fn whole_header(&self, len: usize, ce: bool) -> Vec<u8> {
        let mut header = self.headers[..self.fixed_len].to_vec();
        if self.layers.ethertype == ethertype::IPV4 {
            // RFC 3168 5.3: CE on any fragment marks the whole packet.
            header[1] |= if ce { 3 } else { 0 };
            let total = (header.len() + len) as u16;
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[6..8].fill(0);
            header[ipv4::CHECKSUM_OFFSET..][..2].fill(0);
            let checksum = sum(&header).checksum();
            header[ipv4::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
        } else {
            header[1] |= if ce { 0x30 } else { 0 };
            header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            header[6] = self.protocol;
        }
        header
    }
}

/// Returns the payload, or a copy if it keeps much more memory allocated than its length. Returns
/// `None` if the allocator refused memory for the copy.
pub(crate) fn compact(payload: Chain) -> Option<Chain> {
    compact_beyond(payload, 2048)
}

/// Returns the payload, or a copy if it keeps more than `slack` bytes allocated besides twice its length.
/// Returns `None` if the allocator refused memory for the copy.
pub(crate) fn compact_beyond(payload: Chain, slack: usize) -> Option<Chain> {
    if payload.pinned() <= 2 * payload.len() + slack {
        return Some(payload);
    }
    let parts = payload.slices().iter().map(Slice::as_slice);
    Slice::try_copied_from(parts).map(Chain::from)
}
