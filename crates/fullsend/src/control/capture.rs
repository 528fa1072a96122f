//! A capture of the packets that pass the stack's device, with bounded memory: packets for which a slow
//! client leaves no room are dropped and counted.

use std::io;
use std::mem;
use std::sync::{Arc, Weak};

use fullsend_device::Capture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::filter::Filter;
use super::{CaptureRequest, CaptureSummary};
use crate::clock::wall_clock_ns;
use crate::engine::{Engine, Group};

/// Default and maximum size, in bytes, of the buffer for one client.
const DEFAULT_BUFFER_BYTES: u64 = 8 << 20;
const MAX_BUFFER_BYTES: u64 = 1 << 30;
/// Types of pcapng blocks: interface description and enhanced packet.
const INTERFACE_BLOCK: [u8; 4] = 1u32.to_le_bytes();
const ENHANCED_PACKET_BLOCK: [u8; 4] = 6u32.to_le_bytes();
/// Offsets in an enhanced packet block, in bytes: of the packet and of its captured length.
const PACKET_OFFSET: usize = 28;
const CAPTURED_LEN_OFFSET: usize = 20;
/// pcapng's link type of Ethernet, and its offset in an interface description block.
const LINK_TYPE_ETHERNET: [u8; 2] = 1u16.to_le_bytes();
const LINK_TYPE_OFFSET: usize = 8;

/// The data that waits for the client.
struct CaptureBuffer {
    bytes: Vec<u8>,
    summary: CaptureSummary,
    /// Number of packets still to capture.
    remaining: u64,
    /// Size limit of `bytes`.
    limit: usize,
    filter: Option<Filter>,
    /// Whether packets begin with an Ethernet header.
    ethernet: bool,
}

impl CaptureBuffer {
    /// Returns whether the packet in `block` passes the filter.
    fn is_selected(&self, block: &[u8]) -> bool {
        let Some(filter) = &self.filter else {
            return true;
        };
        let len = block
            .get(CAPTURED_LEN_OFFSET..)
            .and_then(|len| len.first_chunk());
        let len = len.map_or(0, |len| u32::from_le_bytes(*len) as usize);
        let packet = block.get(PACKET_OFFSET..).and_then(|rest| rest.get(..len));
        packet.is_some_and(|packet| filter.passes(packet, self.ethernet))
    }
}

#[derive(Clone)]
struct CaptureWriter {
    buffer: Arc<Mutex<CaptureBuffer>>,
    filled: Arc<Notify>,
}

impl io::Write for CaptureWriter {
    /// Accepts one pcapng block: the writer passes each block in one call.
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        let mut buffer = self.buffer.lock();
        if block.starts_with(&INTERFACE_BLOCK) {
            buffer.ethernet =
                block.get(LINK_TYPE_OFFSET..LINK_TYPE_OFFSET + 2) == Some(&LINK_TYPE_ETHERNET);
        }
        if block.starts_with(&ENHANCED_PACKET_BLOCK) {
            if buffer.remaining == 0 || !buffer.is_selected(block) {
                return Ok(block.len());
            }
            if buffer.bytes.len() + block.len() > buffer.limit {
                buffer.summary.dropped += 1;
                return Ok(block.len());
            }
            buffer.remaining -= 1;
            buffer.summary.packets += 1;
        }
        let was_empty = buffer.bytes.is_empty();
        buffer.bytes.extend_from_slice(block);
        if was_empty || buffer.remaining == 0 {
            self.filled.notify_one();
        }
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A running capture. Dropping it ends it.
pub(super) struct LiveCapture {
    /// The captured shards, each with its number of this capture.
    shards: Vec<(Weak<Engine>, u64)>,
    capture: Capture,
    writer: CaptureWriter,
}

impl Drop for LiveCapture {
    fn drop(&mut self) {
        self.end();
    }
}

impl LiveCapture {
    /// Starts a capture. Fails if another one is running or the filter is invalid.
    pub(super) fn start(
        group: &Arc<Group>,
        capture_request: &CaptureRequest,
    ) -> Result<Self, String> {
        let filter = capture_request
            .filter
            .as_deref()
            .map(Filter::parse)
            .transpose()?;
        let limit = capture_request
            .buffer
            .unwrap_or(DEFAULT_BUFFER_BYTES)
            .clamp(1 << 16, MAX_BUFFER_BYTES);
        let writer = CaptureWriter {
            buffer: Arc::new(Mutex::new(CaptureBuffer {
                bytes: Vec::new(),
                summary: CaptureSummary::default(),
                remaining: capture_request.count.unwrap_or(u64::MAX),
                limit: usize::try_from(limit).unwrap_or(usize::MAX),
                filter,
                ethernet: false,
            })),
            filled: Arc::default(),
        };
        let mut capture = Capture::new(writer.clone()).map_err(|error| error.to_string())?;
        if let Some(snaplen) = capture_request.snaplen {
            capture = capture.snaplen(snaplen);
        }
        let mut live = Self {
            shards: Vec::new(),
            capture,
            writer,
        };
        for engine in group.engines() {
            let capture = &mut live.capture;
            let capture_interface = |link| capture.add_interface(group.link_name(), link);
            let number = engine
                .begin_capture(capture_interface)
                .map_err(|error| error.to_string())?
                .ok_or("another capture of this stack is running; stop it first")?;
            live.shards.push((Arc::downgrade(&engine), number));
        }
        Ok(live)
    }

    fn end(&mut self) {
        for (engine, number) in self.shards.drain(..) {
            if let Some(engine) = engine.upgrade() {
                engine.end_capture(number);
            }
        }
    }

    /// Waits for packets and returns those captured since the last call, or `None` after the
    /// requested number of packets. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            {
                let mut buffer = self.writer.buffer.lock();
                if !buffer.bytes.is_empty() {
                    return Some(mem::take(&mut buffer.bytes));
                }
                if buffer.remaining == 0 {
                    return None;
                }
            }
            self.writer.filled.notified().await;
        }
    }

    /// Ends the capture. Returns the remaining data and the summary.
    pub(super) fn finish(&mut self) -> (Vec<u8>, CaptureSummary) {
        self.end();
        let summary = self.writer.buffer.lock().summary;
        // Writing to memory cannot fail.
        let _ =
            self.capture
                .write_statistics(wall_clock_ns(), 0, (summary.packets, summary.dropped));
        let rest = mem::take(&mut self.writer.buffer.lock().bytes);
        (rest, summary)
    }
}
