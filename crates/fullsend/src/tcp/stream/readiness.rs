//! Waiting until a connection can be read or written.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use fullsend_stack::{Interest as HostInterest, WaitKey};
use tokio::io::{Interest, Ready};

use super::TcpStream;
use crate::error::check_interest;
use crate::readiness::{poll_of, poll_within_budget};
use crate::wait_registration::waiter;

impl TcpStream {
    /// Waits until a read would not block: it returns data, the end of the stream, or an error. As with
    /// tokio's sockets, the stream stays ready until a read returns `WouldBlock`, or a poll reads less
    /// than it has room for: a read may find nothing.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn readable(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Read).await
    }

    /// Waits until the stream is writable as `poll(2)` defines it: a third of the send buffer is
    /// free, and less than half of `TCP_NOTSENT_LOWAT` is unsent. As with tokio's sockets, the stream
    /// stays ready until a write returns `WouldBlock`, or a poll writes less than it was given.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn writable(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Write).await
    }

    /// Waits until the stream is writable as `poll(2)` defines it at present: unlike
    /// [`writable`](Self::writable), which stays ready until a write would block. A relay that waits
    /// for it before it reads from elsewhere holds no data for which there is no room.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn has_room(&self) -> io::Result<()> {
        let mut wait_registration = self.wait_registration(HostInterest::Write);
        poll_fn(|cx| {
            let mut key = wait_registration.key();
            poll_of(self.engine.op(|host, now| {
                let waiter = waiter(cx, &mut key);
                self.is_ready_or_waits(host, now, HostInterest::Write, waiter)
            }))
        })
        .await
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
        poll_within_budget(cx, |cx| self.poll_host_ready(cx, HostInterest::Read, None))
    }

    /// Polls [`writable`](Self::writable). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_within_budget(cx, |cx| self.poll_host_ready(cx, HostInterest::Write, None))
    }
}
