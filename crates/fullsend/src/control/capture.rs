//! A recording of what passes the stack's device, bounded in memory: what a slow client leaves no
//! room for is dropped and counted.

use std::io;
use std::mem;
use std::sync::{Arc, Weak};

use fullsend_device::Capture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::view::CaptureSummary;
use crate::clock::wall_clock_ns;
use crate::engine::Engine;

/// Most bytes that wait for a client.
const LIMIT: usize = 8 << 20;
/// Type of a pcapng block that holds a packet.
const ENHANCED_PACKET: [u8; 4] = 6u32.to_le_bytes();

/// What waits for the client.
struct Buffer {
    bytes: Vec<u8>,
    summary: CaptureSummary,
    /// Packets still to record.
    left: u64,
}

#[derive(Clone)]
struct Ring {
    buffer: Arc<Mutex<Buffer>>,
    filled: Arc<Notify>,
}

impl io::Write for Ring {
    /// Takes one block of pcapng: the recorder writes each at once.
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        let mut buffer = self.buffer.lock();
        if block.starts_with(&ENHANCED_PACKET) {
            if buffer.left == 0 {
                return Ok(block.len());
            }
            if buffer.bytes.len() + block.len() > LIMIT {
                buffer.summary.dropped += 1;
                return Ok(block.len());
            }
            buffer.left -= 1;
            buffer.summary.packets += 1;
        }
        let was_empty = buffer.bytes.is_empty();
        buffer.bytes.extend_from_slice(block);
        if was_empty || buffer.left == 0 {
            self.filled.notify_one();
        }
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A recording that goes on until this is dropped.
pub(super) struct LiveCapture {
    engine: Weak<Engine>,
    /// By which the engine knows it.
    number: u64,
    capture: Capture,
    ring: Ring,
}

impl Drop for LiveCapture {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.end_tap(self.number);
        }
    }
}

impl LiveCapture {
    /// Begins; only one runs at a time.
    pub(super) fn start(
        engine: &Arc<Engine>,
        count: Option<u64>,
        snaplen: Option<u32>,
    ) -> Result<Self, String> {
        let ring = Ring {
            buffer: Arc::new(Mutex::new(Buffer {
                bytes: Vec::new(),
                summary: CaptureSummary::default(),
                left: count.unwrap_or(u64::MAX),
            })),
            filled: Arc::default(),
        };
        let mut capture = Capture::new(ring.clone()).map_err(|error| error.to_string())?;
        if let Some(snaplen) = snaplen {
            capture = capture.snaplen(snaplen);
        }
        let point = |link| capture.tap_point(engine.link_name(), link);
        let number = engine
            .begin_tap(point)
            .map_err(|error| error.to_string())?
            .ok_or("a capture of this stack runs already: end that first")?;
        Ok(Self {
            engine: Arc::downgrade(engine),
            number,
            capture,
            ring,
        })
    }

    /// What was recorded since the last call, when there is some; `None` once all packets that
    /// were asked for have been given. May be dropped half-way.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            {
                let mut buffer = self.ring.buffer.lock();
                if !buffer.bytes.is_empty() {
                    return Some(mem::take(&mut buffer.bytes));
                }
                if buffer.left == 0 {
                    return None;
                }
            }
            self.ring.filled.notified().await;
        }
    }

    /// Ends the recording: what is left of it, and how it went.
    pub(super) fn finish(&mut self) -> (Vec<u8>, CaptureSummary) {
        if let Some(engine) = self.engine.upgrade() {
            engine.end_tap(self.number);
        }
        let summary = self.ring.buffer.lock().summary;
        // Into memory: cannot fail.
        let _ = self
            .capture
            .statistics(wall_clock_ns(), 0, (summary.packets, summary.dropped));
        let rest = mem::take(&mut self.ring.buffer.lock().bytes);
        (rest, summary)
    }
}
