//! A TCP socket of the host.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fullsend::{Chain, Slice, WriteBuf};
use nix::errno::Errno;
use rustix::pipe::{SpliceFlags, splice};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::relay::HALF_CLOSED_PROBE;
use crate::config::Outbound;
use crate::outbound_socket::bind_outbound;
use crate::payload_memory::PayloadMemory;
use crate::reactor::register;

/// Largest number of slices that one `writev` passes.
const MAX_SLICES: usize = 64;
/// Size of the blocks of a large read, bytes. A block is one super-segment.
const BLOCK_BYTES: usize = 64 << 10;
/// Largest number of blocks of one `readv`.
const MAX_BLOCKS: usize = 4;
/// Interval at which a socket with urgent data is polled for the end of its stream.
const URGENT_POLL_INTERVAL: Duration = Duration::from_secs(1);
const SPLICE_FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

/// The location of received data.
pub(super) enum Moved {
    /// The data is in the pipe; its length in bytes.
    IntoPipe(usize),
    /// The data was copied; its length in bytes.
    Copied(usize),
    /// The stream has ended.
    End,
}

/// A TCP socket of the host, registered with the reactor. Dropping it, e.g. when the gateway stops, sends
/// a RST and discards its data. After [`shutdown_write`](Self::shutdown_write) that happens only if
/// received data is unread or more arrives; otherwise the kernel still delivers the data.
pub(crate) struct HostStream {
    /// The socket, shared with a tool that lists flows, which may delay its end for the time of one read.
    fd: Arc<AsyncFd<Socket>>,
}

