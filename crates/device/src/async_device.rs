//! A device made of any `AsyncRead + AsyncWrite` of packets.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use fullsend_offload::{Link, Packet, Pool};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::tun::receive::FrameReader;
use crate::tun::transmit::{self, LinkLog};
use crate::tun::{FrameHeader, TunStats};
use crate::{Caps, Device, DeviceCounters};

/// Bytes of free memory that the device's own pool keeps.
const POOL_BYTES: usize = 16 << 20;

/// A device that reads and writes packets through tokio's [`AsyncRead`] and [`AsyncWrite`]. Each read
/// must return one packet, and each write must send one, as with the devices of the crates `tun` and
/// `tun-rs`. An empty read ends the device.
///
/// It needs no task: the driver polls it. The driver calls the two traits with the stack's lock held, so
/// they must not use sockets of the same stack.
///
/// ```
/// use fullsend_device::{AsyncDevice, Device};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # let _context = runtime.enter();
/// /// // In place of a tun device: a pipe that carries the one packet of this example.
/// let (io, _other) = tokio::io::duplex(1500);
/// let device = AsyncDevice::new(io, 1500);
/// assert_eq!(device.caps().mtu, 1500);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct AsyncDevice<T> {
    io: T,
    caps: Caps,
    reader: FrameReader,
    waker: Waker,
    stats: TunStats,
    link_log: LinkLog,
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> AsyncDevice<T> {
    /// Returns a device for IP packets of at most `mtu` bytes, without offloads.
    pub fn new(io: T, mtu: u32) -> Self {
        Self::with_link(io, Link::Ip, mtu)
    }

    /// Returns a device for packets of a link layer whose IP packets have at most `mtu` bytes.
    pub fn with_link(io: T, link: Link, mtu: u32) -> Self {
        Self {
            io,
            caps: Caps::plain(link, mtu),
            reader: FrameReader::new(Pool::new(POOL_BYTES), FrameHeader::None)
                .ends_with_empty_frame(),
            waker: Waker::noop().clone(),
            stats: TunStats::default(),
            link_log: LinkLog::default(),
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> TunStats {
        self.stats
    }
}

/// Converts the result of a poll to that of a non-blocking call.
fn non_blocking<R>(poll: Poll<io::Result<R>>) -> io::Result<R> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Device for AsyncDevice<T> {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let Self { io, waker, .. } = self;
        let mut whole = Vec::new();
        let write = |pieces: &[IoSlice<'_>]| {
            let mut cx = Context::from_waker(waker);
            let io = Pin::new(&mut *io);
            if pieces.len() == 1 || io.is_write_vectored() {
                return non_blocking(io.poll_write_vectored(&mut cx, pieces));
            }
            whole.clear();
            for piece in pieces {
                whole.extend_from_slice(piece);
            }
            non_blocking(io.poll_write(&mut cx, &whole))
        };
        let counters = (&mut self.stats, &mut self.link_log);
        transmit::transmit_with((write, "device"), FrameHeader::None, batch, counters)
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let Self { io, waker, .. } = self;
        let read = |buf: &mut [u8]| {
            let mut cx = Context::from_waker(waker);
            let mut buf = ReadBuf::new(buf);
            non_blocking(Pin::new(&mut *io).poll_read(&mut cx, &mut buf))?;
            Ok(buf.filled().len())
        };
        self.reader.receive_with(read, batch, max, &mut self.stats)
    }

    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn set_waker(&mut self, waker: &Waker) -> bool {
        self.waker.clone_from(waker);
        true
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.reader.limit_memory(pool, max_bytes);
    }

    fn counters(&mut self) -> DeviceCounters {
        self.stats().into()
    }
}

impl<T> fmt::Debug for AsyncDevice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncDevice")
            .field("caps", &self.caps)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use fullsend_offload::{Packet, Slice};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::AsyncDevice;
    use crate::Device;

    /// A tun-like device: reads return the packets of `input`, and `room` packets can be written.
    struct Frames {
        input: VecDeque<Vec<u8>>,
        output: Vec<Vec<u8>>,
        room: usize,
        ended: bool,
    }

    impl AsyncRead for Frames {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.input.pop_front() {
                Some(frame) => buf.put_slice(&frame),
                None if self.ended => {}
                None => return Poll::Pending,
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Frames {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            frame: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.room == self.output.len() {
                return Poll::Pending;
            }
            self.output.push(frame.to_vec());
            Poll::Ready(Ok(frame.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn each_read_and_write_is_a_packet() {
        let mut device = AsyncDevice::new(
            Frames {
                input: [vec![0x45; 40], vec![0x60; 1500]].into(),
                output: Vec::new(),
                room: 1,
                ended: false,
            },
            1500,
        );
        assert!(device.set_waker(Waker::noop()));
        let mut batch = Vec::new();
        assert_eq!(device.receive(&mut batch, 64).unwrap(), 2);
        assert_eq!(batch[1].to_bytes(), [0x60; 1500]);
        assert_eq!(device.receive(&mut batch, 64).unwrap(), 0);
        // The pieces of a packet are one write.
        let mut packet = Packet::from_frame(Slice::copied_from(&[1; 10]));
        packet.payload.push(Slice::copied_from(&[2; 10]));
        let mut out = VecDeque::from([packet.clone(), packet]);
        device.transmit(&mut out).unwrap();
        assert_eq!(out.len(), 1, "no room for the second");
        assert_eq!(device.io.output, [[[1; 10], [2; 10]].concat()]);
        device.io.ended = true;
        let error = device.receive(&mut batch, 64).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
