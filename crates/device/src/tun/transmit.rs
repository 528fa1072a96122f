//! To the kernel: one `writev` per packet or super-segment.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Write};

use fullsend_offload::{Checksum, GsoKind, Offload, Packet};
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::TcpFlags;
use fullsend_wire::vnet::{VNET_HDR_LEN, VnetGso, VnetHdr};
use smallvec::SmallVec;

use super::TunStats;

/// Pieces that one `writev` takes (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// See [`Device::transmit`](crate::Device::transmit).
pub(super) fn transmit(
    file: &File,
    vnet_hdr: bool,
    batch: &mut VecDeque<Packet>,
    stats: &mut TunStats,
) -> io::Result<()> {
    while let Some(packet) = batch.front() {
        stats.tx_calls += 1;
        match write(file, vnet_hdr, packet) {
            Ok(()) => stats.tx_packets += 1,
            Err(e) => match Refusal::of(&e) {
                Refusal::Later => return Ok(()),
                Refusal::Again => continue,
                Refusal::Packet => stats.tx_dropped += 1,
                Refusal::Device => return Err(e),
            },
        }
        batch.pop_front();
    }
    Ok(())
}

/// What an error of `writev` means for the packet.
enum Refusal {
    /// No memory or no room now: keep it.
    Later,
    /// A signal came.
    Again,
    /// This packet will never go: malformed, or the interface is down, as with a cable unplugged.
    Packet,
    /// The interface is gone.
    Device,
}

impl Refusal {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Self::Later,
            Some(libc::EINTR) => Self::Again,
            Some(libc::EBADFD | libc::EBADF | libc::ENODEV) => Self::Device,
            _ => Self::Packet,
        }
    }
}

fn write(file: &File, vnet_hdr: bool, packet: &Packet) -> io::Result<()> {
    let header = if vnet_hdr {
        write_offload(packet).emit()
    } else {
        [0; VNET_HDR_LEN]
    };
    let mut pieces = SmallVec::<[IoSlice<'_>; 16]>::new();
    if vnet_hdr {
        pieces.push(IoSlice::new(&header));
    }
    pieces.extend(packet.slices().map(IoSlice::new));
    if pieces.len() > MAX_PIECES {
        let whole: Vec<u8> = pieces.iter().flat_map(|p| p.iter().copied()).collect();
        return (&mut &*file).write(&whole).map(drop);
    }
    (&mut &*file).write_vectored(&pieces).map(drop)
}

fn write_offload(packet: &Packet) -> VnetHdr {
    let Offload {
        gso_size,
        kind,
        checksum,
        ..
    } = packet.offload;
    let layers = &packet.layers;
    let gso = match kind {
        _ if packet.payload.len() <= usize::from(gso_size) => VnetGso::None,
        GsoKind::None => VnetGso::None,
        GsoKind::TcpV4 => VnetGso::TcpV4,
        GsoKind::TcpV6 => VnetGso::TcpV6,
        GsoKind::Udp => VnetGso::UdpL4,
    };
    let mut hdr = VnetHdr {
        gso,
        hdr_len: packet.header.len() as u16,
        ..VnetHdr::default()
    };
    if gso != VnetGso::None {
        hdr.gso_size = gso_size;
        hdr.ecn = kind != GsoKind::Udp && has_cwr(packet.transport_header());
    }
    match checksum {
        Checksum::Partial => {
            hdr.needs_csum = true;
            hdr.csum_start = layers.transport;
            hdr.csum_offset = checksum_offset(layers.protocol);
        }
        Checksum::Valid => hdr.data_valid = true,
        Checksum::Unverified => {}
    }
    hdr
}

/// Where a protocol's checksum stands in its header.
fn checksum_offset(protocol_number: u8) -> u16 {
    match protocol_number {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => 2,
    }
}

fn has_cwr(tcp_header: &[u8]) -> bool {
    tcp_header
        .get(13)
        .is_some_and(|&flags| TcpFlags(u16::from(flags)).contains(TcpFlags::CWR))
}
