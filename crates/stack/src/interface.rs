//! Interfaces: how they are configured, GRO on the way in, the queue and software GSO on the way
//! out.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use fullsend_offload::{
    Caps, Checksum, Gro, GroConfig, GsoKind, Link, Packet, Tunnels, TxToken, segment,
};
use fullsend_qdisc::{Qdisc, QdiscConfig};
use fullsend_tcp::DeviceCaps;
use fullsend_units::{Instant, SeqNum};
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

use crate::inspect::LinkStats;
use crate::ip::Neighbours;

/// An interface's number on its host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IfaceId(pub u16);

impl IfaceId {
    /// As Linux numbers interfaces: loopback is 1, the others follow.
    pub const fn index(self) -> u32 {
        if self.0 == LOOPBACK {
            1
        } else {
            self.0 as u32 + 2
        }
    }
}

pub use fullsend_wire::ethernet::Mac;

/// How to build an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IfaceConfig {
    /// What the device takes. What it does not cut or sum, software does in `transmit`.
    pub caps: Caps,
    /// Our hardware address; used with Ethernet only.
    pub mac: Mac,
    /// Build super-segments at all; off cuts in TCP.
    pub gso: bool,
    /// Coalesce what is received.
    pub gro: bool,
    /// What waits for the device, and in which order. Without a queue the device pulls from the
    /// sockets.
    pub qdisc: QdiscConfig,
}

/// The loopback interface: packets from us to us.
pub(crate) const LOOPBACK: u16 = u16::MAX;

/// Packets that wait for `transmit` at most, other than TCP data (which waits in its sockets);
/// Linux's txqueuelen.
const OUT_LIMIT: usize = 1000;

impl IfaceConfig {
    /// All that a device can do, with super-segments both ways and no queue.
    pub const fn over(caps: Caps, mac: Mac) -> Self {
        Self {
            caps,
            mac,
            gso: true,
            gro: true,
            qdisc: QdiscConfig::NoQueue,
        }
    }

    pub(crate) const fn loopback() -> Self {
        Self {
            gro: false,
            ..Self::over(Caps::offloading(Link::Ip, 65_536), Mac([0; 6]))
        }
    }

    /// The device as TCP sees it.
    pub(crate) fn device_caps(&self) -> DeviceCaps {
        let Caps {
            mtu, gso_max_size, ..
        } = self.caps;
        DeviceCaps {
            mtu,
            gso_max_size: if self.gso { gso_max_size.max(mtu) } else { mtu },
            gso_max_segs: if self.gso { u16::MAX.into() } else { 1 },
            fq: matches!(self.qdisc, QdiscConfig::Fq(_)),
        }
    }

    /// Gives the device a packet, cut and summed if the device cannot.
    #[inline]
    pub(crate) fn hand_over(&self, packet: Packet, out: &mut Vec<Packet>) {
        let partial = packet.offload.checksum == Checksum::Partial;
        let offload = packet.offload;
        if offload.repeats_cwr || self.needs_software(offload.kind, partial) {
            segment(packet, out);
        } else {
            out.push(packet);
        }
    }

    /// Something must be done to a packet of this kind before the device can take it.
    #[inline]
    pub(crate) const fn needs_software(&self, kind: GsoKind, partial: bool) -> bool {
        let able = match kind {
            GsoKind::None => true,
            GsoKind::TcpV4 => self.caps.tso4,
            GsoKind::TcpV6 => self.caps.tso6,
            GsoKind::Udp => self.caps.uso,
        };
        !able || partial && !self.caps.tx_checksum
    }
}

/// A packet that a queue did not take.
pub(crate) struct Dropped {
    pub(crate) tx: TxToken,
    /// The sequence numbers of a socket's TCP segment: the first, and the one behind the last.
    pub(crate) text: Option<(SeqNum, SeqNum)>,
}

impl Dropped {
    #[cold]
    fn of(packet: &Packet) -> Self {
        let charged = packet.tx.socket != 0 && packet.layers.protocol == protocol::TCP;
        let repr = charged.then(|| TcpRepr::parse(packet.transport_header()).ok());
        Self {
            tx: packet.tx,
            text: repr.flatten().map(|(repr, _)| {
                let fin = repr.flags.contains(TcpFlags::FIN);
                let len = packet.payload.len() as u32 + u32::from(fin);
                (repr.seq, repr.seq + len)
            }),
        }
    }
}

/// One interface.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) config: IfaceConfig,
    /// What the device can do, whether it is asked to or not.
    pub(crate) device: Caps,
    pub(crate) gro: Gro,
    pub(crate) stats: LinkStats,
    /// Who has which hardware address; Ethernet only.
    pub(crate) neighbours: Option<Neighbours>,
    /// Complete packets waiting for `transmit`.
    out: VecDeque<Packet>,
    /// In place of `out`; TCP's data goes through it too.
    pub(crate) qdisc: Option<Qdisc<Packet>>,
    /// When the qdisc will give a packet: zero is now, the far future is never.
    pub(crate) departure: Instant,
    /// Sockets that have something to send, in turn, each once.
    pub(crate) ready: VecDeque<u32>,
}

impl Interface {
    /// `seed` keys the hash by which GRO tells flows apart.
    pub(crate) fn new(config: IfaceConfig, seed: u64) -> Self {
        let gro = GroConfig {
            link: config.caps.link,
            enabled: config.gro,
            max_size: 65_536,
            tunnels: Tunnels::NONE,
        };
        Self {
            gro: Gro::with_seed(gro, seed),
            stats: LinkStats::default(),
            neighbours: match config.caps.link {
                Link::Ip => None,
                Link::Ethernet => Some(Neighbours::new(config.mac)),
            },
            out: VecDeque::new(),
            qdisc: Qdisc::new(config.qdisc),
            departure: Instant::FAR_FUTURE,
            ready: VecDeque::new(),
            device: config.caps,
            config,
        }
    }

    /// Queues a complete packet. If the queue does not take it, it is dropped, and whom to tell.
    pub(crate) fn push(&mut self, now: Instant, packet: Packet) -> Result<(), Dropped> {
        if let Some(qdisc) = &mut self.qdisc {
            self.departure = Instant::ZERO;
            let taken = qdisc.enqueue(now, packet);
            return taken.map_err(|packet| Dropped::of(&packet));
        }
        if self.out.len() >= OUT_LIMIT {
            return Err(Dropped::of(&packet));
        }
        self.out.push_back(packet);
        Ok(())
    }

    /// Something must be done to TCP's packets of this kind on their way from the socket.
    #[inline]
    pub(crate) const fn cuts_early(&self, kind: GsoKind, repeats_cwr: bool) -> bool {
        // A queue holds super-segments whole.
        self.qdisc.is_none() && (repeats_cwr || self.config.needs_software(kind, true))
    }

    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        !self.ready.is_empty() || !self.out.is_empty() || self.departure == Instant::ZERO
    }

    /// Appends the queued packets to what the device gets, cut and summed if the device cannot;
    /// `max` at most, and how many.
    #[inline]
    pub(crate) fn drain(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        if self.out.is_empty() {
            return 0;
        }
        self.drain_some(out, max)
    }

    #[inline(never)]
    fn drain_some(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let count = self.out.len().min(max);
        for packet in self.out.drain(..count) {
            self.config.hand_over(packet, out);
        }
        count
    }
}
