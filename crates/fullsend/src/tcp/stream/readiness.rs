//! Waiting until a connection can be read or written.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use fullsend_stack::{Interest as HostInterest, WaitKey};
use tokio::io::{Interest, Ready};

use super::TcpStream;
use crate::error::check_interest;

impl TcpStream {
    /// Waits until a read would not block: it returns data, the end of the stream, or an error.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn readable(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Read).await
    }

    /// Waits until the stream is writable as `poll(2)` defines it: a third of the send buffer is
    /// free, and less than half of `TCP_NOTSENT_LOWAT` is unsent.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn writable(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Write).await
    }

    /// Waits until the stream is ready for any of `interest`, and returns for which. A direction that
    /// has ended is ready, and `READ_CLOSED` or `WRITE_CLOSED` is set.
    ///
    /// # Errors
    /// `InvalidInput` if `interest` is neither readable nor writable; the stack's error if it has
    /// stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        check_interest(interest)?;
        let [mut reading, mut writing] = [HostInterest::Read, HostInterest::Write]
            .map(|direction| self.wait_registration(direction));
        poll_fn(|cx| {
            let mut ready = Ready::EMPTY;
            let mut is_ready = |direction, key: Option<&mut WaitKey>| -> io::Result<bool> {
                Ok(self.poll_host_ready(cx, direction, key)?.is_ready())
            };
            if interest.is_readable() && is_ready(HostInterest::Read, reading.key())? {
                ready |= Ready::READABLE;
            }
            if interest.is_writable() && is_ready(HostInterest::Write, writing.key())? {
                ready |= Ready::WRITABLE;
            }
            if ready.is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(Ok(ready | self.ready_now(interest)?))
            }
        })
        .await
    }

    /// Polls [`readable`](Self::readable). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_host_ready(cx, HostInterest::Read, None)
    }

    /// Polls [`writable`](Self::writable). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_host_ready(cx, HostInterest::Write, None)
    }
}
