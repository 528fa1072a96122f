//! A device on an Ethernet interface of the kernel, through an `AF_XDP` socket.

mod checksum;
mod open;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use fullsend_offload::{Checksum, Packet, Pool};

pub(crate) use checksum::is_partial;

use crate::sys::Xsk;
use crate::tun::TunStats;
use crate::tun::receive::FrameReader;
use crate::tun::transmit::{self, LinkLog};
use crate::{Caps, Device, DeviceCounters};

/// Length of an Ethernet header, in bytes.
const ETHERNET_LEN: usize = 14;
/// Length of a VLAN tag, in bytes.
const VLAN_LEN: usize = 4;

/// An Ethernet interface of the kernel whose received frames this process takes, e.g. one end of a veth
/// pair or a network card with one queue.
///
/// Receiving a frame costs no system call, and one call sends up to 32. There are no super-segments: the
/// device suits many small packets, while a [`PacketSocket`] is faster for bulk TCP over a veth.
///
/// The kernel's stack receives no frame of the interface while the device exists, but still sends through
/// it. Remove its addresses from the interface. The XDP program that redirects the frames is detached
/// when the stack stops, the device is dropped or the process ends. Until then, the interface is in
/// promiscuous mode. Frames of a VLAN whose tag the network card removes are received without it; switch
/// that off with `ethtool -K INTERFACE rxvlan off`.
///
/// The kernel does not wake a program whose interface is removed: the device fails at the next attempt to
/// receive, which a stack makes at the latest when its next timer is due.
///
/// The kernel at the other end of a veth does not compute the checksums of TCP and UDP. Over a veth, a
/// checksum field that holds only the sum of the pseudo-header is therefore accepted.
///
/// ```no_run
/// use fullsend_device::{Device, XdpSocket};
/// let device = XdpSocket::open("veth0")?;
/// println!("MTU {}", device.caps().mtu);
/// # std::io::Result::Ok(())
/// ```
///
/// [`PacketSocket`]: crate::PacketSocket
pub struct XdpSocket {
    /// The changes of the interface, dropped before the socket.
    attachment: Option<Attachment>,
    xsk: Xsk,
    name: String,
    caps: Caps,
    /// Whether received checksums may be uncomputed.
    is_veth: bool,
    reader: FrameReader,
    /// Whether the first packet of the caller's batch is in the transmit ring. The last packet stays in
    /// the batch until the kernel has consumed it, so that the caller calls again.
    front_is_queued: bool,
    /// Whether the interface was down at the last attempt to send.
    down: bool,
    stats: TunStats,
    link_log: LinkLog,
}

/// The changes of the interface, undone on drop.
struct Attachment {
    /// The attached program, detached on close.
    _program: OwnedFd,
    /// A packet socket that receives nothing, for the promiscuous mode.
    _promiscuous: OwnedFd,
}

impl XdpSocket {
    /// Opens the interface `name`. Requires `CAP_NET_RAW`, `CAP_NET_ADMIN`, `CAP_BPF` and Linux 5.9.
    /// Blocks for up to two seconds while the kernel releases an earlier device of the interface, which
    /// must have been dropped: after a stack has stopped, its driver's task must have ended, which on a
    /// runtime of one thread needs an `await`, e.g. of `tokio::task::yield_now`.
    ///
    /// # Errors
    /// - `InvalidInput` if `name` is not the name of an Ethernet interface, or the interface has
    ///   several queues or too large an MTU.
    /// - `NotFound` if there is no such interface, `PermissionDenied` without the capabilities,
    ///   `ResourceBusy` if another program uses the interface in this way.
    /// - Another error of the operating system.
    pub fn open(name: &str) -> io::Result<Self> {
        Self::open_with_pool(name, Pool::new(open::POOL_BYTES))
    }

