//! Data transfer on one connection, at either end.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::ready;
use std::time::Instant;

use tokio::io::{AsyncWriteExt, ReadBuf};

use crate::net::Socket;
use crate::pattern::Pattern;
use crate::preamble::Receipt;

/// Most connections to one port of a server: fewer than a client's ephemeral ports (28,232), so that the
/// client's ports suffice on each shard.
pub(crate) const FLOWS_PER_PORT: usize = 16_000;

/// Most bytes of one copying read.
pub(crate) const READ_MAX: usize = 128 << 10;

thread_local! {
    /// The read buffer that all readers of a thread share, so that it stays in the cache.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_MAX]);
}

/// Reads at most `max` bytes once, and returns the result of `inspect` on them.
async fn read_some<S: Socket, T>(
    socket: &mut S,
    max: usize,
    mut inspect: impl FnMut(&[u8]) -> T,
) -> io::Result<T> {
    poll_fn(|cx| {
        SCRATCH.with_borrow_mut(|scratch| {
            let len = max.min(scratch.len());
            let mut buf = ReadBuf::new(&mut scratch[..len]);
            ready!(Pin::new(&mut *socket).poll_read(cx, &mut buf))?;
            Ok(inspect(buf.filled())).into()
        })
    })
    .await
}

/// Reads exactly `want` bytes. Returns `false` if the stream ends before the first of them.
pub(crate) async fn read_exact_or_eof<S: Socket>(socket: &mut S, want: usize) -> io::Result<bool> {
    let mut left = want;
    while left > 0 {
        match read_some(socket, left, <[u8]>::len).await? {
            0 if left == want => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => left -= n,
        }
    }
    Ok(true)
}

/// A clock that is read only at some steps, as reading it costs as much as a small write.
pub(crate) struct Stopwatch {
    until: Instant,
    every: u32,
    left: u32,
}

impl Stopwatch {
    /// Returns a stopwatch that ends at `until`, for steps of `bytes` each.
    pub(crate) fn new(until: Instant, bytes: usize) -> Self {
        let every = (64 << 10) / bytes.clamp(1 << 10, 64 << 10);
        Self {
            until,
            every: every as u32,
            left: 0,
        }
    }

    /// Returns the time at the steps that read the clock, and `None` at the others.
    #[inline]
    pub(crate) fn tick(&mut self) -> Option<Instant> {
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        self.left = self.every - 1;
        Some(Instant::now())
    }

    /// Returns whether the time is up at `now`.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }
}

/// The mode in which the data of a stream is written and read.
#[derive(Clone)]
pub(crate) struct TransferMode {
    /// Bytes of each write.
    pub(crate) message: usize,
    /// The data to send.
    pub(crate) pattern: Pattern,
    /// Whether the pattern depends on the stream's offset and is verified on arrival.
    pub(crate) verify: bool,
    /// Whether buffers are lent and taken instead of copied.
    pub(crate) zerocopy: bool,
}

impl TransferMode {
    /// Returns the offset in the pattern for the stream's byte at `offset`.
    #[inline]
    fn pattern_offset(&self, offset: u64) -> u64 {
        if self.verify { offset } else { 0 }
    }
}

/// Sends until `until`, and adds the bytes to `progress`. Returns the number of bytes sent.
pub(crate) async fn send<S: Socket>(
    socket: &mut S,
    transfer: &TransferMode,
    until: Instant,
    progress: &AtomicU64,
) -> io::Result<u64> {
    let mut watch = Stopwatch::new(until, transfer.message);
    let (mut sent, mut reported) = (0u64, 0u64);
    loop {
        if let Some(now) = watch.tick() {
            progress.fetch_add(sent - reported, Ordering::Relaxed);
            reported = sent;
            if watch.is_over(now) {
                break;
            }
        }
        let pattern_offset = transfer.pattern_offset(sent);
        if transfer.zerocopy {
            let data = transfer.pattern.bytes_at(pattern_offset, transfer.message);
            socket.write_bytes(data).await?;
        } else {
            let data = transfer.pattern.at(pattern_offset, transfer.message);
            socket.write_all(data).await?;
        }
        sent += transfer.message as u64;
    }
    socket.shutdown().await?;
    Ok(sent)
}

/// Receives until the end of the stream, and adds the bytes to `progress`.
pub(crate) async fn receive<S: Socket>(
    socket: &mut S,
    transfer: &TransferMode,
    progress: &AtomicU64,
) -> io::Result<Receipt> {
    let mut receipt = Receipt {
        bytes: 0,
        first_bad: None,
    };
    loop {
        let before = receipt.bytes;
        let mut inspect = |data: &[u8]| {
            if transfer.verify && receipt.first_bad.is_none() {
                receipt.first_bad = transfer.pattern.mismatch(receipt.bytes, data);
            }
            receipt.bytes += data.len() as u64;
        };
        if transfer.zerocopy {
            inspect(&socket.read_chunk().await?);
        } else {
            read_some(socket, READ_MAX, inspect).await?;
        }
        if receipt.bytes == before {
            return Ok(receipt);
        }
        progress.fetch_add(receipt.bytes - before, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Stopwatch;

    #[test]
    fn small_messages_read_the_clock_less_often() {
        let until = Instant::now() + Duration::from_secs(3600);
        let clock_reads = |bytes| {
            let mut watch = Stopwatch::new(until, bytes);
            (0..640).filter(|_| watch.tick().is_some()).count()
        };
        assert_eq!(clock_reads(128), 10);
        assert_eq!(clock_reads(8 << 10), 80);
        assert_eq!(clock_reads(1 << 20), 640);
    }
}