impl HostStream {
    /// Connects to `to`.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) async fn connect(to: SocketAddr, outbound: &Outbound) -> io::Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::TCP))?;
        bind_outbound(&socket, to, outbound)?;
        Self::connect_socket(socket, to).await
    }

    /// Connects a non-blocking socket to `to`.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) async fn connect_socket(socket: Socket, to: SocketAddr) -> io::Result<Self> {
        let connected = match socket.connect(&to.into()) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(Errno::EINPROGRESS as i32) => false,
            Err(error) => return Err(error),
        };
        let stream = Self::new(socket)?;
        if !connected {
            stream.fd.writable().await?.retain_ready();
            if let Some(error) = stream.fd.get_ref().take_error()? {
                return Err(error);
            }
        }
        Ok(stream)
    }

    /// Adds a connected, non-blocking socket to the reactor.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn new(socket: Socket) -> io::Result<Self> {
        // The guest has chosen the sizes of its segments.
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(true)?;
        // Urgent data is received in its place in the stream, like all other data.
        socket.set_out_of_band_inline(true)?;
        let fd = Arc::new(register(socket)?);
        let stream = Self { fd };
        stream.reset_on_drop();
        Ok(stream)
    }

    /// Returns a weak reference for tools.
    pub(super) fn downgrade(&self) -> Weak<AsyncFd<Socket>> {
        Arc::downgrade(&self.fd)
    }

    /// Waits for data, reads at most `want` bytes into memory of `pool`, and appends them to `data`.
    /// Returns the number of bytes, or 0 at the end of the stream. While memory is refused, the data
    /// stays in the socket.
    ///
    /// Cancel safe: no data is lost if the future is dropped.
    pub(crate) async fn read(
        &self,
        pool: &PayloadMemory,
        want: usize,
        data: &mut VecDeque<Slice>,
    ) -> io::Result<usize> {
        loop {
            let mut ready = self
                .fd
                .ready(Interest::READABLE | Interest::PRIORITY)
                .await?;
            // Memory is allocated only when data is ready: an idle connection has none.
            let mut blocks = allocate(pool, want);
            if blocks.is_empty() {
                drop(ready);
                pool.wait().await;
                continue;
            }
            let mut spare = blocks
                .iter_mut()
                .map(|block| IoSliceMut::new(block.spare_mut()));
            let mut vectors: [IoSliceMut<'_>; MAX_BLOCKS] =
                std::array::from_fn(|_| spare.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
            let capacity: usize = vectors.iter().map(|vector| vector.len()).sum();
            let read = ready.try_io(|fd| fd.get_ref().read_vectored(&mut vectors));
            let n = match read {
                Ok(n) => n?,
                Err(_would_block) => continue,
            };
            if n < capacity && !ready.ready().is_priority() {
                // No data is left, except after the urgent mark, at which each read stops; the next data
                // or the end makes the socket ready again.
                ready.clear_ready();
            }
            freeze(pool, blocks, n, data);
            return Ok(n);
        }
    }

    /// Writes data of the guest, and removes the written part from `data`. Waits until at least one byte
    /// is written.
    ///
    /// Cancel safe: `data` holds the rest if the future is dropped.
    pub(crate) async fn write(&self, data: &mut Chain) -> io::Result<()> {
        loop {
            let mut ready = self.fd.writable().await?;
            let slices = data.slices();
            let mut vectors = [IoSlice::new(&[]); MAX_SLICES];
            let count = slices.len().min(MAX_SLICES);
            for (vector, slice) in vectors.iter_mut().zip(slices) {
                *vector = IoSlice::new(slice);
            }
            let vectors = &vectors[..count];
            let len: usize = vectors.iter().map(|vector| vector.len()).sum();
            let written = ready.try_io(|fd| fd.get_ref().write_vectored(vectors));
            let n = match written {
                Ok(n) => n?,
                Err(_would_block) => continue,
            };
            if n < len {
                ready.clear_ready();
            }
            data.advance(n);
            return Ok(());
        }
    }

    /// Waits for data, the end of the stream, or an error.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await?.retain_ready();
        Ok(())
    }

    /// Waits for room in the send buffer, or an error.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.fd.writable().await?.retain_ready();
        Ok(())
    }

    /// Moves at most `max` bytes of received data into an empty pipe, or copies them into `copied` if
    /// `splice` cannot move them: it stops at the urgent mark. Returns `None` if no data has arrived.
    pub(super) fn splice_to(
        &self,
        pipe: &OwnedFd,
        max: usize,
        copied: &mut [u8],
    ) -> io::Result<Option<Moved>> {
        let moved = self.fd.try_io(Interest::READABLE, |mut socket| {
            match splice(socket, None, pipe, None, max, SPLICE_FLAGS) {
                Ok(0) | Err(rustix::io::Errno::AGAIN) => {}
                spliced => return Ok(Moved::IntoPipe(spliced?)),
            }
            Ok(match socket.read(copied)? {
                0 => Moved::End,
                n => Moved::Copied(n),
            })
        });
        match moved {
            Ok(moved) => Ok(Some(moved)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends data of a pipe that has `len` bytes. Waits until at least one byte is sent, and returns the
    /// number of bytes sent.
    ///
    /// Cancel safe: the pipe has the rest if the future is dropped.
    pub(super) async fn splice_from(&self, pipe: &OwnedFd, len: usize) -> io::Result<usize> {
        loop {
            let mut ready = self.fd.writable().await?;
            let moved =
                ready.try_io(|fd| Ok(splice(pipe, None, fd.get_ref(), None, len, SPLICE_FLAGS)?));
            if let Ok(moved) = moved {
                return moved;
            }
        }
    }

    /// Sends all of `data`.
    pub(super) async fn write_all(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let mut ready = self.fd.writable().await?;
            if let Ok(written) = ready.try_io(|fd| fd.get_ref().write(data)) {
                data = &data[written?..];
            }
        }
        Ok(())
    }

    /// Sends a FIN after all data. Dropping the socket then no longer discards that data.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        self.fd.get_ref().set_linger(None)?;
        self.fd.get_ref().shutdown(Shutdown::Write)
    }

    /// Makes the kernel probe the peer, which has sent its FIN, earlier than other idle peers.
    pub(super) fn probe_half_closed(&self) {
        let keepalive = TcpKeepalive::new().with_time(HALF_CLOSED_PROBE);
        // Does not fail, as each TCP socket has the option.
        let _ = self.fd.get_ref().set_tcp_keepalive(&keepalive);
    }

    /// Makes dropping the socket send a RST, which discards its data.
    pub(super) fn reset_on_drop(&self) {
        // Does not fail, as each TCP socket has the option.
        let _ = self.fd.get_ref().set_linger(Some(Duration::ZERO));
    }

    /// Waits until the socket has an error, such as a RST from the peer.
    pub(crate) async fn failed(&self) -> io::Error {
        loop {
            let mut ready = match self.fd.ready(Interest::ERROR).await {
                Ok(ready) => ready,
                Err(error) => return error,
            };
            match self.fd.get_ref().take_error() {
                Ok(Some(error)) | Err(error) => return error,
                // The other direction has taken the error and reports it.
                Ok(None) => ready.clear_ready(),
            }
        }
    }

    /// Waits for the peer's FIN, even if unread data precedes it.
    pub(super) async fn closed_by_peer(&self) {
        loop {
            // This interest includes the end of the stream, but no data.
            match self.fd.ready(Interest::PRIORITY).await {
                Ok(ready) if !ready.ready().is_read_closed() => {}
                _ => return,
            }
            // Urgent data also makes the socket ready, and only `read` may clear that.
            tokio::time::sleep(URGENT_POLL_INTERVAL).await;
        }
    }

    /// Returns the number of received bytes that can be read.
    pub(super) fn received_bytes(&self) -> io::Result<u64> {
        Ok(rustix::io::ioctl_fionread(self.fd.get_ref())?)
    }
}