    /// Opens the interface `name` like [`open`](Self::open), with received packets in memory of `pool`.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_with_pool(name: &str, pool: Pool) -> io::Result<Self> {
        open::open(name, pool)
    }

    /// Returns the counters. Frames that found no room are counted as dropped. `rx_calls` counts reads of
    /// the receive ring, which are not system calls.
    pub fn stats(&self) -> TunStats {
        let mut stats = self.stats;
        if let Ok(dropped) = self.xsk.dropped() {
            stats.rx_packets += dropped;
            stats.rx_dropped += dropped;
        }
        stats
    }

    /// Copies packets to the transmit ring while there is room, and removes all but the last one of the
    /// batch.
    fn queue(&mut self, batch: &mut VecDeque<Packet>) {
        let longest = self.caps.mtu as usize + ETHERNET_LEN + VLAN_LEN;
        while let Some(packet) = batch.front() {
            if !self.front_is_queued {
                if (ETHERNET_LEN..=longest).contains(&packet.len()) {
                    let Some(desc) = self.xsk.umem.write(packet.slices()) else {
                        return;
                    };
                    if !self.xsk.tx.push(desc) {
                        self.xsk.umem.free(desc.addr);
                        return;
                    }
                    self.stats.tx_packets += 1;
                    self.front_is_queued = true;
                } else {
                    self.stats.tx_dropped += 1;
                }
            }
            if self.front_is_queued && batch.len() == 1 {
                return;
            }
            batch.pop_front();
            self.front_is_queued = false;
        }
    }

    /// Makes the kernel send frames of the transmit ring until it accepts no more.
    fn send_queued(&mut self) -> io::Result<()> {
        self.xsk.tx.publish();
        self.down = false;
        let mut waiting = self.xsk.tx.unconsumed();
        // The kernel drops one frame per call while the link has no carrier.
        let mut refusals_left = waiting;
        while waiting > 0 && self.xsk.tx.needs_wakeup() {
            self.stats.tx_calls += 1;
            let result = self.xsk.send_queued();
            let left = self.xsk.tx.unconsumed();
            let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
            match errno {
                Some(libc::ENETDOWN) => {
                    self.down = true;
                    break;
                }
                Some(libc::ENXIO | libc::ENODEV | libc::EBADF) => return Err(gone()),
                Some(libc::EINTR) => {}
                Some(libc::EBUSY) if refusals_left > 0 => {
                    refusals_left -= 1;
                    self.stats.tx_dropped += 1;
                }
                _ if left == waiting => break,
                _ => {}
            }
            waiting = left;
        }
        Ok(())
    }

    /// Makes the frames that the kernel has sent free again. Returns whether there were any.
    fn reap(&mut self) -> bool {
        let mut any = false;
        while let Some(addr) = self.xsk.completion.pop() {
            self.xsk.umem.free(addr);
            any = true;
        }
        self.xsk.completion.release();
        any
    }

    /// Drops the packets of the batch because the interface is down.
    fn drop_batch(&mut self, batch: &mut VecDeque<Packet>) {
        let queued = usize::from(self.front_is_queued);
        for _ in queued..batch.len() {
            self.stats.tx_dropped += 1;
            let down = io::Error::from_raw_os_error(libc::ENETDOWN);
            transmit::log(self.link_log.on_error(&self.name, &down));
        }
        batch.clear();
        self.front_is_queued = false;
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODEV)
}

impl Device for XdpSocket {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        if self.down {
            // Older frames in the ring are sent first, if the interface is up again.
            self.send_queued()?;
        }
        self.reap();
        while !batch.is_empty() {
            if self.down {
                self.drop_batch(batch);
                return Ok(());
            }
            let before = self.stats.tx_packets;
            self.queue(batch);
            self.send_queued()?;
            if self.down {
                continue;
            }
            let has_freed = self.reap();
            let waits = self.xsk.tx.unconsumed() > 0 && self.xsk.tx.needs_wakeup();
            if self.front_is_queued && !waits {
                batch.pop_front();
                self.front_is_queued = false;
            }
            let has_queued = self.stats.tx_packets > before;
            if has_queued {
                transmit::log(self.link_log.on_sent(&self.name));
            }
            if waits || !(has_queued || has_freed) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let before = batch.len();
        let Xsk { rx, fill, umem, .. } = &mut self.xsk;
        let read = |buf: &mut [u8]| {
            let desc = rx.pop().ok_or(io::ErrorKind::WouldBlock)?;
            // The host counts an empty frame as malformed.
            let (frame, len) = umem.read(desc, buf).unzip();
            frame.map(|frame| fill.push(frame));
            Ok(len.unwrap_or(0))
        };
        let frames = self.reader.receive_with(read, batch, max, &mut self.stats);
        self.xsk.rx.release();
        self.xsk.fill.publish();
        let frames = frames?;
        if frames == 0 {
            // The kernel reports the removal of the interface here, and not by poll(2).
            self.xsk.take_error().map_err(|_| gone())?;
        }
        if self.is_veth {
            for packet in &mut batch[before..] {
                if packet.slices().next().is_some_and(is_partial) {
                    packet.offload.checksum = Checksum::Partial;
                }
            }
        }
        Ok(frames)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.xsk.fd())
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.reader.limit_memory(pool, max_bytes);
    }

    fn close(&mut self) {
        self.attachment = None;
    }

    fn counters(&mut self) -> DeviceCounters {
        self.stats().into()
    }
}
