//! The arguments and results of a connection's calls: context, segments, wake-ups, ICMP errors.

use fullsend_offload::{Chain, Pool};
use fullsend_wire::tcp::TcpRepr;
use fullsend_wire::{EcnField, Instant, Rng};

use crate::legacy::Legacy;
use crate::{HostLimits, Sysctl, TcpError, TcpMemory, TcpMib};

/// The host's state that a connection uses during one call.
pub struct Cx<'a> {
    /// The current time.
    pub now: Instant,
    /// The host's tunables, read at each use so that a change takes effect at once.
    pub sysctl: &'a Sysctl,
    /// The pool that payload memory is allocated from.
    pub pool: &'a Pool,
    /// The host's TCP counters.
    pub mib: &'a mut TcpMib,
    /// The memory that all connections of the host are charged for.
    pub mem: &'a mut TcpMemory,
    /// The host's limits on what an unauthenticated peer can make its connections send.
    pub limits: &'a mut HostLimits,
    /// The random number generator.
    pub rng: &'a mut Rng,
    /// The device that this connection's packets leave by.
    pub device: DeviceCaps,
    /// The offset added to the clock to form timestamps (RFC 7323 5.4). It is secret, and the same
    /// for all connections to one peer, so that a later connection's timestamps are later (RFC
    /// 6191).
    pub ts_offset: u32,
    /// The historical rules in force, for the lab.
    pub legacy: Legacy,
}

/// The limits of the outgoing device for one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCaps {
    /// Largest IP packet without segmentation, in bytes.
    pub mtu: u32,
    /// Largest super-segment in bytes, IP header included (65536 classic; BIG TCP more). A device
    /// behind software GSO counts as capable.
    pub gso_max_size: u32,
    /// Most segments in one super-segment.
    pub gso_max_segs: u32,
    /// Whether a queueing discipline (fq) holds packets until their departure time.
    pub fq: bool,
}

/// A segment (or, after GRO, a run of segments) received from the network.
#[derive(Debug)]
pub struct SegmentIn {
    /// The TCP header.
    pub repr: TcpRepr,
    /// The payload.
    pub payload: Chain,
    /// Payload bytes of each coalesced segment; 0 for a single segment.
    pub gso_size: u16,
    /// Number of coalesced segments, at least 1.
    pub gso_segs: u16,
    /// The ECN field of the IP header, the same for all coalesced segments.
    pub ecn: EcnField,
}

/// A segment or super-segment to send, without its IP header, which the host adds.
#[derive(Debug)]
pub struct SegmentOut {
    /// The TCP header. `repr.seq` is the sequence number of the first byte.
    pub repr: TcpRepr,
    /// The payload.
    pub payload: Chain,
    /// Payload bytes of each segment after segmentation; 0 for a single segment.
    pub gso_size: u16,
    /// Number of segments after segmentation, at least 1.
    pub gso_segs: u16,
    /// The ECN field for the IP header.
    pub ecn: EcnField,
    /// Whether each segment carries CWR after segmentation, rather than only the first (RFC 9768).
    pub repeats_cwr: bool,
    /// Earliest departure time (pacing); `Instant::ZERO` means immediately.
    pub departure: Instant,
    /// Bytes of memory charged until the device completes the segment (spec: truesize). 0 for
    /// segments without payload, which need no completion.
    pub truesize: u32,
}

/// The wake-ups that a connection owes to the tasks waiting on its socket, each reported once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wakes {
    /// Data, the end of the stream or an error can be read, or the connection was established.
    pub read: bool,
    /// The send buffer has room again (spec 3), or the connection was established or failed.
    pub write: bool,
}

/// An ICMP error about a segment that this host sent (RFC 5461, RFC 5927). The quoted sequence
/// number is checked against the data in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpError {
    /// Fragmentation needed / packet too big: the path MTU is at most this.
    TooBig {
        /// Size of the largest IP packet, in bytes.
        mtu: u32,
    },
    /// Destination unreachable: a hard error while connecting, soft afterwards (RFC 1122 4.2.3.9).
    Unreachable(TcpError),
}