/// Allocates the smallest blocks that hold `want` bytes; fewer or none while memory is refused.
fn allocate(pool: &PayloadMemory, want: usize) -> VecDeque<WriteBuf> {
    let count = want.div_ceil(BLOCK_BYTES).clamp(1, MAX_BLOCKS);
    let block = |_| pool.try_alloc(want.min(BLOCK_BYTES));
    let mut blocks: VecDeque<_> = (0..count).map_while(block).collect();
    if blocks.is_empty() {
        blocks.extend(pool.try_alloc_any(want));
    }
    blocks
}

/// Appends the first `n` bytes of the blocks to `data`. Data that fills less than a quarter of its block
/// is copied into a small one: the stack keeps a block until the guest has acknowledged its data, and a
/// server that sends single bytes would otherwise pin much memory.
fn freeze(pool: &PayloadMemory, blocks: VecDeque<WriteBuf>, n: usize, data: &mut VecDeque<Slice>) {
    let mut left = n;
    for mut block in blocks {
        let capacity = block.remaining();
        let filled = left.min(capacity);
        if filled == 0 {
            break;
        }
        block.advance(filled);
        left -= filled;
        if filled < capacity / 4
            && let Some(mut small) = pool.try_alloc(filled)
        {
            small.write(block.filled());
            block = small;
        }
        data.push_back(block.freeze());
    }
}

/// The size of the next read, adapted to the last ones: small blocks for small messages, and several
/// super-segments for bulk data.
pub(super) struct ReadSize(usize);

impl ReadSize {
    const MIN: usize = 2 << 10;
    /// Most bytes that a relay reads from a socket at once.
    pub(super) const MAX: usize = MAX_BLOCKS * BLOCK_BYTES;

    pub(super) const fn new() -> Self {
        Self(16 << 10)
    }

    pub(super) const fn get(&self) -> usize {
        self.0
    }

    /// Adapts the size to a read of `n` bytes.
    pub(super) fn adapt(&mut self, n: usize) {
        if n >= self.0 {
            self.0 = (self.0 * 4).min(Self::MAX);
        } else if n * 4 <= self.0 {
            self.0 = (self.0 / 2).max(Self::MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use fullsend::Pool;

    use super::*;

    /// A stream with `sent` bytes that wait.
    fn stream_with(sent: &[u8]) -> (HostStream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.write_all(sent).unwrap();
        let socket = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        (HostStream::new(socket.into()).unwrap(), peer)
    }

    #[tokio::test(start_paused = true)]
    async fn data_stays_in_the_socket_while_memory_is_refused() {
        let pool = PayloadMemory::new(Pool::new(1 << 20));
        let sent: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        let (stream, _peer) = stream_with(&sent);
        let stock = pool.exhaust();
        let mut data = VecDeque::new();
        {
            let mut read = pin!(stream.read(&pool, ReadSize::MAX, &mut data));
            let waits = tokio::time::timeout(Duration::from_secs(10), read.as_mut()).await;
            assert!(waits.is_err());
            assert!(pool.refused() > 0);
            drop(stock);
            assert!(read.await.unwrap() > 0);
        }
        pool.pool().set_reserve(0);
        while data.iter().map(Slice::len).sum::<usize>() < sent.len() {
            assert!(stream.read(&pool, ReadSize::MAX, &mut data).await.unwrap() > 0);
        }
        let received: Vec<u8> = data.iter().flat_map(|slice| slice.to_vec()).collect();
        assert_eq!(received, sent);
    }

    #[test]
    fn reads_of_single_bytes_pin_little_memory() {
        let pool = PayloadMemory::new(Pool::new(1 << 20));
        for want in [ReadSize::MIN, BLOCK_BYTES, ReadSize::MAX] {
            let mut data = VecDeque::new();
            for _ in 0..1000 {
                let mut blocks = allocate(&pool, want);
                blocks[0].spare_mut()[0] = 7;
                freeze(&pool, blocks, 1, &mut data);
            }
            assert!(data.iter().all(|slice| slice[..] == [7]));
            let pinned: usize = data.iter().map(Slice::pinned).sum();
            assert!(pinned <= 1000 * 512, "{pinned} bytes");
        }
    }

    #[test]
    fn full_blocks_are_not_copied() {
        let pool = PayloadMemory::new(Pool::new(1 << 20));
        let mut data = VecDeque::new();
        let blocks = allocate(&pool, ReadSize::MAX);
        freeze(&pool, blocks, 2 * BLOCK_BYTES + 100, &mut data);
        let lens: Vec<_> = data.iter().map(Slice::len).collect();
        assert_eq!(lens, [BLOCK_BYTES, BLOCK_BYTES, 100]);
        assert!(data[2].pinned() <= 512);
    }
}
