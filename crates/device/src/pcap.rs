//! A pcapng capture of the packets that pass a device, for Wireshark.
//!
//! Super-segments are recorded whole. A reader that verifies checksums reports partial ones as wrong.

use std::collections::VecDeque;
use std::io::{self, Write};
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::SystemTime;

use fullsend_offload::{Link, Packet, Pool};
use parking_lot::Mutex;

use crate::{Caps, Device, DeviceCounters, Notifier};

#[cfg(test)]
mod tests;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_RAW: u16 = 101;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// The direction of a packet, as in `epb_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Inbound = 1,
    Outbound = 2,
}

/// A capture to which several interfaces write. Clones refer to the same capture.
#[derive(Clone)]
pub struct Capture {
    file: Arc<Mutex<CaptureFile>>,
}

struct CaptureFile {
    out: Box<dyn Write + Send>,
    interfaces: u32,
    /// Most bytes recorded of each packet.
    snaplen: u32,
    block: Vec<u8>,
}

impl Capture {
    /// Starts a capture into `out`, which should be buffered; it is flushed after each batch.
    ///
    /// # Errors
    /// Returns the error of writing to `out`.
    pub fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let mut file = CaptureFile {
            out: Box::new(out),
            interfaces: 0,
            snaplen: u32::MAX,
            block: Vec::new(),
        };
        file.write_block(SECTION_HEADER, |body| {
            body.extend(BYTE_ORDER_MAGIC.to_le_bytes());
            body.extend(1u16.to_le_bytes());
            body.extend(0u16.to_le_bytes());
            // The length of the section is unknown.
            body.extend(u64::MAX.to_le_bytes());
        })?;
        Ok(Self {
            file: Arc::new(Mutex::new(file)),
        })
    }

    /// Limits the recorded part of each packet to `bytes` (at least 1), at interfaces added from
    /// now on.
    #[must_use]
    pub fn snaplen(self, bytes: u32) -> Self {
        self.file.lock().snaplen = bytes.max(1);
        self
    }

    /// Records the statistics of an interface, numbered from 0, at the end of a capture: the numbers of
    /// recorded and of dropped packets.
    ///
    /// # Errors
    /// Returns the error of writing to the output.
    pub fn write_statistics(
        &self,
        time_ns: u64,
        interface: u32,
        (recorded, dropped): (u64, u64),
    ) -> io::Result<()> {
        let mut file = self.file.lock();
        file.write_block(INTERFACE_STATISTICS, |body| {
            body.extend(interface.to_le_bytes());
            body.extend(((time_ns >> 32) as u32).to_le_bytes());
            body.extend((time_ns as u32).to_le_bytes());
            option(body, ISB_IFRECV, &(recorded + dropped).to_le_bytes());
            option(body, ISB_IFDROP, &dropped.to_le_bytes());
            option(body, 0, &[]);
        })?;
        file.out.flush()
    }

    /// Adds an interface to the capture.
    ///
    /// # Errors
    /// Returns the error of writing to the output.
    pub fn add_interface(&self, name: &str, link: Link) -> io::Result<CaptureInterface> {
        let mut file = self.file.lock();
        let snaplen = file.snaplen;
        file.write_block(INTERFACE_DESCRIPTION, |body| {
            let link_type = match link {
                Link::Ip => LINKTYPE_RAW,
                Link::Ethernet => LINKTYPE_ETHERNET,
            };
            body.extend(link_type.to_le_bytes());
            body.extend(0u16.to_le_bytes());
            // Zero means that there is no limit.
            let limit = if snaplen == u32::MAX { 0 } else { snaplen };
            body.extend(limit.to_le_bytes());
            option(body, IF_NAME, name.as_bytes());
            // Timestamps are in units of 10^-9 s.
            option(body, IF_TSRESOL, &[9]);
            option(body, 0, &[]);
        })?;
        file.interfaces += 1;
        Ok(CaptureInterface {
            file: self.file.clone(),
            interface: file.interfaces - 1,
            snaplen,
        })
    }
}

/// One interface of a capture. Clones refer to the same interface.
#[derive(Clone)]
pub struct CaptureInterface {
    file: Arc<Mutex<CaptureFile>>,
    interface: u32,
    snaplen: u32,
}

impl CaptureInterface {
    /// Records received packets, at `time_ns` since the epoch.
    ///
    /// # Errors
    /// Returns the error of writing to the output.
    pub fn inbound(&self, time_ns: u64, packets: &[Packet]) -> io::Result<()> {
        self.record(Direction::Inbound, time_ns, packets)
    }

    /// Records sent packets, at `time_ns` since the epoch.
    ///
    /// # Errors
    /// Returns the error of writing to the output.
    pub fn outbound(&self, time_ns: u64, packets: &[Packet]) -> io::Result<()> {
        self.record(Direction::Outbound, time_ns, packets)
    }

