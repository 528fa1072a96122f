//! Transmit path: one `writev` per packet or super-segment.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;

use fullsend_offload::{Checksum, GsoKind, Offload, Packet};
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::TcpFlags;
use fullsend_wire::vnet::{VNET_HDR_LEN, VnetGso, VnetHdr};
use smallvec::SmallVec;

use super::TunStats;

/// Most pieces of one `writev` (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// Logs once when the interface goes down, and once when it accepts packets again.
#[derive(Debug, Default)]
pub(crate) struct LinkLog {
    /// Packets dropped since the interface went down; 0 while it is up.
    dropped: u64,
}

impl LinkLog {
    /// Records an accepted packet; returns the text to log, if any.
    #[inline]
    fn on_sent(&mut self, name: &str) -> Option<String> {
        if self.dropped == 0 {
            return None;
        }
        let dropped = mem::take(&mut self.dropped);
        Some(format!(
            "interface {name} is up again; {dropped} packets were dropped"
        ))
    }

    /// Records a refused packet; returns the text to log, if any.
    fn on_error(&mut self, name: &str, error: &io::Error) -> Option<String> {
        // The TUN driver returns EIO while the interface is down; other errors concern the packet.
        if error.raw_os_error() != Some(libc::EIO) {
            return None;
        }
        self.dropped += 1;
        (self.dropped == 1).then(|| {
            format!(
                "interface {name} is down and its packets are dropped; bring it up with `ip link \
                 set {name} up`"
            )
        })
    }
}

fn log(text: Option<String>) {
    if let Some(text) = text {
        tracing::warn!("{text}");
    }
}

/// Implements [`Device::transmit`](crate::Device::transmit). `write` writes one frame; `name` is that
/// of the device in the log.
pub(crate) fn transmit(
    (write_frame, name): (&mut impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>, &str),
    vnet_hdr: bool,
    batch: &mut VecDeque<Packet>,
    (stats, link): (&mut TunStats, &mut LinkLog),
) -> io::Result<()> {
    while let Some(packet) = batch.front() {
        stats.tx_calls += 1;
        match write(write_frame, vnet_hdr, packet) {
            Ok(()) => {
                stats.tx_packets += 1;
                log(link.on_sent(name));
            }
            Err(e) => match WriteError::of(&e) {
                WriteError::QueueFull => return Ok(()),
                WriteError::Interrupted => continue,
                WriteError::BadPacket => {
                    stats.tx_dropped += 1;
                    log(link.on_error(name, &e));
                }
                WriteError::DeviceGone => return Err(e),
            },
        }
        batch.pop_front();
    }
    Ok(())
}

/// The meaning of an error of `writev` for the packet.
enum WriteError {
    /// No memory or no room now: keep the packet.
    QueueFull,
    /// A signal interrupted the call: retry.
    Interrupted,
    /// This packet can never be sent: malformed, or the interface is down, as with an unplugged
    /// cable.
    BadPacket,
    /// The interface is gone.
    DeviceGone,
}

impl WriteError {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Self::QueueFull,
            Some(libc::EINTR) => Self::Interrupted,
            Some(libc::EBADFD | libc::EBADF | libc::ENODEV) => Self::DeviceGone,
            _ => Self::BadPacket,
        }
    }
}

fn write(
    write_frame: &mut impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    vnet_hdr: bool,
    packet: &Packet,
) -> io::Result<()> {
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
        return write_frame(&[IoSlice::new(&whole)]).map(drop);
    }
    write_frame(&pieces).map(drop)
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

/// Returns the offset of the checksum in the protocol's header, in bytes.
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::LinkLog;

    #[test]
    fn interface_down_and_up_are_logged_once() {
        let mut link = LinkLog::default();
        let down = io::Error::from_raw_os_error(libc::EIO);
        let malformed = io::Error::from_raw_os_error(libc::EINVAL);
        for _ in 0..2 {
            assert_eq!(link.on_sent("fs0"), None);
            assert_eq!(link.on_error("fs0", &malformed), None);
            let text = link.on_error("fs0", &down).expect("a text");
            assert!(text.contains("ip link set fs0 up"), "{text}");
            assert_eq!(link.on_error("fs0", &down), None);
            let text = link.on_sent("fs0").expect("a text");
            assert!(text.ends_with("2 packets were dropped"), "{text}");
        }
    }
}
