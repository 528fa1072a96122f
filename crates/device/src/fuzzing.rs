//! Entry points for fuzz targets.

use std::io;

use fullsend_offload::Pool;

use crate::FrameHeader;
use crate::tun::TunStats;
use crate::tun::receive::FrameReader;

/// Receives frames like TUN, TAP, packet and XDP sockets, at most `max` at a time. Each frame must be
/// delivered or counted as dropped.
///
/// # Panics
/// If a frame is lost without being counted, or a packet has an impossible length.
pub fn receive_frames(header: FrameHeader, frames: &[Vec<u8>], max: usize) {
    let mut reader = FrameReader::new(Pool::new(1 << 20), header);
    let mut left = frames.iter();
    let mut read = |buf: &mut [u8]| {
        let frame = left.next().ok_or(io::ErrorKind::WouldBlock)?;
        let len = frame.len().min(buf.len());
        buf[..len].copy_from_slice(&frame[..len]);
        Ok(len)
    };
    let (mut stats, mut delivered) = (TunStats::default(), 0);
    loop {
        let mut batch = Vec::new();
        let received = reader.receive_with(&mut read, &mut batch, max.max(1), &mut stats);
        let received = received.expect("the source has no errors");
        for packet in &batch {
            assert!(packet.len() <= 1 << 17, "{} bytes", packet.len());
            #[cfg(target_os = "linux")]
            packet.slices().next().map(crate::xdp::is_partial);
        }
        delivered += batch.len() as u64;
        if received < max.max(1) {
            break;
        }
    }
    assert_eq!(delivered + stats.rx_dropped, frames.len() as u64);
}
