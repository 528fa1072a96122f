//! An in-process link between two interfaces. Buffers are used again, so that neither side pays
//! for allocation.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::rc::Rc;

use smoltcp::phy::{self, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

/// Packets that one direction holds at most.
const QUEUE: usize = 256;

/// What the link's network cards do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Nic {
    /// MTU 1500 and segmentation offload: super-segments cross whole, no checksums.
    Tso,
    /// MTU 65535, no checksums.
    Jumbo,
    /// MTU 65535, checksums computed and verified.
    JumboChecksums,
    /// MTU 1500, no checksums.
    Mtu,
    /// MTU 1500, checksums computed and verified.
    MtuChecksums,
}

impl Nic {
    fn capabilities(self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ip;
        caps.max_transmission_unit = match self {
            Self::Tso | Self::Mtu | Self::MtuChecksums => 1500,
            Self::Jumbo | Self::JumboChecksums => 65_535,
        };
        if !matches!(self, Self::JumboChecksums | Self::MtuChecksums) {
            caps.checksum = ChecksumCapabilities::ignored();
        }
        if self == Self::Tso {
            caps.segmentation.tcpv4 = NonZeroUsize::new(65_535);
        }
        caps
    }
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
}

type Shared = Rc<RefCell<Lane>>;

/// One end.
pub struct End {
    nic: Nic,
    tx: Shared,
    rx: Shared,
}

/// Both ends of a new link.
pub fn link(nic: Nic) -> (End, End) {
    let (a, b) = (Shared::default(), Shared::default());
    let there = End {
        nic,
        tx: b.clone(),
        rx: a.clone(),
    };
    (End { nic, tx: a, rx: b }, there)
}

pub struct Rx {
    packet: Vec<u8>,
    lane: Shared,
}

pub struct Tx {
    lane: Shared,
}

impl phy::RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.packet);
        self.lane.borrow_mut().free.push(self.packet);
        result
    }
}

impl phy::TxToken for Tx {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = self.lane.borrow_mut().free.pop().unwrap_or_default();
        // Only what grows is cleared: nothing in steady state when sizes repeat.
        packet.resize(len, 0);
        let result = f(&mut packet);
        self.lane.borrow_mut().queue.push_back(packet);
        result
    }
}

impl Device for End {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx;

    fn capabilities(&self) -> DeviceCapabilities {
        self.nic.capabilities()
    }

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx)> {
        let packet = self.rx.borrow_mut().queue.pop_front()?;
        let rx = Rx {
            packet,
            lane: self.rx.clone(),
        };
        let tx = Tx {
            lane: self.tx.clone(),
        };
        Some((rx, tx))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx> {
        let room = self.tx.borrow().queue.len() < QUEUE;
        room.then(|| Tx {
            lane: self.tx.clone(),
        })
    }
}
