//! The halves of a stream, borrowed and owned, with tokio's I/O traits for them and for the stream.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes};
use fullsend_offload::Chain;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use crate::tcp::TcpStream;

/// Borrowed read half of a [`TcpStream`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// Borrowed write half of a [`TcpStream`].
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

/// Owned read half of a [`TcpStream`].
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

/// Owned write half of a [`TcpStream`]. Dropping it sends a FIN, as in tokio.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<TcpStream>,
    shutdown_on_drop: bool,
}

/// Error of `reunite`: the two halves belong to different streams. It returns them.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves belong to different streams; pass the two halves of one stream")
    }
}

impl std::error::Error for ReuniteError {}

impl AsRef<Self> for TcpStream {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl TcpStream {
    /// Splits the stream into halves that borrow it.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Splits the stream into halves that two tasks can own.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Arc::new(self);
        let write = OwnedWriteHalf {
            stream: stream.clone(),
            shutdown_on_drop: true,
        };
        (OwnedReadHalf(stream), write)
    }
}

impl OwnedReadHalf {
    /// Joins both halves into one stream again.
    ///
    /// # Errors
    /// If the halves belong to different streams.
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Arc::ptr_eq(&self.0, &write.stream) {
            return Err(ReuniteError(self, write));
        }
        write.forget();
        // The write half was the only other owner.
        Arc::try_unwrap(self.0).map_err(|stream| {
            let write = OwnedWriteHalf {
                stream: stream.clone(),
                shutdown_on_drop: true,
            };
            ReuniteError(Self(stream), write)
        })
    }
}

impl OwnedWriteHalf {
    /// Joins both halves into one stream again.
    ///
    /// # Errors
    /// If the halves belong to different streams.
    pub fn reunite(self, read: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        read.reunite(self)
    }

    /// Drops this half without sending a FIN.
    pub fn forget(mut self) {
        self.shutdown_on_drop = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shutdown_on_drop {
            self.stream.engine.close(self.stream.id, |id, host, now| {
                // Fails if the connection has ended.
                let _ = host.tcp(id).shutdown_write(now);
            });
        }
    }
}

/// Defines the methods of a half, each of which calls the stream's.
macro_rules! delegate {
    ($half:ty, |$self:ident| $stream:expr) => {
        impl AsRef<TcpStream> for $half {
            fn as_ref(&self) -> &TcpStream {
                let $self = self;
                $stream
            }
        }

        impl $half {
            fn stream(&self) -> &TcpStream {
                self.as_ref()
            }

            /// Returns the local address.
            ///
            /// # Errors
            /// The errors of [`TcpStream::local_addr`].
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.stream().local_addr()
            }

            /// Returns the peer's address.
            ///
            /// # Errors
            /// The errors of [`TcpStream::peer_addr`].
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.stream().peer_addr()
            }

            /// Waits until the stream is ready for any of `interest`, and returns for which.
            ///
            /// # Errors
            /// The errors of [`TcpStream::ready`].
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                self.stream().ready(interest).await
            }
        }
    };
}

