//! Runs GRO on a fixed trace, to count its instructions:
//!
//! ```sh
//! cargo build --release -p fullsend-offload --example gro_cost
//! valgrind --tool=callgrind --toggle-collect='*coalesce_batch*' \
//!     target/release/examples/gro_cost v6 1 valid
//! ```
//!
//! Arguments: header shape (`v4`, `v6`, `v6+ext`, `v6-in-v6`, `v4-in-v4`, `vxlan`), number of
//! interleaved flows, state of the transport checksums (`valid`: verified by the device, `verify`:
//! verified by GRO, `pushed`: as `valid`, and all packets have PSH, as requests and responses
//! have), and packets per device poll (default: 44 of each flow). The instructions collected,
//! divided by the packets printed, are those per packet, including the flush.

use fullsend_offload::{Checksum, Gro, GroConfig, Link, Packet, Slice, Tunnels};
use fullsend_wire::Instant;

#[path = "../benches/frames/mod.rs"]
mod frames;
use frames::HeaderShape;

const MSS: usize = 1448;
/// Segments per flow, which fit in 64 KiB with every header shape.
const SEGMENTS: usize = 44;

/// Runs one device poll: the function whose instructions are counted.
#[inline(never)]
fn coalesce_batch(gro: &mut Gro, packets: &mut Vec<Packet>, out: &mut Vec<Packet>) {
    gro.receive_batch(Instant::ZERO, packets);
    gro.flush(out);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "v4".into());
    let flows: u16 = args.next().map_or(1, |n| n.parse().expect("flows"));
    let what = args.next().unwrap_or_default();
    let poll: Option<usize> = args.next().map(|n| n.parse().expect("packets"));
    let shape = HeaderShape::ALL.iter().find(|(n, _)| *n == name);
    let (_, shape) = shape.unwrap_or_else(|| {
        panic!(
            "`{name}` is not a packet shape; write one of {:?}",
            HeaderShape::ALL.map(|(n, _)| n)
        )
    });
    let mut gro = Gro::new(GroConfig {
        link: Link::Ip,
        enabled: true,
        max_size: 65_536,
        tunnels: Tunnels::STANDARD,
    });
    let checksum = if what == "verify" {
        Checksum::Unverified
    } else {
        Checksum::Valid
    };
    let packet = |flow: u16, index: usize| {
        let frame = if what == "pushed" {
            shape.pushed(flow, index, MSS)
        } else {
            shape.frame(flow, index, MSS)
        };
        let mut packet = Packet::from_frame(Slice::copied_from(&frame));
        packet.offload.checksum = checksum;
        packet
    };
    let (mut received, mut delivered) = (0, 0);
    let mut out = Vec::with_capacity(SEGMENTS * usize::from(flows));
    for _ in 0..20 {
        let packets: Vec<_> = (0..SEGMENTS)
            .flat_map(|index| (0..flows).map(move |flow| (flow, index)))
            .map(|(flow, index)| packet(flow, index))
            .collect();
        received += packets.len();
        let poll = poll.unwrap_or(packets.len());
        let mut packets = packets.into_iter();
        let mut batch = Vec::with_capacity(poll);
        while packets.len() > 0 {
            batch.extend(packets.by_ref().take(poll));
            coalesce_batch(&mut gro, &mut batch, &mut out);
            delivered += out.len();
            out.clear();
        }
    }
    let parsed = gro.stats().parsed;
    println!("{received} packets in, {delivered} out, {parsed} parsed");
}
