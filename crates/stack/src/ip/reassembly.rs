//! Reassembly of IPv4 and IPv6 fragments (RFC 791, RFC 8200 4.5, RFC 5722), in bounded memory.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_buf::{Chain, Slice};
use fullsend_offload::{HeaderBuf, Layers, Packet};
use fullsend_units::{Instant, Nanos};
use fullsend_wire::checksum::sum;
use fullsend_wire::extension;
use fullsend_wire::ipv4::{self, Ipv4View};
use fullsend_wire::ipv6::{self, Ipv6View};
use fullsend_wire::numbers::ethertype;

use super::link::LinkHeader;

#[cfg(test)]
mod tests;

/// How long the pieces of a packet may take to arrive (Linux's `ipfrag_time`; RFC 8200 has 60).
const TIMEOUT: Nanos = Nanos::from_secs(30);
/// Most bytes of memory that pieces may hold (`ipfrag_high_thresh`).
const MAX_BYTES: usize = 4 << 20;
/// Most packets being put together.
const MAX_PACKETS: usize = 1024;
/// Most of them from one source (Linux's `ipfrag_max_dist`).
const MAX_PER_SOURCE: usize = 64;
/// Most pieces of one packet: 64 KiB in pieces of 576 bytes and some to spare.
const MAX_PIECES: usize = 128;

/// What pieces of one packet have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    ident: u32,
    /// IPv4 alone tells packets apart by it.
    protocol: u8,
}

impl Key {
    /// The least and the greatest key with this source.
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

/// A piece, as its header tells of it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    key: Key,
    offset: usize,
    more: bool,
    /// The protocol that the whole packet's header names.
    protocol: u8,
    /// Congestion Experienced (RFC 3168).
    ce: bool,
    /// Bytes of fixed header.
    header_len: usize,
}

impl Piece {
    /// Most bytes that the whole packet may have behind its fixed header. IPv4's length field counts
    /// the header (RFC 791 3.1), IPv6's does not (RFC 8200 3).
    const fn most(&self) -> usize {
        let counted = match self.key.src {
            IpAddr::V4(_) => self.header_len,
            IpAddr::V6(_) => 0,
        };
        u16::MAX as usize - counted
    }
}

/// A packet being put together.
#[derive(Debug)]
struct Partial {
    /// In order, without overlap.
    pieces: Vec<(usize, Chain)>,
    /// Bytes in `pieces`.
    have: usize,
    /// Bytes of the whole, once the last piece is here.
    total: Option<usize>,
    /// What the first piece has in front.
    first: Option<First>,
    ce: bool,
    /// Link header of a piece that came in a frame to a link group.
    group_link: Option<LinkHeader>,
    expires: Instant,
    /// Memory held.
    bytes: usize,
}

fullsend_units::counters! {
    /// What reassembly counts over IPv4.
    pub(crate) struct ReassemblyMib {
        /// Fragments received.
        reqds: "IpReasmReqds",
        /// Packets put together.
        oks: "IpReasmOKs",
        /// Packets given up: too slow, too much, overlapping or absurd.
        fails: "IpReasmFails",
        /// Those of them that were too slow.
        timeouts: "IpReasmTimeout",
        /// Packets given up because fragments overlapped.
        overlaps: "IpExtReasmOverlaps",
    }
}

fullsend_units::counters! {
    /// The same over IPv6.
    pub(crate) struct Reassembly6Mib {
        /// Fragments received.
        reqds: "Ip6ReasmReqds",
        /// Packets put together.
        oks: "Ip6ReasmOKs",
        /// Packets given up: too slow, too much, overlapping or absurd.
        fails: "Ip6ReasmFails",
        /// Those of them that were too slow.
        timeouts: "Ip6ReasmTimeout",
        /// Packets given up because fragments overlapped.
        overlaps: "Ip6ReasmOverlaps",
    }
}

/// What came of a fragment.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "matched at once, never kept")]
pub(crate) enum Reassembled {
    /// It waits for others, or was dropped.
    Nothing,
    /// The whole packet, as fresh from a device without link header: to be parsed as
    /// [`Link::Ip`](fullsend_offload::Link::Ip) and its checksum verified.
    ///
    /// If any piece came in a frame to a link group, the packet did, and has this link header.
    Whole(Packet, Option<LinkHeader>),
}

/// The packets being put together, of both families.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    partials: BTreeMap<Key, Partial>,
    /// In the order in which they expire; finished ones included.
    order: VecDeque<(Instant, Key)>,
    bytes: usize,
    pub(crate) v4: ReassemblyMib,
    pub(crate) v6: Reassembly6Mib,
}

