//! What goes in and out of a connection.

use fullsend_buf::{Chain, Pool};
use fullsend_units::{Instant, Rng};
use fullsend_wire::EcnField;
use fullsend_wire::tcp::TcpRepr;

use crate::legacy::Legacy;
use crate::recv::Squeeze;
use crate::{HostLimits, Sysctl, TcpError, TcpMemory, TcpMib};

/// What a connection needs from its host for the length of one call.
pub struct Cx<'a> {
    /// Now.
    pub now: Instant,
    /// The host's tunables, read at each use so that a change is live at once.
    pub sysctl: &'a Sysctl,
    /// Memory for payload.
    pub pool: &'a Pool,
    /// The host's TCP counters.
    pub mib: &'a mut TcpMib,
    /// What the host's connections hold.
    pub mem: &'a mut TcpMemory,
    /// What strangers can make the host's connections send.
    pub limits: &'a mut HostLimits,
    /// Entropy.
    pub rng: &'a mut Rng,
    /// The device this connection's packets leave by.
    pub device: DeviceCaps,
    /// Added to the clock to make timestamps (RFC 7323 5.4). Secret, and the same for all
    /// connections to one peer, so that a later connection's timestamps are later (RFC 6191).
    pub ts_offset: u32,
    /// Old rules in force, for the laboratory.
    pub legacy: Legacy,
}

impl Cx<'_> {
    /// How hard receive windows are to be held down.
    #[inline]
    pub(crate) fn squeeze(&self) -> Squeeze {
        if !self.mem.is_under_pressure() {
            Squeeze::No
        } else if self.mem.is_exhausted(self.sysctl) {
            Squeeze::All
        } else {
            Squeeze::Slow
        }
    }
}

/// What the outgoing device takes in one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCaps {
    /// Largest IP packet without segmentation, in bytes.
    pub mtu: u32,
    /// Largest super-segment, IP header included (65536 classic; BIG TCP more). Software GSO
    /// behind us counts as able.
    pub gso_max_size: u32,
    /// Most segments in one super-segment.
    pub gso_max_segs: u32,
    /// A queueing discipline behind us keeps packets until their time of departure (fq).
    pub fq: bool,
}

/// A segment (or, after GRO, a run of segments) that arrived.
#[derive(Debug)]
pub struct SegmentIn {
    /// Header.
    pub repr: TcpRepr,
    /// Payload.
    pub payload: Chain,
    /// Payload bytes of each segment coalesced in here; 0 when it is one segment.
    pub gso_size: u16,
    /// Segments in here, at least 1.
    pub gso_segs: u16,
    /// The ECN field of the IP header, the same for all segments in here.
    pub ecn: EcnField,
}

/// A segment or super-segment to send; the host puts the IP header on it.
#[derive(Debug)]
pub struct SegmentOut {
    /// Header. `repr.seq` is that of the first byte.
    pub repr: TcpRepr,
    /// Payload.
    pub payload: Chain,
    /// Payload bytes per segment when it must be cut; 0 when it is one segment.
    pub gso_size: u16,
    /// Segments it stands for, at least 1.
    pub gso_segs: u16,
    /// The ECN field for the IP header.
    pub ecn: EcnField,
    /// When it must be cut, every segment carries CWR, and not the first alone (RFC 9768).
    pub repeats_cwr: bool,
    /// Earliest departure (pacing); `Instant::ZERO` for at once.
    pub departure: Instant,
    /// Bytes of memory charged for it until the device completes it (spec: truesize). 0 for
    /// segments without payload, which need no completion.
    pub truesize: u32,
}

/// What a user waiting on the socket should be told, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wakes {
    /// Data, end of stream or an error can be read, or a connection was established.
    pub read: bool,
    /// There is room to write again (spec 3), or the connection was established or failed.
    pub write: bool,
}

/// An ICMP error about a segment we sent (RFC 5461, RFC 5927; `seq` checked against what is in
/// flight).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpError {
    /// Fragmentation needed / packet too big: the path's MTU is at most this.
    TooBig {
        /// Bytes of the largest IP packet.
        mtu: u32,
    },
    /// Destination unreachable: hard while connecting, soft afterwards (RFC 1122 4.2.3.9).
    Unreachable(TcpError),
}