    fn record(&self, direction: Direction, time_ns: u64, packets: &[Packet]) -> io::Result<()> {
        if packets.is_empty() {
            return Ok(());
        }
        let mut file = self.file.lock();
        for packet in packets {
            file.write_block(ENHANCED_PACKET, |body| {
                body.extend(self.interface.to_le_bytes());
                body.extend(((time_ns >> 32) as u32).to_le_bytes());
                body.extend((time_ns as u32).to_le_bytes());
                let len = packet.len() as u32;
                let mut left = len.min(self.snaplen) as usize;
                // The captured length precedes the original length.
                body.extend((left as u32).to_le_bytes());
                body.extend(len.to_le_bytes());
                for piece in packet.slices() {
                    let take = piece.len().min(left);
                    body.extend(&piece[..take]);
                    left -= take;
                }
                pad(body);
                option(body, EPB_FLAGS, &(direction as u32).to_le_bytes());
                option(body, 0, &[]);
            })?;
        }
        file.out.flush()
    }
}

impl CaptureFile {
    /// Writes a block: type, length, body, and the length again.
    fn write_block(&mut self, kind: u32, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let block = &mut self.block;
        block.clear();
        block.extend(kind.to_le_bytes());
        block.extend([0; 4]);
        body(block);
        let len = (block.len() as u32 + 4).to_le_bytes();
        block[4..8].copy_from_slice(&len);
        block.extend(len);
        self.out.write_all(block)
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

/// Pads the body to a multiple of four bytes, at which every part of a block begins.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

/// A device with a packet capture, which records the packets sent and received.
///
/// If the capture cannot be written, e.g. because the disk is full, it stops with a warning, and traffic
/// continues.
///
/// ```
/// use fullsend_device::{Capture, CapturedDevice, Device, PairConfig, pair};
/// use fullsend_offload::{Link, Packet, Slice};
///
/// let capture = Capture::new(std::io::BufWriter::new(std::io::sink()))?; // a file, usually
/// let (device, _peer) = pair(PairConfig::default());
/// let interface = capture.add_interface("fs0", Link::Ip)?;
/// let mut device = CapturedDevice::new(device, interface);
/// device.transmit(&mut [Packet::from_frame(Slice::copied_from(&[0x45]))].into())?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct CapturedDevice<D> {
    device: D,
    capture: Option<CaptureInterface>,
    clock: Box<dyn FnMut() -> u64 + Send>,
    offered: Vec<Packet>,
}

impl<D: Device> CapturedDevice<D> {
    /// Records the packets of `device` to `capture`, with timestamps of the wall clock.
    pub fn new(device: D, capture: CaptureInterface) -> Self {
        Self::with_clock(device, capture, wall_clock_ns)
    }

    /// Records the packets of `device` to `capture`, with timestamps of `clock` in ns since the epoch.
    pub fn with_clock(
        device: D,
        capture: CaptureInterface,
        clock: impl FnMut() -> u64 + Send + 'static,
    ) -> Self {
        Self {
            device,
            capture: Some(capture),
            clock: Box::new(clock),
            offered: Vec::new(),
        }
    }

    /// Ends the capture and returns the wrapped device.
    pub fn into_inner(self) -> D {
        self.device
    }

    fn record(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            tracing::warn!("packet recording stopped: cannot write the capture: {error}");
            self.capture = None;
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the recorder needs the real time of packets"
)]
fn wall_clock_ns() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

impl<D: Device> Device for CapturedDevice<D> {
    fn caps(&self) -> Caps {
        self.device.caps()
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        if self.capture.is_none() {
            return self.device.transmit(batch);
        }
        // The accepted packets are known only afterwards, when they are gone from the batch, so all are
        // kept. The time is read before, so that no answer has an earlier timestamp than its request.
        let time_ns = (self.clock)();
        self.offered.extend(batch.iter().cloned());
        let result = self.device.transmit(batch);
        let taken = self.offered.len().saturating_sub(batch.len());
        if let Some(capture) = &self.capture {
            let recorded = capture.outbound(time_ns, &self.offered[..taken]);
            self.record(recorded);
        }
        self.offered.clear();
        result
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let before = batch.len();
        let got = self.device.receive(batch, max)?;
        if let Some(capture) = &self.capture {
            let recorded = capture.inbound((self.clock)(), &batch[before..]);
            self.record(recorded);
        }
        Ok(got)
    }

    fn has_received(&self) -> bool {
        self.device.has_received()
    }

    fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    fn notify_completion(&mut self) -> bool {
        self.device.notify_completion()
    }

    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }

    fn set_waker(&mut self, waker: &Waker) -> bool {
        self.device.set_waker(waker)
    }

    fn take_notifier(&mut self) -> Option<Notifier> {
        self.device.take_notifier()
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.device.limit_memory(pool, max_bytes);
    }

    fn counters(&mut self) -> DeviceCounters {
        self.device.counters()
    }

    fn close(&mut self) {
        self.device.close();
    }
}