impl Reassembly {
    /// Takes in a parsed packet whose `layers.fragment` is set.
    pub(crate) fn input(&mut self, now: Instant, packet: Packet) -> Reassembled {
        let v6 = packet.layers.ethertype == ethertype::IPV6;
        *self.reqds(v6) += 1;
        let Some(piece) = Piece::read(&packet) else {
            *self.fails(v6) += 1;
            return Reassembled::Nothing;
        };
        // RFC 791, RFC 8200 4.5: all but the last are multiples of 8 bytes; none is empty, and
        // the whole fits in a packet.
        let end = piece.offset + packet.payload.len();
        if packet.payload.is_empty()
            || (piece.more && !packet.payload.len().is_multiple_of(8))
            || end > piece.most()
        {
            *self.fails(v6) += 1;
            return Reassembled::Nothing;
        }
        if !self.partials.contains_key(&piece.key) {
            self.begin(now, piece.key);
        }
        let Some(partial) = self.partials.get_mut(&piece.key) else {
            return Reassembled::Nothing;
        };
        let before = partial.bytes;
        let placed = partial.place(&piece, packet, end);
        self.bytes += partial.bytes - before;
        match placed {
            Placed::Waits => self.trim(),
            Placed::Complete => return self.finish(piece.key),
            Placed::Conflict => {
                *self.overlaps(v6) += 1;
                self.give_up(&piece.key);
            }
        }
        Reassembled::Nothing
    }

    /// Counts a fragment that is dropped as the allocator refuses memory.
    pub(crate) fn refuse(&mut self, packet: &Packet) {
        let v6 = packet.layers.ethertype == ethertype::IPV6;
        *self.reqds(v6) += 1;
        *self.fails(v6) += 1;
    }

    /// Gives up all packets that are being put together, for their memory.
    pub(crate) fn give_up_all(&mut self) {
        while self.give_up_oldest() {}
    }

    /// When [`poll`](Self::poll) must be called at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.order.front().map(|&(expires, _)| expires)
    }

    /// Gives up what is too old; appends the first pieces that ICMP should tell of.
    pub(crate) fn poll(&mut self, now: Instant, expired: &mut Vec<Packet>) {
        while let Some(&(expires, key)) = self.order.front().filter(|(at, _)| *at <= now) {
            self.order.pop_front();
            if self
                .partials
                .get(&key)
                .is_some_and(|p| p.expires == expires)
                && let Some(partial) = self.give_up(&key)
            {
                *self.timeouts(key.src.is_ipv6()) += 1;
                // RFC 792, RFC 8200 4.5: only if the first piece is here.
                expired.extend(partial.into_first_piece());
            }
        }
    }

    fn begin(&mut self, now: Instant, key: Key) {
        self.make_room_for(&key);
        if self.partials.len() >= MAX_PACKETS {
            self.give_up_oldest();
        }
        let expires = now + TIMEOUT;
        let partial = Partial {
            pieces: Vec::new(),
            have: 0,
            total: None,
            first: None,
            ce: false,
            group_link: None,
            expires,
            bytes: 0,
        };
        self.partials.insert(key, partial);
        self.order.push_back((expires, key));
        // Finished packets leave their turn behind; a flood of them must not fill the queue.
        if self.order.len() > 4 * MAX_PACKETS {
            let partials = &self.partials;
            self.order
                .retain(|(at, key)| partials.get(key).is_some_and(|p| p.expires == *at));
        }
    }

    /// One source must not crowd out the others: its own oldest packet goes.
    fn make_room_for(&mut self, key: &Key) {
        let (first, last) = key.bounds_of_source();
        let of_source = self.partials.range(first..=last);
        let oldest = of_source.clone().min_by_key(|(_, partial)| partial.expires);
        if let Some((&oldest, _)) = oldest
            && of_source.count() >= MAX_PER_SOURCE
        {
            self.give_up(&oldest);
        }
    }

    fn trim(&mut self) {
        while self.bytes > MAX_BYTES {
            if !self.give_up_oldest() {
                return;
            }
        }
    }

    fn give_up_oldest(&mut self) -> bool {
        while let Some((expires, key)) = self.order.pop_front() {
            if self
                .partials
                .get(&key)
                .is_some_and(|p| p.expires == expires)
            {
                return self.give_up(&key).is_some();
            }
        }
        false
    }

    fn give_up(&mut self, key: &Key) -> Option<Partial> {
        let partial = self.partials.remove(key)?;
        self.bytes -= partial.bytes;
        *self.fails(key.src.is_ipv6()) += 1;
        Some(partial)
    }

    fn finish(&mut self, key: Key) -> Reassembled {
        let Some(partial) = self.partials.remove(&key) else {
            return Reassembled::Nothing;
        };
        self.bytes -= partial.bytes;
        let group_link = partial.group_link;
        let Some(packet) = partial.into_packet() else {
            return Reassembled::Nothing;
        };
        *self.oks(key.src.is_ipv6()) += 1;
        Reassembled::Whole(packet, group_link)
    }
}

macro_rules! either {
    ($($name:ident)*) => {
        impl Reassembly {
            $(const fn $name(&mut self, v6: bool) -> &mut u64 {
                if v6 { &mut self.v6.$name } else { &mut self.v4.$name }
            })*
        }
    };
}

either!(reqds oks fails timeouts overlaps);

/// How a piece fitted in.
enum Placed {
    Waits,
    Complete,
    /// It contradicts the others, or the allocator refused memory for it.
    Conflict,
}

