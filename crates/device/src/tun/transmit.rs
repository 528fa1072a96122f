//! The transmit path: one `writev` for each packet or super-segment.

use std::collections::VecDeque;
#[cfg(unix)]
use std::fs::File;
#[cfg(unix)]
use std::io::Write;
use std::io::{self, IoSlice};
use std::mem;

use fullsend_offload::Packet;
use fullsend_wire::vnet::VNET_HDR_LEN;
use smallvec::SmallVec;

use super::{FAMILY_LEN, FrameHeader, TunStats};
use crate::{LogLimit, vnet};

/// Most pieces of one `writev` (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// The log of an interface's state: one line when it goes down, and one when it accepts packets again.
#[derive(Debug, Default)]
pub(crate) struct LinkLog {
    /// The number of packets dropped since the interface went down; 0 while it is up.
    dropped: u64,
}

impl LinkLog {
    /// Records an accepted packet. Returns the text to log, if any.
    #[inline]
    pub(crate) fn on_sent(&mut self, name: &str) -> Option<String> {
        if self.dropped == 0 {
            return None;
        }
        let dropped = mem::take(&mut self.dropped);
        Some(format!(
            "interface {name} is up again; {dropped} packets were dropped"
        ))
    }

    /// Records a refused packet. Returns the text to log, if any.
    pub(crate) fn on_error(&mut self, name: &str, error: &io::Error) -> Option<String> {
        // While the interface is down, the TUN driver returns EIO and a packet socket ENETDOWN;
        // other errors concern the packet.
        if !is_down(error) {
            return None;
        }
        self.dropped += 1;
        (self.dropped == 1).then(|| down_text(name))
    }
}

#[cfg(unix)]
fn is_down(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENETDOWN))
}

#[cfg(not(unix))]
fn is_down(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NetworkDown
}

/// Returns the text to log about an interface that is down.
pub(crate) fn down_text(name: &str) -> String {
    format!(
        "interface {name} is down and its packets are dropped; bring it up with `ip link set {name} \
         up`"
    )
}

/// Logs a text about an interface, up to a limit: a guest may set its own down and up at will.
pub(crate) fn log(text: Option<String>) {
    static CHANGES: LogLimit = LogLimit::new();
    if let Some(text) = text {
        CHANGES.warn(text.clone(), || text);
    }
}

/// Implements [`Device::transmit`](crate::Device::transmit) for a file.
#[cfg(unix)]
pub(crate) fn transmit(
    (file, name): (&File, &str),
    header: FrameHeader,
    batch: &mut VecDeque<Packet>,
    counters: (&mut TunStats, &mut LinkLog),
) -> io::Result<()> {
    let write = |pieces: &[IoSlice<'_>]| (&mut &*file).write_vectored(pieces);
    transmit_with((write, name), header, batch, counters)
}

/// Implements [`Device::transmit`](crate::Device::transmit) with `write`, each call of which sends one
/// frame.
pub(crate) fn transmit_with(
    (mut write, name): (impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>, &str),
    header: FrameHeader,
    batch: &mut VecDeque<Packet>,
    (stats, link): (&mut TunStats, &mut LinkLog),
) -> io::Result<()> {
    while let Some(packet) = batch.front() {
        stats.tx_calls += 1;
        match write_frame(&mut write, header, packet) {
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
                #[cfg(unix)]
                WriteError::DeviceGone => return Err(e),
            },
        }
        batch.pop_front();
    }
    Ok(())
}

/// The meaning of an error of `writev` for the packet.
enum WriteError {
    /// No memory or no room now: the packet is kept.
    QueueFull,
    /// A signal has interrupted the call, which is repeated.
    Interrupted,
    /// The packet can never be sent: it is malformed, or the interface is down, as with an unplugged
    /// cable.
    BadPacket,
    /// The interface no longer exists.
    #[cfg(unix)]
    DeviceGone,
}

impl WriteError {
    fn of(error: &io::Error) -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if error.raw_os_error() == Some(libc::EBADFD) {
            return Self::DeviceGone;
        }
        #[cfg(unix)]
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return Self::QueueFull,
            Some(libc::EINTR) => return Self::Interrupted,
            Some(libc::EBADF | libc::ENODEV | libc::ENXIO) => return Self::DeviceGone,
            Some(_) => return Self::BadPacket,
            None => {}
        }
        // The error is from a device that is not a file, or from another system.
        match error.kind() {
            io::ErrorKind::WouldBlock => Self::QueueFull,
            io::ErrorKind::Interrupted => Self::Interrupted,
            _ => Self::BadPacket,
        }
    }
}

fn write_frame(
    write: &mut impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    header: FrameHeader,
    packet: &Packet,
) -> io::Result<()> {
    let mut bytes = [0; VNET_HDR_LEN];
    let len = match header {
        FrameHeader::None => 0,
        FrameHeader::Vnet => {
            bytes = vnet_header(packet);
            VNET_HDR_LEN
        }
        FrameHeader::Family => {
            let v6 = packet.slices().next().is_some_and(|s| s[0] >> 4 == 6);
            bytes[..FAMILY_LEN].copy_from_slice(&family(v6).to_be_bytes());
            FAMILY_LEN
        }
    };
    let mut pieces = SmallVec::<[IoSlice<'_>; 16]>::new();
    if len > 0 {
        pieces.push(IoSlice::new(&bytes[..len]));
    }
    pieces.extend(packet.slices().map(IoSlice::new));
    if pieces.len() > MAX_PIECES {
        let whole: Vec<u8> = pieces.iter().flat_map(|p| p.iter().copied()).collect();
        return write(&[IoSlice::new(&whole)]).map(drop);
    }
    write(&pieces).map(drop)
}

/// Returns the address family of macOS and iOS (`AF_INET`, `AF_INET6`) that precedes a packet of a utun.
const fn family(v6: bool) -> u32 {
    if v6 { 30 } else { 2 }
}

/// Returns the `virtio_net_hdr` of 10 bytes that describes the offloads of a packet that a stack sends.
pub fn vnet_header(packet: &Packet) -> [u8; VNET_HDR_LEN] {
    vnet::header_of(packet).emit()
}

#[cfg(all(test, unix))]
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
