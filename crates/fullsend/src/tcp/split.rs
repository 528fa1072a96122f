//! The halves of a stream, borrowed and owned, with tokio's I/O traits for them and for the stream.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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

/// Owned write half of a [`TcpStream`]. Dropping it sends a FIN, as with tokio's.
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
            // Fails only if the connection has ended.
            let _ = self.stream.shutdown_write();
        }
    }
}

macro_rules! half {
    ($half:ty, |$self:ident| $stream:expr) => {
        impl Deref for $half {
            type Target = TcpStream;
            fn deref(&self) -> &TcpStream {
                let $self = self;
                $stream
            }
        }
    };
}

half!(ReadHalf<'_>, |half| half.0);
half!(WriteHalf<'_>, |half| half.0);
half!(OwnedReadHalf, |half| &half.0);
half!(OwnedWriteHalf, |half| &half.stream);

macro_rules! reads {
    ($half:ty) => {
        impl AsyncRead for $half {
            #[inline]
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.poll_read_inner(cx, buf)
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
                self.poll_write_inner(cx, data)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.poll_write_vectored_inner(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.shutdown_write())
            }
        }
    };
}

writes!(TcpStream);
writes!(WriteHalf<'_>);
writes!(OwnedWriteHalf);