impl Piece {
    fn read(packet: &Packet) -> Option<Self> {
        let header = packet.network_header();
        if packet.layers.ethertype == ethertype::IPV4 {
            let view = Ipv4View::new(header).ok()?;
            return Some(Self {
                key: Key {
                    src: view.src().into(),
                    dst: view.dst().into(),
                    ident: view.ident().into(),
                    protocol: view.protocol(),
                },
                offset: view.fragment_offset(),
                more: view.more_fragments(),
                protocol: view.protocol(),
                ce: view.tos() & 3 == 3,
                header_len: view.header_len(),
            });
        }
        let view = Ipv6View::new(header).ok()?;
        let upper = extension::walk(view.next_header(), &header[ipv6::HEADER_LEN..]).ok()?;
        let fragment = upper.fragment?;
        Some(Self {
            key: Key {
                src: view.src().into(),
                dst: view.dst().into(),
                ident: fragment.ident,
                protocol: 0,
            },
            offset: fragment.offset.into(),
            more: fragment.more,
            protocol: fragment.next_header,
            ce: view.traffic_class() & 3 == 3,
            // Extension headers before the fragment header have done their work and are left out.
            header_len: ipv6::HEADER_LEN,
        })
    }
}

impl Partial {
    /// Puts a piece that ends at `end` in its place.
    fn place(&mut self, piece: &Piece, packet: Packet, end: usize) -> Placed {
        // The last piece tells the length; nothing may reach beyond it.
        match self.total {
            Some(total) if end > total || (!piece.more && end != total) => return Placed::Conflict,
            None if !piece.more => {
                if self.pieces.last().is_some_and(|(at, p)| at + p.len() > end) {
                    return Placed::Conflict;
                }
                self.total = Some(end);
            }
            _ => {}
        }
        let at = self.pieces.partition_point(|&(at, _)| at < piece.offset);
        if let Some((start, same)) = self.pieces.get(at)
            && *start == piece.offset
            && same.len() == packet.payload.len()
        {
            // RFC 8200 4.5: an exact duplicate may be dropped quietly.
            return Placed::Waits;
        }
        // RFC 5722: any overlap discards the whole packet.
        let before = at.checked_sub(1).map(|i| &self.pieces[i]);
        let overlaps = before.is_some_and(|(start, p)| start + p.len() > piece.offset)
            || self.pieces.get(at).is_some_and(|&(start, _)| start < end);
        if overlaps || self.pieces.len() >= MAX_PIECES {
            return Placed::Conflict;
        }
        if piece.offset == 0 {
            self.first = Some(First {
                headers: HeaderBuf::from_slice(packet.network_header()),
                layers: packet.layers,
                fixed_len: piece.header_len,
                protocol: piece.protocol,
            });
        }
        self.ce |= piece.ce;
        self.group_link = LinkHeader::of_group_frame(&packet).or(self.group_link);
        self.have += packet.payload.len();
        let Some(payload) = compact(packet.payload) else {
            return Placed::Conflict;
        };
        self.bytes += payload.pinned() + size_of::<(usize, Chain)>();
        self.pieces.insert(at, (piece.offset, payload));
        if self.total == Some(self.have) {
            Placed::Complete
        } else {
            Placed::Waits
        }
    }

    /// The whole packet, its header rewritten.
    fn into_packet(self) -> Option<Packet> {
        let first = self.first?;
        let header = first.whole_header(self.have, self.ce);
        let mut payload = Chain::from(Slice::copied_from(&header));
        for (_, piece) in self.pieces {
            payload.append(piece);
        }
        Some(Packet::from_frame(payload))
    }

    /// The first piece as it came, without link header. `None` if a piece came in a frame to a link
    /// group, as no error is sent about such packets (RFC 1122 3.2.2).
    fn into_first_piece(self) -> Option<Packet> {
        let first = self.first.filter(|_| self.group_link.is_none())?;
        let mut layers = first.layers;
        layers.transport -= layers.network[0];
        layers.network = [0; 2];
        Some(Packet {
            header: first.headers,
            payload: self.pieces.into_iter().next()?.1,
            layers,
            ..Packet::default()
        })
    }
}

/// The first piece's headers.
#[derive(Debug)]
struct First {
    headers: HeaderBuf,
    layers: Layers,
    /// Bytes of them that the whole packet keeps.
    fixed_len: usize,
    protocol: u8,
}

impl First {
    /// The header of the whole packet, with `len` bytes of payload.
    fn whole_header(&self, len: usize, ce: bool) -> Vec<u8> {
        let mut header = self.headers[..self.fixed_len].to_vec();
        if self.layers.ethertype == ethertype::IPV4 {
            // RFC 3168 5.3: one piece's CE is the whole's.
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

/// Returns the payload, or a copy if it holds on to much more memory than it is long. `None`: the
/// allocator refused the copy.
pub(crate) fn compact(payload: Chain) -> Option<Chain> {
    if payload.pinned() <= 2 * payload.len() + 2048 {
        return Some(payload);
    }
    let parts = payload.slices().iter().map(Slice::as_slice);
    Slice::try_copied_from(parts).map(Chain::from)
}