delegate!(ReadHalf<'_>, |half| half.0);
delegate!(WriteHalf<'_>, |half| half.0);
delegate!(OwnedReadHalf, |half| &half.0);
delegate!(OwnedWriteHalf, |half| &half.stream);

macro_rules! read_methods {
    ($half:ty) => {
        impl $half {
            /// Waits for data and copies it into `buf` without removing it from the stream. Returns
            /// the number of bytes.
            ///
            /// # Errors
            /// The errors of [`TcpStream::peek`].
            pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.stream().peek(buf).await
            }

            /// Polls [`peek`](Self::peek). Only the task that polled last is woken.
            ///
            /// # Errors
            /// The errors of [`TcpStream::poll_peek`].
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                self.stream().poll_peek(cx, buf)
            }

            /// Waits until a read would not block.
            ///
            /// # Errors
            /// The errors of [`TcpStream::readable`].
            pub async fn readable(&self) -> io::Result<()> {
                self.stream().readable().await
            }

            /// Reads received data into `buf` without waiting. Returns the number of bytes, and 0 at
            /// the end of the stream.
            ///
            /// # Errors
            /// The errors of [`TcpStream::try_read`].
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.stream().try_read(buf)
            }

            /// Reads received data into the buffers, in order, without waiting.
            ///
            /// # Errors
            /// The errors of [`TcpStream::try_read_vectored`].
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.stream().try_read_vectored(bufs)
            }

            /// Reads received data without waiting and appends it to `buf`.
            ///
            /// # Errors
            /// The errors of [`TcpStream::try_read_buf`].
            pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
                self.stream().try_read_buf(buf)
            }

            /// Reads without copying. Returns the next contiguous received bytes, at most `max`, or
            /// `None` at the end of the stream.
            ///
            /// # Errors
            /// The errors of [`TcpStream::read_chunk`].
            pub async fn read_chunk(&self, max: usize) -> io::Result<Option<Bytes>> {
                self.stream().read_chunk(max).await
            }

            /// Waits for received data and returns it without copying it, at most `max` bytes.
            ///
            /// # Errors
            /// The errors of [`TcpStream::read_chain`].
            pub async fn read_chain(&self, max: usize) -> io::Result<Chain> {
                self.stream().read_chain(max).await
            }
        }
    };
}

read_methods!(ReadHalf<'_>);
read_methods!(OwnedReadHalf);

macro_rules! write_methods {
    ($half:ty) => {
        impl $half {
            /// Waits until the stream is writable.
            ///
            /// # Errors
            /// The errors of [`TcpStream::writable`].
            pub async fn writable(&self) -> io::Result<()> {
                self.stream().writable().await
            }

            /// Writes as much of `data` as the send buffer has room for. Returns the number of
            /// bytes.
            ///
            /// # Errors
            /// The errors of [`TcpStream::try_write`].
            pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
                self.stream().try_write(data)
            }

            /// Writes as many bytes of `bufs`, in order, as the send buffer has room for. Returns
            /// their number.
            ///
            /// # Errors
            /// The errors of [`TcpStream::try_write_vectored`].
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.stream().try_write_vectored(bufs)
            }

            /// Writes all of `data` without copying it: the stack holds it until it is acknowledged.
            ///
            /// # Errors
            /// The errors of [`TcpStream::write_bytes`].
            pub async fn write_bytes(&self, data: Bytes) -> io::Result<()> {
                self.stream().write_bytes(data).await
            }

            /// Writes as much of `data` as the send buffer has room for, with `MSG_MORE`.
            ///
            /// # Errors
            /// The errors of [`TcpStream::write_more`].
            pub async fn write_more(&self, data: &[u8]) -> io::Result<usize> {
                self.stream().write_more(data).await
            }

            /// Waits until all written data (and the FIN, after a shutdown) has been acknowledged.
            ///
            /// # Errors
            /// The errors of [`TcpStream::flushed`].
            pub async fn flushed(&self) -> io::Result<()> {
                self.stream().flushed().await
            }
        }
    };
}

write_methods!(WriteHalf<'_>);
write_methods!(OwnedWriteHalf);

macro_rules! reads {
    ($half:ty) => {
        impl AsyncRead for $half {
            #[inline]
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                AsRef::<TcpStream>::as_ref(&*self).poll_read_inner(cx, buf)
            }
        }
    };
}

reads!(TcpStream);
reads!(ReadHalf<'_>);
reads!(OwnedReadHalf);

macro_rules! writes {
    ($half:ty) => {
        impl AsyncWrite for $half {
            #[inline]
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                AsRef::<TcpStream>::as_ref(&*self).poll_write_inner(cx, data)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                AsRef::<TcpStream>::as_ref(&*self).poll_write_vectored_inner(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(AsRef::<TcpStream>::as_ref(&*self).shutdown_write())
            }
        }
    };
}

writes!(TcpStream);
writes!(WriteHalf<'_>);
writes!(OwnedWriteHalf);
